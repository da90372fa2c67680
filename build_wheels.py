"""Build what is published into dist/: the sources, and a wheel for each kind of machine.

    make wheels

A wheel for Linux has native code, compiled by GCC, and linked by Zig's C compiler with an old C
library. auditwheel checks the library's symbols and gives the tag. Then each library, as it is in
its wheel, is tested against its own scalar kernels, ARM64's by an emulator. All other systems get
a wheel without native code; there, `pip install --no-binary bertworks bertworks` compiles it, if
there is a compiler.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from build_native import ISAS

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
GLIBC = (2, 28)
"""The C library that is linked with: of RHEL 8, Debian 10 and Ubuntu 18.10."""
LEAST = {"x86_64": "avx2", "aarch64": "neoni8mm"}
"""An instruction set that the machine has on which wheels are built, or the emulator."""
COMPARE = ROOT / "tests/native/compare_kernels.c"


def run(*command: str | Path, **environment: str) -> None:
    print("$", *command, flush=True)
    subprocess.run(command, env={**os.environ, **environment}, check=True)


def build(*arguments: str | Path, machine: str = "none") -> None:
    """Call PyPA's build for a machine, with the packages of this environment."""
    target = f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    run(
        *(sys.executable, "-m", "build", "--no-isolation", *arguments),
        CC=f"{machine}-linux-gnu-gcc",
        BERTWORKS_LINKER=f"{sys.executable} -m ziglang cc -s -target {target}",
        BERTWORKS_MACHINE=machine,
    )


def build_for_linux(sources: Path, machine: str, directory: Path) -> Path:
    """Build the wheel with native code for a machine; returns its place in dist/."""
    build("--wheel", "--outdir", directory, sources, machine=machine)
    (wheel,) = directory.glob("*.whl")
    run("auditwheel", "repair", "--plat", "auto", "--wheel-dir", DIST, wheel)
    (repaired,) = DIST.glob(f"*manylinux*_{machine}.whl")
    run("auditwheel", "show", repaired)
    return repaired


def check_kernels(wheel: Path, machine: str, directory: Path) -> None:
    """Compare the kernels of a wheel's library with its scalar ones."""
    (name,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so"))
    library = Path(zipfile.ZipFile(wheel).extract(name, directory))
    program = directory / "compare_kernels"
    sources = ("-I", ROOT / "src/bertworks/native", COMPARE, library, "-lm")
    run(f"{machine}-linux-gnu-gcc", *sources, f"-Wl,-rpath,{library.parent}", "-o", program)
    emulator: list[str] = []
    if machine != platform.machine():
        emulator = [f"qemu-{machine}-static", "-cpu", "max", "-L", f"/usr/{machine}-linux-gnu"]
        if shutil.which(emulator[0]) is None or not Path(emulator[-1]).exists():
            print(f"NOT TESTED on {machine}: no {emulator[0]}, or no C library in {emulator[-1]}")
            return
    shapes = "8" if emulator else "24"
    process = subprocess.run(
        [*emulator, program, "1", shapes], check=False, stdout=subprocess.PIPE, text=True
    )
    print(process.stdout)
    if process.returncode or LEAST[machine] not in process.stdout:
        sys.exit(f"error: kernels of {wheel.name} fail, or {LEAST[machine]} was not chosen")


def main() -> None:
    for machine in ISAS:
        if shutil.which(f"{machine}-linux-gnu-gcc") is None:
            sys.exit(f"error: there is no {machine}-linux-gnu-gcc. On Debian, install its package.")
    shutil.rmtree(DIST, ignore_errors=True)
    build("--sdist", "--outdir", DIST, ROOT)
    (archive,) = DIST.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(archive) as files:
            files.extractall(directory, filter="data")
        (sources,) = Path(directory).iterdir()
        build("--wheel", "--outdir", DIST, sources)
        for machine in ISAS:
            place = Path(directory) / machine
            check_kernels(build_for_linux(sources, machine, place), machine, place)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))


if __name__ == "__main__":
    main()
