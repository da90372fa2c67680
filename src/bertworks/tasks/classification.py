"""Classification of texts and of pairs of texts: one class per row, or any number of them.

    [CLS] text [SEP] (second text [SEP]) ─► encoder ─► pooler on [CLS] ─► dropout ─► W ─► softmax

With `multi_label`, each class is predicted independently, with a sigmoid.

Source: paper §4.1; the original `run_classifier.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from ..checkpoints.heads import CLASSIFIER, PublishedCheckpoint
from ..data.rows import NoLabel, Row, Rows
from ..data.schema import RoleColumns
from ..errors import SettingsError
from ..nn.config import EncoderConfig
from ..nn.layers import promote_to_float32
from ..nn.losses import cross_entropy_sum, next_token_loss_sum
from ..packed import Batch
from ..settings.base import Settings
from ..text.tokenizer import Tokenizer
from .classifier import ClassifierNetwork, ClassifierTask
from .evaluators import MultiLabelEvaluator
from .example import LabelledExample, collate_labelled
from .labels import count_labels, read_label_names, sort_labels
from .task import DisplayValue, Evaluator, Prediction, Task
from .task_options import TaskOptions, TaskSettings
from .text_network import Pooling, TextNetwork, pool_sequences
from .texts import (
    TextOptions,
    TextSettings,
    TextTask,
    has_single_output,
    settings_of_checkpoint,
    sigmoid,
)


class _LabelFields(Settings):
    """Labels of classification."""

    positive_label: str | None = Field(
        None, description="of two classes, the one whose F1 is reported; the last if omitted"
    )
    multi_label: bool = Field(
        False,
        description="a row may have any number of labels: a list, or separated by label_separator",
    )
    label_separator: str = Field(
        ",", min_length=1, description="separator between the labels of a row"
    )
    no_label: str | None = Field(
        None,
        description="label of rows without a gold label, which are left out; if omitted: -, or -1 "
        'below classes 0, 1, 2; "": none',
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the target that is spread over all classes"
    )
    lm_weight: float = Field(
        0.0, ge=0, le=1000, description="weight of an added next-piece prediction loss (GPT: 0.5)"
    )


class ClassificationOptions(_LabelFields, TextOptions):
    """Class weights."""

    balance_classes: bool = Field(
        False, description="weight rare classes higher, so that all classes count the same"
    )

    @model_validator(mode="after")
    def _check_label_options(self) -> Self:
        if self.label_separator != "," and not self.multi_label:
            raise ValueError(f"label_separator={self.label_separator!r} needs multi_label=true")
        if self.multi_label and self.no_label is not None:
            raise ValueError(f"no_label={self.no_label!r} needs one label per row")
        if self.multi_label and self.positive_label is not None:
            raise ValueError(
                f"positive_label={self.positive_label!r} needs one label per row, not "
                "multi_label=true"
            )
        return self


class ClassificationSettings(_LabelFields, TextSettings):
    """Settings of a classifier that are saved with the weights."""

    labels: tuple[str, ...] = Field(min_length=1, description="names of the classes, in order")
    class_weights: tuple[float, ...] | None = Field(
        None, description="weight of each class in the loss; all 1 if omitted"
    )

    @property
    def positive(self) -> str | None:
        """The positive class: `positive_label`, or the last of two classes."""
        if self.positive_label is None and len(self.labels) == 2:
            return self.labels[-1]
        return self.positive_label

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if len(self.labels) < 2 and not self.multi_label:
            raise ValueError("a classifier needs two classes at least")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("two classes have the same name")
        if self.positive_label is not None and self.positive_label not in self.labels:
            raise ValueError(
                f"positive_label={self.positive_label!r} is not one of the labels "
                + ", ".join(map(repr, self.labels))
            )
        if self.class_weights is not None and len(self.class_weights) != len(self.labels):
            raise ValueError("class_weights must have a weight for each label")
        if self.lm_weight and self.truncation == "windows":
            raise ValueError("lm_weight is not for truncation=windows")
        if self.multi_label and self.label_smoothing:
            raise ValueError("label_smoothing needs one label per row")
        return self


class ClassificationNetwork(TextNetwork, ClassifierNetwork):
    """An encoder with a classification head.

    Args:
        multi_label: whether a row may have any number of classes.
        class_weights: weight of a row of each class in the loss; 1 if omitted.
        label_smoothing: share of the target that is spread over all classes.
        lm_weight: weight of the auxiliary next-piece prediction loss (Radford et al. 2018, §3.2).
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        dropout: float | None = None,
        *,
        multi_label: bool = False,
        class_weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
        lm_weight: float = 0.0,
        pooling: Pooling = "mean",
    ) -> None:
        super().__init__(config, num_labels, dropout, pooling)
        self.lm_weight = lm_weight
        self.multi_label = multi_label
        self._smoothing = label_smoothing
        self._weights = class_weights

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed losses of the rows, `classification`; with `lm_weight` also
        `weighted_lm`, the weighted next-piece loss."""
        packed, labels = batch.packed, batch.targets["labels"]
        if not self.lm_weight:
            return {"classification": self._loss_sum(self.logits(batch), labels)}
        hidden = self.encoder(packed)
        lm = next_token_loss_sum(self.encoder, hidden, packed)
        logits = pool_sequences(self.head(self.encoder, hidden, packed), packed, self.pooling)
        loss = self._loss_sum(logits, labels)
        return {"classification": loss, "weighted_lm": self.lm_weight * lm}

    def _loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        weights = None
        if self._weights is not None:
            weights = torch.tensor(self._weights, device=logits.device, dtype=torch.float32)
        if self.multi_label:  # mean over classes; weights apply to the classes that a row has
            logits = promote_to_float32(logits)
            each = F.binary_cross_entropy_with_logits(
                logits, labels.to(logits.dtype), pos_weight=weights, reduction="none"
            )
            return each.mean(-1).sum()
        if weights is None and not self._smoothing:
            return cross_entropy_sum(logits, labels)
        # Weight each row by its gold class: with label smoothing, PyTorch's `weight` would weight
        # each class of the smoothed target instead of the row.
        rows = F.cross_entropy(
            promote_to_float32(logits), labels, reduction="none", label_smoothing=self._smoothing
        )
        return (rows if weights is None else rows * weights[labels]).sum()


class ClassificationTask(ClassifierTask[LabelledExample], TextTask):
    """Classify a text or a pair of texts."""

    name: ClassVar[str] = "classification"
    head = CLASSIFIER
    teacher_outputs = "probabilities"
    marks_advice = '; if this is a class, give no_label=""'
    options: ClassVar[type[TaskOptions]] = ClassificationOptions
    settings_class: ClassVar[type[TaskSettings]] = ClassificationSettings
    settings: ClassificationSettings

    def __init__(self, tokenizer: Tokenizer, settings: ClassificationSettings) -> None:
        super().__init__(tokenizer, settings)
        # With several labels per row, always predicting the most frequent label is no baseline:
        # accuracy counts rows in which all labels are correct.
        self.has_majority_baseline = not settings.multi_label

    @classmethod
    def settings_from_rows(
        cls, rows: Rows, columns: RoleColumns, options: TaskOptions
    ) -> dict[str, Any]:
        assert isinstance(options, ClassificationOptions)
        column = columns["label"]
        assert isinstance(column, str), "the schema requires labels"
        counts = count_labels(
            rows,
            column,
            options.label_separator if options.multi_label else None,
            options.no_label,
        )
        labels = sort_labels(counts)
        weights = None
        if options.balance_classes:
            if options.multi_label:
                total = sum(not isinstance(row.get(column), NoLabel) for _, row in rows)
                # At least 1: with weight 0, a label that every row has would never be learned.
                weights = [max(1, total - counts[name]) / counts[name] for name in labels]
            else:
                weights = [counts.total() / len(labels) / counts[name] for name in labels]
        return {"labels": labels, "class_weights": weights}

    @classmethod
    def from_published_checkpoint(cls, checkpoint: PublishedCheckpoint) -> Self | None:
        if not checkpoint.has_head(cls.head) or has_single_output(checkpoint):
            return None
        multi_label = checkpoint.raw.get("problem_type") == "multi_label_classification"
        settings = {"labels": checkpoint.labels(cls.head), "multi_label": multi_label}
        return cls(
            checkpoint.tokenizer,
            ClassificationSettings.parse(settings | settings_of_checkpoint(checkpoint)),
        )

    @property
    def positive(self) -> str | None:
        return self.settings.positive

    @property
    def no_label(self) -> str | None:
        # A row of several labels may also have none.
        return "" if self.settings.multi_label else self.settings.no_label

    def config_entries(self) -> dict[str, Any]:
        kind = "multi" if self.settings.multi_label else "single"
        return {**super().config_entries(), "problem_type": f"{kind}_label_classification"}

    def network(self, config: EncoderConfig) -> ClassificationNetwork:
        """Return a freshly initialised network.

        Raises:
            SettingsError: the encoder has fewer positions than `max_seq_length`, or `lm_weight` is
                set and the encoder cannot predict next pieces.
        """
        settings = self.settings
        config = settings.encoder_config(config)
        predicts_next = config.attention == "causal" and config.tie_word_embeddings
        if settings.lm_weight and (not predicts_next or config.mlm_transform or config.mlm_bias):
            raise SettingsError(
                f"lm_weight={settings.lm_weight}: a {config.family} model has no head that "
                "predicts each next piece by its embeddings alone, as GPT's has"
            )
        return ClassificationNetwork(
            config,
            len(settings.labels),
            settings.dropout,
            multi_label=settings.multi_label,
            class_weights=settings.class_weights,
            label_smoothing=settings.label_smoothing,
            lm_weight=settings.lm_weight,
            pooling=settings.pooling,
        )

    def is_head_compatible(self, other: Task[Any]) -> bool:
        return isinstance(other, ClassificationTask) and (
            (other.settings.labels, other.settings.multi_label)
            == (self.settings.labels, self.settings.multi_label)
        )

    def read_label(self, row: Row, column: str, where: str) -> Any:
        """Return the index of the row's class; with `multi_label`, `[classes]` of 0 and 1."""
        if not self.settings.multi_label:
            return super().read_label(row, column, where)
        target = np.zeros(len(self.labels), np.float32)
        for name in read_label_names(row, column, where, self.settings.label_separator):
            target[super().read_label({column: name}, column, where)] = 1
        return target

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack rows in order of length; `targets` and `counts` are set if labels are known.

        `targets["labels"]` is `[rows]` int64, with `multi_label` `[rows, classes]` float32;
        `counts["classification"]` is the number of rows. With `lm_weight`, `counts["weighted_lm"]`
        is the number of predicted next pieces.
        """
        dtype = np.float32 if self.settings.multi_label else np.int64
        batch = collate_labelled(examples, dtype, "classification")
        if not self.settings.lm_weight or not batch.counts:
            return batch
        more = {"weighted_lm": batch.packed.num_tokens - batch.packed.num_sequences}
        return replace(batch, counts={**batch.counts, **more})

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """Return for each row its `label` (with `multi_label`, its `labels`: those whose
        probability is above 0.5), and the `probabilities` of all labels."""
        if not self.settings.multi_label:
            return super().decode(outputs, batch)
        predictions: dict[int, Prediction] = {}
        logits = outputs["logits"].double().tolist()
        for example, row in zip(batch.examples, logits, strict=True):
            probabilities = dict(zip(self.labels, map(sigmoid, row), strict=True))
            likely = [name for name, value in probabilities.items() if value > 0.5]
            predictions[example.index] = {"labels": likely, "probabilities": probabilities}
        return predictions

    def display_values(self, prediction: Prediction) -> list[DisplayValue] | None:
        if not self.settings.multi_label:
            return super().display_values(prediction)
        return [(name, prediction["probabilities"][name]) for name in prediction["labels"]]

    def count_targets(self, examples: Sequence[LabelledExample]) -> Mapping[str, int]:
        if not self.settings.multi_label:
            return super().count_targets(examples)
        totals = np.sum([example.target for example in examples], axis=0).astype(int)
        return dict(zip(self.labels, totals.tolist(), strict=True))

    def baseline_losses(self, counts: Mapping[str, int]) -> Mapping[str, float]:
        """Return the entropy of the labels' shares; empty unless the loss is plain
        cross-entropy."""
        settings = self.settings
        if settings.multi_label or settings.class_weights is not None or settings.label_smoothing:
            return {}
        return super().baseline_losses(counts)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the evaluator's metrics."""
        return MultiLabelEvaluator.metrics if self.settings.multi_label else super().metrics

    def evaluator(self) -> Evaluator:
        return (
            MultiLabelEvaluator(self.labels) if self.settings.multi_label else super().evaluator()
        )
