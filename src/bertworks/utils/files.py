"""Outputs that are complete or absent on the disk, even after a crash of the process or machine.

    atomic(path)           a file that gets its name when all of its content is on the disk
    new_directory(path)    the same for a directory
    LineFile(path)         an append-only file of lines; an incomplete last line is removed

Everything is first written under another name (`.NAME.new`, in the same directory), synchronised,
and renamed; then the directory that contains it is synchronised. Without the first synchronisation
a crash of the machine may leave a file with its final name and only part of its content.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from ..errors import BertworksError, OutputError, truncate_repr
from .formatting import printable

LOCK = ".lock"
_STAGED, _READY = ".bertworks.new", ".bertworks.ready"
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
        why = (error.strerror or str(error)).splitlines()[0]
        fix = "Make room, and run the same command again." if error.errno in _FULL else None
        raise OutputError(f"cannot be written ({why})", where=os.fspath(path), fix=fix) from None


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
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
        new = beside(target, "new")
        new.unlink(missing_ok=True)  # a file that a killed process left takes space
        try:
            yield new
            rename(new, target)
        except BaseException:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise


def write(path: str | os.PathLike[str], content: Any) -> None:
    """Replace the content of a file, completely or not at all.

    Args:
        content: text, or a bytes-like object. Text is encoded as UTF-8 with unchanged line ends;
            lone surrogates, as in file names that are not UTF-8, become escapes.

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
    with open(path, "rb", opener=_open_without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", os.fspath(path))
    return content


def check_regular(path: str | os.PathLike[str]) -> None:
    """Check that a file that is mapped, or read by a library, is a regular one; see `read_bytes`.

    Raises:
        OSError: it is a pipe, a device or a directory, or cannot be looked at.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_content(path: Path, error: type[BertworksError]) -> bytes:
    """Return the content of a small file; see `read_bytes`.

    Raises:
        BertworksError: of the class `error`: the file cannot be read.
    """
    try:
        return read_bytes(path)
    except OSError as problem:
        raise error(f"cannot be read ({problem.strerror})", where=str(path)) from None


def read_json(path: Path, error: type[BertworksError]) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        BertworksError: of the class `error`: the file cannot be read, or does not hold an object.
    """
    try:
        tree = parse_json(read_content(path, error))
    except ValueError as problem:
        raise error(f"not valid JSON ({problem})", where=str(path)) from None
    if not isinstance(tree, dict):
        raise error("the file must hold a JSON object", where=str(path))
    return tree


def check_format(
    tree: Any, version: int, path: Path, error: type[BertworksError], *, fix: str
) -> None:
    """Check the format number of a JSON object that this package wrote.

    The number rises with every change of a format; files of other numbers are not read.

    Args:
        tree: the content of the file `path`; its entry `format_version` is the number.
        version: the number of today's format.
        fix: how to make the file again.

    Raises:
        BertworksError: of the class `error`: the file has another number, or none.
    """
    number = tree.get("format_version") if isinstance(tree, dict) else None
    if number != version:
        shown = "none" if number is None else truncate_repr(number)
        raise error(f"written in another format ({shown}, not {version})", where=str(path), fix=fix)


_SEAL = "crc32"


def sealed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its checksum added."""
    return {**tree, _SEAL: _checksum(tree)}


def unsealed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Check and remove the checksum that `sealed` added.

    Raises:
        ValueError: the checksum is missing or wrong.
    """
    content = dict(tree)
    if content.pop(_SEAL, None) != _checksum(content):
        raise ValueError("its checksum is wrong")
    return content


def _checksum(tree: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(tree, sort_keys=True).encode()):08x}"


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
                    sync(path.parent)
                whole = self.read().rfind(b"\n") + 1
                if whole < self.size:
                    self._file.truncate(whole)
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
        before = self.size
        with writing(self.path):
            try:
                while line:  # an almost full disk may accept only a part
                    line = line[self._file.write(line) :]
            except BaseException:
                with suppress(OSError):
                    self._file.truncate(before)
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


