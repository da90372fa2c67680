"""The description of a prepared corpus (`manifest.json`), and the journal of an unfinished one.

Neither depends on the machine, the time, or the number of workers.
"""

from __future__ import annotations

import re
import shutil
import zlib
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import CheckpointError, DataError
from ..settings.literals import Sentences, SpanSource
from ..utils.json_files import check_format_version, parse_json, write_json
from ..utils.line_files import LineFile
from ..utils.regular_files import read_bytes

SUMMED_FIELDS = ("documents", "sentences", "tokens", "unknown_tokens", "spans", "empty_sentences")
"""The counts of a manifest that are sums over its shards."""

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
EXCLUDED_FILE = "excluded.jsonl"
TOKENIZER = "tokenizer"

_MESSAGES = {
    "sources": "the corpus differs (its parts, their weights or their sizes)",
    "vocabulary_hash": "the tokenizer differs",
    "exclude": "the text of the files to exclude differs",
}
"""Messages for settings that differ, where showing their values would not help."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceRecord(_Record):
    """A source of the corpus: the last part of its path, how it was read, and its size on disk."""

    name: str
    weight: float
    format: str
    column: str | None
    files: int
    bytes: int


class PrepareJob(_Record):
    """Everything that determines the bytes of a prepared corpus, except the text.

    `exclude` is the digest of the word sequences that no document may share; None if no documents
    are excluded. `part` (`I/N`): which part of the shards is made; None if all are.
    """

    sources: tuple[SourceRecord, ...]
    vocabulary_hash: str
    sentences: Sentences
    language: str
    spans: SpanSource
    encoding: str
    skip_bad: bool
    drop_duplicates: bool
    exclude: str | None
    seed: int
    shard_bytes: int
    part: str | None
    versions: dict[str, str]

    def without_sizes(self) -> PrepareJob:
        """The job with all file sizes set to 0."""
        sources = tuple(source.model_copy(update={"bytes": 0}) for source in self.sources)
        return self.model_copy(update={"sources": sources})

    def first_difference(self, other: PrepareJob) -> str | None:
        """A phrase about the first setting that differs in a later job; None if none differs."""
        mine, others = self.model_dump(), other.model_dump()
        for key, value in mine.items():
            if value != others[key]:
                return _MESSAGES.get(key, f"{key} was {value!r} and is now {others[key]!r}")
        return None


class ShardRecord(_Record):
    """A finished shard.

    `text` is the digest of its text, `sha256` that of its file.
    """

    file: str = Field(pattern=r"^[\w-][\w.-]*$")  # in the same directory
    documents: int
    sentences: int
    tokens: int
    unknown_tokens: int
    spans: int
    empty_sentences: int
    empty_documents: int
    bytes: int
    sha256: str
    text: str

    @property
    def place(self) -> tuple[int, str]:
        """Sorts shards by their numbers; those beyond 99,999 have longer names."""
        return len(self.file), self.file


class Manifest(_Record):
    """A prepared corpus: its counts, its job, and its shards."""

    format_version: int
    documents: int  # in the shards, including copies by weight
    sentences: int
    tokens: int
    unknown_tokens: int  # how many of the tokens are `[UNK]`
    spans: int  # how many spans of tokens are marked as units
    empty_documents: int  # dropped, because they have no tokens
    empty_sentences: int
    duplicate_documents: int  # dropped, because their text occurred before
    excluded_documents: int  # dropped, because they share text with evaluation data
    left_out_documents: int  # not selected, by a weight below 1
    cut_documents: int  # how often a very long document was split at a paragraph
    num_skipped: dict[str, int]  # how much bad input was skipped, by kind
    # the unsigned integer type of the token ids
    token_type: Annotated[str, Field(pattern=r"^uint(8|16|32)$")]
    vocabulary_size: int  # of the tokenizer; its hash is in `job`
    text: str | None  # of a part: the digest of the whole corpus's text
    job: PrepareJob
    shards: tuple[ShardRecord, ...]

    @property
    def unknown_rate(self) -> float:
        """The fraction of tokens that are `[UNK]`."""
        return self.unknown_tokens / max(self.tokens, 1)

    @property
    def vocabulary_hash(self) -> str:
        return self.job.vocabulary_hash

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read a prepared directory's manifest.

        Raises:
            DataError: the directory has none: it is not a prepared corpus, or unfinished.
            CheckpointError: the manifest is damaged, or was written in another format.
        """
        path = directory / MANIFEST
        if directory.exists() and not directory.is_dir():
            raise DataError(
                "is a file, not a prepared corpus",
                where=str(directory),
                fix="Prepare it with `bertworks prepare`, and give the output directory.",
            )
        try:
            tree = parse_json(read_bytes(path))
        except FileNotFoundError:
            if Journal.path(directory).exists():
                raise DataError(
                    "this corpus is not finished",
                    where=str(directory),
                    fix="Run the same `bertworks prepare` again: it resumes where it stopped.",
                ) from None
            raise DataError(
                f"no {MANIFEST} here, so this is not a prepared corpus",
                where=str(directory),
                fix="Make one with `bertworks prepare`.",
            ) from None
        except (OSError, ValueError) as error:
            raise _damage_error(path, str(error)) from None
        _check_format(tree, path)
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise _damage_error(path, _first(error)) from None

    def write(self, directory: Path) -> None:
        """Write the manifest atomically."""
        write_json(directory / MANIFEST, self.model_dump(mode="json"))


