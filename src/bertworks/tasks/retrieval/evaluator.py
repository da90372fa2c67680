"""How well queries find their passages among all the passages of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from torch import Tensor

from ...packed import Batch
from ..breakdown import Breakdown, excerpt
from ..counters import Worst
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

    metrics: ClassVar[tuple[str, ...]] = ("accuracy@1", f"mrr@{DEPTH}", f"recall@{DEPTH}")

    def __init__(self) -> None:
        self._queries, self._passages = _Distinct(), _Distinct()
        self._wanted: dict[int, set[int]] = defaultdict(set)
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
            number = self._queries.number(first, query)
            self._rows.setdefault(number, _Row(example.index, example.where, excerpt(text)[0]))
            passages_of = [
                self._passages.number(second, passage),
                *(self._passages.number(negative, next(others)) for negative in negatives),
            ]
            self._wanted[number].add(passages_of[0])
            for own, shown in zip(passages_of, passage_texts, strict=True):
                self._texts.setdefault(own, excerpt(shown)[0])

    @cached_property
    def _nearest(self) -> list[list[int]]:
        """Of each query the numbers of the nearest passages, without its own text; asked for when
        the last row is there."""
        assert self._wanted, "nothing was evaluated"
        _, found = top_k(self._queries.vectors(), self._passages.vectors(), DEPTH + 1)
        ranked = []
        for number, (query, nearest) in enumerate(zip(self._queries, found.tolist(), strict=True)):
            itself = {self._passages.find(query)} - self._wanted[number]
            ranked.append([passage for passage in nearest if passage not in itself][:DEPTH])
        return ranked

    def result(self) -> dict[str, float]:
        first, reciprocal, recalled = [], [], []
        for number, ranked in enumerate(self._nearest):
            wanted = self._wanted[number]
            ranks = [rank for rank, passage in enumerate(ranked, 1) if passage in wanted]
            first.append(ranks[:1] == [1])
            reciprocal.append(1 / ranks[0] if ranks else 0.0)
            recalled.append(len(ranks) / len(wanted))
        values = (float(np.mean(each)) for each in (first, reciprocal, recalled))
        return dict(zip(self.metrics, values, strict=True))

    def breakdown(self) -> Breakdown:
        """The queries with a wrong passage nearest, those first where it is nearer by most."""
        worst = Worst()
        queries, passages = self._queries.vectors(), self._passages.vectors()
        for number, ranked in enumerate(self._nearest):
            wanted = sorted(self._wanted[number])
            if not ranked or ranked[0] in wanted:
                continue
            scores = passages[wanted] @ queries[number]
            margin = float(passages[ranked[0]] @ queries[number] - scores.max())
            row, best = self._rows[number], wanted[int(scores.argmax())]
            texts = self._texts[best], self._texts[ranked[0]]
            worst.add(margin, row, row.text, *texts, unit="margin")
        return Breakdown(mistakes=worst.result())

    def remarks(self) -> list[str]:
        count = len(self._passages.vectors())
        if count > DEPTH:
            return []
        return [f"recall@{DEPTH} says nothing: there are {count} passages in all"]
