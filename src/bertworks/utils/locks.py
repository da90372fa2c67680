"""Locks of outputs: one process writes an output at a time, and no output is an input."""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from ..errors import BertworksWarning, OutputError, check_path_name
from .files import (
    LOCK,
    beside,
    exists,
    finish,
    is_device,
    make_directory,
    real_path,
    remove_entries,
    writing,
)
from .memory import start_thread
from .output_names import foreign_file
from .remote import is_remote

Kind: TypeAlias = Literal["file", "directory", "whole directory"]
"""Kind of an output: a whole directory is created at once, any other is filled bit by bit."""

_BEAT, _WATCH = 2.0, 10.0  # seconds: between touches of a held lock; to wait for a touch
_Lock: TypeAlias = tuple[Path, IO[bytes]]  # a lock file, open
_lent: set[tuple[Path, int]] = set()  # outputs, with the threads that may claim them again


@contextmanager
def claim(
    path: str | os.PathLike[str],
    inputs: Iterable[object] = (),
    *,
    kind: Kind = "file",
    lend: bool = False,
    overwrite: bool | None = None,
    marks: Iterable[str] = (),
) -> Iterator[None]:
    """Lock an output until the block ends, and decide about one that exists.

    The lock is released when its process ends, for any reason. It is a file on the output's file
    system: inside an output that is a directory, and next to one that is created or replaced as a
    whole. It is removed at the end, and so are directories that were created here, if they are then
    empty.

    Args:
        inputs: inputs of the output; those that are not paths of existing files or directories are
            ignored.
        kind: a "directory" and its parents are created immediately; for a "whole directory", only
            the parents are created.
        lend: code that the block calls may claim the output too.
        overwrite: whether an existing output may be replaced; an empty directory does not count as
            existing. True removes the content of a "directory" at once; the block replaces other
            outputs when the new one is complete. None: the block decides.
        marks: patterns of paths in a "directory"; one of them marks it as an output that the block
            resumes, without `overwrite`.

    Raises:
        OutputError: the output exists and must not be overwritten, or holds files that this package
            did not write; it is an input, contains one, or is inside one; another process or thread
            has the lock; it is a pipe that nobody reads; or it cannot be written, or is on another
            file system.
        DataError: a directory's name is not UTF-8.
    """
    if is_remote(path):
        raise OutputError(
            "is on another file system, to which only vectors can be written",
            where=os.fspath(path),
            fix="Write to this machine, and copy it there.",
        )
    if kind != "file":  # libraries receive the names of its files
        check_path_name(path)
    target = real_path(path)
    check_inputs(path, inputs)
    _check_kind(path, kind)
    if is_device(path):
        with _pipe_with_reader(path):
            yield
        return
    owner = (target, threading.get_ident())
    if owner in _lent:
        _check_existing(path, target, overwrite, marks)
        _lent.remove(owner)
        try:
            yield
        finally:
            _lent.add(owner)
        return
    made: list[Path] = []
    try:
        with writing(path):
            held = _lock(target, kind, made, os.fspath(path))
    except BaseException:
        _remove_empty(made)
        raise
    if lend:
        _lent.add(owner)
    stop = threading.Event()
    await_end: Callable[[], object] = stop.set
    try:
        await_end = start_thread(_show_life, [handle for _, handle in held], stop)
        if target.is_dir():
            finish(target)
        _check_existing(path, target, overwrite, marks)
        if overwrite and kind == "directory":
            with writing(path):
                remove_entries(target)
        yield
    finally:
        stop.set()
        await_end()
        _lent.discard(owner)
        _unlock(held)
        _remove_empty(made)


def check_inputs(path: str | os.PathLike[str], inputs: Iterable[object]) -> None:
    """Check that an output is not an input, contains none, and is inside none; see `claim`.

    Raises:
        OutputError: the check fails.
    """
    target = real_path(path)
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


def _check_kind(path: str | os.PathLike[str], kind: Kind) -> None:
    """Check that an output that exists is a file or a directory, as `kind` says."""
    target = Path(path)
    with writing(path):  # the name may be too long
        is_present = target.exists()
    if is_present and target.is_dir() != (kind != "file") and not is_device(path):
        what = "is a directory, not a file" if kind == "file" else "is a file, not a directory"
        raise OutputError(what, where=os.fspath(path), fix="Choose another output path.")


def exists_error(path: str | os.PathLike[str]) -> OutputError:
    """Return the error about an output that exists: every verb and function says the same."""
    fix = "Choose another output path, or replace it with --overwrite (overwrite=True)."
    return OutputError("already exists", where=os.fspath(path), fix=fix)


def _check_existing(
    path: str | os.PathLike[str], target: Path, overwrite: bool | None, marks: Iterable[str]
) -> None:
    """Check that an output is absent or may be replaced; see `claim`.

    Raises:
        OutputError: it exists, and `overwrite` is false; or it is a directory that holds files of
            others, cannot be read, or is the working directory.
    """
    if overwrite is None or not exists(target):
        return
    if not overwrite:
        if any(True for mark in marks for _ in target.glob(mark)):
            return
        raise exists_error(path)
    if not target.is_dir():
        return
    where = os.fspath(path)
    with writing(path):
        foreign = foreign_file(target)
        is_here = target.samefile(os.curdir)
    if foreign is not None:
        raise OutputError(
            f"holds {foreign!r}, which is no file that bertworks writes, and would be lost",
            where=where,
            fix="Choose a directory that is new or empty.",
        )
    if is_here:  # it would no longer exist for this process
        raise OutputError(
            "the working directory cannot be replaced", where=where, fix="Start from another."
        )


