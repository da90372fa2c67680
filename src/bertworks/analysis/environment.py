"""What a report of a fault needs to say about the machine, and nothing private."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from re import match, search

from ..native import library
from ..utils.environment import PREFIX
from ..utils.processor import cpu_name

_PACKAGE = "bertworks"
_DEVELOPERS = r"extra == .(dev|docs|test)"


def report_environment() -> Mapping[str, str]:
    """Return names and values: versions, the processor, its kernels, a graphics card.

    Of environment variables only the names are reported: values may be paths or keys.
    """
    return {
        _PACKAGE: version(_PACKAGE),
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": platform.platform(),
        "processor": f"{cpu_name()}, {os.cpu_count()} logical",
        "native code": _native_code(),
        "device": _device(),
        "packages": ", ".join(_packages()),
        "variables": ", ".join(sorted(name for name in os.environ if name.startswith(PREFIX)))
        or "none",
    }


def _native_code() -> str:
    if not library.is_enabled():
        return "none: it was not compiled, or BERTWORKS_NATIVE=0"
    return library.instruction_set()


def _device() -> str:
    if find_spec("torch") is None:
        return "cpu (PyTorch is not installed)"
    import torch

    if not torch.cuda.is_available():
        return "mps" if torch.backends.mps.is_available() else "cpu"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"{', '.join(names)}; CUDA {torch.version.cuda}"


def _packages() -> list[str]:
    """Return the installed packages that this one requires, those of extras for users included."""
    lines = (line for line in requires(_PACKAGE) or () if not search(_DEVELOPERS, line))
    requirements = (match(r"[\w.-]+", line) for line in lines)
    names = {requirement[0] for requirement in requirements if requirement is not None}
    packages = []
    for name in sorted(names - {_PACKAGE}):
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return packages
