"""Classification of texts and of pairs of texts, into one of several classes or into any of them.

    [CLS] text [SEP] (second text [SEP]) ─► encoder ─► pooler on [CLS] ─► dropout ─► W ─► softmax

With `multi_label`, each class is a question of its own, answered by a sigmoid.

Source: paper §4.1; the original `run_classifier.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ...checkpoints.heads import CLASSIFIER
from ...errors import SettingsError
from ...packed import Batch
from ..classifying import ClassifyingTask
from ..example import LabelledExample
from ..labelled import TaskOptions, TaskSettings
from ..labels import count_labels, label_names, sort_labels
from ..metrics import MultiLabelEvaluator
from ..placed import Rows
from ..schema import RoleColumns
from ..task import Evaluator, Prediction, Row, Shown, Task
from ..texts import (
    TextTask,
    is_single_value,
    labelled_batch,
    shared_settings,
)
from .network import ClassificationNetwork
from .settings import ClassificationOptions, ClassificationSettings

if TYPE_CHECKING:
    from ...checkpoints.published import Published
    from ...model.config import EncoderConfig


class ClassificationTask(ClassifyingTask[LabelledExample], TextTask):
    """Which of several classes a text, or a pair of texts, belongs to.

    Args:
        tokenizer: the model's.
        settings: class names, columns, limits.
    """

    name: ClassVar[str] = "classification"
    head = CLASSIFIER
    takes_teacher = True
    options: ClassVar[type[TaskOptions]] = ClassificationOptions
    settings_class: ClassVar[type[TaskSettings]] = ClassificationSettings
    settings: ClassificationSettings

    @classmethod
    def learned(cls, rows: Rows, columns: RoleColumns, options: TaskOptions) -> dict[str, Any]:
        assert isinstance(options, ClassificationOptions)
        column = columns["label"]
        assert isinstance(column, str), "labels were asked for"
        counts = count_labels(
            rows, column, options.label_separator if options.multi_label else None
        )
        labels = sort_labels(counts)
        weights = None
        if options.balance_classes:
            if options.multi_label:
                total = sum(1 for _ in rows)
                # A label that every row has keeps a little: it would never be learned.
                weights = [max(1, total - counts[name]) / counts[name] for name in labels]
            else:
                weights = [counts.total() / len(labels) / counts[name] for name in labels]
        return {"labels": labels, "class_weights": weights}

    @classmethod
    def published(cls, of: Published) -> Self | None:
        if not of.has_head(cls.head) or is_single_value(of):
            return None
        settings = ClassificationSettings(
            labels=of.labels(cls.head),
            multi_label=of.raw.get("problem_type") == "multi_label_classification",
            **shared_settings(of),
        )
        return cls(of.tokenizer, settings)

    @property
    def positive(self) -> str | None:
        return self.settings.positive

    def config_entries(self) -> dict[str, Any]:
        kind = "multi" if self.settings.multi_label else "single"
        return {**super().config_entries(), "problem_type": f"{kind}_label_classification"}

    def network(self, config: EncoderConfig) -> ClassificationNetwork:
        """A fresh network.

        Raises:
            SettingsError: the encoder has fewer positions than `max_seq_length`, or cannot guess
                next pieces where `lm_weight` asks for it.
        """
        own = self.settings
        config = own.geometry(config)
        tells_next = config.attention == "causal" and config.tie_word_embeddings
        if own.lm_weight and (not tells_next or config.mlm_transform or config.mlm_bias):
            raise SettingsError(
                f"lm_weight={own.lm_weight}: a {config.family} model has no head that guesses each "
                "next piece by its embeddings alone, as GPT's has"
            )
        return ClassificationNetwork(
            config,
            len(own.labels),
            own.dropout,
            multi_label=own.multi_label,
            class_weights=own.class_weights,
            label_smoothing=own.label_smoothing,
            lm_weight=own.lm_weight,
            pooling=own.pooling,
        )

    def same_head(self, other: Task[Any]) -> bool:
        return isinstance(other, ClassificationTask) and (
            (other.settings.labels, other.settings.multi_label)
            == (self.settings.labels, self.settings.multi_label)
        )

    def label_of(self, row: Row, column: str, where: str) -> Any:
        """The number of the row's class; with `multi_label`, `[classes]` of 0 and 1."""
        if not self.settings.multi_label:
            return super().label_of(row, column, where)
        found = np.zeros(len(self.labels), np.float32)
        for name in label_names(row, column, where, self.settings.label_separator):
            found[super().label_of({column: name}, column, where)] = 1
        return found

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack rows in order of length; `targets` and `counts` are there if labels are known.

        `targets["labels"]` is `[rows]` int64, with `multi_label` `[rows, classes]`
        float32; `counts["classification"]` the rows.
        """
        dtype = np.float32 if self.settings.multi_label else np.int64
        batch = labelled_batch(examples, dtype, "classification")
        if not self.settings.lm_weight or not batch.counts:
            return batch
        more = {"weighted_lm": batch.packed.num_tokens - batch.packed.num_sequences}
        return replace(batch, counts={**batch.counts, **more})

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """For each row its `label` (with `multi_label`: `labels`, those over one half), and
        `probabilities` of every label."""
        if not self.settings.multi_label:
            return super().decode(outputs, batch)
        found: dict[int, Prediction] = {}
        chances = torch.sigmoid(outputs["logits"].double().cpu()).tolist()
        for example, own in zip(batch.examples, chances, strict=True):
            named = dict(zip(self.labels, own, strict=True))
            likely = [name for name, chance in named.items() if chance > 0.5]
            found[example.index] = {"labels": likely, "probabilities": named}
        return found

    def shown(self, prediction: Prediction) -> list[Shown] | None:
        if not self.settings.multi_label:
            return super().shown(prediction)
        return [(name, prediction["probabilities"][name]) for name in prediction["labels"]]

    def count_targets(self, examples: Sequence[LabelledExample]) -> Mapping[str, int]:
        if not self.settings.multi_label:
            return super().count_targets(examples)
        totals = np.sum([example.target for example in examples], axis=0).astype(int)
        return dict(zip(self.labels, totals.tolist(), strict=True))

    def guessing_losses(self, counts: Mapping[str, int]) -> Mapping[str, float]:
        """The entropy of the labels' shares, where the loss is the plain cross-entropy."""
        own = self.settings
        if own.multi_label or own.class_weights is not None or own.label_smoothing:
            return {}
        return super().guessing_losses(counts)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What the evaluator measures."""
        return MultiLabelEvaluator.metrics if self.settings.multi_label else super().metrics

    def evaluator(self) -> Evaluator:
        return (
            MultiLabelEvaluator(self.labels) if self.settings.multi_label else super().evaluator()
        )
