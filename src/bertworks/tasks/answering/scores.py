"""The official scores of predicted answers, whatever system they are from, and their breakdown."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from ..breakdown import Breakdown, Measure, Placed, Worst, excerpt, means_by

NO_ANSWER = "no answer"
LENGTHS = (NO_ANSWER, "1 word", "2 words", "3 to 5 words", "6 to 10 words", "more words")
LONGEST = (0, 1, 2, 5, 10)
"""The most words of each of `LENGTHS` but the last."""


class _Row(NamedTuple):
    """A question: the gold answers, the predicted one, and how it is counted."""

    answers: tuple[str, ...]
    # the best answer; None where the system gave none, not even the empty one
    predicted: str | None
    # how much better no answer scores than `predicted`; None if that is not known
    margin: float | None
    first_word: str  # of the question

    def scores(self, version: Version, predicted: str | None) -> tuple[float, float]:
        """Exact match and F1 if this were predicted; a question that was left out has 0."""
        if predicted is None:
            return 0.0, 0.0
        return exact_match(predicted, self.answers, version), f1(predicted, self.answers, version)


class AnsweringScores(Measure):
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

    gathered = ("_rows", "_worst")

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
            answers: the gold answers; none where there is no answer.
            predicted: the best answer, "" if there is none; None if the system left the question
                out, which is always wrong.
            margin: how much better no answer scores; None if that is not known.
            probability: of what is predicted at the threshold, if known.
            mark: the characters `[start, end)` of the passage that are predicted at the threshold.
        """
        first_word = next(iter(normalized(question).split()), "")
        counted = _Row(tuple(answers), predicted, margin, first_word)
        self._rows.append(counted)
        final = self._final(counted)
        if final is None:
            return
        gold = " / ".join(dict.fromkeys(with_words(answers))) or NO_ANSWER
        for version, worst in self._worst.items():
            is_right, overlap = counted.scores(version, final)
            if not is_right:
                worst.add(
                    1 - overlap if probability is None else probability,
                    row,
                    context,
                    gold,
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


def _length(answers: Sequence[str]) -> str:
    """How many words the first gold answer has."""
    first = next(iter(with_words(answers)), "")
    return LENGTHS[int(np.searchsorted(LONGEST, len(first.split())))]


Version = Literal["1.1", "2.0"]
"""Of SQuAD: the official scorers of the two differ where an answer has no words."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(answer: str) -> str:
    """An answer as it is compared: lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def with_words(answers: Sequence[str]) -> list[str]:
    """The answers of which something is left when they are normalised.

    A question that has none is one without an answer.
    """
    return [answer for answer in answers if normalized(answer)]


def _compared(answers: Sequence[str], version: Version) -> Sequence[str]:
    """The gold answers that a prediction is compared with; without any, the empty one.

    Version 2.0 leaves out those without words.
    """
    return (with_words(answers) if version == "2.0" else answers) or [""]


def exact_match(predicted: str, answers: Sequence[str], version: Version) -> float:
    """1 if the predicted answer is one of the gold ones; no answer is the empty one."""
    return float(
        any(normalized(predicted) == normalized(answer) for answer in _compared(answers, version))
    )


def f1(predicted: str, answers: Sequence[str], version: Version) -> float:
    """The best F1 of the words that the predicted answer shares with one of the gold ones.

    Where one of the two has no words, it is 0; but 1 if neither has any, in version 2.0.
    """
    return max(_word_f1(predicted, answer, version) for answer in _compared(answers, version))


def _word_f1(predicted: str, answer: str, version: Version) -> float:
    words, other = normalized(predicted).split(), normalized(answer).split()
    if not words or not other:
        return float(words == other and version == "2.0")
    shared = sum((Counter(words) & Counter(other)).values())
    return 2 * shared / (len(words) + len(other))


def best_threshold(
    margins: Sequence[float], if_answered: Sequence[float], if_none: Sequence[float]
) -> tuple[float, float]:
    """The threshold above which no answer is given, and the mean score that it gives.

    Args:
        margins: of each question, how much better "no answer" scores than the best answer.
        if_answered: its score if the best answer is given.
        if_none: its score if none is.

    Returns:
        The threshold of the best mean; of equal ones, the lowest.
    """
    order = sorted(range(len(margins)), key=lambda at: margins[at])
    total = sum(if_none)
    best, threshold = total, (margins[order[0]] - 1.0 if order else 0.0)
    for place, at in enumerate(order):
        total += if_answered[at] - if_none[at]
        last_of_equals = place + 1 == len(order) or margins[order[place + 1]] > margins[at]
        if last_of_equals and total > best:
            best, threshold = total, margins[at]
    return threshold, best / max(1, len(margins))
