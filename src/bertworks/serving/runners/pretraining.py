"""Predictions of pre-trained models: pieces at masks, and whether a text follows another."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...inference.engine import outputs_of
from ...tasks.pretraining.candidates import ScoredPieces, probabilities_at_masks, score
from ...tasks.pretraining.source import PretrainingExample
from ...tasks.pretraining.task import PretrainingTask
from ...tasks.task import Prediction, Task
from .base import TaskRow, Truncation, memory_errors
from .tasks import TaskRunner


class MaskedText(NamedTuple):
    """A text with masks, or a pair of texts.

    Attributes:
        where: its field, for errors.
        text, pair: the texts.
        top_k: number of pieces to return for each mask.
        candidates: see `ScoredPieces`.
    """

    where: str
    text: str
    pair: str | None = None
    top_k: int = 1
    candidates: ScoredPieces = ()


class MaskedRow(NamedTuple):
    """A tokenised `MaskedText`."""

    example: PretrainingExample
    item: MaskedText

    @property
    def num_tokens(self) -> int:
        return self.example.num_tokens


class MaskedRunner(TaskRunner):
    """Computes `PretrainingTask.decode` of texts with masks, and probabilities of `candidates`."""

    task: PretrainingTask

    def prepare(
        self,
        items: Sequence[MaskedText],
        task: Task[Any] | None = None,
        truncation: Truncation | None = None,
    ) -> list[MaskedRow]:
        rows = [TaskRow(item.where, self.task.text_row(item.text, item.pair)) for item in items]
        examples = super().prepare(rows, task, truncation)
        return [MaskedRow(example, item) for item, example in zip(items, examples, strict=True)]

    def run(self, examples: Sequence[MaskedRow]) -> list[Prediction]:
        task = copy.copy(self.task)
        task.top_k = max(each.item.top_k for each in examples)
        items = {each.example.row: each.item for each in examples}
        predictions: dict[int | None, Prediction] = {}
        tokenised = [each.example for each in examples]
        with memory_errors():
            for outputs, batch in outputs_of(self.network, task, tokenised, self.engine):
                for row, answer in task.decode(outputs, batch).items():
                    masks = [pieces[: items[row].top_k] for pieces in answer["masks"]]
                    predictions[row] = {**answer, "masks": masks, "candidates": []}
                if any(item.candidates for item in items.values()):
                    for row, pieces in probabilities_at_masks(outputs["mlm_logits"], batch):
                        predictions[row]["candidates"] = score(pieces, items[row].candidates)
        return [predictions[row] for row in items]
