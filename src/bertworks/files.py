"""Outputs that are whole or absent on the disk, whenever the process or the machine ends.

    atomic(path)           a file that takes its name once all of it is on the disk
    new_directory(path)    the same for a directory
    LineFile(path)         lines that are only appended; one cut short by a kill is removed

Everything is written under another name first (`.NAME.new`, beside it), synchronised, and renamed;
then the directory that holds the name is synchronised. Without the first synchronisation a crash of
the machine may leave the name with half of the content.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from .errors import BertworksError, OutputError
from .wording import printable

LOCK = ".lock"
_STAGED, _READY = ".bertworks.new", ".bertworks.ready"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
        if is_device(path):
            yield Path(path)
            return
        target = Path(path).resolve()
        new = beside(target, "new")
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


_SEAL = "crc32"


def sealed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a checksum of itself."""
    return {**tree, _SEAL: _checksum(tree)}


def unsealed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What was sealed; an object without a checksum, of an earlier release, as it is.

    Raises:
        ValueError: it is not what it was.
    """
    found = dict(tree)
    said = found.pop(_SEAL, None)
    if said is not None and said != _checksum(found):
        raise ValueError("its checksum is wrong")
    return found


def _checksum(tree: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(tree, sort_keys=True).encode()):08x}"


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
    new = beside(target, "new") if as_whole else target / _STAGED
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
    old = beside(target, "old")

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


def finish(target: Path) -> None:
    """Undo or finish what a kill left half done in a directory that `new_directory` moved into."""
    shutil.rmtree(target / _STAGED, ignore_errors=True)
    if (target / _READY).is_dir():
        _move_in(target)


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
    old = beside(directory, "old")
    shutil.rmtree(old, ignore_errors=True)
    os.replace(directory, old)
    shutil.rmtree(old)


def replace_link(link: Path, target: Path) -> None:
    """Have a symbolic link point to a target, whatever it pointed to before.

    Raises:
        OutputError: the link cannot be made.
    """
    with writing(link):
        new = beside(link, "new")
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


def beside(path: Path, suffix: str) -> Path:
    """The hidden name beside a path under which something about it lies."""
    return path.with_name(f".{path.name}.{suffix}")


def is_device(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of something to write to which is no file: /dev/stdout, a pipe."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


MAX_DEPTH = 100
"""How deep lists and objects may be nested; no format that is read here needs more than 20.

Python and the libraries that a value is handed to take it apart recursively, and end in a
`RecursionError`, or a crash, at some depth of their own.
"""


def parse_json(text: str | bytes) -> Any:
    """The value that a JSON text holds.

    Raises:
        ValueError: it is not valid JSON, not UTF-8, nested deeper than `MAX_DEPTH`, or has a number
            of too many digits.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    """See that a value is not nested too deeply, level by level."""
    level: list[Any] = [[value]]
    nested = (dict, list)  # looked at in half the time of a union
    for _ in range(MAX_DEPTH + 1):
        parts = (whole.values() if isinstance(whole, dict) else whole for whole in level)
        level = [part for some in parts for part in some if isinstance(part, nested)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
