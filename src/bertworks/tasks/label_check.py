"""Labels that are probably wrong: suspects by confident learning, and texts with several labels.

A label is suspect if another class is more probable than is usual for rows of that class.
Source: Northcutt et al. (2021), "Confident learning: estimating uncertainty in dataset labels",
§3.1.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.rows import LocatedRow, Row
from ..errors import shorten_list

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

MIN_WORDS = 5
"""Texts of so many words are nearly the same if they differ in one word."""


@dataclass(frozen=True)
class CheckedLabel:
    """A row, and what classifiers predict that were not trained on it.

    Attributes:
        number: of the row, from 1.
        label_probability, predicted_probability: of its label, and of the most probable one.
        is_suspect: whether the label is probably wrong.
    """

    number: int
    row: LocatedRow
    text: str
    label: str
    label_probability: float
    predicted: str
    predicted_probability: float
    is_suspect: bool


@dataclass(frozen=True)
class LabelCheck:
    """The labels of a table, checked.

    Attributes:
        rows: all rows, by the probability of the label, the lowest first; those of
            `single_labels` are last.
        conflicts: groups of rows with the same text, or nearly, and different labels.
        misspellings: labels that are probably misspelt, each with the other and their counts.
        accuracy: share of the rows whose label is predicted.
        single_labels: labels with a single row. Classifiers that were not trained on it do not know
            the label, so its probability is always 0.
    """

    rows: tuple[CheckedLabel, ...]
    conflicts: tuple[tuple[CheckedLabel, ...], ...]
    misspellings: tuple[tuple[str, int, str, int], ...]
    accuracy: float
    single_labels: tuple[str, ...]

    @property
    def suspects(self) -> tuple[CheckedLabel, ...]:
        """The rows whose label is probably wrong."""
        return tuple(row for row in self.rows if row.is_suspect)

    @property
    def notes(self) -> list[str]:
        """What the order of the rows does not say."""
        labels = shorten_list(self.single_labels)
        note = f"labels with a single row, which cannot be checked and is listed last: {labels}"
        return [note] if self.single_labels else []

    def predictions(self) -> Iterator[tuple[Row, dict[str, Any]]]:
        """Yield the rows in their order, each as a row with its prediction, for a file."""
        for each in self.rows:
            yield (
                each.row.values,
                {
                    "row": each.number,
                    "is_suspect": each.is_suspect,
                    "label_probability": each.label_probability,
                    "label": each.predicted,
                    "probability": each.predicted_probability,
                },
            )


def find_suspects(
    labels: Int[np.ndarray, " rows"], probabilities: Float[np.ndarray, "rows labels"]
) -> Bool[np.ndarray, " rows"]:
    """Return which labels are probably wrong: the off-diagonal of the confident joint.

    A row is confidently of a class if the class's probability is at least its mean over the rows
    with that label. Of several such classes the most probable one counts. A label is suspect if the
    row is confidently of another class, and the label is not the most probable one. No row is
    confidently of a class with a single row: a classifier that was not trained on it does not know
    the class.
    """
    sums = np.bincount(
        labels, probabilities[np.arange(len(labels)), labels], probabilities.shape[1]
    )
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    means = np.where(counts > 1, sums / np.maximum(counts, 1), np.inf)
    is_confident = probabilities >= means - 1e-6
    best = np.where(is_confident, probabilities, -1).argmax(1)
    is_other = is_confident.any(1) & (best != labels)
    is_suspect: np.ndarray = is_other & (probabilities.argmax(1) != labels)
    return is_suspect


def group_similar_texts(texts: Sequence[str]) -> list[list[int]]:
    """Return groups of at least two texts that are the same, or nearly, by their numbers.

    Case, punctuation and blanks do not count. Texts of at least `MIN_WORDS` words are nearly the
    same if one word is another, or is missing from one of them.
    """
    parents = list(range(len(texts)))

    def find_root(at: int) -> int:
        while parents[at] != at:
            parents[at] = at = parents[parents[at]]
        return at

    first_text: dict[tuple[str, ...], int] = {}
    for at, text in enumerate(texts):
        words = tuple(re.findall(r"\w+", text.casefold()))
        keys = [words]
        if len(words) >= MIN_WORDS:
            keys += [words[:out] + words[out + 1 :] for out in range(len(words))]
        for key in keys:
            if key:
                parents[find_root(at)] = find_root(first_text.setdefault(key, at))
    groups: Mapping[int, list[int]] = defaultdict(list)
    for at in range(len(texts)):
        groups[find_root(at)].append(at)
    return sorted(group for group in groups.values() if len(group) > 1)
