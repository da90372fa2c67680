"""Directories that are complete or absent on the disk, even after a crash; see `atomic_writes`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import OutputError
from .atomic_writes import fsync, hidden_path, real_path, rename_durably, writing

LOCK_NAME = ".lock"
_NEW, _READY = ".bertworks.new", ".bertworks.ready"


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
    as_whole = not target.exists() or (replace and not is_empty_directory(target))
    new = hidden_path(target, "new") if as_whole else target / _NEW
    with writing(path):
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            yield new
            for folder, _, names in os.walk(new, topdown=False):
                for name in (*names, ""):
                    fsync(Path(folder, name))
            if as_whole:
                _replace(new, target, keep, replace=replace)
            else:
                rename_durably(new, target / _READY)
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
    old = hidden_path(target, "old")

    def restore_or_remove() -> None:
        if not old.exists():
            return
        if not target.exists():
            rename_durably(old, target)
            return
        for file in sorted(old.rglob("*")):
            name = file.relative_to(old)
            is_kept = keep(name.as_posix()) and not (target / name).exists()
            if is_kept and (file.is_symlink() or not file.is_dir()):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                rename_durably(file, target / name)
        shutil.rmtree(old, ignore_errors=True)

    restore_or_remove()  # left by a killed process
    try:
        if replace and target.exists():
            rename_durably(target, old)
        rename_durably(new, target)
    finally:
        if not (new.exists() and target.exists()):
            restore_or_remove()


def finish_move(target: Path) -> None:
    """Undo or complete the move of `new_directory` into a directory, if it was interrupted."""
    shutil.rmtree(target / _NEW, ignore_errors=True)
    if (target / _READY).is_dir():
        _move_in(target)


def _move_in(target: Path, last: str = "") -> None:
    """Move the entries of the synchronised directory to `target`; `finish_move` completes this."""
    ready = target / _READY
    for entry in sorted(ready.iterdir(), key=lambda entry: entry.name == last):
        os.replace(entry, target / entry.name)
    fsync(target)
    ready.rmdir()


def make_directory(directory: Path) -> list[Path]:
    """Create a directory and its missing parents; return those created, the deepest first."""
    new_directories: list[Path] = []
    for one in reversed((directory, *directory.parents)):
        if not one.exists():
            with suppress(FileExistsError):  # created by another process meanwhile
                one.mkdir()
                fsync(one.parent)
                new_directories.insert(0, one)
    return new_directories


def remove_directory(directory: Path) -> None:
    """Remove a directory; a kill during this leaves no partial directory under its name."""
    old = hidden_path(directory, "old")
    shutil.rmtree(old, ignore_errors=True)
    os.replace(directory, old)
    shutil.rmtree(old)


def remove_entries(directory: Path) -> None:
    """Remove everything in a directory but the caller's lock."""
    for child in directory.iterdir():
        if child.name == LOCK_NAME:
            continue
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()
    fsync(directory)


def replace_link(link: Path, target: Path) -> None:
    """Create a symbolic link to a target, or redirect an existing one.

    Raises:
        OutputError: the link cannot be created.
    """
    with writing(link):
        new = hidden_path(link, "new")
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        rename_durably(new, link)


def is_empty_directory(directory: Path) -> bool:
    """Whether a directory holds nothing but the caller's lock."""
    return all(child.name == LOCK_NAME for child in directory.iterdir())


def output_exists(path: str | os.PathLike[str]) -> bool:
    """Whether an output exists: a file, or a directory with files; no device or pipe.

    Locks and unfinished files, which a killed process left in a directory, do not count.
    """
    target = Path(path)
    if not target.is_dir():
        return target.is_file()
    return not all(_is_temporary(child.name) for child in target.iterdir())


def _is_temporary(name: str) -> bool:
    return name == LOCK_NAME or (name.startswith(".") and name.endswith((".new", ".lock")))
