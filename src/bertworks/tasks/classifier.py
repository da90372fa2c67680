"""The base of tasks that predict one of several classes for each row.

A user's task that predicts classes derives from `ClassifierTask`. It defines the columns that it
reads, how a row becomes a sequence, and a network that computes `logits`. `examples/own_task.py`
does this in a hundred lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from ..data.rows import Row, Rows
from ..data.schema import RoleColumns
from ..errors import DataError, did_you_mean, truncate_repr
from ..packed import Batch, to_array
from .calibration import LogitScaling
from .evaluators import SingleLabelEvaluator
from .example import ExampleT, collate_labelled
from .labelled import LABEL, LabelledTask
from .labels import (
    MARKS,
    build_label_entries,
    count_labels,
    find_mark,
    find_other_spellings,
    label_name_of,
    mark_names,
    read_label_name,
    sort_labels,
)
from .probabilities import softmax
from .scores import ClassificationScores
from .task import Evaluator, Outputs, Prediction, TaskSettings, detected_setting


class ClassifierSettings(TaskSettings):
    """Settings of such a task."""

    labels: tuple[str, ...] = detected_setting((), "names of the classes, in order")

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if len(self.labels) == 1:
            raise ValueError("a classifier needs two labels")
        return self


class ClassifierTask(LabelledTask[ExampleT]):
    """A task that assigns each row to one of several classes.

    Its schema has a role `label`. By default rows are single sequences.
    """

    best_metric = "accuracy"
    is_stratified: ClassVar[bool] = True
    settings_class: ClassVar[type[TaskSettings]] = ClassifierSettings

    @classmethod
    def settings_from_rows(
        cls,
        rows: Rows,
        columns: RoleColumns,
        settings: Any,  # noqa: ARG003
    ) -> dict[str, Any]:
        column = columns[LABEL]
        assert isinstance(column, str), "the schema requires labels"
        return {"labels": sort_labels(count_labels(rows, column))}

    @property
    def labels(self) -> tuple[str, ...]:
        return cast(ClassifierSettings, self.settings).labels

    def config_entries(self) -> dict[str, Any]:
        return {**build_label_entries(self.labels), "problem_type": "single_label_classification"}

    def read_label(self, row: Row, column: str, where: str) -> Any:
        """Return the index of a row's class.

        Raises:
            DataError: the column is missing or empty, or its class does not occur in training.
        """
        name = read_label_name(row, column, where)
        name = self._spellings.get(name, name)
        if name not in self.label_indices:
            raise DataError(
                f"the label {truncate_repr(name)} was not seen in training",
                where=where,
                fix=f"{did_you_mean(name, self.label_indices)}.",
            )
        return self.label_indices[name]

    @property
    def no_label(self) -> str | None:
        """The label of rows without a gold label, as set by the user; None: the usual marks."""
        return None

    def find_unlabelled_mark(self, row: Row) -> str | None:
        label = self.columns[LABEL]
        if not isinstance(label, str):
            return None
        marks = {*MARKS} if self.no_label is None else mark_names(self.no_label)
        return find_mark(row.get(label), marks - self.label_indices.keys())

    def find_other_spelling(self, row: Row) -> Mapping[str, str]:
        label = self.columns[LABEL]
        if not self._spellings or not isinstance(label, str):
            return {}
        name = label_name_of(row.get(label))
        return {name: self._spellings[name]} if name in self._spellings else {}

    @cached_property
    def _spellings(self) -> dict[str, str]:
        return find_other_spellings(self.labels)

    def collate(self, examples: Sequence[ExampleT]) -> Batch:
        """Pack rows in order of length.

        If labels are known, `targets["labels"]` is `[rows]` int64, and `counts["classification"]`
        the number of rows. The batch's examples are in the order of the packed rows.
        """
        return collate_labelled(examples, np.int64, "classification")

    @property
    def logit_scaling(self) -> LogitScaling | None:
        """How logits are scaled before probabilities are computed; None if they are not."""
        return None

    def scale_logits(self, logits: NDArray[Any]) -> NDArray[Any]:
        """Return the logits of which probabilities are computed, `[rows, classes]`."""
        scaling = self.logit_scaling
        return logits if scaling is None else scaling(logits)

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """Return for each row its `label`, and the `probabilities` of all labels."""
        predictions: dict[int, Prediction] = {}
        shares = softmax(self.scale_logits(to_array(outputs["logits"]))).tolist()
        for example, row in zip(batch.examples, shares, strict=True):
            probabilities = dict(zip(self.labels, row, strict=True))
            label = max(probabilities, key=probabilities.__getitem__)
            predictions[example.index] = {"label": label, "probabilities": probabilities}
        return predictions

    def count_targets(self, examples: Sequence[ExampleT]) -> Mapping[str, int]:
        counts = Counter(example.target for example in examples)
        return {name: counts[number] for name, number in self.label_indices.items()}

    def baseline_losses(self, counts: Mapping[str, int]) -> Mapping[str, float]:
        """Return the entropy of the label frequencies."""
        shares = np.array([count for count in counts.values() if count]) / sum(counts.values())
        return {"classification": -float((shares * np.log(shares)).sum())}

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the evaluator's metrics."""
        f1 = ("f1",) if len(self.labels) == 2 else ()
        return ("loss", "majority", "accuracy", *f1, "macro_f1", "matthews_correlation")

    @property
    def positive(self) -> str | None:
        """If there are two classes, the one whose F1 is reported; otherwise None."""
        return self.labels[-1] if len(self.labels) == 2 else None

    @property
    def scores(self) -> ClassificationScores:
        """The metrics of its classes."""
        positive = self.positive if len(self.labels) == 2 else None
        number = None if positive is None else self.label_indices[positive]
        return ClassificationScores(self.labels, number)

    def evaluator(self) -> Evaluator:
        return SingleLabelEvaluator(self.scores)