@contextmanager
def _pipe_with_reader(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep a named pipe open for writing within the block; do nothing for another device.

    To open a pipe is to wait for its reader, for ever if there is none; so this is done before the
    work, for `_WATCH` seconds at most. The pipe stays open, since a reader takes its closing for
    the end.

    Raises:
        OutputError: no process reads the pipe.
    """
    if not Path(path).is_fifo():
        yield
        return
    with writing(path):
        descriptor = _open_pipe(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _open_pipe(path: str | os.PathLike[str]) -> int:
    """Open a pipe for writing once it has a reader; see `_pipe_with_reader`."""
    end = time.monotonic() + _WATCH
    while time.monotonic() < end:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no reader
                raise
        time.sleep(_WATCH / 100)
    fix = "Start its reader, or choose a file."
    raise OutputError("is a pipe that no process reads", where=os.fspath(path), fix=fix)


def _lock(target: Path, kind: Kind, made: list[Path], name: str) -> list[_Lock]:
    """Lock an output.

    Everybody first takes the lock next to the output, so that nobody creates a directory that
    another process is about to put there. The lock inside an existing directory is taken too. A
    directory that is filled bit by bit keeps only this one; a whole directory keeps both, since
    the one inside vanishes with the directory that is replaced.

    Args:
        made: receives the created directories.
    """
    for _ in range(100):  # other processes may take and release the lock
        held: list[_Lock] = []
        try:
            if kind != "file":
                made[:0] = make_directory(target.parent)
            _add_lock(held, beside(target, "lock"), name, optional=target.is_dir())
            if kind == "directory":
                made[:0] = make_directory(target)
            if kind == "directory" or target.is_dir():
                _add_lock(held, target / LOCK, name)
        except FileNotFoundError as error:  # another process has just removed a directory
            _unlock(held)
            if kind == "file" and not isinstance(error, _GoneError):
                raise
            continue
        except BaseException:
            _unlock(held)
            raise
        if kind == "directory":
            _unlock(held[:-1])
            del held[:-1]
        return held
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


class _GoneError(FileNotFoundError):
    """A lock file was removed by its holder, who has finished."""


def _add_lock(held: list[_Lock], path: Path, name: str, *, optional: bool = False) -> None:
    """Lock a file, and add it to the held ones.

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
    locked = _try_lock(handle)
    if locked and not _is_at(handle, path):
        handle.close()
        raise _GoneError
    handle.seek(0)
    holder = _holder(handle.read())
    is_held = locked is False
    if not is_held and holder and not (locked and holder["host"] == platform.node()):
        try:
            is_held = _is_touched(path, holder)
        except FileNotFoundError:
            handle.close()
            raise _GoneError from None
    if is_held:
        handle.close()
        who = _phrase(holder) if holder else "by another process"
        raise OutputError(
            f"is being written {who}",
            where=name,
            fix="Wait for it, or choose another output path.",
        )
    held.append((path, handle))
    handle.truncate(0)
    handle.write(json.dumps(_self()).encode())
    handle.flush()


def _unlock(held: Iterable[_Lock]) -> None:
    """Remove lock files while holding the locks, so that no other process can have them."""
    for path, handle in held:
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
    """Parse the identity of a lock's holder; empty if it is not valid."""
    with suppress(ValueError):
        holder = json.loads(content)
        if isinstance(holder, dict) and holder.keys() >= _self().keys():
            return holder
    return {}


def _phrase(holder: Mapping[str, Any]) -> str:
    since = str(holder["since"]).replace("T", " ")
    return f"by process {holder['pid']} on {holder['host']} since {since} ({holder['command']})"


def _show_life(handles: Sequence[IO[bytes]], stop: threading.Event) -> None:
    while not stop.wait(_BEAT):
        for handle in handles:
            with suppress(OSError, ValueError):  # closed meanwhile
                os.utime(handle.fileno() if os.utime in os.supports_fd else handle.name)


def _is_touched(path: Path, holder: Mapping[str, Any]) -> bool:
    """Whether the holder of a lock touches it within `_WATCH` seconds."""
    warnings.warn(
        f"{path}: was locked {_phrase(holder)}; checking for {_WATCH:.0f} s whether it still runs",
        BertworksWarning,
        stacklevel=2,
    )

    def touched() -> int:
        with path.open("rb") as file:  # opening it refreshes what a network file system caches
            return os.fstat(file.fileno()).st_mtime_ns

    before, end = touched(), time.monotonic() + _WATCH
    while time.monotonic() < end:
        time.sleep(_WATCH / 20)
        if touched() != before:
            return True
    return False


def _remove_empty(directories: Iterable[Path]) -> None:
    """Remove those directories that are empty, in the given order."""
    for directory in directories:
        with suppress(OSError):
            directory.rmdir()
