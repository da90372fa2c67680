"""How good the answers are: the official scores, and the threshold for none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ...packed import Batch
from ..breakdown import Breakdown, excerpt
from ..counters import Worst, means_by
from ..task import Evaluator, Prediction
from .metrics import best_threshold, exact_match, f1, normalized
from .network import answering_loss_sum

if TYPE_CHECKING:
    from .examples import AnsweringExample
    from .task import AnsweringTask

NO_ANSWER = "no answer"
LENGTHS = (NO_ANSWER, "1 word", "2 words", "3 to 5 words", "6 to 10 words", "more words")
LONGEST = (0, 1, 2, 5, 10)
"""The most words of each of `LENGTHS` but the last."""


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
        self._beginnings: list[str] = []
        self._worst = Worst()

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
            self._beginnings.append(_beginning(example.question))
            answer = self._task.answer(example, spans, null)
            if not exact_match(answer["answer"], example.answers):
                self._note_mistake(example, answer)

    def _note_mistake(self, example: AnsweringExample, answer: Prediction) -> None:
        """The question, and what of the passage stands around the answer that was told."""
        true = " / ".join(dict.fromkeys(example.answers or ())) or NO_ANSWER
        self._worst.add(
            answer["probability"],
            example,
            example.context,
            true,
            answer["answer"] or NO_ANSWER,
            mark=(answer["start"], answer["end"]),
            before=f"{excerpt(example.question)[0]} | ",
        )

    def _pairs(self) -> list[tuple[str, tuple[str, ...]]]:
        """The answer told to each question, and the true ones."""
        own = self._task.settings
        return [
            ("" if own.unanswerable and margin > own.null_threshold else text, answers)
            for margin, text, answers in self._rows
        ]

    def result(self) -> dict[str, float]:
        pairs = self._pairs()
        scores = [f1(text, answers) for text, answers in pairs]
        result = {
            "loss": self._loss / self._windows,
            "exact_match": float(np.mean([exact_match(*pair) for pair in pairs])),
            "f1": float(np.mean(scores)),
        }
        if not self._task.settings.unanswerable:
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

    def breakdown(self) -> Breakdown:
        """Scores by the length of the answer and by how the question begins."""
        pairs = self._pairs()
        metrics = {
            "exact_match": [exact_match(*pair) for pair in pairs],
            "f1": [f1(*pair) for pair in pairs],
        }
        lengths = [_length(answers) for _, answers in pairs]
        kinds = (("length of the answer", lengths, LENGTHS), ("first word", self._beginnings, None))
        return Breakdown(
            tables=tuple(
                means_by(by, "questions", names, metrics, order) for by, names, order in kinds
            ),
            mistakes=self._worst.result(),
        )


def _beginning(question: str) -> str:
    """The first word of a question."""
    return next(iter(normalized(question).split()), "")


def _length(answers: Sequence[str]) -> str:
    """How many words the first true answer has."""
    words = len(answers[0].split()) if answers else 0
    return LENGTHS[int(np.searchsorted(LONGEST, words))]
