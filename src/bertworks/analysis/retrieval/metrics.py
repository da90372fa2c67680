"""Metrics of rankings with graded judgements, as `trec_eval` computes them.

    ndcg@k       Järvelin and Kekäläinen (2002), "Cumulated Gain-Based Evaluation of IR
                 Techniques", with the gain as it is judged and log2(rank + 1) as discount
    map, map@k   the mean of the precision at each relevant document, 0 for those not retrieved
    mrr, mrr@k   1 / rank of the first relevant document
    recall@k     the share of the relevant documents among the first k
    precision@k  the share of relevant documents among the first k, of k

A document is relevant if its judgement is above 0. Documents of equal score are ordered by their
ids, the last one first, and scores are compared as float32: so does `trec_eval`, so that results
do not depend on the order in which a run lists its documents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np

from ...errors import DataError, SettingsError, did_you_mean

Judgements: TypeAlias = Mapping[str, Mapping[str, int]]
"""For each query, by its id, the relevance of documents, by theirs."""

Run: TypeAlias = Mapping[str, Mapping[str, float]]
"""For each query the scores of the documents that a system retrieved."""

DEFAULT_METRICS = ("ndcg@10", "mrr@10", "map", "recall@100", "precision@10")


def _ndcg(gains: Sequence[int], relevant: Sequence[int], k: int) -> float:
    best = sorted(relevant, reverse=True)
    ideal = sum(gain / math.log2(rank + 2) for rank, gain in enumerate(best[:k]))
    own = sum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains[:k]))
    return own / ideal if ideal else 0.0


def _average_precision(gains: Sequence[int], relevant: Sequence[int], k: int) -> float:
    hits = [rank for rank, gain in enumerate(gains[:k], 1) if gain]
    precisions = sum(number / rank for number, rank in enumerate(hits, 1))
    return precisions / len(relevant) if relevant else 0.0


def _reciprocal_rank(gains: Sequence[int], relevant: Sequence[int], k: int) -> float:
    del relevant
    return next((1 / rank for rank, gain in enumerate(gains[:k], 1) if gain), 0.0)


def _recall(gains: Sequence[int], relevant: Sequence[int], k: int) -> float:
    return sum(gain > 0 for gain in gains[:k]) / len(relevant) if relevant else 0.0


def _precision(gains: Sequence[int], relevant: Sequence[int], k: int) -> float:
    del relevant
    return sum(gain > 0 for gain in gains[:k]) / k


_METRICS: Mapping[str, Callable[[Sequence[int], Sequence[int], int], float]] = {
    "ndcg": _ndcg,
    "map": _average_precision,
    "mrr": _reciprocal_rank,
    "recall": _recall,
    "precision": _precision,
}
_WITHOUT_CUTOFF = ("map", "mrr")


@dataclass(frozen=True)
class RankingMetric:
    """A metric and its cutoff, such as `ndcg@10`."""

    name: str
    cutoff: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a metric's name.

        Raises:
            SettingsError: there is no such metric, or it needs another cutoff.
        """
        name, _, cutoff = text.strip().partition("@")
        if name not in _METRICS:
            raise SettingsError(f"unknown metric {text!r}", fix=did_you_mean(name, [*_METRICS]))
        if not cutoff and "@" not in text and name in _WITHOUT_CUTOFF:
            return cls(name, None)
        if not (cutoff.isascii() and cutoff.isdigit() and int(cutoff)):
            raise SettingsError(f"{text!r} is not a metric", fix=f"Write {name}@10, for example.")
        return cls(name, int(cutoff))

    def __str__(self) -> str:
        return self.name if self.cutoff is None else f"{self.name}@{self.cutoff}"

    def __call__(self, gains: Sequence[int], relevant: Sequence[int]) -> float:
        """Return the value for one query.

        Args:
            gains: relevance of the retrieved documents, best first; 0 for those not judged.
            relevant: relevance of all relevant documents.
        """
        cutoff = max(1, len(gains)) if self.cutoff is None else self.cutoff
        return _METRICS[self.name](gains, relevant, cutoff)


def sort_documents(scores: Mapping[str, float]) -> list[str]:
    """Return a run's documents for one query, best first; see the module for equal scores."""
    return sorted(scores, key=lambda name: (np.float32(scores[name]), name), reverse=True)


def measure_query(
    grades: Mapping[str, int], scores: Mapping[str, float], metrics: Iterable[RankingMetric]
) -> dict[str, float]:
    """Return the metrics of one query."""
    gains = [max(0, grades.get(name, 0)) for name in sort_documents(scores)]
    relevant = [relevance for relevance in grades.values() if relevance > 0]
    return {str(metric): metric(gains, relevant) for metric in metrics}


def measure_run(
    judgements: Judgements, run: Run, metrics: Iterable[str] = DEFAULT_METRICS
) -> dict[str, float]:
    """Return the mean of each metric over the judged queries; 0 where a run has no documents.

    As in `trec_eval -c`: also over queries of which no document is relevant.

    Raises:
        SettingsError: there is no such metric.
        DataError: there are no judgements.
    """
    ranking_metrics = [RankingMetric.parse(metric) for metric in metrics]
    if not judgements:
        raise DataError("no query is judged")
    values = [
        measure_query(grades, run.get(query, {}), ranking_metrics)
        for query, grades in judgements.items()
    ]
    return {
        name: float(np.mean([one[name] for one in values])) for name in map(str, ranking_metrics)
    }
