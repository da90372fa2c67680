"""Metrics and breakdowns of predicted classes and numbers, from any system.

scikit-learn and SciPy compute them. Metrics that need a network (losses) are in `evaluators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..errors import import_optional
from .breakdown import MAX_POINTS, Breakdown, Confusion, ScoreTable
from .measures import CalibrationCounter, HasLocation, Measure, WorstMistakes

EXTRA = "metrics"


def import_sklearn_metrics() -> Any:
    """Import scikit-learn's metrics; evaluators do so early, before hours of training.

    Raises:
        BertworksError: scikit-learn is not installed.
    """
    return import_optional("sklearn.metrics", EXTRA, "Measuring a classifier")


def compute_classification_metrics(
    labels: np.ndarray, predicted: np.ndarray, num_labels: int, positive: int | None = None
) -> dict[str, float]:
    """Compute accuracy, Matthews correlation and F1 of predicted classes.

    Args:
        labels: `[rows]` gold classes, from 0.
        predicted: `[rows]` predicted classes.
        positive: the class whose F1 is `f1`; None for more than two classes.

    Returns:
        `accuracy`; `f1` if there is a positive class; `macro_f1`, the mean of the classes' F1 (0
        for a class that neither occurs nor is predicted); `matthews_correlation`, 0 if only one
        class occurs or only one is predicted.

    Raises:
        BertworksError: scikit-learn is not installed.
    """
    metrics = import_sklearn_metrics()
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


def compute_label_scores(
    names: Sequence[str], labels: np.ndarray, predicted: np.ndarray
) -> ScoreTable:
    """Compute precision, recall, F1 and the count of each label; undefined values are 0.

    Args:
        labels: `[rows]` indices of the gold labels, or `[rows, labels]` booleans.
        predicted: the predicted labels, in the same form.
    """
    metrics = import_sklearn_metrics()
    if labels.ndim == 2:
        labels, predicted = append_empty_label(labels), append_empty_label(predicted)
    rates = metrics.precision_recall_fscore_support(
        labels, predicted, labels=list(range(len(names))), zero_division=0.0
    )
    columns = [column.tolist() for column in rates]
    rates_by_name = dict(zip(names, zip(*columns, strict=True), strict=True))
    return ScoreTable.from_rates("label", "rows", rates_by_name)


def append_empty_label(labels: np.ndarray) -> np.ndarray:
    """Append a label that no row has, to `[rows, labels + 1]`.

    Without it, scikit-learn would read the indicators of a single label as two classes.
    """
    return np.pad(labels, ((0, 0), (0, 1)))


class SingleLabelScores(Measure):
    """Scores of rows (or words) with one correct class, choice or tag.

    The metrics are `accuracy`, and `majority`: the accuracy of always predicting the most frequent
    class.

    Args:
        names: the names of the classes, if they have names.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_gold", "_predicted", "_calibration", "_worst")
    unit: ClassVar[str] = "rows"

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = names
        self._gold: list[np.ndarray] = []
        self._predicted: list[np.ndarray] = []
        self._calibration, self._worst = CalibrationCounter(), WorstMistakes()

    def add(
        self, gold: np.ndarray, predicted: np.ndarray, confidence: np.ndarray | None = None
    ) -> None:
        """Count rows.

        Args:
            gold: `[rows]` indices of the gold classes.
            predicted: `[rows]` indices of the predicted classes.
            confidence: `[rows]` probabilities of the predicted classes, if known.
        """
        self._gold.append(gold)
        self._predicted.append(predicted)
        if confidence is not None:
            self._calibration.add(confidence, gold == predicted)

    def add_mistake(
        self,
        row: HasLocation,
        text: str,
        gold: str,
        predicted: str,
        confidence: float | None = None,
        mark: tuple[int, int] = (0, 0),
    ) -> None:
        """Keep a mispredicted row, if it is one of the worst.

        Args:
            confidence: the probability of the prediction, if known.
            mark: the characters `[start, end)` of the text that are mispredicted, if not all.
        """
        field: Any = None if confidence is None else "probability"
        self._worst.add(confidence or 0.0, row, text, gold, predicted, mark=mark, size_field=field)

    def gold_and_predicted(self) -> tuple[np.ndarray, np.ndarray]:
        """Return gold and predicted indices, `[rows]` each."""
        assert self._gold, "nothing was evaluated"
        return np.concatenate(self._gold), np.concatenate(self._predicted)

    def result(self) -> dict[str, float]:
        gold, predicted = self.gold_and_predicted()
        return {
            "majority": float(np.bincount(gold).max() / len(gold)),
            "accuracy": float(np.mean(gold == predicted)),
        }

    def notes(self) -> list[str]:
        gold, predicted = self.gold_and_predicted()
        if not self.names or len(np.unique(predicted)) > 1 or len(np.unique(gold)) == 1:
            return []
        one, name = self.unit.removesuffix("s"), self.names[predicted[0]]
        return [f"every {one} is predicted to be {name!r}: nothing has been learned yet"]

    def breakdown(self) -> Breakdown:
        calibration = self._calibration.result(self.unit)
        return Breakdown(calibration=calibration, mistakes=self._worst.result())


