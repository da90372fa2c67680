"""Evaluators of classes and numbers: a network's losses, and the metrics of `scores`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from ..packed import Batch, to_array
from .breakdown import (
    CALIBRATED_STAGE,
    CROSS_FITTED_STAGE,
    PROBABILITY_STAGES,
    UNCALIBRATED_STAGE,
    Breakdown,
    Scores,
    ScoreTable,
)
from .calibration import LogitScaling, compute_conformal_scores, cross_fit, fit_scaling
from .measures import CalibrationCounter, Measure, MergeableState, WorstMistakes
from .probabilities import cross_entropy_sum, softmax
from .scores import (
    RegressionScores,
    SingleLabelScores,
    append_empty_label,
    compute_label_scores,
    import_sklearn_metrics,
)
from .task import Evaluator, Outputs

ScoresT = TypeVar("ScoresT", bound=Measure)


class ScoredEvaluator(Evaluator, Generic[ScoresT]):
    """`loss`, the mean over the counted targets, and scores that need only predictions."""

    state_fields: ClassVar[tuple[str, ...]] = ("_scores", "_loss", "_count")

    def __init__(self, scores: ScoresT) -> None:
        self._scores, self._loss, self._count = scores, 0.0, 0

    def result(self) -> dict[str, float]:
        scores = self._scores.result()
        return {"loss": self._loss / self._count, **scores}

    def notes(self) -> list[str]:
        return self._scores.notes()

    def breakdown(self) -> Breakdown:
        return self._scores.breakdown()


class SingleLabelEvaluator(ScoredEvaluator[SingleLabelScores]):
    """`loss`, and the scores of predicting one of several classes or choices."""

    def display_texts(self, example: Any, gold: int, predicted: int) -> tuple[str, str, str]:
        """Return a row's text, its gold label and the predicted label, for display."""
        return example.display_text, self._scores.names[gold], self._scores.names[predicted]

    def add(self, outputs: Outputs, batch: Batch) -> None:
        logits, gold = to_array(outputs["logits"]), to_array(batch.targets["labels"])
        self._loss += cross_entropy_sum(logits, gold)
        predicted, confidence = logits.argmax(-1), softmax(logits).max(-1)
        self._count += len(gold)
        self._scores.add(gold, predicted, confidence)
        for row in np.flatnonzero(gold != predicted).tolist():
            example = batch.examples[row]
            shown = self.display_texts(example, gold[row], predicted[row])
            self._scores.add_mistake(example, *shown, float(confidence[row]))


class ProbabilityCounter(MergeableState):
    """The expected calibration error and negative log-likelihood of the probabilities of logits."""

    state_fields = ("_calibration", "_loss", "_count")

    def __init__(self) -> None:
        self._calibration, self._loss, self._count = CalibrationCounter(), 0.0, 0

    @classmethod
    def from_logits(cls, logits: np.ndarray, gold: np.ndarray) -> Self:
        """Return the counts of all rows."""
        counter = cls()
        counter.add(logits, gold)
        return counter

    def add(self, logits: np.ndarray, gold: np.ndarray) -> None:
        """Count `[n, classes]` logits with their `[n]` gold classes."""
        self._calibration.add(softmax(logits).max(-1), logits.argmax(-1) == gold)
        self._loss += cross_entropy_sum(logits, gold)
        self._count += len(gold)

    def result(self, name: str) -> Scores:
        """Return the line of a stage of calibration."""
        calibration = self._calibration.result("")
        error = float("nan") if calibration is None else calibration.expected_error
        metrics = {
            "expected_calibration_error": error,
            "negative_log_likelihood": self._loss / self._count,
        }
        return Scores(name=name, count=self._count, metrics=metrics)


def compare_probabilities(unit: str, stages: Mapping[str, ProbabilityCounter]) -> ScoreTable:
    """Return the table of probabilities before and after calibration."""
    rows = tuple(counter.result(name) for name, counter in stages.items())
    return ScoreTable(grouping=PROBABILITY_STAGES, unit=unit, rows=rows)


