"""How well queries find their passages among all those of a table: exact search, measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...packed import Batch
from ..breakdown import Breakdown, Worst, excerpt
from ..task import Evaluator

DEPTH = 10


class _Distinct:
    """The vectors of texts, each text once."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._vectors: list[np.ndarray] = []

    def number(self, text: bytes, vector: np.ndarray) -> int:
        """The number of a text, given as token ids; its vector is kept if the text is new."""
        number = self._numbers.setdefault(text, len(self._vectors))
        if number == len(self._vectors):
            self._vectors.append(vector)
        return number

    def find(self, text: bytes) -> int | None:
        """The number of a text, if there is such a one."""
        return self._numbers.get(text)

    def __iter__(self) -> Iterator[bytes]:
        """The texts, in order of their numbers."""
        return iter(self._numbers)

    def items(self) -> list[tuple[bytes, np.ndarray]]:
        """The texts and their vectors."""
        return list(zip(self._numbers, self._vectors, strict=True))

    def vectors(self) -> np.ndarray:
        return np.stack(self._vectors)


@dataclass(frozen=True, slots=True)
class _Row:
    """Where a query comes from, and its text, cut."""

    index: int
    where: str
    text: str


class RankingEvaluator(Evaluator):
    """Each distinct query searches all distinct passages, negatives among them.

    - `accuracy@1`: the share of queries whose nearest passage belongs to them;
    - `mrr@10`: the mean of one over the rank of the first that does, 0 beyond 10;
    - `recall@10`: the mean share of a query's passages that are among the nearest 10.

    A passage that is the query's own text, and not what belongs to it, is passed over.
    """

    gathered = ("_relevant", "_rows", "_texts")
    metrics: ClassVar[tuple[str, ...]] = ("accuracy@1", f"mrr@{DEPTH}", f"recall@{DEPTH}")

    def __init__(self) -> None:
        self._queries, self._passages = _Distinct(), _Distinct()
        self._relevant: dict[int, set[int]] = defaultdict(set)
        self._rows: dict[int, _Row] = {}
        self._texts: dict[int, str] = {}
        """Of queries, the row that each comes from first; of passages, the text, cut."""

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        queries, passages = (
            outputs[name].float().cpu().numpy() for name in ("queries", "passages")
        )
        others = iter(passages[len(queries) :])
        for example, query, passage in zip(batch.examples, queries, passages, strict=False):
            first, second, *negatives = (one.input_ids for one in example.sequences)
            text, *passage_texts = example.texts
            number = self._queries.number(first.tobytes(), query)
            self._rows.setdefault(number, _Row(example.index, example.where, excerpt(text)[0]))
            passages_of = [
                self._passages.number(second.tobytes(), passage),
                *(self._passages.number(one.tobytes(), next(others)) for one in negatives),
            ]
            self._relevant[number].add(passages_of[0])
            for passage_number, shown in zip(passages_of, passage_texts, strict=True):
                self._texts.setdefault(passage_number, excerpt(shown)[0])

    def notes(self) -> dict[str, Any]:
        texts = {"queries": self._queries.items(), "passages": self._passages.items()}
        return {**super().notes(), **texts}

    def take_in(self, notes: Mapping[str, Any]) -> None:
        queries = [self._queries.number(*item) for item in notes["queries"]]
        passages = [self._passages.number(*item) for item in notes["passages"]]
        for number, relevant in notes["_relevant"].items():
            self._relevant[queries[number]] |= {passages[one] for one in relevant}
        for number, row in notes["_rows"].items():
            self._rows.setdefault(queries[number], row)
        for number, text in notes["_texts"].items():
            self._texts.setdefault(passages[number], text)

    @cached_property
    def _nearest(self) -> list[list[int]]:
        """Of each query the numbers of the nearest passages, without its own text; asked for when
        the last row is there."""
        assert self._relevant, "nothing was evaluated"
        _, found = top_k(self._queries.vectors(), self._passages.vectors(), DEPTH + 1)
        ranked = []
        for number, (query, nearest) in enumerate(zip(self._queries, found.tolist(), strict=True)):
            itself = {self._passages.find(query)} - self._relevant[number]
            ranked.append([passage for passage in nearest if passage not in itself][:DEPTH])
        return ranked

    def result(self) -> dict[str, float]:
        first, reciprocal, recalled = [], [], []
        for number, ranked in enumerate(self._nearest):
            relevant = self._relevant[number]
            ranks = [rank for rank, passage in enumerate(ranked, 1) if passage in relevant]
            first.append(ranks[:1] == [1])
            reciprocal.append(1 / ranks[0] if ranks else 0.0)
            recalled.append(len(ranks) / len(relevant))
        values = (float(np.mean(each)) for each in (first, reciprocal, recalled))
        return dict(zip(self.metrics, values, strict=True))

    def breakdown(self) -> Breakdown:
        """The queries with a wrong passage nearest, those first where it is nearer by most."""
        worst = Worst()
        queries, passages = self._queries.vectors(), self._passages.vectors()
        for number, ranked in enumerate(self._nearest):
            relevant = sorted(self._relevant[number])
            if not ranked or ranked[0] in relevant:
                continue
            scores = passages[relevant] @ queries[number]
            margin = float(passages[ranked[0]] @ queries[number] - scores.max())
            row, best = self._rows[number], relevant[int(scores.argmax())]
            texts = self._texts[best], self._texts[ranked[0]]
            worst.add(margin, row, row.text, *texts, unit="margin")
        return Breakdown(mistakes=worst.result())

    def remarks(self) -> list[str]:
        count = len(self._passages.vectors())
        if count > DEPTH:
            return []
        return [f"recall@{DEPTH} says nothing: there are {count} passages in all"]


