"""Scores of predicted tags and of the spans that they mark, whatever system they are from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from ...errors import DataError
from ..breakdown import Breakdown, Confusion, ScoreTable
from ..counters import CalibrationCounter, Placed, Worst
from .metrics import macro_f1, span_scores, tag_scores, word_scores
from .tags import parts_of


class TaggingScores:
    """`majority` and `accuracy` of words; and of spans `precision`, `recall` and `f1`, or else the
    tags' `macro_f1`.

    Args:
        labels: every tag that may occur.
        spans: whether they mark spans.
    """

    def __init__(self, labels: Sequence[str], *, spans: bool) -> None:
        self._labels, self._spans = labels, spans
        self._true: list[Sequence[str]] = []
        self._predicted: list[Sequence[str]] = []
        self._calibration, self._worst = CalibrationCounter(), Worst()

    def add(
        self,
        row: Placed,
        words: Sequence[str],
        true: Sequence[str],
        predicted: Sequence[str],
        confidence: np.ndarray | None = None,
    ) -> None:
        """Count a sentence, and keep its most confident mistake.

        Args:
            row: its number and place.
            words: the sentence.
            true: the right tag of each word.
            predicted: the like.
            confidence: `[words]` the probabilities of the predicted tags, if known.
        """
        self._true.append(true)
        self._predicted.append(predicted)
        is_right = np.array([a == b for a, b in zip(true, predicted, strict=True)], bool)
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
            true[at],
            predicted[at],
            mark=(start, start + len(words[at])),
            unit=None if confidence is None else "probability",
        )

    @cached_property
    def _span_scores(self) -> Mapping[str, tuple[float, float, float, int]]:
        """Those of all rows; asked for when the last one is there."""
        return span_scores(self._true, self._predicted)

    def result(self) -> dict[str, float]:
        """The metrics.

        Raises:
            DataError: there are no words.
        """
        if not any(self._true):
            raise DataError("there is not a single word to measure on")
        result = dict(word_scores(self._true, self._predicted))
        if not self._spans:
            return {**result, "macro_f1": macro_f1(self._true, self._predicted)}
        precision, recall, f1, _ = self._span_scores[""]
        return {**result, "precision": precision, "recall": recall, "f1": f1}

    def remarks(self) -> list[str]:
        """One line for each type of span, and whether nothing has been learned."""
        predicted = {tag for tags in self._predicted for tag in tags}
        if len(predicted) == 1 and len({tag for tags in self._true for tag in tags}) > 1:
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
            scores = {kind: own for kind, own in self._span_scores.items() if kind}
            table = ScoreTable.of_rates("type", "spans", scores)
        else:
            table = ScoreTable.of_rates("tag", "words", tag_scores(self._true, self._predicted))
        kinds = {tag: (parts_of(tag)[1] or "O") if self._spans else tag for tag in self._labels}
        names = list(dict.fromkeys(kinds.values()))
        true, predicted = (
            np.array([names.index(kinds[tag]) for tags in rows for tag in tags], np.int64)
            for rows in (self._true, self._predicted)
        )
        return Breakdown(
            confusion=Confusion.of("words", names, true, predicted),
            tables=(table,),
            calibration=self._calibration.result("words"),
            mistakes=self._worst.result(),
        )
