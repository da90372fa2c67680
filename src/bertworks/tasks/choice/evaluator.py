"""How often the right choice is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from ...model.heads import cross_entropy_sum
from ...packed import Batch
from ..breakdown import Breakdown
from ..counters import CalibrationCounter, Worst
from ..task import Evaluator
from .examples import ChoiceExample


class ChoiceEvaluator(Evaluator):
    """`loss`, `accuracy`, and `majority`: that of always choosing the commonest number."""

    def __init__(self) -> None:
        self._labels: list[int] = []
        self._told: list[int] = []
        self._loss = 0.0
        self._calibration, self._worst = CalibrationCounter(), Worst()

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        logits, labels = outputs["logits"], batch.targets["labels"]
        self._loss += cross_entropy_sum(logits, labels).item()
        true, told = np.asarray(labels.cpu()), np.asarray(logits.argmax(-1).cpu())
        self._labels += true.tolist()
        self._told += told.tolist()
        sure = np.asarray(logits.double().softmax(-1).amax(-1).cpu())
        self._calibration.add(sure, true == told)
        for at in np.flatnonzero(true != told).tolist():
            example: ChoiceExample = batch.examples[at]
            names = example.choices[true[at]], example.choices[told[at]]
            self._worst.add(float(sure[at]), example.index, example.prompt, *names)

    def result(self) -> dict[str, float]:
        assert self._labels, "nothing was evaluated"
        pairs = zip(self._labels, self._told, strict=True)
        return {
            "loss": self._loss / len(self._labels),
            "majority": Counter(self._labels).most_common(1)[0][1] / len(self._labels),
            "accuracy": float(np.mean([own == other for own, other in pairs])),
        }

    def breakdown(self) -> Breakdown:
        return Breakdown(
            calibration=self._calibration.result("rows"), mistakes=self._worst.result()
        )
