"""How good the tags are, and the spans that they mark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ...model.heads import cross_entropy_sum
from ...packed import Batch
from ..breakdown import Breakdown
from ..task import Evaluator
from .scores import TaggingScores

if TYPE_CHECKING:
    from .task import TaggingTask


class TaggingEvaluator(Evaluator):
    """`loss` a piece, and the scores of `TaggingScores`."""

    def __init__(self, task: TaggingTask) -> None:
        self._task = task
        self._loss, self._pieces = 0.0, 0
        self._scores = TaggingScores(task.settings.labels, spans=task.settings.spans)

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        labels = batch.targets["labels"]
        self._loss += cross_entropy_sum(outputs["logits"], labels).item()
        self._pieces += len(labels)
        names = self._task.settings.labels
        for example, path, chances in self._task.paths(outputs, batch):
            assert example.target is not None, "tags are known where they are measured"
            self._scores.add(
                example,
                example.words,
                [names[number] for number in example.target.tolist()],
                [names[number] for number in path],
                chances[np.arange(len(path)), np.array(path, np.int64)],
            )

    def result(self) -> dict[str, float]:
        scores = self._scores.result()
        return {"loss": self._loss / self._pieces, **scores}

    def remarks(self) -> list[str]:
        return self._scores.remarks()

    def breakdown(self) -> Breakdown:
        return self._scores.breakdown()
