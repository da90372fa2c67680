"""The description of a prepared corpus (`manifest.json`), and the records of its shards.

It does not depend on the machine, the time, or the number of workers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import CheckpointError, DataError
from ..jobs.journal import WindowRecord
from ..settings.literals import Sentences, SpanSource
from ..utils.json_files import check_format_version, first_problem, parse_json, write_json
from ..utils.regular_files import read_bytes

SUMMED_FIELDS = ("documents", "sentences", "tokens", "unknown_tokens", "spans", "empty_sentences")
"""The counts of a manifest that are sums over its shards."""

FORMAT_VERSION = 4
MANIFEST = "manifest.json"
EXCLUDED_FILE = "excluded.jsonl"
TOKENIZER = "tokenizer"
JOURNAL = "shards.journal.jsonl"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


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
    header: bool | None = None
    skip_bad: bool
    drop_duplicates: bool
    exclude: str | None
    seed: int
    shard_bytes: int
    part: str | None
    versions: dict[str, str]

    @property
    def settings(self) -> dict[str, Any]:
        """What is compared when it is resumed: a file whose text was corrected has another size."""
        return self.model_dump(mode="json", exclude={"sources": {"__all__": {"bytes"}}})


class ShardRecord(WindowRecord):
    """A finished shard."""

    documents: int
    sentences: int
    tokens: int
    unknown_tokens: int
    spans: int
    empty_sentences: int
    empty_documents: int

    @property
    def file(self) -> str:
        """The file's name; beyond 99,999 shards, names are longer."""
        return f"shard-{self.number:05d}.arrow"


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
    text: str  # the digest of the corpus's text, also of that of other parts
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
            CheckpointError: the manifest cannot be read, is damaged, or was written in another
                format.
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
            if (directory / JOURNAL).exists():
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
        except OSError as error:
            raise CheckpointError(f"cannot be read ({error.strerror})", where=str(path)) from None
        except ValueError as error:
            raise _damage_error(path, str(error)) from None
        fix = "Prepare the corpus again, with --overwrite (overwrite=True) in the same directory."
        check_format_version(tree, FORMAT_VERSION, path, CheckpointError, fix=fix)
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise _damage_error(path, first_problem(error)) from None

    def write(self, directory: Path) -> None:
        """Write the manifest atomically."""
        write_json(directory / MANIFEST, self.model_dump(mode="json"))


def is_corpus(data: object) -> bool:
    """Whether `data` is a directory made by `prepare`."""
    return isinstance(data, str | Path) and (Path(data) / MANIFEST).is_file()


def _damage_error(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"damaged ({why})",
        where=str(path),
        fix="Remove the directory and prepare the corpus again.",
    )
