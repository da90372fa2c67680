"""Scores of the tags that any system predicted, and of the spans that they mark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from ...errors import DataError
from ..breakdown import Breakdown, Confusion, Placed, ScoreTable
from ..scores import OneOfSeveralScores
from .tags import Span, parts_of, spans_of


class TaggingScores(OneOfSeveralScores):
    """`majority` and `accuracy` of words; and `precision`, `recall` and `f1` of spans, or, if tags
    do not mark spans, `macro_f1` of tags.

    Args:
        names: every tag that may occur.
        spans: whether tags mark spans.
    """

    counted = "words"

    def __init__(self, names: Sequence[str], *, spans: bool) -> None:
        super().__init__(names)
        self._spans = spans

    def add_sentence(
        self,
        row: Placed,
        words: Sequence[str],
        gold: np.ndarray,
        predicted: np.ndarray,
        confidence: np.ndarray | None = None,
    ) -> None:
        """Add a sentence, and record its most confident mistake.

        Args:
            gold: `[words]`, the indices of the gold tags in `names`.
            predicted: `[words]`, the indices of the predicted tags.
            confidence: `[words]`, the probabilities of the predicted tags, if known.
        """
        self.add(gold, predicted, confidence)
        is_right = gold == predicted
        if is_right.all():
            return
        sure = np.zeros(len(words)) if confidence is None else confidence
        at = int(np.where(is_right, -1.0, sure).argmax())
        start = sum(len(word) + 1 for word in words[:at])
        self.add_mistake(
            row,
            " ".join(words),
            self.names[gold[at]],
            self.names[predicted[at]],
            None if confidence is None else float(confidence[at]),
            mark=(start, start + len(words[at])),
        )

    @cached_property
    def _rates(self) -> Mapping[str, Rates]:
        """The rates of spans by type, or of tags. Cached: access it only after the last row."""
        gold, predicted = (
            [[self.names[number] for number in numbers] for numbers in rows]
            for rows in (self._gold, self._predicted)
        )
        return span_scores(gold, predicted) if self._spans else tag_scores(gold, predicted)

    @property
    def _rates_by_type(self) -> Mapping[str, Rates]:
        """`_rates` without the total of all spans."""
        total = {""} if self._spans else set()
        return {kind: rates for kind, rates in self._rates.items() if kind not in total}

    def result(self) -> dict[str, float]:
        """The metrics.

        Raises:
            DataError: there are no words.
        """
        if not any(map(len, self._gold)):
            raise DataError("there is not a single word to measure on")
        result = super().result()
        if not self._spans:
            scores = [f1 for _, _, f1, _ in self._rates.values()]
            return {**result, "macro_f1": sum(scores) / len(scores)}
        precision, recall, f1, _ = self._rates[""]
        return {**result, "precision": precision, "recall": recall, "f1": f1}

    def remarks(self) -> list[str]:
        """One line per type of span; only the base class's remark if nothing has been learned."""
        by_type = self._rates_by_type if self._spans else {}
        return super().remarks() or [
            f"{kind}: precision {p:.1%}, recall {r:.1%}, F1 {f1:.1%}, {count:,} spans"
            for kind, (p, r, f1, count) in by_type.items()
        ]

    def breakdown(self) -> Breakdown:
        """Scores and confusions by type of span; by tag if tags do not mark spans."""
        by = ("type", "spans") if self._spans else ("tag", "words")
        kinds = [(parts_of(tag)[1] or "O") if self._spans else tag for tag in self.names]
        names = list(dict.fromkeys(kinds))
        kind_of = np.array([names.index(kind) for kind in kinds])
        gold, predicted = (kind_of[numbers] for numbers in self.answers())
        parts = {
            "confusion": Confusion.of("words", names, gold, predicted),
            "tables": (ScoreTable.of_rates(*by, self._rates_by_type),),
        }
        return super().breakdown().model_copy(update=parts)


Tags = Iterable[Sequence[str]]
"""The tags of sentences, one for each word."""

Rates = tuple[float, float, float, int]
"""Precision, recall, F1 and the number of gold spans or words; undefined rates are 0."""


def span_scores(gold: Tags, predicted: Tags) -> dict[str, Rates]:
    """The rates of spans by type; the key "" holds those of all types together.

    A span is correct if its type and both ends are correct, as in `conlleval`.
    """
    right, found, expected = _counts(map(spans_of, gold), map(spans_of, predicted))
    total = _rates(right.total(), found.total(), expected.total())
    return {"": total, **_rates_of_each(right, found, expected)}


def tag_scores(gold: Tags, predicted: Tags) -> dict[str, Rates]:
    """The rates, over words, of each tag that is gold or predicted."""
    return _rates_of_each(*_counts(map(_words, gold), map(_words, predicted)))


def _words(tags: Sequence[str]) -> list[Span]:
    """Each word as a span of its tag."""
    return [Span(tag, at, at + 1) for at, tag in enumerate(tags)]


def _counts(
    gold: Iterable[list[Span]], predicted: Iterable[list[Span]]
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """The numbers of correctly predicted, predicted and gold spans of each type."""
    right, found, expected = Counter[str](), Counter[str](), Counter[str]()
    for ours, others in zip(gold, predicted, strict=True):
        expected.update(span.type for span in ours)
        found.update(span.type for span in others)
        right.update(span.type for span in {*ours} & {*others})
    return right, found, expected


def _rates_of_each(
    right: Counter[str], found: Counter[str], expected: Counter[str]
) -> dict[str, Rates]:
    kinds = sorted(found | expected)
    return {kind: _rates(right[kind], found[kind], expected[kind]) for kind in kinds}


def _rates(right: int, found: int, expected: int) -> Rates:
    precision = right / found if found else 0.0
    recall = right / expected if expected else 0.0
    both = found + expected
    return precision, recall, 2 * right / both if both else 0.0, expected
