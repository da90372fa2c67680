"""Outputs that are written by one process at a time, and are no inputs."""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from .errors import BertworksWarning, OutputError, check_name
from .files import LOCK, beside, finish, is_device, make_directory, writing
from .memory import start_thread
from .remote import is_remote

Kind: TypeAlias = Literal["file", "directory", "whole directory"]
"""What an output is; a whole directory is made at once, any other is filled bit by bit."""

_BEAT, _WATCH = 2.0, 10.0  # seconds: between a holder's signs of life; how long one is waited for
_lent: set[tuple[Path, int]] = set()  # outputs with the threads whose callees may claim them


@contextmanager
def claim(
    path: str | os.PathLike[str],
    inputs: Iterable[object] = (),
    *,
    kind: Kind = "file",
    lend: bool = False,
) -> Iterator[None]:
    """Lock an output until the block ends.

    The lock ends with its process, however that ends. It is a file, inside of an output that is a
    directory already and beside any other, so that it is on the output's file system; it is removed
    at the end, and so are directories that were made here, if they are empty then.

    Args:
        inputs: what the output is made from; those that are no paths of files or directories that
            exist are passed over.
        kind: a "directory" is made at once, with those above it, and for a "whole directory" those
            above it.
        lend: what the block calls may claim the output too.

    Raises:
        OutputError: the output is an input, contains one, or is inside of one; another process or
            thread has the lock; or it cannot be written.
        DataError: a directory's name is not UTF-8.
    """
    if is_remote(path):
        raise OutputError(
            "is on another file system, to which only vectors can be written",
            where=os.fspath(path),
            fix="Write to this machine, and copy it there.",
        )
    if kind != "file":  # whose libraries are handed its files' names
        check_name(path)
    target = Path(path).resolve()
    check_inputs(path, inputs)
    if target.exists() and target.is_dir() != (kind != "file") and not is_device(path):
        what = "is a directory, not a file" if kind == "file" else "is a file, not a directory"
        raise OutputError(what, where=os.fspath(path), fix="Choose another output path.")
    if is_device(path):
        yield
        return
    owner = (target, threading.get_ident())
    if owner in _lent:
        _lent.remove(owner)
        try:
            yield
        finally:
            _lent.add(owner)
        return
    needed = {"file": None, "directory": target, "whole directory": target.parent}[kind]
    made: list[Path] = []
    try:
        with writing(path):
            lock, handle = _lock(target, needed, made, os.fspath(path))
    except BaseException:
        _remove_empty(made)
        raise
    if lend:
        _lent.add(owner)
    stop = threading.Event()
    await_end: Callable[[], object] = stop.set
    try:
        await_end = start_thread(_show_life, handle, stop)
        if target.is_dir():
            finish(target)
        yield
    finally:
        stop.set()
        await_end()
        _lent.discard(owner)
        _unlock(lock, handle)
        _remove_empty(made)


def check_inputs(path: str | os.PathLike[str], inputs: Iterable[object]) -> None:
    """See that an output is no input, contains none, and is inside of none; see `claim`.

    Raises:
        OutputError: it is.
    """
    target = Path(path).resolve()
    for given in inputs:
        if not isinstance(given, str | os.PathLike) or not os.path.exists(given):
            continue
        source = Path(given).resolve()
        if source == target or (target.exists() and source.samefile(target)):
            what = "is an input, and would be overwritten"
        elif source.is_relative_to(target):
            what = f"contains the input {os.fspath(given)}"
        elif source.is_dir() and target.is_relative_to(source):
            what = f"is inside the input {os.fspath(given)}, and would become part of it"
        else:
            continue
        raise OutputError(what, where=os.fspath(path), fix="Choose another output path.")


