"""The settings of vocabularies and shards."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ..settings.base import Need, Settings
from ..settings.literals import Sentences, SpanSource


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
