"""Files on other file systems: paths with a scheme, such as `s3://bucket/corpus`.

Corpora and tables are read as a stream. Models and prepared corpora are first copied to a cache on
this machine. Vectors are written on this machine, and uploaded when complete. The file systems are
those of `pyarrow.fs` (S3, GCS, HDFS) and those that fsspec supports. Keys and region of S3 are
found as Amazon's tools find them; `AWS_ENDPOINT_URL` names another server.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import DataError, OutputError, exists_error, first_line
from .regular_files import open_regular_file

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:/")  # a `Path` keeps one slash of two
_ONE_SLASH = re.compile(r"(?!file:)([a-z][a-z0-9+.-]+:)/(?!/)")
_URL = re.compile(r"([a-z][a-z0-9+.-]+:(?://[^/?]*)?)([^?]*)(.*)", re.DOTALL)
"""Scheme and server or bucket; name; parameters."""


def is_remote(path: object) -> bool:
    """Whether a path is on another file system, that is, has a scheme."""
    return isinstance(path, str | os.PathLike) and bool(_SCHEME.match(os.fspath(path)))


def remote_files(url: str) -> list[str]:
    """Return a file, or all files below a folder except hidden ones, sorted; none if it is missing.

    Raises:
        DataError: the file system cannot be reached, or denies access.
    """
    from pyarrow.fs import FileSelector, FileType

    with _reading(url):
        system, path = _file_system_and_path(url)
        info = system.get_file_info(path)
        if info.type == FileType.File:
            return [url]
        selector = FileSelector(path, recursive=True, allow_not_found=True)
        start, top = url.rstrip("/"), path.rstrip("/")
        names = (
            file.path[len(top) :]
            for file in system.get_file_info(selector)
            if file.type == FileType.File
        )
        return sorted(start + name for name in names if "/." not in name)


def size_of(path: str) -> int:
    """Return the size of a local or remote file in bytes; 0 for a remote file that is missing.

    Raises:
        OSError: a local file is missing, or a file system cannot be reached.
    """
    if not is_remote(path):
        return os.path.getsize(path)
    system, name = _file_system_and_path(path)
    return int(system.get_file_info(name).size or 0)


def open_raw(path: str) -> Any:
    """Open a local or remote file, to read bytes without a buffer.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    if not is_remote(path):
        return open(path, "rb", buffering=0, opener=open_regular_file)
    system, name = _file_system_and_path(path)
    return system.open_input_file(name)


def fetch_folder(url: str) -> Path:
    """Return a copy of a folder in the cache; once a file of the folder has changed, a new copy.

    Older copies stay in the cache.

    Raises:
        DataError: there is no such folder, or the file system cannot be reached.
    """
    from pyarrow.fs import LocalFileSystem, copy_files

    url = url.rstrip("/")
    names = remote_files(url)
    if not names or names == [url]:
        raise DataError("no such folder", where=url)
    with _reading(url):
        system, top = _file_system_and_path(url)
        infos = system.get_file_info([top + name[len(url) :] for name in names])
        state = [(info.path, info.size, info.mtime_ns) for info in infos]
        cache = cache_directory()
        copy = cache / hashlib.sha256(repr((url, state)).encode()).hexdigest()[:32]
        sizes = {info.path[len(top) + 1 :]: info.size for info in infos}

        def is_complete() -> bool:
            return all(_local_size(copy / name) == size for name, size in sizes.items())

        if is_complete():
            return copy
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as new:
            new_copy, local = os.path.join(new, "copy"), LocalFileSystem()
            os.mkdir(new_copy)  # `copy_files` makes the folders below it alone
            copy_files(top, new_copy, source_filesystem=system, destination_filesystem=local)
            if not is_complete():  # else another process has been faster, and may be reading it
                shutil.rmtree(copy, ignore_errors=True)
            try:
                os.replace(new_copy, copy)
            except OSError:
                if not copy.is_dir():
                    raise
    return copy


def cache_directory() -> Path:
    """Return the directory of this package's cache, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertworks"


def fetch_file(url: str, directory: Path) -> Path:
    """Copy a file into a directory, with a path that has its whole name there; return the path.

    Nothing is copied if there is no such file.

    Raises:
        DataError: the file system cannot be reached, or denies access.
    """
    copy = directory / Path(url)
    copy.parent.mkdir(parents=True, exist_ok=True)
    if remote_files(url) == [url]:
        with _reading(url), open_raw(url) as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 22)
    return copy


@contextmanager
def local_output(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a local path to write; if `path` is remote, the file is uploaded when the block ends.

    Other files that were written in the same directory are uploaded first. Object stores show a
    file completely or not at all. Nothing is locked there.

    Args:
        path: a file.
        overwrite: replace an existing file on the other file system.

    Raises:
        OutputError: the file already exists on the other file system, or cannot be written.
        DataError: the file system cannot be reached.
    """
    if not is_remote(path):
        yield Path(path)
        return
    url = os.fspath(path)
    folder, _, name = url.rpartition("/")
    if not overwrite and remote_files(url):
        raise exists_error(url)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, name)
        yield file
        for part in sorted(Path(directory).iterdir(), key=lambda part: part == file):
            try:
                _upload(part, f"{folder}/{part.name}")
            except OSError as error:
                what = f"cannot be written ({first_line(error)})"
                raise OutputError(what, where=url) from None


def _upload(file: Path, url: str) -> None:
    system, name = _file_system_and_path(url)
    with file.open("rb") as source, system.open_output_stream(name) as target:
        shutil.copyfileobj(source, target, 1 << 22)


def _local_size(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return -1


def _file_system_and_path(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path on it."""
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem, S3FileSystem

    if one_slash := _ONE_SLASH.match(url):
        url = f"{one_slash[1]}//{url[one_slash.end() :]}"
    if url.startswith("s3://") and (endpoint := os.environ.get("AWS_ENDPOINT_URL")):
        return S3FileSystem(endpoint_override=endpoint), url.removeprefix("s3://")
    try:
        system, path = FileSystem.from_uri(_escape_name(url))
    except ArrowInvalid:  # not one of Arrow's file systems
        system, path = FileSystem.from_uri(f"fsspec+{url}")
    return system, path


def _escape_name(url: str) -> str:
    """Return a URL with the characters of its name escaped, as Arrow expects them.

    Names are given, and listed, as the file system has them. Unescaped, a name would end at `#`,
    `%41` would become `A`, and a space would be an error.
    """
    match = _URL.fullmatch(url)
    if match is None or url.startswith(("fsspec+", "hf:")):  # which expect names as they are
        return url
    # Addresses of local files are written escaped (`Path.as_uri`).
    return match[1] + quote(match[2], safe="/%" if url.startswith("file:") else "/") + match[3]


@contextmanager
def _reading(url: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ImportError, ValueError) as error:
        raise DataError(f"cannot be read ({first_line(error)})", where=url) from None
