"""Modules that are imported on first use, and imports without garbage collection.

Importing pyarrow takes 36 MB and a tenth of a second, which is not needed for texts in memory:

    if TYPE_CHECKING:
        import pyarrow as pa
    else:
        pa = LazyModule("pyarrow", "parquet", "Parquet")
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import import_optional


class LazyModule:
    """A placeholder for a module.

    Args:
        name: the module's name, as in an `import` statement.
        extra, what: see `import_optional`.
    """

    def __init__(self, name: str, extra: str, what: str) -> None:
        self._name, self._extra, self._what = name, extra, what

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_optional(self._name, self._extra, self._what), name)
        self.__dict__[name] = value
        return value


@contextmanager
def imports_without_collection() -> Iterator[None]:
    """In the block, import modules without garbage collection: imported objects stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def permanent_imports() -> Iterator[None]:
    """Import modules without garbage collection, which later skips them for good.

    To look through them would take a third of a short command.
    """
    with imports_without_collection():
        yield
        gc.freeze()
