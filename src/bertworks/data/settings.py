"""The options of files that are read, and the settings of vocabularies and shards."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, field_validator

from ..errors import DataError
from ..settings.base import Need, Settings
from ..settings.literals import DataFormat, Sentences, SpanSource
from .lines import text_encoding
from .reading import MAX_LINE_BYTES


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


class VocabularySettings(Settings):
    """Vocabulary."""

    size: int = Field(30522, ge=1, description="vocabulary size, including the special pieces")
    lowercase: bool = Field(
        True,
        description="lowercase and strip accents, as in the uncased models; --cased sets false",
    )
    min_frequency: int = Field(2, ge=1, description="how often a pair must occur to become a piece")
    character_coverage: float = Field(
        0.99995,
        gt=0,
        le=1,
        description="share of the text covered by the most frequent characters, which are "
        "kept; words with other characters become [UNK]",
    )
    max_word_characters: int = Field(
        200, ge=1, description="maximum characters of a word; longer words become [UNK]"
    )


class PrepareSettings(Settings):
    """Sentences, spans and shards."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(("language",), "without sentences=split", lambda own: own.sentences == "split"),
    )

    sentences: Sentences = Field(
        "split", description="split: by rules; lines: each line is already one sentence"
    )
    language: str = Field("en", description="language of the sentence-splitting rules")
    spans: SpanSource = Field(
        "none",
        description="mark phrases and names, for masking.unit=knowledge. given: as documents "
        'list them in "spans": [[start, end], …]; rules: the same, and by rules in '
        "other documents",
    )
    seed: int = Field(0, description="random seed for the fraction of a corpus weight")
    shard_bytes: int = Field(
        1 << 23, ge=1, description="a shard is complete when its text reaches this size in UTF-8"
    )
