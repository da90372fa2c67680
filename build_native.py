"""Compile the package's native code, if there is a C compiler; hatch calls it when it builds.

    python build_native.py      # the library of a checkout again, after a change of a C file

Without a compiler, or elsewhere than on Linux on x86-64, the package is built without it: then
inference takes PyTorch's kernels alone (docs/performance.md). The library is chosen by the
processor's instructions when it runs, so one build serves all processors.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

NATIVE = Path(__file__).parent / "src/bertworks/native"
LIBRARY = NATIVE / "native.so"
FLAGS = ["-O3", "-fPIC", "-shared", "-fno-math-errno", "-Wall", "-Wextra"]


def compile_native() -> str | None:
    """Compile the library in its place; returns why it was not compiled, if so."""
    LIBRARY.unlink(missing_ok=True)
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "it is for Linux on x86-64"
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(compiler[0]) is None:
        return f"there is no C compiler: {compiler[0]}"
    unfinished = LIBRARY.with_name(f".native-{os.getpid()}.so")
    sources = sorted(NATIVE.glob("*.[ch]"))
    checksum = zlib.crc32(b"".join(source.read_bytes() for source in sources))
    files = [str(source) for source in sources if source.suffix == ".c"]
    command = [*compiler, *FLAGS, f"-DSOURCE={checksum}u", *files, "-lm", "-o", str(unfinished)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        unfinished.unlink(missing_ok=True)
        return f"{compiler[0]} says: {done.stderr.strip()}"
    unfinished.replace(LIBRARY)
    return None


def _tag() -> str:
    return f"py3-none-{sys.platform}_{platform.machine()}"


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a script
    pass
else:

    class NativeCode(BuildHookInterface[Any]):
        """Adds the library to a wheel, whose name then says for which machines it is."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
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
