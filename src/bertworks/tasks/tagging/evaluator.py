"""Evaluation of tagging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ...nn.losses import cross_entropy_sum
from ...packed import Batch
from ..evaluators import ScoredEvaluator
from .scores import TaggingScores

if TYPE_CHECKING:
    from .task import TaggingTask


class TaggingEvaluator(ScoredEvaluator[TaggingScores]):
    """Computes `loss` per labelled piece and the scores of `TaggingScores`."""

    def __init__(self, task: TaggingTask) -> None:
        super().__init__(TaggingScores(task.settings.tags, spans=task.settings.spans))
        self._task = task

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        labels = batch.targets["labels"]
        self._loss += cross_entropy_sum(outputs["logits"], labels).item()
        self._count += len(labels)
        for example, path, probabilities in self._task.paths(outputs, batch):
            predicted = np.array(path, np.int64)
            self._scores.add_sentence(
                example,
                example.words,
                example.target,
                predicted,
                probabilities[np.arange(len(path)), predicted],
                gold_spans=example.spans,
            )

    def notes(self) -> list[str]:
        """The notes on the scores, and how the table writes its tags if that is unusual."""
        notation = self._task.settings.notation
        return super().notes() + ([] if notation is None else [notation])
