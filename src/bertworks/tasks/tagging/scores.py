"""Scores of the tags that any system predicted, and of the spans that they mark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...errors import DataError
from ...utils.formatting import format_count
from ..breakdown import Breakdown, Confusion, ScoreTable
from ..measures import HasLocation
from ..scores import SingleLabelScores
from .tags import OUTSIDE_TAG, Span, find_spans, split_tag

UNNAMED_TYPE = "span"
"""The name of the empty type, for display."""


class TaggingScores(SingleLabelScores):
    """`majority` and `accuracy` of words; and `precision`, `recall` and `f1` of spans, or, if tags
    do not mark spans, `macro_f1` of tags.

    Args:
        names: every tag that may occur; those of spans as in `tags.py`.
        spans: whether tags mark spans.
    """

    state_fields = (*SingleLabelScores.state_fields, "_gold_spans", "_predicted_spans")
    unit = "words"

    def __init__(self, names: Sequence[str], *, spans: bool) -> None:
        super().__init__(names)
        self._spans = spans
        self._gold_spans: list[list[Span]] = []
        self._predicted_spans: list[list[Span]] = []

    def add_sentence(
        self,
        row: HasLocation,
        words: Sequence[str],
        gold: np.ndarray,
        predicted: np.ndarray,
        confidence: np.ndarray | None = None,
        *,
        gold_spans: Sequence[Span] | None = None,
    ) -> None:
        """Add a sentence, and record its most confident mistake.

        Args:
            gold: `[words]`, the indices of the gold tags in `names`.
            predicted: `[words]`, the indices of the predicted tags.
            confidence: `[words]`, the probabilities of the predicted tags, if known.
            gold_spans: the gold spans, if `gold` may not mark them exactly; None: those of `gold`.
        """
        self.add(gold, predicted, confidence)
        if self._spans:
            self._gold_spans.append(
                self._spans_of(gold) if gold_spans is None else list(gold_spans)
            )
            self._predicted_spans.append(self._spans_of(predicted))
        is_right = gold == predicted
        if is_right.all():
            return
        confidences = np.zeros(len(words)) if confidence is None else confidence
        worst = int(np.where(is_right, -1.0, confidences).argmax())
        start = sum(len(word) + 1 for word in words[:worst])
        self.add_mistake(
            row,
            " ".join(words),
            self.names[gold[worst]],
            self.names[predicted[worst]],
            None if confidence is None else float(confidence[worst]),
            mark=(start, start + len(words[worst])),
        )

    def _spans_of(self, numbers: np.ndarray) -> list[Span]:
        return find_spans([self.names[number] for number in numbers])

    @cached_property
    def _rates(self) -> SpanRates:
        """The rates of spans by type, or of tags. Cached: access it only after the last row."""
        if self._spans:
            return compute_span_rates(self._gold_spans, self._predicted_spans)
        gold, predicted = (
            [[self.names[number] for number in numbers] for numbers in rows]
            for rows in (self._gold, self._predicted)
        )
        return compute_tag_rates(gold, predicted)

    def result(self) -> dict[str, float]:
        """The metrics.

        Raises:
            DataError: there are no words.
        """
        if not any(map(len, self._gold)):
            raise DataError("there are no words to evaluate")
        result = super().result()
        if not self._spans:
            scores = [f1 for _, _, f1, _ in self._rates.by_type.values()]
            return {**result, "macro_f1": sum(scores) / len(scores)}
        precision, recall, f1, _ = self._rates.total
        return {**result, "precision": precision, "recall": recall, "f1": f1}

    def notes(self) -> list[str]:
        """One line per type of span; only the base class's note if nothing has been learned."""
        by_type = self._rates.by_type if self._spans else {}
        return super().notes() or [
            f"{kind}: precision {p:.1%}, recall {r:.1%}, F1 {f1:.1%}, {format_count(count, 'span')}"
            for kind, (p, r, f1, count) in by_type.items()
            if kind  # an empty type is the only one, or nearly: the total says the same
        ]

    def breakdown(self) -> Breakdown:
        """Scores and confusions by type of span; by tag if tags do not mark spans."""
        titles = ("type", "spans") if self._spans else ("tag", "words")
        kinds = [_kind_of(tag) if self._spans else tag for tag in self.names]
        names = list(dict.fromkeys(kinds))
        kind_numbers = np.array([names.index(kind) for kind in kinds])
        gold, predicted = (kind_numbers[numbers] for numbers in self.gold_and_predicted())
        rates = {kind or UNNAMED_TYPE: values for kind, values in self._rates.by_type.items()}
        parts = {
            "confusion": Confusion.from_labels("words", names, gold, predicted),
            "tables": (ScoreTable.from_rates(*titles, rates),),
        }
        return super().breakdown().model_copy(update=parts)


Tags = Iterable[Sequence[str]]
"""The tags of sentences, one for each word."""

Rates = tuple[float, float, float, int]
"""Precision, recall, F1 and the number of gold spans or words; undefined rates are 0."""


class SpanRates(NamedTuple):
    """The rates of spans, or of words with their tags."""

    total: Rates  # of all types together
    by_type: Mapping[str, Rates]


def compute_span_rates(gold: Iterable[list[Span]], predicted: Iterable[list[Span]]) -> SpanRates:
    """The rates of the spans of sentences.

    A span is correct if its type and both ends are correct, as in `conlleval`.
    """
    num_correct, num_predicted, num_gold = _counts(gold, predicted)
    total = _rates(num_correct.total(), num_predicted.total(), num_gold.total())
    kinds = sorted(num_predicted | num_gold)
    by_type = {
        kind: _rates(num_correct[kind], num_predicted[kind], num_gold[kind]) for kind in kinds
    }
    return SpanRates(total, by_type)


def compute_tag_rates(gold: Tags, predicted: Tags) -> SpanRates:
    """The rates, over words, of each tag that is gold or predicted."""
    return compute_span_rates(map(_words, gold), map(_words, predicted))


def _kind_of(tag: str) -> str:
    letter, kind = split_tag(tag)
    return OUTSIDE_TAG if letter == OUTSIDE_TAG else kind or UNNAMED_TYPE


def _words(tags: Sequence[str]) -> list[Span]:
    """Each word as a span of its tag."""
    return [Span(tag, index, index + 1) for index, tag in enumerate(tags)]


def _counts(
    gold: Iterable[list[Span]], predicted: Iterable[list[Span]]
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """The numbers of correctly predicted, predicted and gold spans of each type."""
    num_correct, num_predicted, num_gold = Counter[str](), Counter[str](), Counter[str]()
    for gold_spans, predicted_spans in zip(gold, predicted, strict=True):
        num_gold.update(span.type for span in gold_spans)
        num_predicted.update(span.type for span in predicted_spans)
        num_correct.update(span.type for span in {*gold_spans} & {*predicted_spans})
    return num_correct, num_predicted, num_gold


def _rates(num_correct: int, num_predicted: int, num_gold: int) -> Rates:
    precision = num_correct / num_predicted if num_predicted else 0.0
    recall = num_correct / num_gold if num_gold else 0.0
    total = num_predicted + num_gold
    return precision, recall, 2 * num_correct / total if total else 0.0, num_gold
