"""The results of an evaluation: metrics, confusions, calibration, and the worst mistakes.

All results can be stored as JSON, and their size does not grow with the number of rows: they are
saved with a run, and its report can be rebuilt without the model. Rows may be added in any order.
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
from ..utils.formatting import html_facts, measured, printable

MAX_POINTS = 1000
EXCERPT_LENGTH = 300


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Confusion(_Part):
    """How often each label was predicted for each gold label."""

    unit: str  # the unit of the counts, such as "rows"
    labels: tuple[str, ...]  # the names, in the task's order
    # gold label, predicted label (both as indices of `labels`) and count, which is never 0
    cells: tuple[tuple[int, int, int], ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        count = len(self.labels)
        if not all(0 <= a < count and 0 <= b < count and n > 0 for a, b, n in self.cells):
            raise ValueError("a cell has no label, or no count")
        return self

    @property
    def matrix(self) -> np.ndarray:
        """The counts: int64 `[gold labels, predicted labels]`, in the order of `labels`."""
        counts = np.zeros((len(self.labels), len(self.labels)), np.int64)
        for gold, predicted, count in self.cells:
            counts[gold, predicted] = count
        return counts

    @classmethod
    def from_labels(
        cls, unit: str, labels: Sequence[str], gold: np.ndarray, predicted: np.ndarray
    ) -> Self:
        """Count confusions; `gold` and `predicted` are `[n]` label indices."""
        pairs, counts = np.unique(np.stack([gold, predicted]), axis=1, return_counts=True)
        cells = np.concatenate([pairs, counts[None]]).T.tolist()
        return cls(unit=unit, labels=tuple(labels), cells=cells)


class Scores(_Part):
    """The metrics of one label, type, or group of rows, and its count."""

    name: str
    count: int
    metrics: dict[str, float]


class ScoreTable(_Part):
    """A table of scores, one line per group."""

    grouping: str  # what the lines are grouped by, such as "label"
    unit: str  # the unit of the counts, such as "rows"
    rows: tuple[Scores, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({frozenset(row.metrics) for row in self.rows}) > 1:
            raise ValueError("the rows must have the same metrics")
        return self

    @classmethod
    def from_rates(
        cls, grouping: str, unit: str, rates: Mapping[str, tuple[float, float, float, int]]
    ) -> Self:
        """Build a table from (precision, recall, F1, count) by name."""
        rows = tuple(
            Scores(name=name, count=count, metrics={"precision": p, "recall": r, "f1": f1})
            for name, (p, r, f1, count) in rates.items()
        )
        return cls(grouping=grouping, unit=unit, rows=rows)

    def __str__(self) -> str:
        """The table as text, in the form of scikit-learn's `classification_report`."""
        names = list(self.rows[0].metrics) if self.rows else []
        width = max(len(name) for name in (self.grouping, *(row.name for row in self.rows)))
        head = [f"{self.grouping:<{width}}", *(f"{name:>10}" for name in (*names, self.unit))]
        lines = []
        for row in self.rows:
            values = [f"{row.metrics[name]:.3f}" for name in names] + [f"{row.count:,}"]
            lines.append([f"{row.name:<{width}}", *(f"{value:>10}" for value in values)])
        return "\n".join("".join(line) for line in (head, *lines))


