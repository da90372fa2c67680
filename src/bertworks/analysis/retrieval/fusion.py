"""Hybrid search: the rankings of several indexes of the same texts as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .text_index import Ranking, TextIndex

RANK_CONSTANT = 60
MIN_DEPTH = 100
"""Texts of each ranking that are fused, or more if more are asked for."""


def fuse_rankings(rankings: Sequence[NDArray[np.int64]], count: int) -> Ranking:
    """Return the reciprocal rank fusion of rankings: a text's score is the sum of 1 / (60 + rank).

    Source: Cormack, Clarke and Büttcher (2009), "Reciprocal Rank Fusion Outperforms Condorcet and
    Individual Rank Learning Methods".

    Args:
        rankings: the rows of each, `[queries, texts]`; -1 for none.
        count: number of texts per query; of equal scores, the earlier text comes first.
    """
    num_queries = len(rankings[0])
    scores = np.zeros((num_queries, count), np.float32)
    rows = np.full((num_queries, count), -1, np.int64)
    for query in range(num_queries):
        sums: dict[int, float] = defaultdict(float)
        for ranking in rankings:
            for rank, row in enumerate(ranking[query].tolist(), 1):
                if row >= 0:
                    sums[row] += 1 / (RANK_CONSTANT + rank)
        best = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:count]
        for place, (row, score) in enumerate(best):
            rows[query, place], scores[query, place] = row, score
    return scores, rows


class HybridIndex(TextIndex):
    """Several indexes of the same texts, whose rankings are fused.

    Args:
        indexes: at least one; results are read from the first one's texts.
    """

    score_name = "fusion"

    def __init__(self, indexes: Sequence[TextIndex]) -> None:
        first = indexes[0]
        super().__init__(first._texts, first._checksums, first._engine)
        assert {len(index) for index in indexes} == {len(first)}, "indexes of the same texts"
        self.indexes = indexes

    def __repr__(self) -> str:
        return f"<HybridIndex of {list(self.indexes)!r}>"

    def __len__(self) -> int:
        return len(self.indexes[0])

    def rank(self, queries: Sequence[str], count: int, *, approximate: bool = False) -> Ranking:
        """As `TextIndex.rank`; `approximate` needs indexes that can approximate."""
        depth = min(max(count, MIN_DEPTH), len(self))
        rankings = [index.rank(queries, depth, approximate=approximate) for index in self.indexes]
        return fuse_rankings([rows for _, rows in rankings], min(count, len(self)))
