"""Exact match and F1 of answers, as SQuAD's official scorers count them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Literal

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
    """The true answers that a prediction is compared with; without any, the empty one.

    Version 2.0 leaves out those without words.
    """
    return (with_words(answers) if version == "2.0" else answers) or [""]


def exact_match(predicted: str, answers: Sequence[str], version: Version) -> float:
    """1 if the predicted answer is one of the true ones; no answer is the empty one."""
    return float(
        any(normalized(predicted) == normalized(answer) for answer in _compared(answers, version))
    )


def f1(predicted: str, answers: Sequence[str], version: Version) -> float:
    """The best F1 of the words that the predicted answer shares with one of the true ones.

    Where one of the two has no words, it is 0; but 1 if neither has any, in version 2.0.
    """
    return max(_word_f1(predicted, answer, version) for answer in _compared(answers, version))


def _word_f1(predicted: str, answer: str, version: Version) -> float:
    own, other = normalized(predicted).split(), normalized(answer).split()
    if not own or not other:
        return float(own == other and version == "2.0")
    shared = sum((Counter(own) & Counter(other)).values())
    return 2 * shared / (len(own) + len(other))


def best_threshold(
    margins: Sequence[float], if_told: Sequence[float], if_none: Sequence[float]
) -> tuple[float, float]:
    """The threshold above which no answer is told, and the mean score that it gives.

    Args:
        margins: of each question, how much better "no answer" scores than the best answer.
        if_told: its score if the best answer is told.
        if_none: its score if none is.

    Returns:
        The threshold of the best mean; of equal ones, the lowest.
    """
    order = sorted(range(len(margins)), key=lambda at: margins[at])
    total = sum(if_none)
    best, threshold = total, (margins[order[0]] - 1.0 if order else 0.0)
    for place, at in enumerate(order):
        total += if_told[at] - if_none[at]
        last_of_equals = place + 1 == len(order) or margins[order[place + 1]] > margins[at]
        if last_of_equals and total > best:
            best, threshold = total, margins[at]
    return threshold, best / max(1, len(margins))
