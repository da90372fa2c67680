"""Modules that are imported when something of them is first used.

pyarrow takes 36 MB and a tenth of a second, which texts that are in memory need not spend:

    if TYPE_CHECKING:
        import pyarrow as pa
    else:
        pa = Lazily("pyarrow")
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Lazily:
    """Stands for a module.

    Args:
        name: the module's, as `import` takes it.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self._name), name)
        self.__dict__[name] = found
        return found