class ClassificationScores(SingleLabelScores):
    """`majority`, and the metrics of `compute_classification_metrics`, over all rows.

    Args:
        names: the names of the classes.
        positive: the index of the class whose F1 is `f1`; None if there is none.

    Raises:
        BertworksError: scikit-learn is not installed.
    """

    def __init__(self, names: Sequence[str], positive: int | None) -> None:
        import_sklearn_metrics()
        super().__init__(names)
        self._positive = positive

    def result(self) -> dict[str, float]:
        metrics = compute_classification_metrics(
            *self.gold_and_predicted(), len(self.names), self._positive
        )
        return {**super().result(), **metrics}

    def breakdown(self) -> Breakdown:
        labels, predicted = self.gold_and_predicted()
        parts = {
            "confusion": Confusion.from_labels(self.unit, self.names, labels, predicted),
            "tables": (compute_label_scores(self.names, labels, predicted),),
        }
        return super().breakdown().model_copy(update=parts)


class RegressionScores(Measure):
    """The `pearson` and `spearman` correlations, and the mean squared error.

    If all gold or all predicted values are equal, the correlation is undefined and reported as 0.

    Raises:
        BertworksError: SciPy is not installed.
    """

    state_fields = ("_rows", "_worst")

    def __init__(self) -> None:
        self._stats: Any = import_optional("scipy.stats", EXTRA, "Measuring a regression")
        self._rows: list[tuple[int, float, float]] = []
        self._worst = WorstMistakes()

    def add(self, row: HasLocation, text: str, gold: float, predicted: float) -> None:
        """Count a row."""
        self._rows.append((row.index, gold, predicted))
        names = f"{gold:.4g}", f"{predicted:.4g}"
        self._worst.add(abs(gold - predicted), row, text, *names, size_field="error")

    def _values(self) -> tuple[np.ndarray, np.ndarray]:
        """Return gold and predicted values in the order of the rows, not of the batches."""
        table = np.array(sorted(self._rows))
        return table[:, 1], table[:, 2]

    def mean_squared_error(self) -> float:
        gold, predicted = self._values()
        return float(np.square(gold - predicted).mean())

    def result(self) -> dict[str, float]:
        gold, predicted = self._values()
        if np.ptp(gold) == 0 or np.ptp(predicted) == 0:
            return {"pearson": 0.0, "spearman": 0.0}
        return {
            "pearson": float(self._stats.pearsonr(gold, predicted).statistic),
            "spearman": float(self._stats.spearmanr(gold, predicted).statistic),
        }

    def notes(self) -> list[str]:
        gold, predicted = self._values()
        if np.ptp(gold) == 0:
            return [
                f"every gold value is {gold[0]:.3g}: the correlations are undefined, given as 0"
            ]
        if np.ptp(predicted) == 0:
            value = predicted[0]
            return [f"every row is predicted to be {value:.3g}: nothing has been learned yet"]
        return []

    def breakdown(self) -> Breakdown:
        gold, predicted = self._values()
        gold, predicted = gold[np.isfinite(predicted)], predicted[np.isfinite(predicted)]
        indices = np.linspace(0, len(gold) - 1, min(len(gold), MAX_POINTS)).astype(int)
        pairs = zip(gold[indices].tolist(), predicted[indices].tolist(), strict=True)
        return Breakdown(values=tuple(pairs), mistakes=self._worst.result())
