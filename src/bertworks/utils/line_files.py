"""Append-only files of lines."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from .atomic_writes import fsync, writing


class LineFile:
    """An append-only file of lines; an incomplete last line, left by a killed process, is removed.

    Otherwise the next line would continue it, and both would be lost.

    Args:
        path: the file; created if missing.

    Raises:
        OutputError: the file cannot be written; methods that write raise it too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            is_new = not path.exists()
            self._file = path.open("a+b", buffering=0)
            try:
                if is_new:
                    fsync(path.parent)
                end = self.read().rfind(b"\n") + 1
                if end < self.size:
                    self._file.truncate(end)
            except BaseException:
                self._file.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """The file's length in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def read(self) -> bytes:
        """All of the content."""
        self._file.seek(0)
        return self._file.read()

    def append(self, line: bytes) -> None:
        """Add a line, completely or not at all."""
        old_size = self.size
        with writing(self.path):
            try:
                while line:  # an almost full disk may accept only a part
                    line = line[self._file.write(line) :]
            except BaseException:
                with suppress(OSError):
                    self._file.truncate(old_size)
                raise

    def sync(self) -> int:
        """Synchronise the file to the disk; return its length in bytes."""
        with writing(self.path):
            os.fsync(self._file.fileno())
        return self.size

    def truncate(self, length: int) -> None:
        """Remove what follows the first `length` bytes."""
        with writing(self.path):
            self._file.truncate(length)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
