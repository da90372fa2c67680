"""Lock files of outputs, which also work on network file systems."""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from ..errors import BertworksWarning, OutputError
from .atomic_writes import hidden_path
from .directories import LOCK_NAME, make_directory

OutputKind: TypeAlias = Literal["file", "directory", "whole directory"]
"""Kind of an output: a whole directory is created at once, any other is filled bit by bit."""

_BEAT, _WATCH = 2.0, 10.0  # seconds: between touches of a held lock; to wait for a touch
Lock: TypeAlias = tuple[Path, IO[bytes]]  # a lock file, open


def add_locks(target: Path, kind: OutputKind, new_directories: list[Path], name: str) -> list[Lock]:
    """Lock an output.

    Everybody first takes the lock next to the output, so that nobody creates a directory that
    another process is about to put there. The lock inside an existing directory is taken too. A
    directory that is filled bit by bit keeps only this one; a whole directory keeps both, since
    the one inside vanishes with the directory that is replaced.

    Args:
        new_directories: receives the created directories.
    """
    for _ in range(100):  # other processes may take and release the lock
        locks: list[Lock] = []
        try:
            if kind != "file":
                new_directories[:0] = make_directory(target.parent)
            _add_lock(locks, hidden_path(target, "lock"), name, optional=target.is_dir())
            if kind == "directory":
                new_directories[:0] = make_directory(target)
            if kind == "directory" or target.is_dir():
                _add_lock(locks, target / LOCK_NAME, name)
        except FileNotFoundError as error:  # another process has just removed a directory
            release_locks(locks)
            if kind == "file" and not isinstance(error, _GoneError):
                raise
            continue
        except BaseException:
            release_locks(locks)
            raise
        if kind == "directory":
            release_locks(locks[:-1])
            del locks[:-1]
        return locks
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


class _GoneError(FileNotFoundError):
    """A lock file was removed by its holder, who has finished."""


def _add_lock(locks: list[Lock], path: Path, name: str, *, optional: bool = False) -> None:
    """Lock a file, and add it to the others.

    On a network file system, `flock` may be missing or may not see locks of other machines. So the
    holder writes its identity to the file, and touches the file every `_BEAT` seconds: the lock of
    another machine counts as abandoned if it is not touched for `_WATCH` seconds.

    Args:
        optional: do without the lock if its file cannot be created: the directory may be another
            user's, or a mounted volume.

    Raises:
        FileNotFoundError: the file's directory is missing, or its holder has just removed it.
        OutputError: another process holds it.
    """
    try:
        handle = path.open("a+b")
    except OSError as error:
        if not optional or isinstance(error, FileNotFoundError):
            raise
        return
    has_lock = _try_lock(handle)
    if has_lock and not _is_at(handle, path):
        handle.close()
        raise _GoneError
    handle.seek(0)
    holder = _parse_holder(handle.read())
    is_held = has_lock is False
    if not is_held and holder and not (has_lock and holder["host"] == platform.node()):
        try:
            is_held = _is_touched(path, holder)
        except FileNotFoundError:
            handle.close()
            raise _GoneError from None
    if is_held:
        handle.close()
        holder_name = _describe(holder) if holder else "by another process"
        raise OutputError(
            f"is being written {holder_name}",
            where=name,
            fix="Wait for it, or choose another output path.",
        )
    locks.append((path, handle))
    handle.truncate(0)
    handle.write(json.dumps(_own_identity()).encode())
    handle.flush()


def release_locks(locks: Iterable[Lock]) -> None:
    """Remove lock files while holding the locks, so that no other process can have them."""
    for path, handle in locks:
        with suppress(OSError):
            if _is_at(handle, path):
                path.unlink()
        with suppress(OSError):  # closing tries a failed write again, and may fail too
            handle.close()


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: IO[bytes]) -> bool | None:
        """Lock a file; return whether this succeeded."""
        handle.seek(1 << 30)  # locked bytes cannot be read
        try:
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(handle: IO[bytes]) -> bool | None:
        """Lock a file; return whether this succeeded, None if its file system has no locks."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True


def _is_at(handle: IO[bytes], path: Path) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _own_identity() -> dict[str, Any]:
    program = Path(sys.argv[0] or "python")
    name = program.parent.name if program.name == "__main__.py" else program.name
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": " ".join([name, *sys.argv[1:]])[:100],
    }


def _parse_holder(content: bytes) -> Mapping[str, Any]:
    """Parse the identity of a lock's holder; empty if it is not valid."""
    with suppress(ValueError):
        holder = json.loads(content)
        if isinstance(holder, dict) and holder.keys() >= _own_identity().keys():
            return holder
    return {}


def _describe(holder: Mapping[str, Any]) -> str:
    since = str(holder["since"]).replace("T", " ")
    return f"by process {holder['pid']} on {holder['host']} since {since} ({holder['command']})"


def touch_locks(handles: Sequence[IO[bytes]], stop: threading.Event) -> None:
    """Touch lock files every `_BEAT` seconds until an event is set."""
    while not stop.wait(_BEAT):
        for handle in handles:
            with suppress(OSError, ValueError):  # closed meanwhile
                os.utime(handle.fileno() if os.utime in os.supports_fd else handle.name)


def _is_touched(path: Path, holder: Mapping[str, Any]) -> bool:
    """Whether the holder of a lock touches it within `_WATCH` seconds."""
    warnings.warn(
        f"{path}: was locked {_describe(holder)}; "
        f"checking for {_WATCH:.0f} s whether it still runs",
        BertworksWarning,
        stacklevel=2,
    )

    def read_time() -> int:
        with path.open("rb") as file:  # opening it refreshes what a network file system caches
            return os.fstat(file.fileno()).st_mtime_ns

    first_time, end = read_time(), time.monotonic() + _WATCH
    while time.monotonic() < end:
        time.sleep(_WATCH / 20)
        if read_time() != first_time:
            return True
    return False
