"""Predictions of tasks for rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ...inference.engine import outputs_of
from ...inference.settings import EngineSettings
from ...packed import Batch
from ...tasks.answering.task import AnsweringTask
from ...tasks.pretraining.source import PretrainingExample
from ...tasks.task import Network, Prediction, Task
from ...tasks.texts import TextTask
from .base import WHOLE, Truncation, memory_errors


class ScoredPrediction(NamedTuple):
    """A prediction of a task on texts, and its logits."""

    prediction: Prediction
    logits: Float[np.ndarray, " labels"]


class TaskRunner:
    """Computes a task's prediction for each row; for a task on texts, `ScoredPrediction`."""

    def __init__(self, task: Task[Any], network: Network, engine: EngineSettings) -> None:
        self.task, self.network = task, network
        self.engine = engine.with_values(batch_tokens=WHOLE)
        self._rows = 0

    def prepare(
        self,
        items: Sequence[Any],
        task: Task[Any] | None = None,
        truncation: Truncation | None = None,
    ) -> list[Any]:
        """Tokenise `TaskRow`s.

        Args:
            task: replaces the runner's task, to treat long texts differently.
            truncation: counts the rows that the task truncates.

        Raises:
            DataError: a row is not valid for the task.
        """
        first = self._rows
        self._rows += len(items)
        examples = (task or self.task).examples(
            [item.row for item in items],
            first,
            where=[item.where for item in items],
            labelled=False,
        )
        if truncation is not None:
            truncation.truncated += sum(example.truncated_tokens > 0 for example in examples)
        return examples

    def run(self, examples: Sequence[Any]) -> list[Any]:
        results: dict[int, Any] = {}
        with memory_errors():
            for outputs, batch in outputs_of(self.network, self.task, examples, self.engine):
                results.update(self.decode(outputs, batch))
        return [results[_row_number(example)] for example in examples]

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Any]:
        """Return the result of each row, by the row's number."""
        answers: dict[int, Any] = self.task.decode(outputs, batch)
        if not isinstance(self.task, TextTask):
            return answers
        logits = outputs["logits" if "logits" in outputs else "values"]
        rows = logits.float().cpu().numpy().reshape(len(answers), -1)
        scored = zip(answers.items(), rows, strict=True)  # both in the order of the batch
        return {row: ScoredPrediction(answer, logits) for (row, answer), logits in scored}


class AnswerRunner(TaskRunner):
    """Computes spans of passages; each request makes its answer from them by `task.answer`."""

    task: AnsweringTask

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Any]:
        return {spans[0].index: spans for spans in self.task.spans(outputs, batch)}


def _row_number(example: Any) -> int:
    """Return the number of an example's row."""
    number: int | None = example.row if isinstance(example, PretrainingExample) else example.index
    assert number is not None, "it was made from a row"
    return number
