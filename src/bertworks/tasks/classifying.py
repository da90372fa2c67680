"""One of several classes for each row, whatever a row is: all but its tokens and its network.

A task of a user's that tells classes apart derives from `ClassifyingTask`: it says which columns it
reads, how a row becomes a sequence, and which network gives `logits`. `examples/own_task.py` does
it in a hundred lines.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..errors import DataError, brief, nearest
from ..model.heads import cross_entropy_sum
from ..packed import Batch
from .example import ExampleT, by_length, pack
from .labelled import LabelledTask, TaskOptions, TaskSettings
from .labels import count_labels, label_name, sort_labels
from .metrics import ClassificationEvaluator
from .schema import Column, RoleColumns
from .task import Evaluator, Network, Prediction, Row

if TYPE_CHECKING:
    from .placed import Rows

LABEL = "label"
"""The role of the column with the classes' names."""


class ClassifyingNetwork(Network):
    """A network with one vector of logits for each row."""

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """`[rows, classes]`, in the order of `batch.examples`."""

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed cross-entropies of the rows: `classification`."""
        return {"classification": cross_entropy_sum(self.logits(batch), batch.targets["labels"])}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`logits` `[rows, classes]`."""
        return {"logits": self.logits(batch)}


class ClassifyingSettings(TaskSettings):
    """What such a task is, beside its weights."""

    columns: dict[str, Column] = Field(description="the column of each role")
    labels: tuple[str, ...] = Field(min_length=2, description="the classes' names, in order")


class ClassifyingTask(LabelledTask[ExampleT]):
    """Which of several classes a row belongs to.

    Its schema has a role `label`. By default rows are single sequences.
    """

    best_metric = "accuracy"
    is_stratified: ClassVar[bool] = True
    settings_class: ClassVar[type[TaskSettings]] = ClassifyingSettings

    @classmethod
    def learned(
        cls,
        rows: Rows,
        columns: RoleColumns,
        options: TaskOptions,  # noqa: ARG003
    ) -> dict[str, Any]:
        column = columns[LABEL]
        assert isinstance(column, str), "labels were asked for"
        return {"labels": sort_labels(count_labels(rows, column))}

    @property
    def labels(self) -> tuple[str, ...]:
        return cast(ClassifyingSettings, self.settings).labels

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The numbers of the classes, by their names."""
        return {name: number for number, name in enumerate(self.labels)}

    def config_entries(self) -> dict[str, Any]:
        return {
            "id2label": {str(number): name for name, number in self.numbers.items()},
            "label2id": self.numbers,
            "problem_type": "single_label_classification",
        }

    def label_of(self, row: Row, column: str, where: str) -> Any:
        """The number of a row's class.

        Raises:
            DataError: the column is missing or empty, or holds another class than those learned.
        """
        name = label_name(row, column, where)
        if name not in self.numbers:
            raise DataError(
                f"the label {brief(name)} was not seen in training",
                where=where,
                fix=f"{nearest(name, self.numbers)}.",
            )
        return self.numbers[name]

    def target_of(self, row: Row, where: str, *, labelled: bool) -> int | None:
        """The number of a row's class; None where it is not read."""
        column = self.columns[LABEL]
        if not labelled:
            return None
        if not isinstance(column, str):
            raise DataError("the task knows no column of labels", where=where)
        number: int = self.label_of(row, column, where)
        return number

    def collate(self, examples: Sequence[ExampleT]) -> Batch:
        """Pack rows of one sequence each in order of length.

        If labels are known, `targets["labels"]` is `[rows]` int64; `counts["classification"]` the
        rows. The batch's examples are in the order of the sequences.
        """
        order = [examples[at] for at, _ in by_length(examples)]
        packed = pack(order, [(at, 0) for at in range(len(order))])
        labels = [example.target for example in order]
        if None in labels:
            return Batch(packed, examples=order)
        targets = {"labels": np.array(labels, np.int64)}
        return Batch(packed, targets, {"classification": len(labels)}, order)

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """For each row its `label`, and the `probabilities` of all."""
        found: dict[int, Prediction] = {}
        shares = torch.softmax(outputs["logits"].double().cpu(), -1).tolist()
        for example, chances in zip(batch.examples, shares, strict=True):
            named = dict(zip(self.labels, chances, strict=True))
            label = max(named, key=named.__getitem__)
            found[example.index] = {"label": label, "probabilities": named}
        return found

    def count_targets(self, examples: Sequence[ExampleT]) -> Mapping[str, int]:
        counts = Counter(example.target for example in examples)
        return {name: counts[number] for name, number in self.numbers.items()}

    def guessing_losses(self, counts: Mapping[str, int]) -> Mapping[str, float]:
        """The entropy of the labels' shares."""
        shares = np.array([count for count in counts.values() if count]) / sum(counts.values())
        return {"classification": -float((shares * np.log(shares)).sum())}

    @property
    def metrics(self) -> tuple[str, ...]:
        """What the evaluator measures."""
        f1 = ("f1",) if len(self.labels) == 2 else ()
        return ("loss", "majority", "accuracy", *f1, "macro_f1", "matthews_correlation")

    @property
    def positive(self) -> str | None:
        """Of two classes the one whose F1 is reported."""
        return self.labels[-1] if len(self.labels) == 2 else None

    def evaluator(self) -> Evaluator:
        positive = self.positive if len(self.labels) == 2 else None
        number = None if positive is None else self.labels.index(positive)
        return ClassificationEvaluator(self.labels, number)
