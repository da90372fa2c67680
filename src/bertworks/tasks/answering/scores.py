"""The official scores of predicted answers, whatever system they are from, and their breakdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, get_args

import numpy as np

from ..breakdown import Breakdown, excerpt
from ..counters import Placed, Worst, means_by
from .metrics import Version, best_threshold, exact_match, f1, normalized, with_words

NO_ANSWER = "no answer"
LENGTHS = (NO_ANSWER, "1 word", "2 words", "3 to 5 words", "6 to 10 words", "more words")
LONGEST = (0, 1, 2, 5, 10)
"""The most words of each of `LENGTHS` but the last."""


class _Row(NamedTuple):
    """A question: the true answers, the predicted one, and how it is counted.

    Attributes:
        predicted: the best answer; None where the system gave none, not even the empty one.
        margin: how much better no answer scores than `predicted`; None if that is not known.
        first_word: of the question.
    """

    answers: tuple[str, ...]
    predicted: str | None
    margin: float | None
    first_word: str

    def scores(self, version: Version, predicted: str | None) -> tuple[float, float]:
        """Exact match and F1 if this were predicted; a question that was left out has 0."""
        if predicted is None:
            return 0.0, 0.0
        return exact_match(predicted, self.answers, version), f1(predicted, self.answers, version)


class AnsweringScores:
    """`exact_match` and `f1` of answers, as the official scorers count them.

    The rules are those of SQuAD 2.0 if a question without an answer is possible or occurs, else
    those of 1.1. Where one is possible there are also `answered_f1` of the questions that have an
    answer, `unanswered_accuracy`, the share of the others that are predicted to have none; and, if
    margins are known, the best F1 at any threshold, `best_f1`, and that threshold,
    `best_null_threshold`.

    Args:
        unanswerable: whether questions without an answer are possible.
        threshold: no answer is predicted where the margin is greater.
    """

    def __init__(self, *, unanswerable: bool, threshold: float = math.inf) -> None:
        self._unanswerable, self._threshold = unanswerable, threshold
        self._rows: list[_Row] = []
        # Which rules hold is known when the last question is.
        self._worst: dict[Version, Worst] = {version: Worst() for version in get_args(Version)}

    def add(
        self,
        row: Placed,
        question: str,
        context: str,
        answers: Sequence[str],
        predicted: str | None,
        *,
        margin: float | None = None,
        probability: float | None = None,
        mark: tuple[int, int] = (0, 0),
    ) -> None:
        """Count a question.

        Args:
            row: its number and place.
            question: its text.
            context: the passage.
            answers: the true answers; none where there is no answer.
            predicted: the best answer, "" if there is none; None if the system left the question
                out, which is always wrong.
            margin: how much better no answer scores; None if that is not known.
            probability: of what is predicted at the threshold, if known.
            mark: the characters `[start, end)` of the passage that are predicted at the threshold.
        """
        counted = _Row(tuple(answers), predicted, margin, _first_word(question))
        self._rows.append(counted)
        final = self._final(counted)
        if final is None:
            return
        true = " / ".join(dict.fromkeys(with_words(answers))) or NO_ANSWER
        for version, worst in self._worst.items():
            is_right, overlap = counted.scores(version, final)
            if not is_right:
                worst.add(
                    1 - overlap if probability is None else probability,
                    row,
                    context,
                    true,
                    final or NO_ANSWER,
                    mark=mark,
                    before=f"{excerpt(question)[0]} | ",
                    unit=None if probability is None else "probability",
                )

    def _final(self, row: _Row) -> str | None:
        """What is predicted at the threshold."""
        is_none = row.predicted is not None and (row.margin or 0.0) > self._threshold
        return "" if is_none else row.predicted

    @property
    def _version(self) -> Version:
        return "2.0" if self._unanswerable or not all(row.answers for row in self._rows) else "1.1"

    def _scores(self) -> tuple[list[float], list[float]]:
        """The exact match and the F1 of each question."""
        version = self._version
        pairs = [row.scores(version, self._final(row)) for row in self._rows]
        return [exact for exact, _ in pairs], [overlap for _, overlap in pairs]

    def result(self) -> dict[str, float]:
        """The metrics."""
        exact, overlaps = self._scores()
        result = {"exact_match": float(np.mean(exact)), "f1": float(np.mean(overlaps))}
        if not self._unanswerable:
            return result
        rows = list(zip(self._rows, overlaps, strict=True))
        answered = [score for row, score in rows if with_words(row.answers)]
        others = [score for row, score in rows if not with_words(row.answers)]
        result["answered_f1"] = float(np.mean(answered)) if answered else 0.0
        result["unanswered_accuracy"] = float(np.mean(others)) if others else 0.0
        margins = [row.margin for row in self._rows if row.margin is not None]
        if len(margins) == len(self._rows):
            threshold, best = best_threshold(
                margins,
                [row.scores("2.0", row.predicted)[1] for row in self._rows],
                [row.scores("2.0", None if row.predicted is None else "")[1] for row in self._rows],
            )
            result |= {"best_f1": best, "best_null_threshold": threshold}
        return result

    def remarks(self) -> list[str]:
        """How many questions were left out."""
        missing = sum(row.predicted is None for row in self._rows)
        if not missing:
            return []
        return [f"{missing:,} of {len(self._rows):,} questions have no prediction; they score 0"]

    def breakdown(self) -> Breakdown:
        """Scores by the length of the answer and by how the question begins."""
        exact, overlaps = self._scores()
        metrics = {"exact_match": exact, "f1": overlaps}
        lengths = [_length(row.answers) for row in self._rows]
        words = [row.first_word for row in self._rows]
        kinds = (("length of the answer", lengths, LENGTHS), ("first word", words, None))
        return Breakdown(
            tables=tuple(
                means_by(by, "questions", names, metrics, order) for by, names, order in kinds
            ),
            mistakes=self._worst[self._version].result(),
        )


def _first_word(question: str) -> str:
    return next(iter(normalized(question).split()), "")


def _length(answers: Sequence[str]) -> str:
    """How many words the first true answer has."""
    first = next(iter(with_words(answers)), "")
    return LENGTHS[int(np.searchsorted(LONGEST, len(first.split())))]
