"""Kernels of each instruction set: against the scalar ones, and their functions against float64."""

from __future__ import annotations

import platform
import shutil
import subprocess
from math import erfc
from pathlib import Path

import build_native
import numpy as np
import pytest

from bertworks.native import library
from bertworks.utils.environment import VARIABLES

PROGRAM = Path(__file__).with_name("compare_kernels.c")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"]
needs_library = pytest.mark.skipif(not library.is_enabled(), reason="no native code")


def test_each_instruction_set_and_machine_may_be_chosen():
    names = {name for isas in build_native.ISAS.values() for name in isas}
    assert names | {"", "0", "1"} == {*VARIABLES["BERTWORKS_NATIVE"]}
    assert {"", "none", *build_native.ISAS} == {*VARIABLES["BERTWORKS_MACHINE"]}


@needs_library
@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("number", [-1, 0, 1, 3])
def test_functions_equal_float64(number, is_exact, instruction_sets):
    """A power of two, GELU, its tanh form and SiLU: to 2⁻²⁰, or, for bfloat16, 2⁻¹²."""
    x = np.linspace(*((-126, 0) if number < 0 else (-9, 9)), 4096, dtype=np.float32)
    z = x.astype(np.float64)
    if number < 0:
        expected = np.exp2(z)
    elif number == 3:
        expected = z / (1 + np.exp(-z))
    elif number == 1:
        expected = z / (1 + np.exp(-2 * 0.7978845608028654 * (z + 0.044715 * z**3)))
    else:
        expected = z * [erfc(-value / 2**0.5) / 2 for value in z]
    unit = np.maximum(abs(expected), 0 if number < 0 else 1e-3 * abs(z))
    for name in instruction_sets:
        assert library.library().bertworks_choose(name.encode()) == 0
        actual = np.empty_like(x)
        library.library().bertworks_function(
            x.ctypes.data, len(x), number, is_exact, actual.ctypes.data
        )
        error = (abs(actual - expected) / unit).max()
        assert error < 2.0 ** (-20 if is_exact or number < 0 else -10), name


@needs_library
def test_an_instruction_set_of_another_processor_is_not_chosen(instruction_sets):
    code = library.library()
    assert instruction_sets[0] == "scalar"
    assert code.bertworks_choose(b"no-such-one") != 0
    assert (
        code.bertworks_choose(b"") == 0 and code.bertworks_isa(-1).decode() == instruction_sets[-1]
    )


@pytest.mark.slow
@pytest.mark.parametrize("machine", [platform.machine(), "aarch64"])
def test_kernels_equal_the_scalar_ones(machine, tmp_path):
    """Layers of random shapes; on this machine with sanitizers, on ARM64 by an emulator."""
    out, run, flags, compiler = tmp_path / "compare", [], SANITIZERS, "cc"
    if machine != platform.machine():
        compiler, run = f"{machine}-linux-gnu-gcc", [f"qemu-{machine}-static", "-cpu", "max"]
        flags = ["-static"]
    if not all(map(shutil.which, [compiler, *run[:1]])):
        pytest.skip(f"there is no {compiler}, or nothing that runs its programs")
    assert build_native.link([compiler], machine, out, flags, PROGRAM) is None
    shapes = "40" if machine == platform.machine() else "8"
    done = subprocess.run([*run, out, "1", shapes], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
