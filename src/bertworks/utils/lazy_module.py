"""Modules that are imported on first use.

Importing pyarrow takes 36 MB and a tenth of a second, which is not needed for texts in memory:

    if TYPE_CHECKING:
        import pyarrow as pa
    else:
        pa = LazyModule("pyarrow")
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """A placeholder for a module.

    Args:
        name: the module's name, as in an `import` statement.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self._name), name)
        self.__dict__[name] = found
        return found
