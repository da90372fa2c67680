"""How many processors and threads this process may use, and how threads wait for one another.

GNU OpenMP's threads, which PyTorch uses on Linux, wait by spinning, by default 300,000 times (16 ms
on some processors). On an idle machine that is fastest. While other programs run, a spinning thread
takes the processor from the thread that it waits for, and training is several times slower
(docs/performance.md). The library reads its environment once, when it is loaded.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path

_LOAD = Path("/proc/loadavg")


def count_usable_cpus() -> int:
    """Return how many processors this process may use, by its affinity and its cgroup's quota."""
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup, or no limit
        return count


def num_threads() -> int:
    """How many threads native code uses: as many as PyTorch, if that is loaded."""
    torch = sys.modules.get("torch")
    if torch is not None:
        count: int = torch.get_num_threads()
        return count
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(limit)) if limit.isdecimal() else count_usable_cpus()


def set_num_threads(count: int) -> None:
    """Set how many threads native code uses, and PyTorch and the tokenizers, now or later."""
    os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = str(count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def limit_spinning_of_numpy(environment: MutableMapping[str, str]) -> None:
    """Let the threads of OpenBLAS, which NumPy brings, spin for 2**20 cycles instead of 2**26.

    They also spin when NumPy is imported, before they have work: that is nearly half of the
    processor time of the import. A variable that the user has set is not changed.

    Args:
        environment: the variables of this process, before NumPy is imported.
    """
    environment.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")


def limit_spinning(environment: MutableMapping[str, str], load: Path = _LOAD) -> None:
    """Let waiting threads sleep at once, if other programs use the processors now.

    A variable that the user has set is not changed. The number of threads is not changed either,
    because results depend on it.

    Args:
        environment: the variables of this process, before PyTorch is imported.
        load: Linux's file with the number of running threads; without it nothing changes.
    """
    if environment.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        return
    processors = os.cpu_count() or 1  # those of the load, which is of the whole machine
    value = environment.get("OMP_NUM_THREADS", "")
    threads = int(value) if value.isdecimal() else processors
    if threads > 1 and _is_busy(load, max(0, processors - threads)):
        environment["GOMP_SPINCOUNT"] = "0"


def _is_busy(load: Path, num_free: int) -> bool:
    """Whether other processes run more than `num_free` threads during all of 40 ms.

    A program that runs for a moment is no reason to let threads sleep, which takes half of the
    speed of small models. On an idle machine the first reading decides.
    """
    for reading in range(20):
        if reading:
            time.sleep(0.002)
        try:
            running, _, _ = load.read_text().split()[3].partition("/")
            num_others = int(running) - 1  # this process runs
        except (OSError, ValueError, IndexError):
            return False
        if num_others <= num_free:
            return False
    return True
