"""Outputs: whole or absent on the disk, written by one process at a time, and never an input.

    claim(path, inputs)    refuse an output that is an input, and lock it while the block runs
    atomic(path)           a file that takes its name once all of it is on the disk
    new_directory(path)    the same for a directory
    LineFile(path)         lines that are only appended; one cut short by a kill is removed

Everything is written under another name first (`.NAME.new`, beside it), synchronised, and renamed;
then the directory that holds the name is synchronised. Without the first synchronisation a crash of
the machine may leave the name with half of the content.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Literal, Self, TypeAlias

from .errors import BertworksError, BertworksWarning, OutputError, check_name
from .json_text import parse_json
from .wording import printable

Kind: TypeAlias = Literal["file", "directory", "whole directory"]
"""What an output is; a whole directory is made at once, any other is filled bit by bit."""

LOCK = ".lock"
_STAGED, _READY = ".bertworks.new", ".bertworks.ready"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BEAT, _WATCH = 2.0, 10.0  # seconds: between a holder's signs of life; how long one is waited for
_lent: set[tuple[Path, int]] = set()  # outputs with the threads whose callees may claim them


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Have a failure to write be an error that names the output.

    Raises:
        OutputError: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        why = (error.strerror or str(error)).splitlines()[0]
        fix = "Make room, and run the same command again." if error.errno in _FULL else None
        raise OutputError(f"cannot be written ({why})", where=os.fspath(path), fix=fix) from None


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write to, whose file replaces `path` once all of it is on the disk.

    A device or a pipe, such as /dev/stdout, is given as it is.

    Raises:
        OutputError: the file cannot be written; then what was there before is untouched.
    """
    with writing(path):
        if _is_device(path):
            yield Path(path)
            return
        target = Path(path).resolve()
        new = _beside(target, "new")
        new.unlink(missing_ok=True)  # what a kill left takes room
        try:
            yield new
            rename(new, target)
        except BaseException:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise


def write(path: str | os.PathLike[str], content: Any) -> None:
    """Replace the content of a file, wholly or not at all.

    Args:
        path: the file.
        content: text, which becomes UTF-8 with its line ends as they are (half characters, as in
            names of files that are not UTF-8, become escapes), or an object of bytes.

    Raises:
        OutputError: the file cannot be written.
    """
    with atomic(path) as new, new.open("wb") as file:
        file.write(printable(content).encode() if isinstance(content, str) else content)


