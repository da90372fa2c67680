"""How good the tags are, and the spans that they mark."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ...errors import DataError
from ...model.heads import cross_entropy_sum
from ...packed import Batch
from ..breakdown import Breakdown, Confusion, ScoreTable
from ..counters import CalibrationCounter, Worst
from ..task import Evaluator
from .metrics import macro_f1, span_scores, tag_scores, word_scores
from .tags import parts_of

if TYPE_CHECKING:
    from .examples import TaggingExample
    from .task import TaggingTask


class TaggingEvaluator(Evaluator):
    """`loss` a piece, `majority` and `accuracy` of words; and of spans `precision`, `recall` and
    `f1`, or else the tags' `macro_f1`."""

    def __init__(self, task: TaggingTask) -> None:
        self._task = task
        self._true: list[list[str]] = []
        self._told: list[list[str]] = []
        self._loss, self._pieces = 0.0, 0
        self._calibration, self._worst = CalibrationCounter(), Worst()

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        labels = batch.targets["labels"]
        self._loss += cross_entropy_sum(outputs["logits"], labels).item()
        self._pieces += len(labels)
        names = self._task.settings.labels
        for example, path, chances in self._task.paths(outputs, batch):
            assert example.tags is not None, "tags are known where they are measured"
            self._true.append([names[number] for number in example.tags.tolist()])
            self._told.append([names[number] for number in path])
            told = np.array(path, np.int64)
            sure = chances[np.arange(len(told)), told]
            is_right = told == example.tags
            self._calibration.add(sure, is_right)
            if not is_right.all():
                self._note_mistake(example, int(np.where(is_right, 0.0, sure).argmax()), sure)

    def _note_mistake(self, example: TaggingExample, at: int, sure: np.ndarray) -> None:
        """Of a row, the word that was told wrongly with the highest probability."""
        start = sum(len(word) + 1 for word in example.words[:at])
        mark = start, start + len(example.words[at])
        tags = self._true[-1][at], self._told[-1][at]
        text = " ".join(example.words)
        self._worst.add(float(sure[at]), example, text, *tags, mark=mark)

    @cached_property
    def _span_scores(self) -> Mapping[str, tuple[float, float, float, int]]:
        """Those of all rows; asked for when the last one is there."""
        return span_scores(self._true, self._told)

    def result(self) -> dict[str, float]:
        if not self._pieces:
            raise DataError("there is not a single word to measure on")
        result = {"loss": self._loss / self._pieces, **word_scores(self._true, self._told)}
        if not self._task.settings.spans:
            return {**result, "macro_f1": macro_f1(self._true, self._told)}
        precision, recall, f1, _ = self._span_scores[""]
        return {**result, "precision": precision, "recall": recall, "f1": f1}

    def remarks(self) -> list[str]:
        """One line for each type of span, and a word where nothing has been learned."""
        told = {tag for tags in self._told for tag in tags}
        if len(told) == 1 and len({tag for tags in self._true for tag in tags}) > 1:
            return [f"every word is told to be {told.pop()!r}: nothing has been learned yet"]
        if not self._task.settings.spans:
            return []
        return [
            f"{kind}: precision {p:.1%}, recall {r:.1%}, F1 {f1:.1%}, {count:,} spans"
            for kind, (p, r, f1, count) in self._span_scores.items()
            if kind
        ]

    def breakdown(self) -> Breakdown:
        """Scores by type of span, and which type a word is told to be of; or the like of tags."""
        spans = self._task.settings.spans
        if spans:
            scores = {kind: own for kind, own in self._span_scores.items() if kind}
            table = ScoreTable.of_rates("type", "spans", scores)
        else:
            table = ScoreTable.of_rates("tag", "words", tag_scores(self._true, self._told))
        every = self._task.settings.labels
        kinds = {tag: (parts_of(tag)[1] or "O") if spans else tag for tag in every}
        names = list(dict.fromkeys(kinds.values()))
        true, told = (
            np.array([names.index(kinds[tag]) for tags in rows for tag in tags], np.int64)
            for rows in (self._true, self._told)
        )
        return Breakdown(
            confusion=Confusion.of("words", names, true, told),
            tables=(table,),
            calibration=self._calibration.result("words"),
            mistakes=self._worst.result(),
        )