_CHECKED_LINE = re.compile(rb'(.*),"crc32":"([0-9a-f]{8})"}')


class _Header(_Record):
    """The first line of a journal."""

    format_version: int
    job: PrepareJob


class Journal:
    """The shards finished so far, as JSON Lines: first the job, then one line per shard.

    It is next to the shards until the manifest replaces it.
    """

    def __init__(self, directory: Path) -> None:
        self._file = LineFile(self.path(directory))

    @staticmethod
    def path(directory: Path) -> Path:
        return directory / "journal.jsonl"

    def read(self) -> tuple[PrepareJob | None, list[ShardRecord]]:
        """Read the job (None if the journal is empty) and the shards.

        Raises:
            CheckpointError: a line is damaged, or is not a record; or the journal was written in
                another format.
        """
        lines = [self._verify_checksum(line) for line in self._file.read().splitlines()]
        if not lines:
            return None, []
        try:
            header = parse_json(lines[0])
        except ValueError as error:
            raise _damage_error(self._file.path, str(error)) from None
        _check_format(header, self._file.path)
        try:
            job = _Header.model_validate(header).job
            return job, [ShardRecord.model_validate_json(line) for line in lines[1:]]
        except ValidationError as error:
            raise _damage_error(self._file.path, _first(error)) from None

    def restart(self, job: PrepareJob) -> None:
        """Empty the journal, then write the job."""
        self._file.truncate(0)
        self._append(_Header(format_version=FORMAT_VERSION, job=job))

    def append(self, shard: ShardRecord) -> None:
        """Append a line, and sync it to disk."""
        self._append(shard)

    def _append(self, record: _Record) -> None:
        line = record.model_dump_json().encode()
        self._file.append(line[:-1] + b',"crc32":"%08x"}\n' % zlib.crc32(line))
        self._file.sync()

    def _verify_checksum(self, line: bytes) -> bytes:
        """A line without its checksum, after a check."""
        match = _CHECKED_LINE.fullmatch(line)
        if match is None or zlib.crc32(match[1] + b"}") != int(match[2], 16):
            raise _damage_error(self._file.path, "the checksum of a line is wrong")
        return match[1] + b"}"

    def close(self) -> None:
        """Close the file, and remove it if it is empty."""
        if not self._file.size:
            self.remove()
        self._file.close()

    def remove(self) -> None:
        """Remove the file, once the manifest has replaced it."""
        self._file.path.unlink(missing_ok=True)


def is_corpus(data: object) -> bool:
    """Whether `data` is a directory made by `prepare`."""
    return isinstance(data, str | Path) and (Path(data) / MANIFEST).is_file()


def remove_unfinished(directory: Path) -> None:
    """Remove files that a killed run left incomplete."""
    for path in directory.glob(".*.new"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _check_format(tree: object, path: Path) -> None:
    fix = "Prepare the corpus again, with --overwrite (overwrite=True) in the same directory."
    check_format_version(tree, FORMAT_VERSION, path, CheckpointError, fix=fix)


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _damage_error(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"damaged ({why})",
        where=str(path),
        fix="Remove the directory and prepare the corpus again.",
    )
