"""Classification of texts and of pairs of texts: any number of classes per row.

Each class is predicted independently of the others, with a sigmoid of its logit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..checkpoints.heads import PublishedCheckpoint
from ..data.rows import NoLabel, Row, Rows
from ..data.schema import RoleColumns
from ..nn.config import EncoderConfig
from ..nn.layers import promote_to_float32
from ..packed import Batch
from ..settings.base import Settings
from .evaluators import MultiLabelEvaluator
from .example import LabelledExample
from .labels import count_labels, read_label_names, sort_labels
from .task import DisplayValue, Evaluator, Prediction
from .task_options import TaskOptions, TaskSettings
from .text_classifier import (
    TextClassifierNetwork,
    TextClassifierOptions,
    TextClassifierSettings,
    TextClassifierTask,
)
from .texts import sigmoid


class _LabelFields(Settings):
    """Labels of a row: a list, or one text."""

    label_separator: str = Field(
        ",", min_length=1, description="separator between the labels of a row"
    )


class MultiLabelOptions(_LabelFields, TextClassifierOptions):
    """Options of a classifier with several labels per row."""


class MultiLabelSettings(_LabelFields, TextClassifierSettings):
    """Settings of such a classifier that are saved with the weights."""


class MultiLabelNetwork(TextClassifierNetwork):
    """An encoder with a classification head, and a sigmoid for each class."""

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the rows' losses, the means over classes of the cross-entropies.

        A class's weight applies to the rows that have it.
        """
        logits = promote_to_float32(logits)
        losses = F.binary_cross_entropy_with_logits(
            logits,
            labels.to(logits.dtype),
            pos_weight=self.class_weights(logits),
            reduction="none",
        )
        return losses.mean(-1).sum()


class MultiLabelTask(TextClassifierTask):
    """Assign any number of classes to a text or a pair of texts."""

    name: ClassVar[str] = "multilabel"
    problem_type = "multi_label_classification"
    options: ClassVar[type[TaskOptions]] = MultiLabelOptions
    settings_class: ClassVar[type[TaskSettings]] = MultiLabelSettings
    settings: MultiLabelSettings
    metrics: ClassVar[tuple[str, ...]] = MultiLabelEvaluator.metrics
    # Always predicting the most frequent label is no baseline: accuracy counts the rows in which
    # all labels are correct.
    has_majority_baseline = False
    no_label = ""  # a row may have no label
    positive = None

    @classmethod
    def settings_from_rows(
        cls, rows: Rows, columns: RoleColumns, options: TaskOptions
    ) -> dict[str, Any]:
        assert isinstance(options, MultiLabelOptions)
        column = columns["label"]
        assert isinstance(column, str), "the schema requires labels"
        counts = count_labels(rows, column, options.label_separator)
        labels = sort_labels(counts)
        weights = None
        if options.balance_classes:
            total = sum(not isinstance(row.get(column), NoLabel) for _, row in rows)
            # At least 1: with weight 0, a label that every row has would never be learned.
            weights = [max(1, total - counts[name]) / counts[name] for name in labels]
        return {"labels": labels, "class_weights": weights}

    @classmethod
    def _is_trained_for(cls, checkpoint: PublishedCheckpoint) -> bool:
        return checkpoint.raw.get("problem_type") == cls.problem_type

    def _build_network(self, config: EncoderConfig) -> TextClassifierNetwork:
        settings = self.settings
        return MultiLabelNetwork(
            config,
            len(settings.labels),
            settings.dropout,
            class_weights=settings.class_weights,
            lm_weight=settings.lm_weight,
            pooling=settings.pooling,
        )

    def read_label(self, row: Row, column: str, where: str) -> Any:
        """Return a row's classes: `[classes]` of 0 and 1."""
        target = np.zeros(len(self.labels), np.float32)
        for name in read_label_names(row, column, where, self.settings.label_separator):
            target[super().read_label({column: name}, column, where)] = 1
        return target

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """Return for each row its `labels`, whose probability is above 0.5, and the
        `probabilities` of all labels."""
        predictions: dict[int, Prediction] = {}
        logits = outputs["logits"].cpu().double().tolist()
        for example, row in zip(batch.examples, logits, strict=True):
            probabilities = dict(zip(self.labels, map(sigmoid, row), strict=True))
            likely = [name for name, value in probabilities.items() if value > 0.5]
            predictions[example.index] = {"labels": likely, "probabilities": probabilities}
        return predictions

    def display_values(self, prediction: Prediction) -> list[DisplayValue] | None:
        return [(name, prediction["probabilities"][name]) for name in prediction["labels"]]

    def count_targets(self, examples: Sequence[LabelledExample]) -> Mapping[str, int]:
        totals = np.sum([example.target for example in examples], axis=0).astype(int)
        return dict(zip(self.labels, totals.tolist(), strict=True))

    def baseline_losses(self, counts: Mapping[str, int]) -> Mapping[str, float]:  # noqa: ARG002
        return {}

    def evaluator(self) -> Evaluator:
        return MultiLabelEvaluator(self.labels)