@contextmanager
def new_directory(
    path: str | os.PathLike[str],
    *,
    last: str = "",
    replace: bool = False,
    keep: Callable[[str], bool] = lambda _: False,
) -> Iterator[Path]:
    """Yield a directory to fill, which becomes `path` when all of it is on the disk.

    It is renamed as a whole. But if `path` is an existing directory that is empty or not to be
    replaced (it may be in use), the entries are moved into it one at a time.

    Args:
        path: the directory to create.
        last: the entry that is moved last: the one that marks the directory as complete.
        replace: delete an existing directory. It is absent only between two renames; after a kill
            at that moment, it is next to `path` as `.NAME.old`, and the next call restores it.
        keep: whether a file of the replaced directory is kept, by its relative path.

    Raises:
        OutputError: the directory cannot be written; an existing one is then restored.
    """
    target = real_path(path)
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
                _replace(new, target, keep, replace=replace)
            else:
                rename(new, target / _READY)
                _move_in(target, last)
        except OutputError as error:
            where = error.where and error.where.replace(str(new), str(path), 1)
            raise OutputError(error.what, where=where, fix=error.fix) from None
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _replace(new: Path, target: Path, keep: Callable[[str], bool], *, replace: bool) -> None:
    """Rename a finished directory; delete an existing one, except for the files to keep.

    If another program creates the directory meanwhile, renaming fails, and nothing is deleted.
    """
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

    settle()  # left by a killed process
    try:
        if replace and target.exists():
            rename(target, old)
        rename(new, target)
    finally:
        if not (new.exists() and target.exists()):
            settle()


def finish(target: Path) -> None:
    """Undo or complete the move of `new_directory` into a directory, if it was interrupted."""
    shutil.rmtree(target / _STAGED, ignore_errors=True)
    if (target / _READY).is_dir():
        _move_in(target)


def _move_in(target: Path, last: str = "") -> None:
    """Move the entries of the synchronised directory to `target`; `finish` completes this."""
    ready = target / _READY
    for entry in sorted(ready.iterdir(), key=lambda entry: entry.name == last):
        os.replace(entry, target / entry.name)
    sync(target)
    ready.rmdir()


def make_directory(directory: Path) -> list[Path]:
    """Create a directory and its missing parents; return those created, the deepest first."""
    made: list[Path] = []
    for one in reversed((directory, *directory.parents)):
        if not one.exists():
            with suppress(FileExistsError):  # created by another process meanwhile
                one.mkdir()
                sync(one.parent)
                made.insert(0, one)
    return made


def remove_directory(directory: Path) -> None:
    """Remove a directory; a kill during this leaves no partial directory under its name."""
    old = beside(directory, "old")
    shutil.rmtree(old, ignore_errors=True)
    os.replace(directory, old)
    shutil.rmtree(old)


def replace_link(link: Path, target: Path) -> None:
    """Create a symbolic link to a target, or redirect an existing one.

    Raises:
        OutputError: the link cannot be created.
    """
    with writing(link):
        new = beside(link, "new")
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        rename(new, link)


def is_empty(directory: Path) -> bool:
    """Whether a directory holds nothing but the caller's lock."""
    return all(child.name == LOCK for child in directory.iterdir())


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether an output exists: a file, or a directory with files; no device or pipe.

    Locks and unfinished files, which a killed process left in a directory, do not count.
    """
    target = Path(path)
    if not target.is_dir():
        return target.is_file()
    return not all(_is_temporary(child.name) for child in target.iterdir())


def _is_temporary(name: str) -> bool:
    return name == LOCK or (name.startswith(".") and name.endswith((".new", ".lock")))


def remove_entries(directory: Path) -> None:
    """Remove everything in a directory but the caller's lock."""
    for child in directory.iterdir():
        if child.name == LOCK:
            continue
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()
    sync(directory)


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


def sync(path: Path) -> None:
    """Synchronise a file or directory to the disk."""
    is_windows = os.name == "nt"
    if is_windows and path.is_dir():
        return  # Windows cannot synchronise directories
    descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Synchronise a file or directory, rename it, and synchronise its new parent directory."""
    sync(source)
    os.replace(source, target)
    sync(target.parent)


def beside(path: Path, suffix: str) -> Path:
    """Return the hidden path `.NAME.suffix` in the same directory as a path."""
    return path.with_name(f".{path.name}.{suffix}")


def is_device(path: str | os.PathLike[str]) -> bool:
    """Whether a path is neither a file nor a directory, but exists: /dev/stdout, a pipe."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


MAX_DEPTH = 100
"""Maximum nesting of lists and objects; no format that is read here needs more than 20 levels.

Python and other libraries process values recursively; at some depth they raise a `RecursionError`
or crash.
"""


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

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
    """Check, level by level, that a value is not nested too deeply."""
    level: list[Any] = [[value]]
    nested = (dict, list)  # checked in half the time of a union
    for _ in range(MAX_DEPTH + 1):
        parts = (whole.values() if isinstance(whole, dict) else whole for whole in level)
        level = [part for some in parts for part in some if isinstance(part, nested)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
