"""How good the answers are: the official scores, and the threshold for none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ...packed import Batch
from ..task import Evaluator
from .metrics import best_threshold, exact_match, f1
from .network import answering_loss_sum

if TYPE_CHECKING:
    from .task import AnsweringTask


class AnsweringEvaluator(Evaluator):
    """`loss` a window; `exact_match` and `f1` of the answers, as the official scorers count.

    With questions without answers also: `answered_f1` of those that have one, how many of the
    others are told to have none (`unanswered_accuracy`), and the threshold that would give the best
    F1 on these rows (`best_null_threshold`, `best_f1`).
    """

    def __init__(self, task: AnsweringTask) -> None:
        self._task = task
        self._loss, self._windows = 0.0, 0
        self._rows: list[tuple[float, str, tuple[str, ...]]] = []
        """How much better no answer scores than the best span, that span, the true answers."""

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        own = self._task.settings
        share = 0.5 if own.span_loss == "mean" else 1.0
        loss = answering_loss_sum(outputs["logits"], batch, own.softmax) * share
        self._loss += loss.item()
        self._windows += batch.packed.num_sequences
        for example, spans, null in self._task.spans(outputs, batch):
            assert example.answers is not None, "answers are known where they are measured"
            told = example.context[spans[0].start : spans[0].end] if spans else ""
            margin = null - spans[0].score if spans else 0.0  # none is told, whatever the threshold
            self._rows.append((margin, told, example.answers))

    def result(self) -> dict[str, float]:
        own = self._task.settings
        says_none = [
            own.unanswerable and margin > own.null_threshold for margin, _, _ in self._rows
        ]
        told = [
            "" if none else text for none, (_, text, _) in zip(says_none, self._rows, strict=True)
        ]
        pairs = [(text, row[2]) for text, row in zip(told, self._rows, strict=True)]
        scores = [f1(text, answers) for text, answers in pairs]
        result = {
            "loss": self._loss / self._windows,
            "exact_match": float(np.mean([exact_match(*pair) for pair in pairs])),
            "f1": float(np.mean(scores)),
        }
        if not own.unanswerable:
            return result
        answered = [score for score, (_, answers) in zip(scores, pairs, strict=True) if answers]
        others = [score for score, (_, answers) in zip(scores, pairs, strict=True) if not answers]
        threshold, best = best_threshold(
            [margin for margin, _, _ in self._rows],
            [f1(text, answers) for _, text, answers in self._rows],
            [f1("", answers) for _, _, answers in self._rows],
        )
        return {
            **result,
            "answered_f1": float(np.mean(answered)) if answered else 0.0,
            "unanswered_accuracy": float(np.mean(others)) if others else 0.0,
            "best_f1": best,
            "best_null_threshold": threshold,
        }
