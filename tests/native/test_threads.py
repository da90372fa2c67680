"""The pool of threads: without PyTorch, in many threads of Python, and after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertworks.native import library

pytestmark = [
    pytest.mark.light,
    pytest.mark.skipif(not library.is_enabled(), reason="no native code"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
]

# Three layers of 64 tokens; `compute()` returns their output's bits.
LAYERS = """
import os, signal, sys, threading, time
import numpy as np
from bertworks.native.layer import MAPS, NORMS, LayerGeometry, NativeLayer, NativeLayers
from bertworks.packed import Packed

random = np.random.default_rng(0)
shapes = dict(zip(MAPS, [(192, 64), (64, 64), (96, 64), (64, 96)]))
arrays = {f"{name}.weight": random.normal(size=shape).astype("f") / 8
          for name, shape in shapes.items()}
arrays |= {f"{name}.weight": np.ones(64, "f") for name in NORMS}
geometry = LayerGeometry(heads=2, key_heads=2, activation="gelu", epsilon=1e-6)
layer = NativeLayer.from_arrays(arrays, geometry, int8=False, fp32=True)
layers = NativeLayers([layer] * 3)
packed = Packed.from_arrays([np.zeros(length, np.int64) for length in (30, 1, 33)])
hidden = random.normal(size=(64, 64)).astype("f")

def compute():
    return layers(hidden, packed).tobytes()

def count_threads():
    return len(os.listdir("/proc/self/task"))
"""


def run(code: str, threads: int = 3) -> str:
    # NumPy's threads are not counted.
    settings = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", LAYERS + code],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.long
def test_a_forked_child_starts_a_pool_of_its_own():
    code = """
expected = compute()
assert count_threads() == 3, count_threads()
child = os.fork()
if not child:
    signal.alarm(30)  # a child that waits for its parent's threads is killed
    assert count_threads() == 1
    is_same = all(compute() == expected for _ in range(20))
    os._exit(0 if is_same and count_threads() == 3 else 1)
assert os.waitpid(child, 0)[1] == 0
assert compute() == expected
"""
    run(code)


@pytest.mark.long
def test_python_threads_share_the_pool():
    """Whoever finds it busy computes alone: the same bits, and not more threads."""
    code = """
expected = compute()
outcomes = []
def work():
    for _ in range(50):
        outcomes.append(compute() == expected)
workers = [threading.Thread(target=work) for _ in range(4)]
for worker in workers: worker.start()
for worker in workers: worker.join()
assert outcomes == [True] * 200
for _ in range(500):  # a thread of Python is joined before the system forgets it
    if count_threads() == 3: break
    time.sleep(0.01)
assert count_threads() == 3, count_threads()
"""
    run(code)


@pytest.mark.long
def test_no_openmp_library_is_loaded():
    code = """
compute()
assert "torch" not in sys.modules
print(open("/proc/self/maps").read())
"""
    files = {Path(line.split()[-1]).name for line in run(code).splitlines() if line}
    assert "native.so" in files
    assert not [name for name in files if "omp" in name]


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_as_many_as_the_setting_says(threads):
    run(f"compute(); assert count_threads() == {threads}, count_threads()", threads)
