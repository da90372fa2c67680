"""How far `prepare` is, for whoever watches."""

from __future__ import annotations

from dataclasses import dataclass, field

from .lines import ReadCounts


@dataclass(slots=True)
class PrepareProgress:
    """How far `prepare` is; handed to its `progress` after every shard and at the end.

    Attributes:
        documents, sentences, tokens, unknown_tokens: in the shards so far.
        shards, reused_shards: how many there are, and how many of them an earlier run had made.
        bytes_read: of the corpus's files, for these shards; `bytes_total` is known beforehand
            (data sets count for nothing in both).
        seconds: since the start.
        new_tokens: those made in this run.
        read: what the reading has met: skipped, duplicates, formats.
    """

    bytes_total: int = 0
    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    shards: int = 0
    reused_shards: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    new_tokens: int = 0
    read: ReadCounts = field(default_factory=ReadCounts)

    @property
    def tokens_per_second(self) -> float:
        return self.new_tokens / self.seconds if self.seconds else 0.0

    @property
    def unknown_rate(self) -> float:
        """The share of `[UNK]` among the tokens."""
        return self.unknown_tokens / max(self.tokens, 1)
