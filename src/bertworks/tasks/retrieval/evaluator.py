"""How well queries find their passages among all the passages of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
from torch import Tensor

from ...packed import Batch
from ..task import Evaluator
from .exact import top_k

DEPTH = 10


class _Distinct:
    """The vectors of texts, each text once."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._vectors: list[np.ndarray] = []

    def number(self, text: np.ndarray, vector: np.ndarray) -> int:
        """The number of a text, given as token ids; its vector is kept if the text is new."""
        number = self._numbers.setdefault(text.tobytes(), len(self._vectors))
        if number == len(self._vectors):
            self._vectors.append(vector)
        return number

    def find(self, text: bytes) -> int | None:
        """The number of a text, if there is such a one."""
        return self._numbers.get(text)

    def __iter__(self) -> Iterator[bytes]:
        """The texts, in order of their numbers."""
        return iter(self._numbers)

    def vectors(self) -> np.ndarray:
        return np.stack(self._vectors)


class RankingEvaluator(Evaluator):
    """Each distinct query searches all distinct passages, negatives among them.

    - `accuracy@1`: the share of queries whose nearest passage belongs to them;
    - `mrr@10`: the mean of one over the rank of the first that does, 0 beyond 10;
    - `recall@10`: the mean share of a query's passages that are among the nearest 10.

    A passage that is the query's own text, and not what belongs to it, is passed over.
    """

    metrics: ClassVar[tuple[str, ...]] = ("accuracy@1", f"mrr@{DEPTH}", f"recall@{DEPTH}")

    def __init__(self) -> None:
        self._queries, self._passages = _Distinct(), _Distinct()
        self._wanted: dict[int, set[int]] = defaultdict(set)

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        queries, passages = (
            outputs[name].float().cpu().numpy() for name in ("queries", "passages")
        )
        others = iter(passages[len(queries) :])
        for example, query, passage in zip(batch.examples, queries, passages, strict=False):
            first, second, *negatives = example.input_ids
            number = self._queries.number(first, query)
            self._wanted[number].add(self._passages.number(second, passage))
            for negative in negatives:
                self._passages.number(negative, next(others))

    def result(self) -> dict[str, float]:
        assert self._wanted, "nothing was evaluated"
        _, found = top_k(self._queries.vectors(), self._passages.vectors(), DEPTH + 1)
        first, reciprocal, recalled = [], [], []
        for number, (query, nearest) in enumerate(zip(self._queries, found.tolist(), strict=True)):
            wanted = self._wanted[number]
            itself = {self._passages.find(query)} - wanted
            told = [passage for passage in nearest if passage not in itself][:DEPTH]
            ranks = [rank for rank, passage in enumerate(told, 1) if passage in wanted]
            first.append(ranks[:1] == [1])
            reciprocal.append(1 / ranks[0] if ranks else 0.0)
            recalled.append(len(ranks) / len(wanted))
        values = (float(np.mean(each)) for each in (first, reciprocal, recalled))
        return dict(zip(self.metrics, values, strict=True))

    def remarks(self) -> list[str]:
        count = len(self._passages.vectors())
        if count > DEPTH:
            return []
        return [f"recall@{DEPTH} says nothing: there are {count} passages in all"]
