"""Counters that evaluators share: bounded in memory, in whatever order rows come."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from ..wording import printable
from .breakdown import Calibration, CalibrationBin, Mistake, Scores, ScoreTable, excerpt

BINS = 15
"""Of a calibration; as many as Guo et al. 2017, §4."""

MOST_MISTAKES = 25
MOST_GROUPS = 12


class CalibrationCounter:
    """Counts how often what is told with which probability is right."""

    def __init__(self) -> None:
        self._count = np.zeros(BINS, np.int64)
        self._right = np.zeros(BINS, np.int64)
        self._sure = np.zeros(BINS)

    def add(self, probabilities: np.ndarray, right: np.ndarray) -> None:
        """Take note of answers; those of a network that computes no numbers any more are left out.

        Args:
            probabilities: `[n]` of what was told.
            right: `[n]` whether it is true.
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


class Worst:
    """Keeps the worst mistakes, one of a row at most."""

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
            size: how bad it is.
            row: the example: its number, and its place.
            text: what was read.
            truth: what is true.
            told: what was told.
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
        metrics: of each row, by name.
        order: of the kinds; else the commonest come first, and the rare ones are "others".
    """
    counts = Counter(kinds)
    names = list(order or (kind for kind, _ in counts.most_common(MOST_GROUPS)))
    own = np.array([names.index(kind) if kind in names else len(names) for kind in kinds])
    rows = [
        Scores(
            name=name,
            count=int(chosen.sum()),
            metrics={
                key: float(np.asarray(values)[chosen].mean()) for key, values in metrics.items()
            },
        )
        for number, name in enumerate([*names, "others"])
        if (chosen := own == number).any()
    ]
    return ScoreTable(by=by, counted=counted, rows=tuple(rows))
