"""What a prepared corpus says of itself: `manifest.json`, and the journal of an unfinished one.

Nothing in them depends on the machine, the time, or the number of workers.
"""

from __future__ import annotations

import re
import shutil
import zlib
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .. import files
from ..errors import CheckpointError, DataError
from ..files import parse_json
from ..literals import Sentences, SpanSource

SUMMED = ("documents", "sentences", "tokens", "unknown_tokens", "spans", "empty_sentences")
"""The counts of a manifest that are sums of those of its shards."""

FORMAT_VERSION = 2
_READ_VERSIONS = (1, 2)  # the first has neither spans nor sentences in context
MANIFEST = "manifest.json"
EXCLUDED = "excluded.jsonl"
TOKENIZER = "tokenizer"

_ADDED = {"encoding": "utf-8", "exclude": None, "part": None}
"""Settings of a job that earlier releases did not have, and what they did."""
_OTHERWISE = {
    "sources": "the corpus differs (its parts, their weights or their sizes)",
    "vocabulary_hash": "the tokenizer differs",
    "exclude": "the text of the files to exclude differs",
    "in_context": "its sentences were tokenised separately, by an earlier release",
}
"""What is said of settings that differ, where the values themselves say nothing."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceRecord(_Record):
    """A part of the corpus: the last part of its path, how it was read, and its size on disk."""

    name: str
    weight: float
    format: str
    column: str | None
    files: int
    bytes: int


class Job(_Record):
    """Everything that decides the bytes of a prepared corpus, but for the text itself.

    `exclude` is the digest of the word sequences that no document may share; None if none are
    excluded. `in_context` is whether sentences have the pieces that they have within their
    document; it makes no difference to a tokenizer whose pieces do not depend on that. `part` is
    which part of the shards is made (`I/N`), where not all are.
    """

    sources: tuple[SourceRecord, ...]
    vocabulary_hash: str
    sentences: Sentences
    language: str
    spans: SpanSource = "none"
    in_context: bool = False
    encoding: str = "utf-8"
    skip_bad: bool
    drop_duplicates: bool
    exclude: str | None = None
    seed: int
    shard_bytes: int
    part: str | None = None
    versions: dict[str, str]

    def without_sizes(self) -> Job:
        """The same job whatever its files' sizes."""
        sources = tuple(source.model_copy(update={"bytes": 0}) for source in self.sources)
        return self.model_copy(update={"sources": sources})

    def first_difference(self, later: Job) -> str | None:
        """A phrase that names the first setting that is another in a later job, if any is."""
        mine, others = self.model_dump(), later.model_dump()
        for key, value in mine.items():
            if value != others[key]:
                return _OTHERWISE.get(key, f"{key} was {value!r} and is now {others[key]!r}")
        return None


class ShardRecord(_Record):
    """A finished shard.

    `text` is the digest of the text that went in, `sha256` that of the file that came out.
    """

    file: str = Field(pattern=r"^[\w-][\w.-]*$")  # in the same directory
    documents: int
    sentences: int
    tokens: int
    unknown_tokens: int
    spans: int = 0
    empty_sentences: int
    empty_documents: int
    bytes: int
    sha256: str
    text: str


