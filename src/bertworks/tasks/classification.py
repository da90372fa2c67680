"""Classification of texts and of pairs of texts: exactly one class per row.

Source: paper §4.1; the original `run_classifier.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from ..checkpoints.heads import PublishedCheckpoint
from ..data.rows import Rows
from ..data.schema import RoleColumns
from ..nn.config import EncoderConfig
from ..nn.layers import promote_to_float32
from ..nn.losses import cross_entropy_sum
from ..settings.base import Settings
from .labels import count_labels, sort_labels
from .task_options import TaskOptions, TaskSettings
from .text_classifier import (
    TextClassifierNetwork,
    TextClassifierOptions,
    TextClassifierSettings,
    TextClassifierTask,
)
from .text_network import Pooling
from .texts import has_single_output


class _LabelFields(Settings):
    """Labels of classification."""

    positive_label: str | None = Field(
        None, description="of two classes, the one whose F1 is reported; the last if omitted"
    )
    no_label: str | None = Field(
        None,
        description="label of rows without a gold label, which are left out; if omitted: -, or -1 "
        'below classes 0, 1, 2; "": none',
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the target that is spread over all classes"
    )


class ClassificationOptions(_LabelFields, TextClassifierOptions):
    """Options of a classifier."""


class ClassificationSettings(_LabelFields, TextClassifierSettings):
    """Settings of a classifier that are saved with the weights."""

    labels: tuple[str, ...] = Field(min_length=2, description="names of the classes, in order")

    @property
    def positive(self) -> str | None:
        """The positive class: `positive_label`, or the last of two classes."""
        if self.positive_label is None and len(self.labels) == 2:
            return self.labels[-1]
        return self.positive_label

    @model_validator(mode="after")
    def _check_positive_label(self) -> Self:
        if self.positive_label is not None and self.positive_label not in self.labels:
            raise ValueError(
                f"positive_label={self.positive_label!r} is not one of the labels "
                + ", ".join(map(repr, self.labels))
            )
        return self


class ClassificationNetwork(TextClassifierNetwork):
    """An encoder with a classification head, and a softmax over the classes.

    Args:
        label_smoothing: share of the target that is spread over all classes.
        others: arguments of `TextClassifierNetwork`.
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        dropout: float | None = None,
        *,
        label_smoothing: float = 0.0,
        pooling: Pooling = "mean",
        **others: Any,
    ) -> None:
        super().__init__(config, num_labels, dropout, pooling=pooling, **others)
        self._smoothing = label_smoothing

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        weights = self.class_weights(logits)
        if weights is None and not self._smoothing:
            return cross_entropy_sum(logits, labels)
        # Weight each row by its gold class: with label smoothing, PyTorch's `weight` would weight
        # each class of the smoothed target instead of the row.
        rows = F.cross_entropy(
            promote_to_float32(logits), labels, reduction="none", label_smoothing=self._smoothing
        )
        return (rows if weights is None else rows * weights[labels]).sum()


class ClassificationTask(TextClassifierTask):
    """Classify a text or a pair of texts."""

    name: ClassVar[str] = "classification"
    problem_type = "single_label_classification"
    teacher_outputs = "probabilities"
    marks_advice = '; if this is a class, give no_label=""'
    options: ClassVar[type[TaskOptions]] = ClassificationOptions
    settings_class: ClassVar[type[TaskSettings]] = ClassificationSettings
    settings: ClassificationSettings

    @classmethod
    def settings_from_rows(
        cls, rows: Rows, columns: RoleColumns, options: TaskOptions
    ) -> dict[str, Any]:
        assert isinstance(options, ClassificationOptions)
        column = columns["label"]
        assert isinstance(column, str), "the schema requires labels"
        counts = count_labels(rows, column, no_label=options.no_label)
        labels = sort_labels(counts)
        weights = None
        if options.balance_classes:
            weights = [counts.total() / len(labels) / counts[name] for name in labels]
        return {"labels": labels, "class_weights": weights}

    @classmethod
    def _is_trained_for(cls, checkpoint: PublishedCheckpoint) -> bool:
        is_multi_label = checkpoint.raw.get("problem_type") == "multi_label_classification"
        return not (is_multi_label or has_single_output(checkpoint))

    @property
    def positive(self) -> str | None:
        return self.settings.positive

    @property
    def no_label(self) -> str | None:
        return self.settings.no_label

    def _build_network(self, config: EncoderConfig) -> TextClassifierNetwork:
        settings = self.settings
        return ClassificationNetwork(
            config,
            len(settings.labels),
            settings.dropout,
            class_weights=settings.class_weights,
            label_smoothing=settings.label_smoothing,
            lm_weight=settings.lm_weight,
            pooling=settings.pooling,
        )

    def baseline_losses(self, counts: Mapping[str, int]) -> Mapping[str, float]:
        """Return the entropy of the labels' shares; empty unless the loss is plain
        cross-entropy."""
        if self.settings.class_weights is not None or self.settings.label_smoothing:
            return {}
        return super().baseline_losses(counts)
