"""Regular files alone: pipes, which might wait for ever, and devices without end are refused."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

from ..errors import BertworksError

MAX_BYTES = 1 << 28
"""Maximum size of a file that is read as a whole; the largest tokenizers have a tenth of it."""


def read_bytes(path: str | os.PathLike[str], *, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a small file. Every file that is read as a whole is read here.

    A pipe could wait for ever, and a device such as /dev/zero has no end; so both are refused,
    without waiting.

    Args:
        path: the file.
        limit: maximum size in bytes.

    Raises:
        OSError: it cannot be opened, is not a regular file, or is larger.
    """
    with open(path, "rb", opener=open_regular_file) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", os.fspath(path))
    return content


def check_regular_file(path: str | os.PathLike[str]) -> None:
    """Check that a file that is mapped, or read by a library, is a regular one; see `read_bytes`.

    Raises:
        OSError: it is a pipe, a device or a directory, or cannot be looked at.
    """
    _check_mode(os.stat(path).st_mode, os.fspath(path))


def why_no_file(path: str, expected: str = "file or folder") -> str:
    """The error message for a path that is not a file."""
    if os.path.exists(path):
        return "neither a regular file nor a folder"
    return "the link leads nowhere" if os.path.islink(path) else f"no such {expected}"


def open_regular_file(path: str, flags: int) -> int:
    """Open a file without waiting: an opener for `open`.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    try:
        _check_mode(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_mode(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)


def read_content(path: Path, error: type[BertworksError]) -> bytes:
    """Return the content of a small file; see `read_bytes`.

    Raises:
        BertworksError: of the class `error`: the file cannot be read.
    """
    try:
        return read_bytes(path)
    except OSError as problem:
        raise error(f"cannot be read ({problem.strerror})", where=str(path)) from None


def read_text_lines(path: Path, error: type[BertworksError]) -> list[str]:
    """Return the lines of a small file in UTF-8; only line feeds end a line.

    Raises:
        BertworksError: of the class `error`: the file cannot be read, or is not UTF-8.
    """
    content = read_content(path, error)
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as problem:
        number = content.count(b"\n", 0, problem.start) + 1
        raise error("not UTF-8", where=f"{path}:{number}") from None
    return lines if lines[-1] else lines[:-1]


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with open(path, "rb", opener=open_regular_file) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