def _lock(target: Path, needed: Path | None, made: list[Path], name: str) -> tuple[Path, IO[bytes]]:
    """Take an output's lock: the path of its file, and the file, open.

    `flock` may be missing on a network's file system, or know nothing of other machines. So the
    holder writes down who it is, and touches the file every other second: what another machine has
    written is taken for dead if it is not touched while one looks.

    Args:
        target: the output.
        needed: the directory that is made if it is missing.
        made: takes the directories that are made.
    """
    for _ in range(100):  # others may come and go
        with suppress(FileNotFoundError):  # another has just removed one
            made[:0] = [] if needed is None else make_directory(needed)
        is_inside = target.is_dir()
        if needed == target and not is_inside:
            continue  # another has just removed it: a lock beside it would exclude nobody inside
        path = target / LOCK if is_inside else beside(target, "lock")
        try:
            handle = path.open("a+b")
        except FileNotFoundError:
            if needed is None:
                raise
            continue  # another made the directory, and has just removed it
        locked = _try_lock(handle)
        if locked and not _is_at(handle, path):
            handle.close()  # it was removed, by the one who had it
            continue
        handle.seek(0)
        holder = _holder(handle.read())
        is_held = locked is False
        if not is_held and holder and not (locked and holder["host"] == platform.node()):
            is_held = _is_touched(path, holder)
        if is_held:
            handle.close()
            who = _phrase(holder) if holder else "by another process"
            raise OutputError(
                f"is being written {who}",
                where=name,
                fix="Wait for it, or choose another output path.",
            )
        try:
            handle.truncate(0)
            handle.write(json.dumps(_self()).encode())
            handle.flush()
        except OSError:
            _unlock(path, handle)
            raise
        if target.is_dir():
            _remove_stale(beside(target, "lock"))
        return path, handle
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _unlock(path: Path, handle: IO[bytes]) -> None:
    """Remove a lock while it is held, so that it is nobody else's."""
    with suppress(OSError):
        if _is_at(handle, path):
            path.unlink()
    with suppress(OSError):  # what could not be written is tried once more
        handle.close()


def _remove_stale(path: Path) -> None:
    """Remove the lock of one who was killed once its directory had taken its name."""
    with suppress(OSError):
        handle = path.open("r+b")
        if _try_lock(handle):
            _unlock(path, handle)
        handle.close()


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: IO[bytes]) -> bool | None:
        """Lock a file; None where its file system does not say."""
        handle.seek(1 << 30)  # what is locked cannot be read
        try:
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(handle: IO[bytes]) -> bool | None:
        """Lock a file; None where its file system has no locks."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True


def _is_at(handle: IO[bytes], path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _self() -> dict[str, Any]:
    program = Path(sys.argv[0] or "python")
    name = program.parent.name if program.name == "__main__.py" else program.name
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": " ".join([name, *sys.argv[1:]])[:100],
    }


def _holder(content: bytes) -> Mapping[str, Any]:
    """Who wrote a lock; nothing, if that cannot be read."""
    with suppress(ValueError):
        holder = json.loads(content)
        if isinstance(holder, dict) and holder.keys() >= _self().keys():
            return holder
    return {}


def _phrase(holder: Mapping[str, Any]) -> str:
    since = str(holder["since"]).replace("T", " ")
    return f"by process {holder['pid']} on {holder['host']} since {since} ({holder['command']})"


def _show_life(handle: IO[bytes], stop: threading.Event) -> None:
    while not stop.wait(_BEAT):
        with suppress(OSError, ValueError):  # closed meanwhile
            os.utime(handle.fileno() if os.utime in os.supports_fd else handle.name)


def _is_touched(path: Path, holder: Mapping[str, Any]) -> bool:
    """Whether the holder of a lock gives a sign of life."""
    warnings.warn(
        f"{path}: was locked {_phrase(holder)}; checking for {_WATCH:.0f} s whether it still runs",
        BertworksWarning,
        stacklevel=2,
    )

    def touched() -> int:
        with path.open("rb") as file:  # opening it asks the server
            return os.fstat(file.fileno()).st_mtime_ns

    before, end = touched(), time.monotonic() + _WATCH
    while time.monotonic() < end:
        time.sleep(_WATCH / 20)
        if touched() != before:
            return True
    return False


def _remove_empty(directories: Iterable[Path]) -> None:
    """Remove directories that are empty, in this order."""
    for directory in directories:
        with suppress(OSError):
            directory.rmdir()
