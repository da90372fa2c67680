"""Evaluation of retrieval by exact search: each query searches all passages of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ...packed import Batch
from ..breakdown import Breakdown, excerpt
from ..measures import Location, WorstMistakes
from ..task import Evaluator
from .exact_search import top_k

DEPTH = 10


class RankingEvaluator(Evaluator):
    """Ranks all distinct passages, including negatives, for each distinct query.

    A relevant passage of a query is one that belongs to it in some row.

    - `accuracy@1`: the share of queries whose nearest passage is relevant;
    - `mrr@10`: the mean of 1 / rank of the first relevant passage, 0 for ranks above 10;
    - `recall@10`: the mean share of a query's relevant passages among the nearest 10.

    A passage that equals the query and is not relevant is ignored.
    """

    state_fields = ("_queries", "_passages", "_relevant", "_rows", "_texts")
    metrics: ClassVar[tuple[str, ...]] = ("accuracy@1", f"mrr@{DEPTH}", f"recall@{DEPTH}")

    def __init__(self) -> None:
        # Texts are identified by their token ids. The vector of each one:
        self._queries: dict[bytes, np.ndarray] = {}
        self._passages: dict[bytes, np.ndarray] = {}
        self._relevant: dict[bytes, set[bytes]] = defaultdict(set)  # the passages of each query
        # For each query its first row and an excerpt of its text; for each passage an excerpt.
        self._rows: dict[bytes, tuple[Location, str]] = {}
        self._texts: dict[bytes, str] = {}

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        queries, passages = (
            outputs[name].float().cpu().numpy() for name in ("queries", "passages")
        )
        others = iter(passages[len(queries) :])
        for example, query, passage in zip(batch.examples, queries, passages, strict=False):
            asked, *found = (one.input_ids.tobytes() for one in example.sequences)
            text, *texts = example.texts
            self._queries.setdefault(asked, query)
            place = Location(example.index, example.where)
            self._rows.setdefault(asked, (place, excerpt(text)[0]))
            self._relevant[asked].add(found[0])
            vectors = [passage, *islice(others, len(found) - 1)]
            for one, vector, shown in zip(found, vectors, texts, strict=True):
                self._passages.setdefault(one, vector)
                self._texts.setdefault(one, excerpt(shown)[0])

    def merge(self, state: Mapping[str, Any]) -> None:
        for name in ("_queries", "_passages", "_rows", "_texts"):
            mine = getattr(self, name)
            for text, value in state[name].items():
                mine.setdefault(text, value)
        for query, relevant in state["_relevant"].items():
            self._relevant[query] |= relevant

    @cached_property
    def _vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """The vectors of all queries and passages. Cached: access it only after the last row."""
        return np.stack([*self._queries.values()]), np.stack([*self._passages.values()])

    @cached_property
    def _nearest(self) -> list[list[bytes]]:
        """The nearest passages of each query, without passages that are ignored."""
        assert self._queries, "nothing was evaluated"
        _, found = top_k(*self._vectors, DEPTH + 1)
        passages = list(self._passages)
        ranked = []
        for query, numbers in zip(self._queries, found.tolist(), strict=True):
            itself = {query} - self._relevant[query]
            nearest = [passages[number] for number in numbers]
            ranked.append([passage for passage in nearest if passage not in itself][:DEPTH])
        return ranked

    def result(self) -> dict[str, float]:
        first, reciprocal, recalled = [], [], []
        for query, ranked in zip(self._queries, self._nearest, strict=True):
            relevant = self._relevant[query]
            ranks = [rank for rank, passage in enumerate(ranked, 1) if passage in relevant]
            first.append(ranks[:1] == [1])
            reciprocal.append(1 / ranks[0] if ranks else 0.0)
            recalled.append(len(ranks) / len(relevant))
        values = (float(np.mean(each)) for each in (first, reciprocal, recalled))
        return dict(zip(self.metrics, values, strict=True))

    def breakdown(self) -> Breakdown:
        """The queries whose nearest passage is not relevant, the largest margin first."""
        worst = WorstMistakes()
        numbers = {passage: number for number, passage in enumerate(self._passages)}
        queries, passages = self._vectors
        for (query, place), vector, ranked in zip(
            self._rows.items(), queries, self._nearest, strict=True
        ):
            relevant = sorted(self._relevant[query], key=numbers.__getitem__)
            if not ranked or ranked[0] in relevant:
                continue
            scores = passages[[numbers[passage] for passage in relevant]] @ vector
            margin = float(passages[numbers[ranked[0]]] @ vector - scores.max())
            best = relevant[int(scores.argmax())]
            worst.add(
                margin, *place, self._texts[best], self._texts[ranked[0]], size_field="margin"
            )
        return Breakdown(mistakes=worst.result())

    def remarks(self) -> list[str]:
        count = len(self._passages)
        if count > DEPTH:
            return []
        return [f"recall@{DEPTH} is uninformative: there are only {count} passages"]
