"""Files that are complete or absent on the disk, even after a crash of the process or machine.

A file is first written under another name (`.NAME.new`, in the same directory), synchronised, and
renamed; then the directory that contains it is synchronised. Without the first synchronisation a
crash of the machine may leave a file with its final name and only part of its content.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import OutputError, first_line
from .formatting import escape_surrogates

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a failure to write into an error that names the output.

    Raises:
        OutputError: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        fix = "Make room, and run the same command again." if error.errno in _FULL else None
        raise OutputError(
            f"cannot be written ({first_line(error)})", where=os.fspath(path), fix=fix
        ) from None


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path to write to; its file replaces `path` when all of it is on the disk.

    For a device or a pipe, such as /dev/stdout, it is `path` itself.

    Raises:
        OutputError: the file cannot be written; an existing file is then unchanged.
    """
    with writing(path):
        if is_device(path):
            yield Path(path)
            return
        target = real_path(path)
        new = hidden_path(target, "new")
        new.unlink(missing_ok=True)  # a file that a killed process left takes space
        try:
            yield new
            rename_durably(new, target)
        except BaseException:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise


def write_file(path: str | os.PathLike[str], content: Any) -> None:
    """Replace the content of a file, completely or not at all.

    Args:
        content: text, or a bytes-like object. Text is encoded as UTF-8 with unchanged line ends;
            lone surrogates, as in file names that are not UTF-8, become escapes.

    Raises:
        OutputError: the file cannot be written.
    """
    with atomic_write(path) as new, new.open("wb") as file:
        file.write(escape_surrogates(content).encode() if isinstance(content, str) else content)


def rename_durably(source: Path, target: Path) -> None:
    """Synchronise a file or directory, rename it, and synchronise its new parent directory."""
    fsync(source)
    os.replace(source, target)
    fsync(target.parent)


def fsync(path: Path) -> None:
    """Synchronise a file or directory to the disk."""
    is_windows = os.name == "nt"
    if is_windows and path.is_dir():
        return  # Windows cannot synchronise directories
    descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return an output's absolute path without symbolic links.

    Raises:
        OutputError: it is a link to itself.
    """
    try:
        return Path(path).resolve()
    except RuntimeError:  # as Python reports a loop of links
        raise OutputError(
            "is a link to itself", where=os.fspath(path), fix="Choose another output path."
        ) from None


def hidden_path(path: Path, suffix: str) -> Path:
    """Return the hidden path `.NAME.suffix` in the same directory as a path."""
    return path.with_name(f".{path.name}.{suffix}")


def is_device(path: str | os.PathLike[str]) -> bool:
    """Whether a path is neither a file nor a directory, but exists: /dev/stdout, a pipe.

    One look at it decides: a directory that is removed between two is no device.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # as for `os.path.exists`
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