class Manifest(_Record):
    """A prepared corpus: its counts, what made it, and its shards."""

    format_version: int
    documents: int  # what the shards hold, copies by weight included
    sentences: int
    tokens: int
    unknown_tokens: int  # how many of the tokens are `[UNK]`
    spans: int = 0  # how many spans of tokens are marked as units
    empty_documents: int  # dropped, as nothing of them was left as tokens
    empty_sentences: int
    duplicate_documents: int  # dropped, as their text had come before
    excluded_documents: int = 0  # dropped, as they share text with evaluation data
    left_out_documents: int  # not drawn, by a weight with a fraction
    cut_documents: int  # how often a very long document was cut at a paragraph
    skipped: dict[str, int]  # bad things skipped, by kind
    # the unsigned integer type of the token ids
    token_type: Annotated[str, Field(pattern=r"^uint(8|16|32)$")]
    vocabulary_size: int  # of the tokenizer; its hash is in `job`
    text: str | None = None  # of a part: the digest of the whole corpus's text
    job: Job
    shards: tuple[ShardRecord, ...]

    @property
    def unknown_rate(self) -> float:
        """The share of `[UNK]` among the tokens."""
        return self.unknown_tokens / max(self.tokens, 1)

    @property
    def vocabulary_hash(self) -> str:
        return self.job.vocabulary_hash

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read a prepared directory's manifest.

        Raises:
            DataError: the directory holds none: it is no prepared corpus, or unfinished.
            CheckpointError: the manifest is damaged, or of another format version.
        """
        path = directory / MANIFEST
        try:
            tree = parse_json(path.read_bytes())
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
            raise _damaged(path, str(error)) from None
        version = tree.get("format_version") if isinstance(tree, dict) else None
        if version not in _READ_VERSIONS:
            raise CheckpointError(
                f"format version {version!r}; this program reads 1 to {FORMAT_VERSION}",
                where=str(path),
                fix="Prepare the corpus again.",
            )
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise _damaged(path, _first(error)) from None

    def write(self, directory: Path) -> None:
        """Write the manifest, whole or not at all."""
        tree = self.model_dump(mode="json")
        for key, value in _ADDED.items():  # where they are not used, the bytes are as before
            if tree["job"][key] == value:
                del tree["job"][key]
        if self.job.exclude is None:
            del tree["excluded_documents"]
        if self.text is None:
            del tree["text"]
        files.write_json(directory / MANIFEST, tree)


_CHECKED_LINE = re.compile(rb'(.*),"crc32":"([0-9a-f]{8})"}')


class Journal:
    """The shards finished so far, as JSON Lines: the job first, then a line a shard.

    It is kept next to the shards until the manifest takes its place.
    """

    def __init__(self, directory: Path) -> None:
        self._file = files.LineFile(self.path(directory))

    @staticmethod
    def path(directory: Path) -> Path:
        return directory / "journal.jsonl"

    def read(self) -> tuple[Job | None, list[ShardRecord]]:
        """The job and the shards.

        Raises:
            CheckpointError: a line is damaged, or of something else.
        """
        lines = [self._checked(line) for line in self._file.read().splitlines()]
        try:
            job = Job.model_validate_json(lines[0]) if lines else None
            return job, [ShardRecord.model_validate_json(line) for line in lines[1:]]
        except ValidationError as error:
            raise _damaged(self._file.path, _first(error)) from None

    def restart(self, job: Job) -> None:
        """Empty the journal, and begin it with the job."""
        self._file.truncate(0)
        self.append(job)

    def append(self, record: Job | ShardRecord) -> None:
        """Add a line, and have it on the disk."""
        line = record.model_dump_json().encode()
        self._file.append(line[:-1] + b',"crc32":"%08x"}\n' % zlib.crc32(line))
        self._file.sync()

    def _checked(self, line: bytes) -> bytes:
        """A line without its checksum, which those of earlier releases do not have."""
        found = _CHECKED_LINE.fullmatch(line)
        if found is None:
            return line
        if zlib.crc32(found[1] + b"}") != int(found[2], 16):
            raise _damaged(self._file.path, "the checksum of a line is wrong")
        return found[1] + b"}"

    def close(self) -> None:
        """Let go of the file; an empty journal is not left behind."""
        if not self._file.size:
            self.remove()
        self._file.close()

    def remove(self) -> None:
        """Remove the file, once the manifest has taken its place."""
        self._file.path.unlink(missing_ok=True)


def remove_unfinished(directory: Path) -> None:
    """Remove what a killed run left half written, of an earlier release too."""
    for path in (*directory.glob(".*.new"), *directory.glob("*.tmp")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"damaged ({why})",
        where=str(path),
        fix="Remove the directory and prepare the corpus again.",
    )
