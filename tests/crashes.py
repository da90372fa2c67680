"""A disk that may lose what was not synchronised, as a crash of the machine would."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="asks Linux for an open file's name"
)


class Disk:
    """What is safely on the disk below a folder, as a careful file system promises it and no more.

    A file's content is there as it was when it was last synchronised, a name when its directory
    was. At each renaming the machine may crash just before, or just after: with the new name on the
    disk already, whatever it names.

    Args:
        at_fsync: whether the machine may also crash before each file is synchronised.

    Attributes:
        crashes: how many were tried.
        damaged: what was said of those that left damage.
    """

    def __init__(
        self, root: Path, is_whole: Callable[[Path], bool], *, at_fsync: bool = False
    ) -> None:
        self._at_fsync = at_fsync
        self.crashes, self.num_damaged = 0, 0
        self._root, self._is_whole, self._is_simulated = root, is_whole, True
        self._fsync, self._replace = os.fsync, os.replace
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        self._open: list[int] = []  # so that no number is given to another file
        for folder, _, names in os.walk(root):
            for name in (*names, ""):
                self._synchronise(Path(folder, name))

    def fsync(self, descriptor: int) -> None:
        if not self._is_simulated:
            self._fsync(descriptor)
            return
        if self._at_fsync:
            self.crash()
        self._synchronise(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    def _synchronise(self, path: Path) -> None:
        self._open.append(os.open(path, os.O_RDONLY))
        number = path.stat().st_ino
        if path.is_dir():
            self._names[number] = {child.name: _number(child) for child in path.iterdir()}
        else:
            self._contents[number] = path.read_bytes()

    def replace(self, source: str | Path, target: str | Path) -> None:
        source, target = Path(source), Path(target)
        if not self._is_simulated:
            self._replace(source, target)
            return
        self.crash()
        self._replace(source, target)
        names_before = self._names
        self._names = {number: dict(names) for number, names in names_before.items()}
        for folder in (source.parent, target.parent):
            self._names.setdefault(folder.stat().st_ino, {}).pop(source.name, None)
        self._names[target.parent.stat().st_ino][target.name] = _number(target)
        self.crash()
        self._names = names_before

    def crash(self) -> None:
        """See what a crash now would leave."""
        left = self._root.with_name("crash")
        self._write(_number(self._root), left)
        self.crashes += 1
        self._is_simulated = False
        self.num_damaged += not self._is_whole(left)
        self._is_simulated = True
        shutil.rmtree(left)

    def is_new(self) -> bool:
        """Whether all that the program sees is on the disk."""
        left = self._root.with_name("crash")
        self._write(_number(self._root), left)
        is_new = contents(self._root).items() <= contents(left).items()
        shutil.rmtree(left)
        return is_new

    def _write(self, number: tuple[int, bool], path: Path) -> None:
        inode, is_directory = number
        if not is_directory:
            path.write_bytes(self._contents.get(inode, b""))
            return
        path.mkdir()
        for name, child in self._names.get(inode, {}).items():
            self._write(child, path / name)

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)


def _number(path: Path) -> tuple[int, bool]:
    """What identifies a file or directory, and whether it is a directory."""
    return path.stat().st_ino, path.is_dir()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@contextmanager
def crashing(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    is_whole: Callable[[Path], bool],
    *,
    at_fsync: bool = False,
) -> Iterator[Disk]:
    """Have every renaming below a folder checked for what a crash would leave."""
    disk = Disk(root, is_whole, at_fsync=at_fsync)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", disk.fsync)
        patched.setattr(os, "replace", disk.replace)
        yield disk
    disk.close()
    assert disk.crashes >= 2
