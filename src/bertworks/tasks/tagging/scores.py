"""Scores of predicted tags and of the spans that they mark, whatever system they are from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from ...errors import DataError
from ..breakdown import (
    Breakdown,
    CalibrationCounter,
    Confusion,
    Measure,
    Placed,
    ScoreTable,
    Worst,
)
from .tags import Span, parts_of, spans_of


class TaggingScores(Measure):
    """`majority` and `accuracy` of words; and of spans `precision`, `recall` and `f1`, or else the
    tags' `macro_f1`.

    Args:
        labels: every tag that may occur.
        spans: whether they mark spans.
    """

    gathered = ("_gold", "_predicted", "_calibration", "_worst")

    def __init__(self, labels: Sequence[str], *, spans: bool) -> None:
        self._labels, self._spans = labels, spans
        self._gold: list[Sequence[str]] = []
        self._predicted: list[Sequence[str]] = []
        self._calibration, self._worst = CalibrationCounter(), Worst()

    def add(
        self,
        row: Placed,
        words: Sequence[str],
        gold: Sequence[str],
        predicted: Sequence[str],
        confidence: np.ndarray | None = None,
    ) -> None:
        """Count a sentence, and keep its most confident mistake.

        Args:
            gold: the right tag of each word.
            confidence: `[words]` the probabilities of the predicted tags, if known.
        """
        self._gold.append(gold)
        self._predicted.append(predicted)
        is_right = np.array([a == b for a, b in zip(gold, predicted, strict=True)], bool)
        sure = np.zeros(len(words)) if confidence is None else confidence
        if confidence is not None:
            self._calibration.add(confidence, is_right)
        if is_right.all():
            return
        at = int(np.where(is_right, -1.0, sure).argmax())
        start = sum(len(word) + 1 for word in words[:at])
        self._worst.add(
            float(sure[at]),
            row,
            " ".join(words),
            gold[at],
            predicted[at],
            mark=(start, start + len(words[at])),
            unit=None if confidence is None else "probability",
        )

    @cached_property
    def _span_scores(self) -> Mapping[str, Rates]:
        """Those of all rows; asked for when the last one is there."""
        return span_scores(self._gold, self._predicted)

    def result(self) -> dict[str, float]:
        """The metrics.

        Raises:
            DataError: there are no words.
        """
        if not any(self._gold):
            raise DataError("there is not a single word to measure on")
        result = word_scores(self._gold, self._predicted)
        if not self._spans:
            return {**result, "macro_f1": macro_f1(self._gold, self._predicted)}
        precision, recall, f1, _ = self._span_scores[""]
        return {**result, "precision": precision, "recall": recall, "f1": f1}

    def remarks(self) -> list[str]:
        """One line for each type of span, and whether nothing has been learned."""
        predicted = {tag for tags in self._predicted for tag in tags}
        if len(predicted) == 1 and len({tag for tags in self._gold for tag in tags}) > 1:
            return [
                f"every word is predicted to be {predicted.pop()!r}: nothing has been learned yet"
            ]
        if not self._spans:
            return []
        return [
            f"{kind}: precision {p:.1%}, recall {r:.1%}, F1 {f1:.1%}, {count:,} spans"
            for kind, (p, r, f1, count) in self._span_scores.items()
            if kind
        ]

    def breakdown(self) -> Breakdown:
        """Scores by type of span, and which type is predicted for which; or the like of tags."""
        if self._spans:
            scores = {kind: counts for kind, counts in self._span_scores.items() if kind}
            table = ScoreTable.of_rates("type", "spans", scores)
        else:
            table = ScoreTable.of_rates("tag", "words", tag_scores(self._gold, self._predicted))
        kinds = {tag: (parts_of(tag)[1] or "O") if self._spans else tag for tag in self._labels}
        names = list(dict.fromkeys(kinds.values()))
        gold, predicted = (
            np.array([names.index(kinds[tag]) for tags in rows for tag in tags], np.int64)
            for rows in (self._gold, self._predicted)
        )
        return Breakdown(
            confusion=Confusion.of("words", names, gold, predicted),
            tables=(table,),
            calibration=self._calibration.result("words"),
            mistakes=self._worst.result(),
        )


Tags = Iterable[Sequence[str]]
"""The tags of sentences, one for each word."""

Rates = tuple[float, float, float, int]
"""Precision, recall, F1, and how many there are; what is undefined is 0."""


def span_scores(gold: Tags, predicted: Tags) -> dict[str, Rates]:
    """The rates of spans by type; of all together under "".

    A span is right if its type and both of its ends are, as `conlleval` counts.
    """
    right, found, expected = _counts(map(spans_of, gold), map(spans_of, predicted))
    total = _rates(right.total(), found.total(), expected.total())
    return {"": total, **_rates_by_type(right, found, expected)}


def tag_scores(gold: Tags, predicted: Tags) -> dict[str, Rates]:
    """The rates of each tag that occurs or is predicted, over words."""
    return _rates_by_type(*_counts(map(_words, gold), map(_words, predicted)))


def _words(tags: Sequence[str]) -> list[Span]:
    """Each word as a span of its tag."""
    return [Span(tag, at, at + 1) for at, tag in enumerate(tags)]


def _counts(
    gold: Iterable[list[Span]], predicted: Iterable[list[Span]]
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """How many spans of each type are predicted rightly, are predicted, and are gold."""
    right, found, expected = Counter[str](), Counter[str](), Counter[str]()
    for ours, others in zip(gold, predicted, strict=True):
        expected.update(span.type for span in ours)
        found.update(span.type for span in others)
        right.update(span.type for span in {*ours} & {*others})
    return right, found, expected


def _rates_by_type(
    right: Counter[str], found: Counter[str], expected: Counter[str]
) -> dict[str, Rates]:
    kinds = sorted(found | expected)
    return {kind: _rates(right[kind], found[kind], expected[kind]) for kind in kinds}


def _rates(right: int, found: int, expected: int) -> Rates:
    precision = right / found if found else 0.0
    recall = right / expected if expected else 0.0
    both = found + expected
    return precision, recall, 2 * right / both if both else 0.0, expected


def word_scores(gold: Tags, predicted: Tags) -> dict[str, float]:
    """`accuracy` over all words, and `majority`, that of always predicting the commonest tag."""
    tags, others = list(chain(*gold)), list(chain(*predicted))
    return {
        "majority": Counter(tags).most_common(1)[0][1] / len(tags),
        "accuracy": float(np.mean([tag == other for tag, other in zip(tags, others, strict=True)])),
    }


def macro_f1(gold: Tags, predicted: Tags) -> float:
    """The mean of the tags' F1, of those that occur or are predicted."""
    scores = tag_scores(gold, predicted).values()
    return sum(f1 for _, _, f1, _ in scores) / len(scores)