def write_json(path: str | os.PathLike[str], value: Any, *, indent: int | None = 2) -> None:
    """Replace the content of a file with a JSON document.

    Raises:
        OutputError: the file cannot be written.
    """
    write(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def read_json(path: Path, error: type[BertworksError]) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        BertworksError: of the given class: the file cannot be read, or holds no object.
    """
    try:
        tree = parse_json(path.read_bytes())
    except OSError as problem:
        raise error(f"cannot be read ({problem.strerror})", where=str(path)) from None
    except ValueError as problem:
        raise error(f"not valid JSON ({problem})", where=str(path)) from None
    if not isinstance(tree, dict):
        raise error("the file must hold a JSON object", where=str(path))
    return tree


class LineFile:
    """A file of lines that is only appended to; a last line that a kill cut short is removed.

    Otherwise the next line would continue it, and both would be lost.

    Args:
        path: the file; made if need be.

    Raises:
        OutputError: as every method does: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            is_new = not path.exists()
            self._file = path.open("a+b", buffering=0)
            if is_new:
                sync(path.parent)
            whole = self.read().rfind(b"\n") + 1
            if whole < self.size:
                self._file.truncate(whole)

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
        """Add a line."""
        with writing(self.path):
            while line:  # an almost full disk takes a part, and refuses the next
                line = line[self._file.write(line) :]

    def sync(self) -> int:
        """See the lines safely on the disk; the file's length in bytes."""
        with writing(self.path):
            os.fsync(self._file.fileno())
        return self.size

    def truncate(self, length: int) -> None:
        """Remove what follows the first `length` bytes."""
        with writing(self.path):
            self._file.truncate(length)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


@contextmanager
def new_directory(
    path: str | os.PathLike[str],
    *,
    last: str = "",
    replace: bool = False,
    keep: Callable[[str], bool] = lambda _: False,
) -> Iterator[Path]:
    """Give a directory to fill, which becomes `path` once all of it is on the disk.

    It is renamed as a whole; where `path` is a directory that is not to be replaced (somebody may
    work in it), its entries are moved into that one by one.

    Args:
        path: the directory that is to be.
        last: the entry that is moved last: what makes the directory what it is.
        replace: a former directory goes. It is away for a moment only, between two renamings:
            killed then, it lies beside as `.NAME.old`, and is restored when this is called again.
        keep: which files of a former directory are kept, by their path in it.

    Raises:
        OutputError: the directory cannot be written; then what was there before is there again.
    """
    target = Path(path).resolve()
    as_whole = not target.exists() or (replace and not is_empty(target))
    new = _beside(target, "new") if as_whole else target / _STAGED
    with writing(path):
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            yield new
            for folder, _, names in os.walk(new, topdown=False):
                for name in (*names, ""):
                    sync(Path(folder, name))
            if as_whole:
                _replace(new, target, keep)
            else:
                rename(new, target / _READY)
                _move_in(target, last)
        except OutputError as error:
            where = error.where and error.where.replace(str(new), str(path), 1)
            raise OutputError(error.what, where=where, fix=error.fix) from None
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _replace(new: Path, target: Path, keep: Callable[[str], bool]) -> None:
    """Give a finished directory its name; a former one goes, but for what is kept of it."""
    old = _beside(target, "old")

    def settle() -> None:
        if not old.exists():
            return
        if not target.exists():
            rename(old, target)
            return
        for file in sorted(old.rglob("*")):
            name = file.relative_to(old)
            is_kept = keep(name.as_posix()) and not (target / name).exists()
            if is_kept and (file.is_symlink() or not file.is_dir()):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                rename(file, target / name)
        shutil.rmtree(old, ignore_errors=True)

    settle()  # what a kill left
    if target.exists():
        rename(target, old)
    try:
        rename(new, target)
    finally:
        settle()


def _move_in(target: Path, last: str = "") -> None:
    """Move the entries of a directory that is on the disk out of it; once begun, it is finished."""
    ready = target / _READY
    for entry in sorted(ready.iterdir(), key=lambda entry: entry.name == last):
        os.replace(entry, target / entry.name)
    sync(target)
    ready.rmdir()


def make_directory(directory: Path) -> list[Path]:
    """Make a directory and those above it where they are missing; those made, the lowest first."""
    made: list[Path] = []
    for one in reversed((directory, *directory.parents)):
        if not one.exists():
            with suppress(FileExistsError):  # another's, meanwhile
                one.mkdir()
                sync(one.parent)
                made.insert(0, one)
    return made


def remove_directory(directory: Path) -> None:
    """Remove a directory; a kill meanwhile leaves no half of it under its name."""
    old = _beside(directory, "old")
    shutil.rmtree(old, ignore_errors=True)
    os.replace(directory, old)
    shutil.rmtree(old)


def replace_link(link: Path, target: Path) -> None:
    """Have a symbolic link point to a target, whatever it pointed to before.

    Raises:
        OutputError: the link cannot be made.
    """
    with writing(link):
        new = _beside(link, "new")
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        rename(new, link)


def is_empty(directory: Path) -> bool:
    """Whether a directory holds nothing but the lock of who asks."""
    return all(child.name == LOCK for child in directory.iterdir())


def sync(path: Path) -> None:
    """See a file or directory safely on the disk."""
    is_windows = os.name == "nt"
    if is_windows and path.is_dir():
        return  # which has no such call
    descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Give a file or directory its name once it is on the disk, and have that on the disk too."""
    sync(source)
    os.replace(source, target)
    sync(target.parent)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}.{suffix}")


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
        path: the output.
        inputs: what the output is made from; those that are no paths of files or directories that
            exist are passed over.
        kind: a "directory" is made at once, with those above it, and for a "whole directory" those
            above it.
        lend: what the block calls may claim the output too.

    Raises:
        OutputError: the output is an input, contains one, or is inside of one; another process or
            thread has the lock; or it cannot be written.
        DataError: its name is not UTF-8.
    """
    check_name(path)
    target = Path(path).resolve()
    check_inputs(path, inputs)
    if target.exists() and target.is_dir() != (kind != "file") and not _is_device(path):
        what = "is a directory, not a file" if kind == "file" else "is a file, not a directory"
        raise OutputError(what, where=os.fspath(path), fix="Give another place for the output.")
    if _is_device(path):
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
    life = threading.Thread(target=_show_life, args=(handle, stop), daemon=True)
    life.start()
    try:
        if target.is_dir():
            shutil.rmtree(target / _STAGED, ignore_errors=True)
            if (target / _READY).is_dir():  # a kill came while it was moved in
                _move_in(target)
        yield
    finally:
        stop.set()
        life.join()
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
            what = "is an input, which would be lost"
        elif source.is_relative_to(target):
            what = f"contains the input {os.fspath(given)}"
        elif source.is_dir() and target.is_relative_to(source):
            what = f"is inside of the input {os.fspath(given)}, and would become a part of it"
        else:
            continue
        raise OutputError(what, where=os.fspath(path), fix="Give another place for the output.")


def _lock(target: Path, needed: Path | None, made: list[Path], name: str) -> tuple[Path, IO[bytes]]:
    """Take an output's lock: the path of its file, and the file, open.

    `flock` may be missing on a network's file system, or know nothing of other machines. So the
    holder writes down who it is, and touches the file every other second: what another machine has
    written is taken for dead if it is not touched while one looks.

    Args:
        target: the output.
        needed: the directory that is made if it is missing.
        made: takes the directories that are made.
        name: the output's name in errors.
    """
    for _ in range(100):  # others may come and go
        with suppress(FileNotFoundError):  # another has just removed one
            made[:0] = [] if needed is None else make_directory(needed)
        path = target / LOCK if target.is_dir() else _beside(target, "lock")
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
                f"is being written {who}", where=name, fix="Wait for it, or give another place."
            )
        try:
            handle.truncate(0)
            handle.write(json.dumps(_self()).encode())
            handle.flush()
        except OSError:
            _unlock(path, handle)
            raise
        return path, handle
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _unlock(path: Path, handle: IO[bytes]) -> None:
    """Remove a lock while it is held, so that it is nobody else's."""
    with suppress(OSError):
        if _is_at(handle, path):
            path.unlink()
    with suppress(OSError):  # what could not be written is tried once more
        handle.close()


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: IO[bytes]) -> bool | None:
        """Lock a file; None where that cannot be told."""
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
        f"{path}: was locked {_phrase(holder)}; looking for {_WATCH:.0f} s whether it still runs",
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


def _is_device(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of something to write to which is no file: /dev/stdout, a pipe."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _remove_empty(directories: Iterable[Path]) -> None:
    """Remove directories that are empty, in this order."""
    for directory in directories:
        with suppress(OSError):
            directory.rmdir()
