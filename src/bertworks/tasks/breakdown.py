"""What an evaluation saw: metrics, and where a model errs, how confident it is, and on which rows.

All of it is what JSON can hold, and small whatever the number of rows, so that it is kept with a
run and its report can be made again without the model. The counters take rows in any order.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import to_json

from ..errors import DataError
from ..wording import html_facts, measured, printable

MOST_POINTS = 1000
EXCERPT = 300


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Confusion(_Part):
    """How often each label was predicted for each."""

    counted: str  # what is counted, such as "rows"
    labels: tuple[str, ...]  # the names, in the task's order
    # gold label, predicted label (numbers of `labels`) and count, where it is not 0
    cells: tuple[tuple[int, int, int], ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        count = len(self.labels)
        if not all(0 <= a < count and 0 <= b < count and n > 0 for a, b, n in self.cells):
            raise ValueError("a cell has no label, or no count")
        return self

    @classmethod
    def of(
        cls, counted: str, labels: Sequence[str], gold: np.ndarray, predicted: np.ndarray
    ) -> Self:
        """The confusions of `[n]` gold and predicted numbers of labels."""
        pairs, counts = np.unique(np.stack([gold, predicted]), axis=1, return_counts=True)
        cells = np.concatenate([pairs, counts[None]]).T.tolist()
        return cls(counted=counted, labels=tuple(labels), cells=cells)


class Scores(_Part):
    """How good a model is at one label, type, or kind of row, and how many there are of it."""

    name: str
    count: int
    metrics: dict[str, float]


class ScoreTable(_Part):
    """Scores side by side."""

    by: str  # what the rows are grouped by, such as "label"
    counted: str  # what their counts are of, such as "rows"
    rows: tuple[Scores, ...]  # the scores

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({frozenset(row.metrics) for row in self.rows}) > 1:
            raise ValueError("the rows must have the same metrics")
        return self

    @classmethod
    def of_rates(
        cls, by: str, counted: str, rates: Mapping[str, tuple[float, float, float, int]]
    ) -> Self:
        """A table of precision, recall, F1 and how many there are, by name."""
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
    """Whether predictions made with 80 % confidence are correct 80 % of the time."""

    counted: str  # what is counted, such as "rows"
    # the mean distance between confidence and accuracy, over the bins by their counts: the expected
    # calibration error (Guo et al. 2017, equation 3)
    expected_error: float
    confidence: float  # the mean probability of what is predicted
    accuracy: float  # the share of it that is right
    # of equal width, from 0 to 1; those that nothing fell into are left out
    bins: tuple[CalibrationBin, ...]

    def __str__(self) -> str:
        return (
            f"{self.confidence:.1%} sure on average, {self.accuracy:.1%} right; "
            f"expected error {self.expected_error:.1%}"
        )


class Mistake(_Part):
    """A row that was predicted wrongly."""

    row: int  # its number, from 1
    # its place: file and line, or row of a file; None where only the number is known
    where: str | None = None
    text: str  # what was read, cut to about `EXCERPT` characters
    truth: str  # the gold label
    told: str  # what was predicted instead
    # with which it was predicted; None for numbers, and where it is not known
    probability: float | None = None
    error: float | None = None  # how far off a number was predicted
    # of a ranking, by how much a wrong text is nearer than the right one, in cosines
    margin: float | None = None
    # the part of it that the mistake is about: characters `[start, end)`
    mark: tuple[int, int] | None = None


class Breakdown(_Part):
    """What an evaluation saw; each part where the task has it.

    Attributes:
        confusion: which label was predicted for which.
        tables: scores of labels, of types, or of kinds of rows.
        calibration: how sure, and how right.
        values: gold and predicted numbers, `MOST_POINTS` of them at most.
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


BINS = 15
"""Of a calibration; as many as Guo et al. 2017, §4."""

MOST_MISTAKES = 25
MOST_GROUPS = 12


class Tally:
    """What is gathered batch by batch, and adds up over processes that share the batches.

    Attributes:
        gathered: the names of the attributes that hold it: numbers, arrays, lists, tallies, and
            dictionaries of these.
    """

    gathered: ClassVar[tuple[str, ...]] = ()

    def notes(self) -> dict[str, Any]:
        """What was gathered, in types that can be sent to another process."""
        return {name: _plain(getattr(self, name)) for name in self.gathered}

    def take_in(self, notes: Mapping[str, Any]) -> None:
        """Add what another of the same kind has gathered."""
        for name, other in notes.items():
            setattr(self, name, _sum(getattr(self, name), other))


class Measure(Tally, ABC):
    """What is measured over all rows, and what people should know of it."""

    @abstractmethod
    def result(self) -> dict[str, float]:
        """The metrics by name, over everything added."""

    def remarks(self) -> list[str]:
        """What people should know beside the metrics, such as that one class is never predicted."""
        return []

    def breakdown(self) -> Breakdown:
        """What the metrics are made of: confusions, calibration, mistakes; empty if not kept."""
        return Breakdown()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value.notes() if isinstance(value, Tally) else value


def _sum(mine: Any, other: Any) -> Any:
    if isinstance(mine, dict):
        return {key: _sum(mine[key], other[key]) for key in mine}
    if not isinstance(mine, Tally):
        return mine + other
    mine.take_in(other)
    return mine


