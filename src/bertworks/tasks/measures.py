"""Metrics and details that are collected row by row, also by several processes.

Rows may be added in any order.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from ..utils.formatting import escape_surrogates
from .breakdown import Breakdown, Calibration, CalibrationBin, Mistake, excerpt

NUM_BINS = 15
"""Bins of a calibration, as in Guo et al. 2017, §4."""


MAX_MISTAKES = 25


class MergeableState:
    """State that is collected batch by batch and summed over processes that share the batches.

    Attributes:
        state_fields: the names of the attributes that hold the state: numbers, arrays, lists,
            and dictionaries of these.
    """

    state_fields: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """Return the state in types that can be sent to another process."""
        return {name: _state_of(getattr(self, name)) for name in self.state_fields}

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the state of another object of the same class."""
        for name, other in state.items():
            setattr(self, name, _merge(getattr(self, name), other))


class Measure(MergeableState, ABC):
    """Metrics over all rows, with notes and a breakdown for the report."""

    @abstractmethod
    def result(self) -> dict[str, float]:
        """Return the metrics by name, over everything added."""

    def notes(self) -> list[str]:
        """Return warnings for the user, such as that every row gets the same prediction."""
        return []

    def breakdown(self) -> Breakdown:
        """Return confusions, calibration and mistakes; empty if they are not collected."""
        return Breakdown()


def _state_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _state_of(part) for key, part in value.items()}
    return value.state() if isinstance(value, MergeableState) else value


def _merge(own: Any, other: Any) -> Any:
    if isinstance(own, dict):
        return {key: _merge(own[key], other[key]) for key in own}
    if not isinstance(own, MergeableState):
        return own + other
    own.merge(other)
    return own


class CalibrationCounter(MergeableState):
    """Counts how often predictions are correct, by their probability."""

    state_fields = ("_count", "_num_correct", "_confidence_sum")

    def __init__(self) -> None:
        self._count = np.zeros(NUM_BINS, np.int64)
        self._num_correct = np.zeros(NUM_BINS, np.int64)
        self._confidence_sum = np.zeros(NUM_BINS)

    def add(self, probabilities: np.ndarray, is_correct: np.ndarray) -> None:
        """Count predictions; those whose probability is not finite are ignored.

        Args:
            probabilities: `[n]` probabilities of the predictions.
            is_correct: `[n]` whether each prediction is correct.
        """
        finite = np.isfinite(probabilities)
        probabilities, is_correct = probabilities[finite], is_correct[finite]
        # Bin m is ((m - 1) / NUM_BINS, m / NUM_BINS].
        bins = np.clip(np.ceil(probabilities * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
        self._count += np.bincount(bins, minlength=NUM_BINS)
        self._num_correct += np.bincount(bins[is_correct], minlength=NUM_BINS)
        self._confidence_sum += np.bincount(bins, probabilities, NUM_BINS)

    def result(self, unit: str) -> Calibration | None:
        """Return the calibration; None if nothing was added."""
        total = int(self._count.sum())
        if not total:
            return None
        gaps = np.abs(self._num_correct - self._confidence_sum)
        return Calibration(
            unit=unit,
            expected_error=float(gaps.sum() / total),
            confidence=float(self._confidence_sum.sum() / total),
            accuracy=float(self._num_correct.sum() / total),
            bins=tuple(
                CalibrationBin(
                    low=at / NUM_BINS,
                    high=(at + 1) / NUM_BINS,
                    count=int(self._count[at]),
                    confidence=float(self._confidence_sum[at] / self._count[at]),
                    accuracy=float(self._num_correct[at] / self._count[at]),
                )
                for at in np.flatnonzero(self._count).tolist()
            ),
        )


class HasLocation(Protocol):
    """An object with a row's number, from 0, and its location (file and line)."""

    @property
    def index(self) -> int: ...

    @property
    def where(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Location:
    """A row's number, from 0, and its location (file and line)."""

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
        shortened_text, position = excerpt(text, *mark)
        sizes: dict[str, Any] = {} if size_field is None else {size_field: size}
        mistake = Mistake(
            row=row.index + 1,
            where=escape_surrogates(row.where) or None,
            text=prefix + shortened_text,
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
