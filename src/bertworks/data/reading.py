"""How a file is read: users' options, what every reader gets, and counts of what was read."""

from __future__ import annotations

import codecs
from collections import Counter
from dataclasses import dataclass, field, replace
from encodings.aliases import aliases
from typing import Any, Self

from pydantic import Field, field_validator

from ..errors import DataError, did_you_mean
from ..settings.base import Settings
from ..settings.literals import DataFormat

MAX_LINE_BYTES = 1 << 26
"""The default maximum length of a line."""
ALLOW_MORE = "If that is intended, allow more: --max-line-bytes N (max_line_bytes=N)."
# Codecs that write text in ASCII, as for names of hosts or in source code: no files have them.
_NOTATIONS = {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "charmap"}


class LineOptions(Settings):
    """Lines of text."""

    encoding: str = Field("utf-8", description="text encoding, such as latin-1")
    max_line_bytes: int = Field(
        MAX_LINE_BYTES, ge=1, description="maximum bytes of a line; a longer one is an error"
    )

    @field_validator("encoding")
    @classmethod
    def _is_known(cls, value: str) -> str:
        try:
            return text_encoding(value)
        except DataError as error:
            raise ValueError(f"{error.what}. {error.fix}") from None


class TableOptions(LineOptions):
    """Table format, detected if omitted."""

    header: bool | None = Field(
        None, description="whether the first line has column names; detected if omitted"
    )
    format: DataFormat = Field("auto", description="format of files whose name does not show it")

    def table_options(self) -> dict[str, Any]:
        """Return only the options of this class, without those of a subclass."""
        return {name: getattr(self, name) for name in TableOptions.model_fields}


class CorpusOptions(LineOptions):
    """Corpus format, detected if omitted, and documents to leave out."""

    format: DataFormat = Field(
        "auto", description="format of files whose source does not set one; detected for each file"
    )
    header: bool | None = Field(
        None, description="whether the first line of tables has column names; detected if omitted"
    )
    column: str | None = Field(None, description="text column, in formats that have columns")
    skip_bad: bool = Field(False, description="skip and count unreadable input")
    drop_duplicates: bool = Field(
        False, description="drop and count documents whose whole text occurred before"
    )


@dataclass(frozen=True, slots=True)
class ExcludedDocument:
    """A document that was dropped because it shares text with evaluation data."""

    where: str  # where it begins
    beginning: str  # its first line, truncated at 80 characters
    shared_sequences: int  # how many of its word sequences are also in the evaluation data
    first_shared: str  # the words of the first shared sequence


@dataclass(slots=True)
class ReadCounts:
    """The counts of a corpus read so far."""

    documents: int = 0  # documents yielded, including copies by weight
    duplicates: int = 0  # documents dropped because their text occurred before
    # documents dropped because they share text with evaluation data
    excluded_documents: list[ExcludedDocument] = field(default_factory=list)
    left_out: int = 0  # documents that a weight below 1 did not select
    empty: int = 0  # documents without any text
    num_splits: int = 0  # how often a too long document was split at a paragraph
    # how much bad input was skipped, by kind
    num_skipped_by_kind: Counter[str] = field(default_factory=Counter)
    # for each kind, the error message of the first skipped one
    first_skipped: dict[str, str] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)  # each file's format, for display
    bytes_read: int = 0  # of the files on disk, before decompression (0 for data sets)
    bytes_total: int = 0

    @property
    def num_skipped(self) -> int:
        return sum(self.num_skipped_by_kind.values())


@dataclass(frozen=True, slots=True)
class Reading:
    """The options and counts that every format's reader gets.

    A reader passes bad input that concerns one line or record to `bad` or `skip`, and continues
    after it. A `DataError` that it raises concerns the rest of the file.
    """

    counts: ReadCounts = field(default_factory=ReadCounts)  # the readers add to these
    skip_bad: bool = False  # whether bad input is skipped and counted, instead of raising an error
    column: str | None = None  # the text column of documents, if given
    spans: bool = False  # whether to read spans too, in formats that support them
    # a longer document is split at the next paragraph (plain text and WikiExtractor)
    max_document_characters: int = 1 << 23
    header: bool | None = None  # whether the first line has column names; None: detected
    encoding: str = "utf-8"  # of text; any of Python's names
    max_line_bytes: int = MAX_LINE_BYTES  # a longer line is bad
    # whether a line `-DOCSTART-` of CoNLL with as many fields as a word's is a row of one word, as
    # scorers count it
    document_starts: bool = False

    def bad(self, kind: str, what: str, *, where: str, fix: str | None = None) -> None:
        """Count bad input as skipped.

        Raises:
            DataError: `skip_bad` is false.
        """
        self.skip(kind, DataError(what, where=where, fix=fix))

    def skip(self, kind: str, error: DataError) -> None:
        """Count bad input, which an error describes, as skipped; see `bad`."""
        if not self.skip_bad:
            raise error
        self.counts.num_skipped_by_kind[kind] += 1
        self.counts.first_skipped.setdefault(kind, str(error))

    def with_other_counts(self) -> Self:
        """Return the same options with other counts, for a look at the beginning of a file."""
        return replace(self, counts=ReadCounts())


def text_encoding(name: str) -> str:
    """Return Python's name of a text encoding; UTF-8 with a byte-order mark is UTF-8.

    Raises:
        DataError: there is no such encoding.
    """
    if not _encodes_text(name):
        valid = filter(_encodes_text, ["utf-8", "latin-1", "utf-16", *aliases])
        raise DataError(f"unknown text encoding {name!r}", fix=f"{did_you_mean(name, valid)}.")
    codec = codecs.lookup(name).name
    return "utf-8" if codec == "utf-8-sig" else codec


def _encodes_text(name: str) -> bool:
    """Whether a name is that of a text encoding (the codec base64, for example, is not one)."""
    try:
        "".encode(name)
    except (LookupError, UnicodeError, ValueError):
        return False
    return codecs.lookup(name).name not in _NOTATIONS
