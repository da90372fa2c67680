"""One process writes an output at a time, and no output is an input."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import OutputError, check_path_name, exists_error
from .atomic_writes import is_device, real_path, writing
from .directories import finish_move, output_exists, remove_entries
from .locks import OutputKind, add_locks, release_locks, touch_locks
from .memory import start_thread
from .output_names import foreign_file
from .remote import is_remote

_PIPE_SECONDS = 10.0  # to wait for a pipe's reader
_reentrant_outputs: set[tuple[Path, int]] = set()
"""Outputs that are lent, each with the thread that may lock it again."""


@contextmanager
def locked_output(
    path: str | os.PathLike[str],
    inputs: Iterable[object] = (),
    *,
    kind: OutputKind = "file",
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
        lend: code that the block calls may lock the output too.
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
    _check_path(path, inputs, kind)
    target = real_path(path)
    if is_device(path):
        with _pipe_with_reader(path):
            yield
        return
    owner = (target, threading.get_ident())
    if owner in _reentrant_outputs:
        _check_existing(path, target, overwrite, marks)
        _reentrant_outputs.remove(owner)
        try:
            yield
        finally:
            _reentrant_outputs.add(owner)
        return
    new_directories: list[Path] = []
    try:
        with writing(path):
            locks = add_locks(target, kind, new_directories, os.fspath(path))
    except BaseException:
        _remove_empty(new_directories)
        raise
    if lend:
        _reentrant_outputs.add(owner)
    stop = threading.Event()
    await_end: Callable[[], object] = stop.set
    try:
        await_end = start_thread(touch_locks, [handle for _, handle in locks], stop)
        if target.is_dir():
            finish_move(target)
        _check_existing(path, target, overwrite, marks)
        if overwrite and kind == "directory":
            with writing(path):
                remove_entries(target)
        yield
    finally:
        stop.set()
        await_end()
        _reentrant_outputs.discard(owner)
        release_locks(locks)
        _remove_empty(new_directories)


def _check_path(path: str | os.PathLike[str], inputs: Iterable[object], kind: OutputKind) -> None:
    """Check an output's path before anything is locked; see `locked_output`."""
    if is_remote(path):
        raise OutputError(
            "is on another file system, to which only vectors can be written",
            where=os.fspath(path),
            fix="Write to this machine, and copy it there.",
        )
    if kind != "file":  # libraries receive the names of its files
        check_path_name(path)
    check_inputs(path, inputs)
    _check_kind(path, kind)


def check_inputs(path: str | os.PathLike[str], inputs: Iterable[object]) -> None:
    """Check that an output is not an input, contains none, and is inside none; see `locked_output`.

    Raises:
        OutputError: the check fails.
    """
    target = real_path(path)
    for source in inputs:
        if not isinstance(source, str | os.PathLike) or not os.path.exists(source):
            continue
        source_path = Path(source).resolve()
        if source_path == target or (target.exists() and source_path.samefile(target)):
            what = "is an input, and would be overwritten"
        elif source_path.is_relative_to(target):
            what = f"contains the input {os.fspath(source)}"
        elif source_path.is_dir() and target.is_relative_to(source_path):
            what = f"is inside the input {os.fspath(source)}, and would become part of it"
        else:
            continue
        raise OutputError(what, where=os.fspath(path), fix="Choose another output path.")


def _check_kind(path: str | os.PathLike[str], kind: OutputKind) -> None:
    """Check that an output that exists is a file or a directory, as `kind` says."""
    target = Path(path)
    with writing(path):  # the name may be too long
        is_present = target.exists()
    if is_present and target.is_dir() != (kind != "file") and not is_device(path):
        what = "is a directory, not a file" if kind == "file" else "is a file, not a directory"
        raise OutputError(what, where=os.fspath(path), fix="Choose another output path.")


def _check_existing(
    path: str | os.PathLike[str], target: Path, overwrite: bool | None, marks: Iterable[str]
) -> None:
    """Check that an output is absent or may be replaced; see `locked_output`.

    Raises:
        OutputError: it exists, and `overwrite` is false; or it is a directory that holds files of
            others, cannot be read, or is the working directory.
    """
    if overwrite is None or not output_exists(target):
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
        is_card = foreign.endswith("/README.md")  # of a model in a run
        reason = "was edited" if is_card else "is no file that bertworks writes"
        raise OutputError(
            f"holds {foreign!r}, which {reason}, and would be lost",
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

    Opening a pipe waits for its reader, forever if there is none; so this is done before the
    work, for `_PIPE_SECONDS` at most. The pipe stays open, since a reader takes its closing for
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
    end = time.monotonic() + _PIPE_SECONDS
    while time.monotonic() < end:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no reader
                raise
        time.sleep(_PIPE_SECONDS / 100)
    fix = "Start its reader, or choose a file."
    raise OutputError("is a pipe that no process reads", where=os.fspath(path), fix=fix)


def _remove_empty(directories: Iterable[Path]) -> None:
    """Remove those directories that are empty, in the given order."""
    for directory in directories:
        with suppress(OSError):
            directory.rmdir()
