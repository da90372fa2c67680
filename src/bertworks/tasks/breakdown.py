"""What an evaluation saw beside its metrics: where a model errs, how sure it is, and on which rows.

All of it is what JSON can hold, and small whatever the number of rows, so that it is kept with a
run and its report can be made again without the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from ..errors import DataError

MOST_POINTS = 1000
EXCERPT = 300


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Confusion(_Part):
    """How often each label was told for each.

    Attributes:
        counted: what is counted, such as "rows".
        labels: the names, in the task's order.
        cells: true label, told label (numbers of `labels`) and count, where it is not 0.
    """

    counted: str
    labels: tuple[str, ...]
    cells: tuple[tuple[int, int, int], ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        count = len(self.labels)
        if not all(0 <= a < count and 0 <= b < count and n > 0 for a, b, n in self.cells):
            raise ValueError("a cell is of no label, or holds no count")
        return self

    @classmethod
    def of(cls, counted: str, labels: Sequence[str], true: np.ndarray, told: np.ndarray) -> Self:
        """The confusions of `[n]` true and told numbers of labels."""
        pairs, counts = np.unique(np.stack([true, told]), axis=1, return_counts=True)
        cells = np.concatenate([pairs, counts[None]]).T.tolist()
        return cls(counted=counted, labels=tuple(labels), cells=cells)


class Scores(_Part):
    """How good a model is at one label, type, or kind of row, and how many there are of it."""

    name: str
    count: int
    metrics: dict[str, float]


class ScoreTable(_Part):
    """Scores side by side.

    Attributes:
        by: what the rows are told apart by, such as "label".
        counted: what their counts are of, such as "rows".
        rows: the scores.
    """

    by: str
    counted: str
    rows: tuple[Scores, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({frozenset(row.metrics) for row in self.rows}) > 1:
            raise ValueError("the rows must have the same metrics")
        return self

    @classmethod
    def of_rates(
        cls, by: str, counted: str, rates: Mapping[str, tuple[float, float, float, int]]
    ) -> Self:
        """A table of precision, recall, F1 and the number of true ones, by name."""
        rows = tuple(
            Scores(name=name, count=count, metrics={"precision": p, "recall": r, "f1": f1})
            for name, (p, r, f1, count) in rates.items()
        )
        return cls(by=by, counted=counted, rows=rows)


class CalibrationBin(_Part):
    """Answers given with a probability over `low` and up to `high`."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


class Calibration(_Part):
    """Whether what is told with 80 % is right in 80 %.

    Attributes:
        counted: what is counted, such as "rows".
        expected_error: the mean distance between confidence and accuracy, over the bins by their
            counts: the expected calibration error (Guo et al. 2017, equation 3).
        confidence: the mean probability of what is told.
        accuracy: the share of it that is right.
        bins: of equal width, from 0 to 1; those that nothing fell into are left out.
    """

    counted: str
    expected_error: float
    confidence: float
    accuracy: float
    bins: tuple[CalibrationBin, ...]

    def __str__(self) -> str:
        return (
            f"{self.confidence:.1%} sure on average, {self.accuracy:.1%} right; "
            f"expected error {self.expected_error:.1%}"
        )


class Mistake(_Part):
    """A row that was predicted wrongly.

    Attributes:
        row: its number, from 1.
        where: its place: file and line, or row of a file; None where only the number is known.
        text: what was read, cut to about `EXCERPT` characters.
        mark: the part of it that the mistake is about: characters `[start, end)`.
        truth: what is true.
        told: what was told instead.
        probability: with which it was predicted; None for numbers, and where it is not known.
        error: how far off a number was told.
        margin: of a ranking, by how much a wrong text is nearer than the right one, in cosines.
    """

    row: int
    where: str | None = None
    text: str
    truth: str
    told: str
    probability: float | None = None
    error: float | None = None
    margin: float | None = None
    mark: tuple[int, int] | None = None


class Breakdown(_Part):
    """What an evaluation saw; each part where the task has it.

    Attributes:
        confusion: which label was told for which.
        tables: scores of labels, of types, or of kinds of rows.
        calibration: how sure, and how right.
        values: true and told numbers, `MOST_POINTS` of them at most.
        mistakes: the most confident ones (of numbers and rankings, the largest), the worst first.
    """

    confusion: Confusion | None = None
    tables: tuple[ScoreTable, ...] = ()
    calibration: Calibration | None = None
    values: tuple[tuple[float, float], ...] = ()
    mistakes: tuple[Mistake, ...] = ()

    @classmethod
    def parse(cls, tree: Any, *, where: str) -> Self:
        """A breakdown as it was written.

        Raises:
            DataError: it is none, or another version's.
        """
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise DataError(
                f"holds no breakdown of an evaluation ({key}: {first['msg']})",
                where=where,
                fix="Remove it, or evaluate again.",
            ) from None


def excerpt(text: str, start: int = 0, end: int = 0) -> tuple[str, tuple[int, int] | None]:
    """A text cut to `EXCERPT` characters around `[start, end)`, and where these are in it.

    Returns:
        The text, with `…` where it is cut, and the place; None if there is none (`start == end`).
    """
    first = max(0, min(start - (EXCERPT - (end - start)) // 2, len(text) - EXCERPT))
    if end - start > EXCERPT:
        first = start
    past = first + EXCERPT
    before, behind = "…" * (first > 0), "…" * (past < len(text))
    move = len(before) - first
    mark = (start + move, min(end, past) + move) if end > start else None
    return before + text[first:past] + behind, mark
