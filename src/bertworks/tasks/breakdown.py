"""The details of an evaluation: confusions, calibration, scores by group, and the worst mistakes.

All of them can be stored as JSON, and their size does not grow with the number of rows: they are
saved with a run, and its report can be rebuilt without the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from ..errors import DataError
from ..utils.json_files import first_problem

MAX_POINTS = 1000
EXCERPT_LENGTH = 300

PROBABILITY_STAGES = "probabilities"
"""The grouping of the table of probabilities before and after calibration, whose lines are:"""
UNCALIBRATED_STAGE, CALIBRATED_STAGE = "uncalibrated", "calibrated"
CROSS_FITTED_STAGE = "cross-fitted"
"""Each fifth of the rows by a calibration that was fitted on the others. A calibration looks better
than it is on the rows that it was fitted on."""


class _FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)


class Confusion(_FrozenModel):
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


class Scores(_FrozenModel):
    """The metrics of one label, type, or group of rows, and its count."""

    name: str
    count: int
    metrics: dict[str, float]


class ScoreTable(_FrozenModel):
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


class CalibrationBin(_FrozenModel):
    """Predictions whose probability is above `low` and at most `high`."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


class Calibration(_FrozenModel):
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


class Mistake(_FrozenModel):
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
    # in a ranking: the cosine of the best wrong text minus that of the correct one
    margin: float | None = None
    # the characters `[start, end)` of `text` that were mispredicted; None for the whole text
    mark: tuple[int, int] | None = None


class Breakdown(_FrozenModel):
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

    @property
    def calibration_facts(self) -> dict[str, object]:
        """The calibration, and the errors and losses before and after, by name, for display."""
        facts: dict[str, object] = {"calibration": self.calibration}
        for table in self.tables:
            if table.grouping == PROBABILITY_STAGES:
                for stage in table.rows:
                    error, loss = stage.metrics.values()
                    facts[stage.name] = f"error {error:.1%}, loss {loss:.3g}"
        return facts

    @classmethod
    def parse(cls, tree: Any, *, where: str) -> Self:
        """Load a breakdown that was saved as JSON.

        Raises:
            DataError: the tree is not a breakdown.
        """
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise DataError(
                f"holds no breakdown of an evaluation ({first_problem(error)})",
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


MAX_GROUPS = 12


def compute_mean_scores(
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
