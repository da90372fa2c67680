"""The settings of what is made from a corpus: a vocabulary, or shards."""

from __future__ import annotations

from pydantic import Field

from ..literals import Sentences, SpanSource
from ..settings import Settings


class VocabularySettings(Settings):
    """How a vocabulary is learned."""

    size: int = Field(30522, ge=1, description="pieces, the special ones included")
    lowercase: bool = Field(
        True, description="fold case and accents, as the uncased models do; --cased is false"
    )
    min_frequency: int = Field(2, ge=1, description="how often a pair must occur to become a piece")
    character_coverage: float = Field(
        0.99995,
        gt=0,
        le=1,
        description="the share of the text that its most frequent characters make up, which are "
        "kept; words with others become [UNK]",
    )
    max_word_characters: int = Field(200, ge=1, description="longer words become [UNK]")


class PrepareSettings(Settings):
    """How documents become sentences and spans."""

    sentences: Sentences = Field(
        "split", description="split: by rules; lines: each line is one sentence already"
    )
    language: str = Field("en", description="the language whose rules split sentences")
    spans: SpanSource = Field(
        "none",
        description="mark phrases and names, for masking.unit=knowledge. given: documents carry "
        'them as "spans": [[start, end], …]; rules: and where they do not, rules find some',
    )
    seed: int = Field(0, description="draws what a corpus weight's fraction takes")
    shard_bytes: int = Field(
        1 << 23, ge=1, description="a shard is full when its text, in UTF-8, reaches this"
    )