Vectors = NDArray[np.floating]

_QUERIES = 1024  # that are compared at a time


def top_k(
    queries: Vectors, passages: Vectors, k: int, *, block: int = 16384
) -> tuple[Vectors, NDArray[np.int64]]:
    """The passages of the largest inner products with each query.

    Args:
        queries: `[queries, width]`.
        passages: `[passages, width]`; may lie in a mapped file, of which a block is read at a time.
        k: how many of each query; all, if there are fewer.
        block: the passages that are compared at a time, each with 1,024 queries at most.

    Returns:
        The products `[queries, k]`, the largest first, and the passages' numbers `[queries, k]`; of
        equal ones the first comes first.
    """
    parts = [
        _of_some(queries[start : start + _QUERIES], passages, k, block)
        for start in range(0, len(queries), _QUERIES)
    ]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _of_some(
    queries: Vectors, passages: Vectors, k: int, block: int
) -> tuple[Vectors, NDArray[np.int64]]:
    best = np.empty((len(queries), 0), queries.dtype)
    numbers = np.empty((len(queries), 0), np.int64)
    for start in range(0, len(passages), block):
        scores = queries @ passages[start : start + block].T
        places = np.broadcast_to(np.arange(start, start + scores.shape[1]), scores.shape)
        # What is best so far comes first, since its numbers are smaller.
        scores, places = np.hstack([best, scores]), np.hstack([numbers, places])
        order = _largest(scores, k)
        best, numbers = np.take_along_axis(scores, order, 1), np.take_along_axis(places, order, 1)
    return best, numbers


def _largest(scores: Vectors, k: int) -> NDArray[np.int64]:
    """The places `[rows, k]` of each row's largest values, in order; of equal ones the first."""
    rows, count = scores.shape
    if k < count:
        least = np.partition(scores, count - k, axis=1)[:, count - k, None]
        is_above, is_least = scores > least, scores == least
        left = k - is_above.sum(1, keepdims=True)
        is_kept = is_above | (is_least & (is_least.cumsum(1) <= left))
        kept = np.nonzero(is_kept)[1].reshape(rows, k)
    else:
        kept = np.broadcast_to(np.arange(count), (rows, count))
    order = np.argsort(-np.take_along_axis(scores, kept, 1), axis=1, kind="stable")
    found: NDArray[np.int64] = np.take_along_axis(kept, order, 1)
    return found
