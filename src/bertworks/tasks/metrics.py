"""How good a network is at classes and numbers: its losses, and the scores of `scores`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..errors import need
from ..model.heads import cross_entropy_sum
from ..packed import Batch
from .breakdown import Breakdown
from .counters import Worst
from .scores import (
    EXTRA,
    ClassificationScores,
    OneOfSeveralScores,
    RegressionScores,
    indicators,
    label_scores,
    require_metrics,
)
from .task import Evaluator


class OneOfSeveralEvaluator(Evaluator):
    """`loss`, and the scores of rows of which one of several is right: a class, or a choice."""

    def __init__(self, scores: OneOfSeveralScores | None = None) -> None:
        self._scores = scores or OneOfSeveralScores()
        self._loss, self._rows = 0.0, 0

    @abstractmethod
    def shown(self, example: Any, true: int, told: int) -> tuple[str, str, str]:
        """A row's text for people, what is true of it, and what was told."""

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        logits, labels = outputs["logits"], batch.targets["labels"]
        self._loss += cross_entropy_sum(logits, labels).item()
        true, told = np.asarray(labels.cpu()), np.asarray(logits.argmax(-1).cpu())
        self._rows += len(true)
        sure = np.asarray(logits.double().softmax(-1).amax(-1).cpu())
        self._scores.add(true, told, sure)
        for at in np.flatnonzero(true != told).tolist():
            example = batch.examples[at]
            shown = self.shown(example, true[at], told[at])
            self._scores.add_mistake(example, *shown, float(sure[at]))

    def result(self) -> dict[str, float]:
        assert self._rows, "nothing was evaluated"
        return {"loss": self._loss / self._rows, **self._scores.result()}

    def remarks(self) -> list[str]:
        return self._scores.remarks()

    def breakdown(self) -> Breakdown:
        return self._scores.breakdown()


class ClassificationEvaluator(OneOfSeveralEvaluator):
    """`loss`, and the scores of `ClassificationScores`.

    Raises:
        BertworksError: scikit-learn is not installed.
    """

    def __init__(self, labels: Sequence[str], positive: int | None) -> None:
        super().__init__(ClassificationScores(labels, positive))
        self._names = labels

    def shown(self, example: Any, true: int, told: int) -> tuple[str, str, str]:
        return example.shown, self._names[true], self._names[told]


class MultiLabelEvaluator(Evaluator):
    """Metrics of rows that may have any number of labels, a label being told over one half.

    `accuracy` is the share of rows with exactly the right labels; `micro_f1` counts all decisions
    together, `macro_f1` is the mean of the labels' F1.

    Raises:
        BertworksError: scikit-learn is not installed.
    """

    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "micro_f1", "macro_f1")

    def __init__(self, names: Sequence[str]) -> None:
        require_metrics()
        self._names = names
        self._labels: list[np.ndarray] = []
        self._logits: list[np.ndarray] = []
        self._worst = Worst()

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        logits = outputs["logits"].double().cpu()
        true, told = np.asarray(batch.targets["labels"].cpu()) > 0.5, np.asarray(logits > 0)
        self._labels.append(true)
        self._logits.append(np.asarray(logits))
        # How sure each wrong decision is, for a label or against it.
        sure = np.where(true != told, np.asarray(logits.abs().sigmoid()), 0.0).max(1)
        for at in np.flatnonzero(sure).tolist():
            example = batch.examples[at]
            names = self._joined(true[at]), self._joined(told[at])
            self._worst.add(float(sure[at]), example, example.shown, *names)

    def _joined(self, is_one: np.ndarray) -> str:
        return ", ".join(compress(self._names, is_one)) or "none"

    def result(self) -> dict[str, float]:
        assert self._labels, "nothing was evaluated"
        metrics: Any = need("sklearn.metrics", EXTRA, "Measuring a classifier")
        labels, logits = np.concatenate(self._labels), np.concatenate(self._logits)
        predicted = logits > 0
        told = {
            "y_true": indicators(labels),
            "y_pred": indicators(predicted),
            "labels": list(range(len(self._names))),
            "zero_division": 0.0,
        }
        return {
            "loss": float((np.logaddexp(0, logits) - labels * logits).mean(1).mean()),
            "accuracy": float((predicted == labels).all(1).mean()),
            "micro_f1": float(metrics.f1_score(average="micro", **told)),
            "macro_f1": float(metrics.f1_score(average="macro", **told)),
        }

    def breakdown(self) -> Breakdown:
        labels, predicted = np.concatenate(self._labels), np.concatenate(self._logits) > 0
        return Breakdown(
            tables=(label_scores(self._names, labels, predicted),), mistakes=self._worst.result()
        )


class RegressionEvaluator(Evaluator):
    """`loss` (the mean squared error), and the correlations of `RegressionScores`.

    Raises:
        BertworksError: SciPy is not installed.
    """

    metrics: ClassVar[tuple[str, ...]] = ("loss", "pearson", "spearman")

    def __init__(self) -> None:
        self._scores = RegressionScores()

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        labels, values = batch.targets["labels"].double(), outputs["values"].double()
        rows = zip(batch.examples, labels.tolist(), values.tolist(), strict=True)
        for example, true, predicted in rows:
            self._scores.add(example, example.shown, true, predicted)

    def result(self) -> dict[str, float]:
        return {"loss": self._scores.mean_squared_error(), **self._scores.result()}

    def remarks(self) -> list[str]:
        return self._scores.remarks()

    def breakdown(self) -> Breakdown:
        return self._scores.breakdown()
