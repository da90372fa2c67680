"""Compile the package's native code, if there is a C compiler; hatch calls it when it builds.

    python build_native.py      # the library of a checkout again, after a change of a C file

Without a compiler, or elsewhere than on Linux or macOS on x86-64 or ARM64, the package is built
without it: then inference takes PyTorch's kernels alone (docs/performance.md). Kernels are compiled
once for each instruction set, and those for the processor are chosen when they run, so one build
serves all processors of a kind. On macOS the library has been compiled, but has not run.

`CC` is the compiler's command, and `BERTWORKS_LINKER` the linker's, if the compiler does not link.
`BERTWORKS_MACHINE` is the machine that they are for, if it is another one: a key of `ISAS`, or
`none` for a package without native code.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

NATIVE = Path(__file__).parent / "src/bertworks/native"
LIBRARY = NATIVE / "native.so"
FLAGS = ["-O3", "-fPIC", "-fno-math-errno", "-Wall", "-Wextra", "-pthread"]
_AVX2 = ["-mavx2", "-mfma"]
_AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"]
_AVX512BF16 = [*_AVX512, "-mavx512vnni", "-mavx512bf16"]
_SCALAR = ["-DSCALAR", "-ffp-contract=off"]
ISAS = {
    "x86_64": {
        "scalar": _SCALAR,
        "avx2": _AVX2,
        "avxvnni": [*_AVX2, "-mavxvnni"],
        "avx512": _AVX512,
        "avx512vnni": [*_AVX512, "-mavx512vnni"],
        "avx512bf16": _AVX512BF16,
        "amx": [*_AVX512BF16, "-mamx-tile", "-mamx-int8", "-mamx-bf16"],
    },
    "aarch64": {
        "scalar": _SCALAR,
        "neon": [],
        "neondot": ["-march=armv8.2-a+dotprod"],
        "neonbf16": ["-march=armv8.2-a+dotprod+bf16"],
        "neoni8mm": ["-march=armv8.2-a+dotprod+bf16+i8mm"],
    },
}
"""The instruction sets of each machine, the best one last, and the compiler's flags for each."""
KERNELS = ("attention_fp32", "embeddings_and_pooling", "layer", "linear", "mean_of_rows", "packing")
TRAINING = ("attention", "norms_and_losses")
COMMON = ("dispatch", "threads", "wordpiece")


def target_machine() -> str:
    """The machine that is compiled for."""
    machine = os.environ.get("BERTWORKS_MACHINE") or platform.machine()
    return {"arm64": "aarch64", "AMD64": "x86_64"}.get(machine, machine)


def source_checksum() -> int:
    """The checksum of the C files, which a library states."""
    return zlib.crc32(b"".join(file.read_bytes() for file in sorted(NATIVE.glob("*.[ch]"))))


def is_current() -> bool:
    """Whether the library runs here, and was compiled from these C files by this script."""
    try:
        is_newer = LIBRARY.stat().st_mtime > Path(__file__).stat().st_mtime
        checksum = ctypes.CDLL(str(LIBRARY)).bertworks_source
    except (OSError, AttributeError):  # it is missing, for another machine, or another library
        return False
    checksum.restype = ctypes.c_uint32
    return is_newer and checksum() == source_checksum()


def compile_native() -> str | None:
    """Compile the library in its place; returns why it was not compiled, if so."""
    LIBRARY.unlink(missing_ok=True)
    machine = target_machine()
    if sys.platform not in ("linux", "darwin") or machine not in ISAS:
        return f"it is for Linux and macOS on {' and '.join(ISAS)}"
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(compiler[0]) is None:
        return f"there is no C compiler: {compiler[0]}"
    linker = shlex.split(os.environ.get("BERTWORKS_LINKER", "")) or compiler
    unfinished = LIBRARY.with_name(f".native-{os.getpid()}.so")
    why = link(compiler, machine, unfinished, ["-shared"], linker=linker)
    if why is None:
        unfinished.replace(LIBRARY)
    unfinished.unlink(missing_ok=True)
    return why


def link(
    compiler: list[str],
    machine: str,
    out: Path,
    flags: Sequence[str],
    *sources: Path,
    linker: list[str] | None = None,
) -> str | None:
    """Compile and link all kernels for a machine; returns the compiler's message, if it fails.

    Args:
        compiler: the command, which may be of a cross compiler.
        flags: further flags of the compiler and the linker.
        sources: further files, such as a program that tests the kernels.
        linker: the linker's command; if omitted, the compiler's.
    """
    isas = ISAS[machine]
    names = " ".join(f"DO({isa})" for isa in isas)
    common = [f"-DSOURCE={source_checksum()}u", f"-DISAS={names}", f"-I{NATIVE}"]
    parts = [(NATIVE / f"{name}.c", common) for name in COMMON]
    parts += [(source, common) for source in sources]
    for isa, isa_flags in isas.items():
        parts += [(NATIVE / f"{name}.c", [f"-DISA={isa}", *isa_flags]) for name in KERNELS]
    if machine == "x86_64":
        parts += [(NATIVE / f"{name}.c", _AVX512BF16) for name in TRAINING]
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor() as pool:
        objects = [f"{directory}/{number}.o" for number in range(len(parts))]
        commands = [
            [*compiler, *FLAGS, *flags, *part_flags, "-c", str(source), "-o", file]
            for (source, part_flags), file in zip(parts, objects, strict=True)
        ]
        linking = [*(linker or compiler), *flags, *objects, "-lm", "-pthread", "-o", str(out)]
        errors = [*filter(None, pool.map(_run, commands))]
        return errors[0] if errors else _run(linking)


def _run(command: list[str]) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{command[0]} says: {done.stderr.strip()}" if done.returncode else None


def _tag() -> str:
    if sys.platform == "linux":
        return f"py3-none-linux_{target_machine()}"
    return f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a script
    pass
else:

    class NativeCode(BuildHookInterface[Any]):
        """Adds the library to a wheel, whose name then says for which machines it is."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            variables = {"CC", "BERTWORKS_LINKER", "BERTWORKS_MACHINE"}
            is_chosen = not variables.isdisjoint(os.environ)
            if version == "editable" and is_current() and not is_chosen:
                return  # one checkout serves several environments
            reason = compile_native()
            if reason is not None:
                self.app.display_warning(f"built without native code: {reason}")
                return
            build_data["artifacts"].append(f"/{LIBRARY.relative_to(Path(self.root).resolve())}")
            build_data["pure_python"] = False
            build_data["tag"] = _tag()


if __name__ == "__main__":
    why = compile_native()
    sys.exit(why if why is None else f"error: not compiled: {why}")