class CalibrationCounter(Tally):
    """Counts how often what is predicted with which probability is right."""

    gathered = ("_count", "_right", "_sure")

    def __init__(self) -> None:
        self._count = np.zeros(BINS, np.int64)
        self._right = np.zeros(BINS, np.int64)
        self._sure = np.zeros(BINS)

    def add(self, probabilities: np.ndarray, right: np.ndarray) -> None:
        """Take note of answers; those of a network that computes no numbers any more are left out.

        Args:
            probabilities: `[n]` of what was predicted.
            right: `[n]` whether that was right.
        """
        finite = np.isfinite(probabilities)
        probabilities, right = probabilities[finite], right[finite]
        # Bin m is ((m - 1) / BINS, m / BINS].
        bins = np.clip(np.ceil(probabilities * BINS).astype(np.int64) - 1, 0, BINS - 1)
        self._count += np.bincount(bins, minlength=BINS)
        self._right += np.bincount(bins[right], minlength=BINS)
        self._sure += np.bincount(bins, probabilities, BINS)

    def result(self, counted: str) -> Calibration | None:
        """The calibration; None of nothing."""
        total = int(self._count.sum())
        if not total:
            return None
        gaps = np.abs(self._right - self._sure)
        return Calibration(
            counted=counted,
            expected_error=float(gaps.sum() / total),
            confidence=float(self._sure.sum() / total),
            accuracy=float(self._right.sum() / total),
            bins=tuple(
                CalibrationBin(
                    low=at / BINS,
                    high=(at + 1) / BINS,
                    count=int(self._count[at]),
                    confidence=float(self._sure[at] / self._count[at]),
                    accuracy=float(self._right[at] / self._count[at]),
                )
                for at in np.flatnonzero(self._count).tolist()
            ),
        )


class Placed(Protocol):
    """What knows its number, from 0, and its place."""

    @property
    def index(self) -> int: ...

    @property
    def where(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A row's number, from 0, and its place."""

    index: int
    where: str = ""


class Worst(Tally):
    """Keeps the worst mistakes, one of a row at most."""

    gathered = ("_heap",)

    def __init__(self) -> None:
        # A row has one mistake at most, so that two entries never tie before their last part.
        self._heap: list[tuple[float, int, Mistake]] = []

    def add(
        self,
        size: float,
        row: Placed,
        text: str,
        truth: object,
        told: object,
        *,
        mark: tuple[int, int] = (0, 0),
        before: str = "",
        unit: Literal["probability", "error", "margin"] | None = "probability",
    ) -> None:
        """Take note of a mistake.

        Args:
            mark: the characters `[start, end)` of the text that it is about, if not all.
            before: what is shown in front of the text, however much of that is cut.
            unit: what `size` is, see `Mistake`; None if it is for the order alone.
        """
        key = (size, -row.index)  # of equals, the first rows
        if len(self._heap) == MOST_MISTAKES and key <= self._heap[0][:2]:
            return
        cut, place = excerpt(text, *mark)
        sizes: dict[str, Any] = {} if unit is None else {unit: size}
        mistake = Mistake(
            row=row.index + 1,
            where=printable(row.where) or None,
            text=before + cut,
            mark=place and (len(before) + place[0], len(before) + place[1]),
            truth=excerpt(str(truth))[0],
            told=excerpt(str(told))[0],
            **sizes,
        )
        heapq.heappush(self._heap, (*key, mistake))
        if len(self._heap) > MOST_MISTAKES:
            heapq.heappop(self._heap)

    def take_in(self, notes: Mapping[str, Any]) -> None:
        self._heap = sorted([*self._heap, *notes["_heap"]])[-MOST_MISTAKES:]

    def result(self) -> tuple[Mistake, ...]:
        """The mistakes, the worst first."""
        return tuple(mistake for *_, mistake in sorted(self._heap, reverse=True))


def means_by(
    by: str,
    counted: str,
    kinds: Sequence[str],
    metrics: Mapping[str, Sequence[float]],
    order: Sequence[str] | None = None,
) -> ScoreTable:
    """The means of rows' metrics by kinds of rows.

    Args:
        by: what the kinds are.
        counted: what the rows are.
        kinds: of each row.
        order: of the kinds; else the commonest come first, and the rare ones are "others".
    """
    counts = Counter(kinds)
    names = list(order or (kind for kind, _ in counts.most_common(MOST_GROUPS)))
    numbers = np.array([names.index(kind) if kind in names else len(names) for kind in kinds])
    rows = [
        Scores(
            name=name,
            count=int(chosen.sum()),
            metrics={
                key: float(np.asarray(values)[chosen].mean()) for key, values in metrics.items()
            },
        )
        for number, name in enumerate([*names, "others"])
        if (chosen := numbers == number).any()
    ]
    return ScoreTable(by=by, counted=counted, rows=tuple(rows))


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation.

    Attributes:
        metrics: by name.
        rows: how many examples were measured.
        remarks: what people should know beside the metrics.
        breakdown: what the metrics are made of.
    """

    metrics: dict[str, float]
    rows: int
    remarks: list[str] = field(default_factory=list)
    breakdown: Breakdown = field(default_factory=Breakdown)

    @classmethod
    def of(cls, measure: Measure, rows: int) -> Self:
        """What was measured over so many rows."""
        return cls(measure.result(), rows, measure.remarks(), measure.breakdown())

    def __repr__(self) -> str:
        return f"<Evaluation of {self.rows:,} rows: {measured(self.metrics, self.remarks)}>"

    def _repr_html_(self) -> str:
        return html_facts(f"Evaluation of {self.rows:,} rows", self.metrics, self.remarks)

    def to_json(self, data: str) -> str:
        """The evaluation as JSON; `data` names the table. What is not finite is null."""
        tree = {
            "data": printable(data),
            **{field.name: getattr(self, field.name) for field in fields(self)},
        }
        return to_json(tree, indent=1, inf_nan_mode="null").decode()
