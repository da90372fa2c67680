"""The official scores of the answers that any system predicted, and their breakdown."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from ..breakdown import Breakdown, compute_mean_scores, excerpt
from ..measures import HasLocation, Measure, WorstMistakes

NO_ANSWER = "no answer"
LENGTH_NAMES = (NO_ANSWER, "1 word", "2 words", "3 to 5 words", "6 to 10 words", "more words")
MAX_WORDS = (0, 1, 2, 5, 10)
"""The maximum words of each of `LENGTH_NAMES`; the last has no maximum."""


class _Question(NamedTuple):
    """What is needed to score one question."""

    answers: tuple[str, ...]
    # the best non-empty answer, or "" if there is none; None if the system skipped the question
    predicted: str | None
    # score of "no answer" minus score of `predicted`; None if unknown
    margin: float | None
    first_word: str  # of the question

    def scores(self, version: Version, predicted: str | None) -> tuple[float, float]:
        """Exact match and F1 of a predicted answer; both are 0 for None, a skipped question."""
        if predicted is None:
            return 0.0, 0.0
        return exact_match(predicted, self.answers, version), f1(predicted, self.answers, version)


class AnsweringScores(Measure):
    """`exact_match` and `f1` of answers, computed like the official scorers.

    The rules of SQuAD 2.0 apply if `unanswerable` is true or a question without an answer occurs;
    otherwise those of SQuAD 1.1. If `unanswerable` is true, there are further metrics:

    - `answered_f1`: F1 of the questions that have an answer;
    - `unanswered_accuracy`: share of the other questions for which no answer is predicted;
    - `best_f1` and `best_null_threshold`, if all margins are known: the best F1 over all
      thresholds, and the threshold that reaches it.

    Args:
        unanswerable: whether questions without an answer are possible.
        threshold: "no answer" is predicted where the margin is greater than this.
    """

    state_fields = ("_questions", "_worst")

    def __init__(self, *, unanswerable: bool, threshold: float = math.inf) -> None:
        self._unanswerable, self._threshold = unanswerable, threshold
        self._questions: list[_Question] = []
        # Which version's rules apply is known only after the last question.
        self._worst: dict[Version, WorstMistakes] = {
            version: WorstMistakes() for version in get_args(Version)
        }

    def add(
        self,
        row: HasLocation,
        question: str,
        context: str,
        answers: Sequence[str],
        predicted: str | None,
        *,
        margin: float | None = None,
        probability: float | None = None,
        mark: tuple[int, int] = (0, 0),
    ) -> None:
        """Add a question.

        Args:
            answers: the gold answers; empty if the question has no answer.
            predicted: the best non-empty answer, or "" if there is none; None if the system
                skipped the question, which always counts as wrong.
            margin: score of "no answer" minus score of `predicted`; None if unknown.
            probability: of the prediction at the threshold, if known.
            mark: the characters `[start, end)` of the passage that are predicted at the threshold.
        """
        first_word = next(iter(normalize_answer(question).split()), "")
        entry = _Question(tuple(answers), predicted, margin, first_word)
        self._questions.append(entry)
        final = self._final_answer(entry)
        if final is None:
            return
        gold = " / ".join(dict.fromkeys(answers_with_words(answers))) or NO_ANSWER
        for version, worst in self._worst.items():
            is_right, overlap = entry.scores(version, final)
            if not is_right:
                worst.add(
                    1 - overlap if probability is None else probability,
                    row,
                    context,
                    gold,
                    final or NO_ANSWER,
                    mark=mark,
                    prefix=f"{excerpt(question)[0]} | ",
                    size_field=None if probability is None else "probability",
                )

    def _final_answer(self, row: _Question) -> str | None:
        """The prediction at the threshold."""
        is_none = row.predicted is not None and (row.margin or 0.0) > self._threshold
        return "" if is_none else row.predicted

    @property
    def _version(self) -> Version:
        return (
            "2.0"
            if self._unanswerable or not all(row.answers for row in self._questions)
            else "1.1"
        )

    def _scores(self) -> tuple[list[float], list[float]]:
        """The exact matches and the F1 scores, one per question."""
        version = self._version
        pairs = [row.scores(version, self._final_answer(row)) for row in self._questions]
        return [exact for exact, _ in pairs], [overlap for _, overlap in pairs]

    def result(self) -> dict[str, float]:
        exact, overlaps = self._scores()
        result = {"exact_match": float(np.mean(exact)), "f1": float(np.mean(overlaps))}
        if not self._unanswerable:
            return result
        scored_questions = list(zip(self._questions, overlaps, strict=True))
        answered_scores = [
            score for row, score in scored_questions if answers_with_words(row.answers)
        ]
        unanswered_scores = [
            score for row, score in scored_questions if not answers_with_words(row.answers)
        ]
        result["answered_f1"] = float(np.mean(answered_scores)) if answered_scores else 0.0
        result["unanswered_accuracy"] = (
            float(np.mean(unanswered_scores)) if unanswered_scores else 0.0
        )
        margins = [row.margin for row in self._questions if row.margin is not None]
        if len(margins) == len(self._questions):
            threshold, best = find_best_threshold(
                margins,
                [row.scores("2.0", row.predicted)[1] for row in self._questions],
                [
                    row.scores("2.0", None if row.predicted is None else "")[1]
                    for row in self._questions
                ],
            )
            result |= {"best_f1": best, "best_null_threshold": threshold}
        return result

    def notes(self) -> list[str]:
        missing = sum(row.predicted is None for row in self._questions)
        if not missing:
            return []
        return [
            f"{missing:,} of {len(self._questions):,} questions have no prediction; they score 0"
        ]

    def breakdown(self) -> Breakdown:
        """Scores by length of the answer and first word of the question, and the worst mistakes."""
        exact, overlaps = self._scores()
        metrics = {"exact_match": exact, "f1": overlaps}
        lengths = [_length_name(row.answers) for row in self._questions]
        words = [row.first_word for row in self._questions]
        kinds = (("length of the answer", lengths, LENGTH_NAMES), ("first word", words, None))
        return Breakdown(
            tables=tuple(
                compute_mean_scores(title, "questions", names, metrics, order)
                for title, names, order in kinds
            ),
            mistakes=self._worst[self._version].result(),
        )


def _length_name(answers: Sequence[str]) -> str:
    """The entry of `LENGTH_NAMES` for the first gold answer."""
    first = next(iter(answers_with_words(answers)), "")
    return LENGTH_NAMES[int(np.searchsorted(MAX_WORDS, len(first.split())))]


Version = Literal["1.1", "2.0"]
"""Version of SQuAD: the two official scorers differ for answers without words."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(answer: str) -> str:
    """Normalise an answer for comparison: lower case, no punctuation or articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def answers_with_words(answers: Sequence[str]) -> list[str]:
    """The answers that are not empty after normalisation.

    A question without any such answer counts as one without an answer.
    """
    return [answer for answer in answers if normalize_answer(answer)]


def _reference_answers(answers: Sequence[str], version: Version) -> Sequence[str]:
    """The gold answers to compare a prediction with; one empty answer if there are none.

    Version 2.0 ignores answers without words.
    """
    return (answers_with_words(answers) if version == "2.0" else answers) or [""]


def exact_match(predicted: str, answers: Sequence[str], version: Version) -> float:
    """Return 1 if the predicted answer equals a gold one, else 0; "no answer" is an empty text."""
    return float(
        any(
            normalize_answer(predicted) == normalize_answer(answer)
            for answer in _reference_answers(answers, version)
        )
    )


def f1(predicted: str, answers: Sequence[str], version: Version) -> float:
    """The word F1 of the predicted answer and a gold answer, maximised over the gold answers.

    It is 0 if one of the two has no words, except that version 2.0 gives 1 if neither has any.
    """
    return max(
        _word_f1(predicted, answer, version) for answer in _reference_answers(answers, version)
    )


def _word_f1(predicted: str, answer: str, version: Version) -> float:
    words, gold_words = normalize_answer(predicted).split(), normalize_answer(answer).split()
    if not words or not gold_words:
        return float(words == gold_words and version == "2.0")
    num_shared = sum((Counter(words) & Counter(gold_words)).values())
    return 2 * num_shared / (len(words) + len(gold_words))


def find_best_threshold(
    margins: Sequence[float], if_answered: Sequence[float], if_none: Sequence[float]
) -> tuple[float, float]:
    """Find the threshold of the margin, above which "no answer" is predicted.

    Args:
        margins: for each question, the score of "no answer" minus that of the best answer.
        if_answered: the metric of each question if its best answer is predicted.
        if_none: the metric of each question if "no answer" is predicted.

    Returns:
        The threshold with the best mean metric (the lowest of equal ones), and that mean.
    """
    order = sorted(range(len(margins)), key=lambda index: margins[index])
    total = sum(if_none)
    best, threshold = total, (margins[order[0]] - 1.0 if order else 0.0)
    for rank, index in enumerate(order):
        total += if_answered[index] - if_none[index]
        is_last_of_equals = rank + 1 == len(order) or margins[order[rank + 1]] > margins[index]
        if is_last_of_equals and total > best:
            best, threshold = total, margins[index]
    return threshold, best / max(1, len(margins))
