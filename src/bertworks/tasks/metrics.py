"""Metrics of classification and regression, counted by scikit-learn and SciPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..errors import need
from ..model.heads import cross_entropy_sum
from ..packed import Batch
from .task import Evaluator

EXTRA = "metrics"


def require_metrics() -> None:
    """See that the metrics can be counted, before hours are spent on what they are to measure.

    Raises:
        BertworksError: scikit-learn is not installed.
    """
    need("sklearn.metrics", EXTRA, "Measuring a classifier")


def classification_metrics(
    labels: np.ndarray, predicted: np.ndarray, num_labels: int, positive: int | None = None
) -> dict[str, float]:
    """Accuracy, Matthews correlation and F1 of predicted classes.

    Args:
        labels: `[rows]` the true classes, from 0.
        predicted: `[rows]` the predicted ones.
        num_labels: how many classes there are.
        positive: the class whose F1 is `f1`; for more than two classes there is none.

    Returns:
        `accuracy`; `f1` if there is a positive class; `macro_f1`, the mean of the classes' F1 (of a
        class that neither occurs nor is predicted it is 0); `matthews_correlation`, 0 where only
        one class occurs or is predicted.

    Raises:
        BertworksError: scikit-learn is not installed.
    """
    metrics: Any = need("sklearn.metrics", EXTRA, "Measuring a classifier")
    classes = list(range(num_labels))
    f1 = metrics.f1_score(labels, predicted, labels=classes, average=None, zero_division=0.0)
    result = {"accuracy": float(np.mean(labels == predicted))}
    if positive is not None:
        result["f1"] = float(f1[positive])
    result["macro_f1"] = float(np.mean(f1))
    varies = len(np.unique([labels, predicted])) > 1
    result["matthews_correlation"] = (
        float(metrics.matthews_corrcoef(labels, predicted)) if varies else 0.0
    )
    return result


class ClassificationEvaluator(Evaluator):
    """`loss`, and the metrics of `classification_metrics`, over all rows.

    `majority` is the share of the commonest label: the accuracy of always guessing it.

    Raises:
        BertworksError: scikit-learn is not installed.
    """

    def __init__(self, labels: Sequence[str], positive: int | None) -> None:
        require_metrics()
        self._names, self._positive = labels, positive
        self._labels: list[np.ndarray] = []
        self._predicted: list[np.ndarray] = []
        self._loss = 0.0

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        logits, labels = outputs["logits"], batch.targets["labels"]
        self._loss += cross_entropy_sum(logits, labels).item()
        self._labels.append(np.asarray(labels.cpu()))
        self._predicted.append(np.asarray(logits.argmax(-1).cpu()))

    def result(self) -> dict[str, float]:
        assert self._labels, "nothing was evaluated"
        labels, predicted = np.concatenate(self._labels), np.concatenate(self._predicted)
        return {
            "loss": self._loss / len(labels),
            "majority": float(np.bincount(labels).max() / len(labels)),
            **classification_metrics(labels, predicted, len(self._names), self._positive),
        }

    def remarks(self) -> list[str]:
        labels, predicted = np.concatenate(self._labels), np.concatenate(self._predicted)
        if len(np.unique(predicted)) > 1 or len(np.unique(labels)) == 1:
            return []
        name = self._names[predicted[0]]
        return [f"every row is predicted to be {name!r}: nothing has been learned yet"]


class MultiLabelEvaluator(Evaluator):
    """Metrics of rows that may have any number of labels, a label being told over one half.

    `accuracy` is the share of rows with exactly the right labels; `micro_f1` counts all decisions
    together, `macro_f1` is the mean of the labels' F1.

    Raises:
        BertworksError: scikit-learn is not installed.
    """

    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "micro_f1", "macro_f1")

    def __init__(self) -> None:
        require_metrics()
        self._labels: list[np.ndarray] = []
        self._logits: list[np.ndarray] = []

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        self._labels.append(np.asarray(batch.targets["labels"].cpu()))
        self._logits.append(np.asarray(outputs["logits"].double().cpu()))

    def result(self) -> dict[str, float]:
        assert self._labels, "nothing was evaluated"
        metrics: Any = need("sklearn.metrics", EXTRA, "Measuring a classifier")
        labels, logits = np.concatenate(self._labels), np.concatenate(self._logits)
        predicted = logits > 0
        told = {"y_true": labels, "y_pred": predicted, "zero_division": 0.0}
        return {
            "loss": float((np.logaddexp(0, logits) - labels * logits).mean(1).mean()),
            "accuracy": float((predicted == labels).all(1).mean()),
            "micro_f1": float(metrics.f1_score(average="micro", **told)),
            "macro_f1": float(metrics.f1_score(average="macro", **told)),
        }


class RegressionEvaluator(Evaluator):
    """`loss` (the mean squared error), and the `pearson` and `spearman` correlations.

    Where all values are the same, on either side, there is no correlation: it is 0.

    Raises:
        BertworksError: SciPy is not installed.
    """

    metrics: ClassVar[tuple[str, ...]] = ("loss", "pearson", "spearman")

    def __init__(self) -> None:
        self._stats: Any = need("scipy.stats", EXTRA, "Measuring a regression")
        self._labels: list[np.ndarray] = []
        self._values: list[np.ndarray] = []

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        self._labels.append(np.asarray(batch.targets["labels"].double().cpu()))
        self._values.append(np.asarray(outputs["values"].double().cpu()))

    def result(self) -> dict[str, float]:
        labels, values = np.concatenate(self._labels), np.concatenate(self._values)
        loss = float(np.square(labels - values).mean())
        if np.ptp(labels) == 0 or np.ptp(values) == 0:
            return {"loss": loss, "pearson": 0.0, "spearman": 0.0}
        return {
            "loss": loss,
            "pearson": float(self._stats.pearsonr(labels, values).statistic),
            "spearman": float(self._stats.spearmanr(labels, values).statistic),
        }

    def remarks(self) -> list[str]:
        labels, values = np.concatenate(self._labels), np.concatenate(self._values)
        if np.ptp(values) == 0 and np.ptp(labels) > 0:
            return [f"every row is predicted to be {values[0]:.3g}: nothing has been learned yet"]
        return []