class CalibrationBin(_Part):
    """Predictions whose probability is above `low` and at most `high`."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


class Calibration(_Part):
    """Whether predictions made with 80 % confidence are correct 80 % of the time."""

    unit: str  # the unit of the counts, such as "rows"
    # the expected calibration error (Guo et al. 2017, equation 3): the mean distance between
    # confidence and accuracy over the bins, weighted by their counts
    expected_error: float
    confidence: float  # the mean probability of the predictions
    accuracy: float  # the share of correct predictions
    # of equal width, from 0 to 1; empty bins are omitted
    bins: tuple[CalibrationBin, ...]

    def __str__(self) -> str:
        return (
            f"error {self.expected_error:.1%} "
            f"(mean confidence {self.confidence:.1%}, accuracy {self.accuracy:.1%})"
        )


class Mistake(_Part):
    """A row that was predicted wrongly."""

    row: int  # the row's number, from 1
    # file and line, or row of a file; None if only the number is known
    where: str | None = None
    text: str  # an excerpt of the row's text, of about `EXCERPT_LENGTH` characters
    gold: str  # the gold label
    predicted: str  # the prediction
    # of the prediction; None for numbers, and where it is unknown
    probability: float | None = None
    error: float | None = None  # absolute error of a predicted number
    # in a ranking: the cosine of the best wrong text minus that of the right one
    margin: float | None = None
    # the characters `[start, end)` of `text` that were mispredicted; None for the whole text
    mark: tuple[int, int] | None = None


class Breakdown(_Part):
    """The details of an evaluation; parts that the task does not have are empty.

    Attributes:
        confusion: how often each label was predicted for each gold label.
        tables: scores by label, by type, or by group of rows.
        calibration: confidence compared with accuracy.
        values: pairs of gold and predicted numbers, at most `MAX_POINTS`.
        mistakes: the worst first: the most confident ones, or the largest (numbers, rankings).
    """

    confusion: Confusion | None = None
    tables: tuple[ScoreTable, ...] = ()
    calibration: Calibration | None = None
    values: tuple[tuple[float, float], ...] = ()
    mistakes: tuple[Mistake, ...] = ()

    @classmethod
    def parse(cls, tree: Any, *, where: str) -> Self:
        """Load a breakdown that was saved as JSON.

        Raises:
            DataError: the tree is not a breakdown.
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
    """Shorten a text to `EXCERPT_LENGTH` characters around `[start, end)`.

    Returns:
        The excerpt, with `…` where text is omitted, and the position of `[start, end)` in it; None
        if `start == end`.
    """
    first = max(0, min(start - (EXCERPT_LENGTH - (end - start)) // 2, len(text) - EXCERPT_LENGTH))
    if end - start > EXCERPT_LENGTH:
        first = start
    stop = first + EXCERPT_LENGTH
    prefix, suffix = "…" * (first > 0), "…" * (stop < len(text))
    offset = len(prefix) - first
    mark = (start + offset, min(end, stop) + offset) if end > start else None
    return prefix + text[first:stop] + suffix, mark


NUM_BINS = 15
"""Bins of a calibration, as in Guo et al. 2017, §4."""

MAX_MISTAKES = 25
MAX_GROUPS = 12


class MergeableState:
    """State that is collected batch by batch and summed over processes that share the batches.

    Attributes:
        state_fields: the names of the attributes that hold the state: numbers, arrays, lists,
            and dictionaries of these.
    """

    state_fields: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """Return the state in types that can be sent to another process."""
        return {name: _plain(getattr(self, name)) for name in self.state_fields}

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the state of another object of the same class."""
        for name, other in state.items():
            setattr(self, name, _sum(getattr(self, name), other))


class Measure(MergeableState, ABC):
    """Metrics over all rows, with remarks and a breakdown for the report."""

    @abstractmethod
    def result(self) -> dict[str, float]:
        """Return the metrics by name, over everything added."""

    def remarks(self) -> list[str]:
        """Return warnings for the user, such as that every row gets the same prediction."""
        return []

    def breakdown(self) -> Breakdown:
        """Return confusions, calibration and mistakes; empty if they are not collected."""
        return Breakdown()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value.state() if isinstance(value, MergeableState) else value


def _sum(mine: Any, other: Any) -> Any:
    if isinstance(mine, dict):
        return {key: _sum(mine[key], other[key]) for key in mine}
    if not isinstance(mine, MergeableState):
        return mine + other
    mine.merge(other)
    return mine


class CalibrationCounter(MergeableState):
    """Counts how often predictions are correct, by their probability."""

    state_fields = ("_count", "_right", "_sure")

    def __init__(self) -> None:
        self._count = np.zeros(NUM_BINS, np.int64)
        self._right = np.zeros(NUM_BINS, np.int64)
        self._sure = np.zeros(NUM_BINS)

    def add(self, probabilities: np.ndarray, right: np.ndarray) -> None:
        """Count predictions; those whose probability is not finite are ignored.

        Args:
            probabilities: `[n]` probabilities of the predictions.
            right: `[n]` whether each prediction is correct.
        """
        finite = np.isfinite(probabilities)
        probabilities, right = probabilities[finite], right[finite]
        # Bin m is ((m - 1) / NUM_BINS, m / NUM_BINS].
        bins = np.clip(np.ceil(probabilities * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
        self._count += np.bincount(bins, minlength=NUM_BINS)
        self._right += np.bincount(bins[right], minlength=NUM_BINS)
        self._sure += np.bincount(bins, probabilities, NUM_BINS)

    def result(self, unit: str) -> Calibration | None:
        """Return the calibration; None if nothing was added."""
        total = int(self._count.sum())
        if not total:
            return None
        gaps = np.abs(self._right - self._sure)
        return Calibration(
            unit=unit,
            expected_error=float(gaps.sum() / total),
            confidence=float(self._sure.sum() / total),
            accuracy=float(self._right.sum() / total),
            bins=tuple(
                CalibrationBin(
                    low=at / NUM_BINS,
                    high=(at + 1) / NUM_BINS,
                    count=int(self._count[at]),
                    confidence=float(self._sure[at] / self._count[at]),
                    accuracy=float(self._right[at] / self._count[at]),
                )
                for at in np.flatnonzero(self._count).tolist()
            ),
        )


class HasLocation(Protocol):
    """An object with a row's number, from 0, and its place (file and line)."""

    @property
    def index(self) -> int: ...

    @property
    def where(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Location:
    """A row's number, from 0, and its place (file and line)."""

    index: int
    where: str = ""


class WorstMistakes(MergeableState):
    """Keeps the worst mistakes, at most one per row."""

    state_fields = ("_heap",)

    def __init__(self) -> None:
        # At most one mistake per row: (size, -row) is unique, so `Mistake`s are never compared.
        self._heap: list[tuple[float, int, Mistake]] = []

    def add(
        self,
        size: float,
        row: HasLocation,
        text: str,
        gold: object,
        predicted: object,
        *,
        mark: tuple[int, int] = (0, 0),
        prefix: str = "",
        size_field: Literal["probability", "error", "margin"] | None = "probability",
    ) -> None:
        """Add a mistake; it is kept if it is among the worst.

        Args:
            size: how bad the mistake is: the larger, the worse.
            mark: the characters `[start, end)` of the text that were mispredicted, if not all.
            prefix: shown in full in front of the excerpt of the text.
            size_field: the field of `Mistake` that `size` is stored in; None to use it only for
                sorting.
        """
        key = (size, -row.index)  # of equally bad mistakes, the first rows are kept
        if len(self._heap) == MAX_MISTAKES and key <= self._heap[0][:2]:
            return
        shortened, position = excerpt(text, *mark)
        sizes: dict[str, Any] = {} if size_field is None else {size_field: size}
        mistake = Mistake(
            row=row.index + 1,
            where=printable(row.where) or None,
            text=prefix + shortened,
            mark=position and (len(prefix) + position[0], len(prefix) + position[1]),
            gold=excerpt(str(gold))[0],
            predicted=excerpt(str(predicted))[0],
            **sizes,
        )
        heapq.heappush(self._heap, (*key, mistake))
        if len(self._heap) > MAX_MISTAKES:
            heapq.heappop(self._heap)

    def merge(self, state: Mapping[str, Any]) -> None:
        self._heap = sorted([*self._heap, *state["_heap"]])[-MAX_MISTAKES:]

    def result(self) -> tuple[Mistake, ...]:
        """Return the mistakes, the worst first."""
        return tuple(mistake for *_, mistake in sorted(self._heap, reverse=True))


def means_by(
    grouping: str,
    unit: str,
    kinds: Sequence[str],
    metrics: Mapping[str, Sequence[float]],
    order: Sequence[str] | None = None,
) -> ScoreTable:
    """Return the mean of each metric for each kind of row.

    Args:
        grouping: the name of the grouping, such as "label".
        unit: the unit of the counts, such as "rows".
        kinds: the kind of each row.
        metrics: by name, the value of each row.
        order: the kinds in order; if omitted, the `MAX_GROUPS` most frequent, most frequent first.
            Rows of any other kind are "others".
    """
    counts = Counter(kinds)
    names = list(order or (kind for kind, _ in counts.most_common(MAX_GROUPS)))
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
    return ScoreTable(grouping=grouping, unit=unit, rows=tuple(rows))


class HasResults:
    """What an evaluation found, in the words of scikit-learn."""

    metrics: Mapping[str, float]
    remarks: list[str]
    breakdown: Breakdown

    @property
    def confusion(self) -> Confusion | None:
        """How often each label was predicted for each gold label (`confusion.matrix`)."""
        return self.breakdown.confusion

    @property
    def errors(self) -> tuple[Mistake, ...]:
        """The worst mistakes, at most `MAX_MISTAKES`, the worst first."""
        return self.breakdown.mistakes

    @property
    def report(self) -> str:
        """The metrics, then the scores by label or kind, as text."""
        width = max(map(len, self.metrics), default=0)
        lines = [f"{name:<{width}}  {value:.4g}" for name, value in self.metrics.items()]
        tables = [str(table) for table in self.breakdown.tables]
        return "\n\n".join(["\n".join([*lines, *self.remarks]), *tables])


@dataclass(frozen=True)
class Evaluation(HasResults):
    """The outcome of an evaluation.

    Attributes:
        metrics: the metrics by name.
        rows: the number of evaluated examples.
        remarks: warnings for the user, in addition to the metrics.
        breakdown: confusions, calibration, mistakes.
    """

    metrics: dict[str, float]
    rows: int
    remarks: list[str] = field(default_factory=list)
    breakdown: Breakdown = field(default_factory=Breakdown)

    @classmethod
    def from_measure(cls, measure: Measure, rows: int) -> Self:
        """Return the results of a measure over `rows` rows."""
        return cls(measure.result(), rows, measure.remarks(), measure.breakdown())

    def __repr__(self) -> str:
        return f"<Evaluation of {self.rows:,} rows: {measured(self.metrics, self.remarks)}>"

    def _repr_html_(self) -> str:
        return html_facts(f"Evaluation of {self.rows:,} rows", self.metrics, self.remarks)

    def to_json(self, data: str) -> str:
        """Return the evaluation as JSON; `data` names the table. Non-finite numbers become null."""
        tree = {
            "data": printable(data),
            **{field.name: getattr(self, field.name) for field in fields(self)},
        }
        return to_json(tree, indent=1, inf_nan_mode="null").decode()
