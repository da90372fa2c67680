"""How good the answers are: the official scores, and the threshold for none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from ...packed import Batch
from ..breakdown import Breakdown
from ..task import Evaluator
from .network import answering_loss_sum
from .scores import AnsweringScores

if TYPE_CHECKING:
    from .task import AnsweringTask


class AnsweringEvaluator(Evaluator):
    """`loss` a window, and the scores of `AnsweringScores`."""

    def __init__(self, task: AnsweringTask) -> None:
        self._task = task
        self._loss, self._windows = 0.0, 0
        own = task.settings
        self._scores = AnsweringScores(unanswerable=own.unanswerable, threshold=own.null_threshold)

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        own = self._task.settings
        share = 0.5 if own.span_loss == "mean" else 1.0
        loss = answering_loss_sum(outputs["logits"], batch, own.softmax) * share
        self._loss += loss.item()
        self._windows += batch.packed.num_sequences
        for example, spans, null in self._task.spans(outputs, batch):
            assert example.answers is not None, "answers are known where they are measured"
            answer = self._task.answer(example, spans, null)
            margin = None
            if own.unanswerable:  # without a span nothing is predicted, whatever the threshold
                margin = null - spans[0].score if spans else 0.0
            self._scores.add(
                example,
                example.question,
                example.context,
                example.answers,
                example.context[spans[0].start : spans[0].end] if spans else "",
                margin=margin,
                probability=answer["probability"],
                mark=(answer["start"], answer["end"]),
            )

    def result(self) -> dict[str, float]:
        return {"loss": self._loss / self._windows, **self._scores.result()}

    def breakdown(self) -> Breakdown:
        return self._scores.breakdown()
