"""How good classification and regression are, counted by scikit-learn and SciPy."""

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
from .breakdown import MOST_POINTS, Breakdown, Confusion, ScoreTable
from .counters import CalibrationCounter, Worst
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


def label_scores(names: Sequence[str], labels: np.ndarray, predicted: np.ndarray) -> ScoreTable:
    """Precision, recall, F1 and rows of each label; what is undefined is 0.

    Args:
        names: of the labels.
        labels: `[rows]` the numbers of the true ones, or `[rows, labels]` whether each is.
        predicted: the like.

    Raises:
        BertworksError: scikit-learn is not installed.
    """
    metrics: Any = need("sklearn.metrics", EXTRA, "Measuring a classifier")
    if labels.ndim == 2:
        labels, predicted = _indicators(labels), _indicators(predicted)
    counted = metrics.precision_recall_fscore_support(
        labels, predicted, labels=list(range(len(names))), zero_division=0.0
    )
    columns = [column.tolist() for column in counted]
    rates = dict(zip(names, zip(*columns, strict=True), strict=True))
    return ScoreTable.of_rates("label", "rows", rates)


def _indicators(labels: np.ndarray) -> np.ndarray:
    """`[rows, labels + 1]`: with a label that no row has, or one label would be read as classes."""
    return np.pad(labels, ((0, 0), (0, 1)))


class OneOfSeveralEvaluator(Evaluator):
    """Rows of which one of several is right: a class, or a choice.

    `loss`; `majority`, the accuracy of always telling the commonest; `accuracy`.
    """

    def __init__(self) -> None:
        self._true: list[np.ndarray] = []
        self._told: list[np.ndarray] = []
        self._loss = 0.0
        self._calibration, self._worst = CalibrationCounter(), Worst()

    @abstractmethod
    def shown(self, example: Any, true: int, told: int) -> tuple[str, str, str]:
        """A row's text for people, what is true of it, and what was told."""

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        logits, labels = outputs["logits"], batch.targets["labels"]
        self._loss += cross_entropy_sum(logits, labels).item()
        true, told = np.asarray(labels.cpu()), np.asarray(logits.argmax(-1).cpu())
        self._true.append(true)
        self._told.append(told)
        sure = np.asarray(logits.double().softmax(-1).amax(-1).cpu())
        self._calibration.add(sure, true == told)
        for at in np.flatnonzero(true != told).tolist():
            example = batch.examples[at]
            self._worst.add(float(sure[at]), example, *self.shown(example, true[at], told[at]))

    def answers(self) -> tuple[np.ndarray, np.ndarray]:
        """`[rows]` each: what is true, and what was told."""
        assert self._true, "nothing was evaluated"
        return np.concatenate(self._true), np.concatenate(self._told)

    def result(self) -> dict[str, float]:
        true, told = self.answers()
        return {
            "loss": self._loss / len(true),
            "majority": float(np.bincount(true).max() / len(true)),
            "accuracy": float(np.mean(true == told)),
        }

    def breakdown(self) -> Breakdown:
        return Breakdown(
            calibration=self._calibration.result("rows"), mistakes=self._worst.result()
        )


class ClassificationEvaluator(OneOfSeveralEvaluator):
    """`loss`, `majority`, and the metrics of `classification_metrics`, over all rows.

    Raises:
        BertworksError: scikit-learn is not installed.
    """

    def __init__(self, labels: Sequence[str], positive: int | None) -> None:
        require_metrics()
        super().__init__()
        self._names, self._positive = labels, positive

    def shown(self, example: Any, true: int, told: int) -> tuple[str, str, str]:
        return example.shown, self._names[true], self._names[told]

    def result(self) -> dict[str, float]:
        metrics = classification_metrics(*self.answers(), len(self._names), self._positive)
        return {**super().result(), **metrics}

    def remarks(self) -> list[str]:
        labels, predicted = self.answers()
        if len(np.unique(predicted)) > 1 or len(np.unique(labels)) == 1:
            return []
        name = self._names[predicted[0]]
        return [f"every row is predicted to be {name!r}: nothing has been learned yet"]

    def breakdown(self) -> Breakdown:
        labels, predicted = self.answers()
        return (
            super()
            .breakdown()
            .model_copy(
                update={
                    "confusion": Confusion.of("rows", self._names, labels, predicted),
                    "tables": (label_scores(self._names, labels, predicted),),
                }
            )
        )


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
            "y_true": _indicators(labels),
            "y_pred": _indicators(predicted),
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
        self._rows: list[int] = []
        self._worst = Worst()

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        self._labels.append(np.asarray(batch.targets["labels"].double().cpu()))
        self._values.append(np.asarray(outputs["values"].double().cpu()))
        self._rows += [example.index for example in batch.examples]
        pairs = zip(self._labels[-1].tolist(), self._values[-1].tolist(), strict=True)
        for example, (true, told) in zip(batch.examples, pairs, strict=True):
            names = f"{true:.4g}", f"{told:.4g}"
            off = abs(true - told)
            self._worst.add(off, example, example.shown, *names, kind="error")

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

    def breakdown(self) -> Breakdown:
        order = np.argsort(self._rows)  # batches come in order of length
        labels, values = np.concatenate(self._labels)[order], np.concatenate(self._values)[order]
        labels, values = labels[np.isfinite(values)], values[np.isfinite(values)]
        some = np.linspace(0, len(labels) - 1, min(len(labels), MOST_POINTS)).astype(int)
        pairs = zip(labels[some].tolist(), values[some].tolist(), strict=True)
        return Breakdown(values=tuple(pairs), mistakes=self._worst.result())