class ClassificationEvaluator(SingleLabelEvaluator):
    """`loss` and scores of calibrated probabilities, which it compares with those before.

    Args:
        scores: of the predicted classes.
        scaling: of the logits; None if the model is not calibrated.
    """

    state_fields = (*ScoredEvaluator.state_fields, "_raw_counter", "_scaled_counter", "_rows")

    def __init__(self, scores: SingleLabelScores, scaling: LogitScaling | None) -> None:
        super().__init__(scores)
        self._scaling = scaling
        self._raw_counter, self._scaled_counter = ProbabilityCounter(), ProbabilityCounter()
        self._rows: list[tuple[int, int, np.ndarray]] = []  # number, label, logits

    def add(self, outputs: Outputs, batch: Batch) -> None:
        logits, gold = to_array(outputs["logits"]), to_array(batch.targets["labels"])
        if self.is_tuning:
            indices = [example.index for example in batch.examples]
            self._rows += zip(indices, gold.tolist(), logits, strict=True)
        if self._scaling is not None:
            self._raw_counter.add(logits, gold)
            logits = self._scaling(logits)
            self._scaled_counter.add(logits, gold)
        super().add({**outputs, "logits": logits}, batch)

    def _tuning_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits and labels that were kept."""
        rows = sorted(self._rows, key=lambda row: row[0])  # the folds do not depend on batches
        return np.stack([row[2] for row in rows]), np.array([row[1] for row in rows])

    def tuned_settings(self, metrics: Mapping[str, float]) -> dict[str, Any]:  # noqa: ARG002
        """Return the scaling of logits that fits the rows, and scores for label sets."""
        logits, labels = self._tuning_rows()
        scaling = fit_scaling(logits, labels)
        scores = compute_conformal_scores(softmax(scaling(logits)), labels)
        return {
            "temperatures": scaling.temperatures,
            "logit_shifts": scaling.shifts,
            "conformal_scores": scores,
        }

    def breakdown(self) -> Breakdown:
        breakdown = super().breakdown()
        if self._scaling is None:
            return breakdown
        stages = {UNCALIBRATED_STAGE: self._raw_counter, CALIBRATED_STAGE: self._scaled_counter}
        if self._rows:
            logits, labels = self._tuning_rows()
            cross_fitted = cross_fit(logits, labels, is_vector=bool(self._scaling.shifts))
            stages[CROSS_FITTED_STAGE] = ProbabilityCounter.from_logits(cross_fitted, labels)
        table = compare_probabilities("rows", stages)
        return breakdown.model_copy(update={"tables": (*breakdown.tables, table)})


class MultiLabelEvaluator(Evaluator):
    """Metrics of rows that may have any number of labels.

    A label is predicted if its probability is above 0.5. `accuracy` is the share of rows with
    exactly the correct labels; `micro_f1` counts the decisions of all labels together; `macro_f1`
    is the mean of the labels' F1.

    Raises:
        BertworksError: scikit-learn is not installed.
    """

    state_fields = ("_indices", "_labels", "_logits", "_worst")
    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "micro_f1", "macro_f1")

    def __init__(self, names: Sequence[str], scaling: LogitScaling | None = None) -> None:
        import_sklearn_metrics()
        self._names, self._scaling = names, scaling
        self._indices: list[int] = []
        self._labels: list[np.ndarray] = []
        self._logits: list[np.ndarray] = []  # before scaling
        self._worst = WorstMistakes()

    def add(self, outputs: Outputs, batch: Batch) -> None:
        logits = to_array(outputs["logits"]).astype(np.float64)
        self._indices += [example.index for example in batch.examples]
        self._logits.append(logits)
        logits = self._scale(logits)
        gold, predicted = to_array(batch.targets["labels"]) > 0.5, logits > 0
        self._labels.append(gold)
        # The confidence of each row's most confident wrong decision, for a label or against it.
        confidence = np.where(gold != predicted, 1 / (1 + np.exp(-np.abs(logits))), 0).max(1)
        for row in np.flatnonzero(confidence).tolist():
            example = batch.examples[row]
            names = self._join_labels(gold[row]), self._join_labels(predicted[row])
            self._worst.add(float(confidence[row]), example, example.display_text, *names)

    def _scale(self, logits: np.ndarray) -> np.ndarray:
        return logits if self._scaling is None else self._scaling(logits)

    def _join_labels(self, is_one: np.ndarray) -> str:
        return ", ".join(compress(self._names, is_one)) or "none"

    def result(self) -> dict[str, float]:
        assert self._labels, "nothing was evaluated"
        metrics = import_sklearn_metrics()
        labels, logits = np.concatenate(self._labels), self._scale(np.concatenate(self._logits))
        predicted = logits > 0
        arguments = {
            "y_true": append_empty_label(labels),
            "y_pred": append_empty_label(predicted),
            "labels": list(range(len(self._names))),
            "zero_division": 0.0,
        }
        return {
            "loss": float((np.logaddexp(0, logits) - labels * logits).mean(1).mean()),
            "accuracy": float((predicted == labels).all(1).mean()),
            "micro_f1": float(metrics.f1_score(average="micro", **arguments)),
            "macro_f1": float(metrics.f1_score(average="macro", **arguments)),
        }

    def tuned_settings(self, metrics: Mapping[str, float]) -> dict[str, Any]:  # noqa: ARG002
        """Return the temperature of the decisions for a label or against it."""
        logits, gold = self._decisions()
        return {"temperatures": fit_scaling(_pair_with_zero(logits), gold.ravel()).temperatures}

    def _decisions(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits before scaling and the gold decisions, `[rows, labels]` each."""
        order = np.argsort(self._indices)  # the folds do not depend on batches
        gold = np.concatenate(self._labels)[order].astype(np.int64)
        return np.concatenate(self._logits)[order], gold

    def breakdown(self) -> Breakdown:
        logits, gold = self._decisions()
        scaled_logits = self._scale(logits)
        tables = [compute_label_scores(self._names, gold > 0, scaled_logits > 0)]
        if self._scaling is not None:
            labels, pairs = gold.ravel(), _pair_with_zero(logits)
            stages = {UNCALIBRATED_STAGE: pairs, CALIBRATED_STAGE: _pair_with_zero(scaled_logits)}
            if self.is_tuning:
                count = len(self._names)
                stages[CROSS_FITTED_STAGE] = cross_fit(
                    pairs, labels, is_vector=False, rows_per_unit=count
                )
            counters = {
                name: ProbabilityCounter.from_logits(values, labels)
                for name, values in stages.items()
            }
            tables.append(compare_probabilities("decisions", counters))
        return Breakdown(tables=tuple(tables), mistakes=self._worst.result())


def _pair_with_zero(logits: np.ndarray) -> np.ndarray:
    """Return `[rows · labels, 2]` logits of the decisions against a label, and for it."""
    return np.stack([np.zeros(logits.size), logits.ravel()], 1)


class RegressionEvaluator(ScoredEvaluator[RegressionScores]):
    """`loss` (the mean squared error), and the correlations of `RegressionScores`.

    Args:
        output_to_value: the function from the network's output for a row to its value.

    Raises:
        BertworksError: SciPy is not installed.
    """

    metrics: ClassVar[tuple[str, ...]] = ("loss", "pearson", "spearman")

    def __init__(self, output_to_value: Callable[[float], float] = float) -> None:
        super().__init__(RegressionScores())
        self._output_to_value = output_to_value

    def add(self, outputs: Outputs, batch: Batch) -> None:
        labels, values = (
            to_array(part).astype(np.float64)
            for part in (batch.targets["labels"], outputs["values"])
        )
        rows = zip(batch.examples, labels.tolist(), values.tolist(), strict=True)
        for example, gold, predicted in rows:
            self._scores.add(example, example.display_text, gold, self._output_to_value(predicted))

    def result(self) -> dict[str, float]:
        return {"loss": self._scores.mean_squared_error(), **self._scores.result()}
