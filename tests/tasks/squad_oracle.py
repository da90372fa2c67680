"""SQuAD's two official scorers by their rules, written apart from ours.

Both compare texts in lower case, without ASCII punctuation, without the words a, an and the, their
blanks made single, and take the best of the true answers.

Version 1.1: every question counts, one without a prediction as 0. F1 is 0 where no word is shared,
also where neither text has any; exact match is 1 there.

Version 2.0: true answers of which nothing is left are dropped; if none remains, the empty text is
the true one. F1 of two texts of which one has no words is 1 if both have none, else 0.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean


def words_of(text: str) -> list[str]:
    """The words that are compared."""
    text_without_punctuation = "".join(
        sign for sign in text.lower() if sign not in string.punctuation
    )
    runs = ["".join(run) for _, run in groupby(text_without_punctuation, str.isalnum)]
    return "".join(" " if run in ("a", "an", "the") else run for run in runs).split()


def _overlap(true: Sequence[str], predicted: Sequence[str]) -> float:
    remaining_words = list(true)
    num_shared = 0
    for word in predicted:
        if word in remaining_words:
            remaining_words.remove(word)
            num_shared += 1
    if not num_shared:
        return 0.0
    precision, recall = num_shared / len(predicted), num_shared / len(true)
    return 2 * precision * recall / (precision + recall)


def of_version_1(predicted: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 of one question."""
    own = words_of(predicted)
    exact = max(float(words_of(answer) == own) for answer in answers)
    return exact, max(_overlap(words_of(answer), own) for answer in answers)


def of_version_2(predicted: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 of one question."""
    own = words_of(predicted)
    true = [words for words in map(words_of, answers) if words] or [[]]
    exact = max(float(words == own) for words in true)
    return exact, max(
        float(words == own) if not (words and own) else _overlap(words, own) for words in true
    )


def compute_scores(
    answers: Mapping[str, Sequence[str]], predictions: Mapping[str, str], version: str
) -> dict[str, float]:
    """The means over all questions; those without a prediction have 0."""
    one = of_version_2 if version == "2.0" else of_version_1
    pairs = [
        one(predictions[identity], true) if identity in predictions else (0.0, 0.0)
        for identity, true in answers.items()
    ]
    return {"exact_match": fmean(p[0] for p in pairs), "f1": fmean(p[1] for p in pairs)}
