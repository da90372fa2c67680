"""The sources of a corpus: files, folders, globs and data sets, each with a weight."""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_args

from ..errors import DataError, first_line, import_optional
from ..settings.literals import DataFormat
from ..utils.regular_files import why_no_file
from ..utils.remote import is_remote, remote_files, size_of

_HUB = "hf:"
MAX_WEIGHT = 1000.0
"""The largest weight of a source: how often a pass over the corpus may read it."""
_WEIGHTED = re.compile(r"(?P<path>.+)@(?P<weight>\d+(?:\.\d+)?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CorpusSource:
    """One part of a corpus.

    Raises:
        DataError: the weight is not a finite number above 0, or exceeds `MAX_WEIGHT`; or the
            format is unknown.
    """

    # a file; a folder (all files below it except hidden ones, in sorted order; a folder reached by
    # several links is read once); either may have a scheme (`s3://bucket/folder`); a glob; or a
    # Hugging Face data set, `hf:NAME[:CONFIG][#SPLIT]` (or, with or without `hf:`, a folder that
    # `save_to_disk` wrote)
    path: str
    # how often a pass over the corpus reads each document of the source: 2 reads each twice; 0.5
    # reads a random half of them (by the seed); 1.5 reads each once, and a random half again
    weight: float = 1.0
    # the format of the files; "auto" detects it for each file
    format: DataFormat = "auto"
    # the text column in JSON Lines, Parquet and data sets. Default: `text`, otherwise the only
    # column with strings
    column: str | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise DataError(
                f"the weight {self.weight} is not a number above 0",
                where=self.path,
                fix="Leave the source out.",
            )
        if self.weight > MAX_WEIGHT:
            raise DataError(
                f"the weight {self.weight:g} is more than {MAX_WEIGHT:g}, and each pass over the "
                "corpus would read the source that many times",
                where=self.path,
                fix=_NAME_FIX,
            )
        if self.format not in (formats := get_args(DataFormat)):
            raise DataError(
                f"the format {self.format!r} is unknown",
                where=self.path,
                fix=f"It is one of {', '.join(formats)}.",
            )

    @classmethod
    def parse(
        cls,
        source: str | os.PathLike[str] | CorpusSource,
        *,
        format: DataFormat = "auto",
        column: str | None = None,
    ) -> CorpusSource:
        """Parse `PATH` or `PATH@WEIGHT`; the name of an existing path, also remote, is not split.

        `format` and `column` are defaults for sources that do not set them.

        Raises:
            DataError: the weight is not valid; or a remote file system cannot be reached.
        """
        if isinstance(source, CorpusSource):
            return cls(
                source.path,
                source.weight,
                source.format if source.format != "auto" else format,
                source.column if source.column is not None else column,
            )
        path, weight = os.fspath(source), 1.0
        found = _WEIGHTED.fullmatch(path)
        if found and not _exists(path):
            path, weight = found["path"], float(found["weight"])
        return cls(path, weight, format, column)

    @property
    def name(self) -> str:
        """The source's name, the same on all machines: the last part of its path."""
        return self.path if self.is_dataset else Path(self.path).name or self.path

    @property
    def is_dataset(self) -> bool:
        """Whether this is a Hugging Face data set rather than files."""
        return self.path.startswith(_HUB) or is_saved_dataset(Path(self.path))

    @property
    def dataset(self) -> tuple[str, str | None, str | None]:
        """Name or folder, configuration and split of a Hugging Face data set."""
        name, _, split = self.path.removeprefix(_HUB).partition("#")
        if not name.strip():
            raise DataError("names no data set", where=self.path, fix="For example: hf:imdb.")
        if os.path.isdir(name):
            return name, None, split or None
        name, _, config = name.partition(":")
        return name, config or None, split or None

    def files(self) -> list[str]:
        """The source's files, in the order in which they are read; empty for a data set.

        Other entries of a folder (a pipe, a broken link) are included; see `is_file`.

        Raises:
            DataError: the path does not exist, or no file matches.
        """
        if self.is_dataset:
            return []
        path = os.path.expanduser(self.path)
        if is_remote(self.path):
            paths, problem = remote_files(self.path), "no such file or folder"
        elif os.path.isfile(path):
            paths, problem = [path], ""
        elif os.path.isdir(path):
            paths, problem = sorted(_files_in(path)), "the folder holds no files"
        elif glob.has_magic(path):
            # As a shell's: a matching folder stands for its files, which `**` matches, too.
            matches = glob.glob(path, recursive=True)
            files = (_files_in(one) if os.path.isdir(one) else [one] for one in matches)
            paths = sorted({one for part in files for one in part if os.path.isfile(one)})
            problem = "no file matches the pattern"
        else:
            paths, problem = [], why_no_file(path)
        if not paths:
            is_marked = "@" in Path(path).name or self.weight != 1
            raise DataError(problem, where=self.path, fix=_NAME_FIX if is_marked else None)
        return paths


_NAME_FIX = (
    "A number after the last @ is the weight, unless a file or folder of the whole name exists: "
    "PATH@0.5, or NAME@2@1 for NAME@2."
)


def _exists(path: str) -> bool:
    """Whether a local or remote path exists, or a pattern matches a file or folder."""
    if is_remote(path):
        return bool(remote_files(path))
    path = os.path.expanduser(path)
    if os.path.exists(path):
        return True
    return glob.has_magic(path) and any(map(os.path.exists, glob.iglob(path, recursive=True)))


Sources: TypeAlias = (
    str | os.PathLike[str] | CorpusSource | Sequence[str | os.PathLike[str] | CorpusSource]
)
"""A corpus as users give it: one source or several."""


def paths_of(sources: Sequence[CorpusSource]) -> list[str]:
    """The folders of sources, and the files of sources that are not folders."""
    return [
        path
        for one in sources
        for path in ([one.path] if os.path.isdir(os.path.expanduser(one.path)) else one.files())
    ]


def parse_sources(
    sources: Sources,
    *,
    format: DataFormat = "auto",
    column: str | None = None,
) -> list[CorpusSource]:
    """Parse one or several sources.

    Raises:
        DataError: there is none, or a weight is not valid.
    """
    if isinstance(sources, str | os.PathLike | CorpusSource):
        sources = [sources]
    if not sources:
        raise DataError("no corpus is given", fix="Name a file, a folder or a glob.")
    return [CorpusSource.parse(source, format=format, column=column) for source in sources]


def open_dataset(source: CorpusSource) -> Iterable[Any]:
    """Open a split of a Hugging Face data set: the given one, else `train`, else the only one.

    Raises:
        BertworksError: the package `datasets` is not installed.
        DataError: there is no such data set or split.
    """
    datasets: Any = import_optional("datasets", "data", "Reading a Hugging Face data set")
    name, config, split = source.dataset
    try:
        if is_saved_dataset(Path(name)):
            data = datasets.load_from_disk(name)
        else:
            data = datasets.load_dataset(name, config, streaming=True)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be loaded ({first_line(error)})", where=source.path) from None
    if isinstance(data, dict):
        data = data[_choose_split(source, list(data), split)]
    return _DatasetRows(data, source.path)


class _DatasetRows:
    """The rows of a data set, of which a stream may break.

    Raises:
        DataError: while iterating: the connection is lost, or a file is damaged.
    """

    def __init__(self, data: Any, where: str) -> None:
        self._data, self._where, self.features = data, where, data.features

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._data
        except OSError as error:
            what = f"cannot be read further ({first_line(error)})"
            raise DataError(what, where=self._where) from None


def _choose_split(source: CorpusSource, splits: list[str], split: str | None) -> str:
    if split is None:
        split = "train" if "train" in splits else splits[0] if len(splits) == 1 else None
    if split not in splits:
        raise DataError(
            f"no split {split!r}" if split else "several splits, and none is chosen",
            where=source.path,
            fix=f"The splits are: {', '.join(splits)}. Add #SPLIT to the name.",
        )
    return split


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder is a Hugging Face data set that `save_to_disk` wrote."""
    return (path / "dataset_dict.json").is_file() or (
        (path / "dataset_info.json").is_file() and (path / "state.json").is_file()
    )


def is_file(path: str) -> bool:
    """Whether a source's entry is a regular file: opening a pipe would block."""
    return is_remote(path) or os.path.isfile(path)


def bytes_of(files: Iterable[str]) -> int:
    """The size of a source's files on disk."""
    return sum(size_of(file) for file in files if is_file(file))


def _files_in(directory: str) -> list[str]:
    paths: list[str] = []
    visited_folders: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(directory, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in visited_folders:  # a link led to it again
            folders.clear()
            continue
        visited_folders.add((status.st_dev, status.st_ino))
        # Sorted, so that a folder is first reached by the same path on every machine.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths += [os.path.join(folder, name) for name in names if not name.startswith(".")]
    return paths
