"""The base of tasks that assign classes to a text or a pair of texts: to each row one, or several.

    [CLS] text [SEP] (second text [SEP]) ─► encoder ─► pooler on [CLS] ─► dropout ─► W ─► logits

Source: paper §4.1; the original `run_classifier.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator
from torch import Tensor

from ..checkpoints.heads import CLASSIFIER, PublishedCheckpoint
from ..errors import SettingsError
from ..nn.config import EncoderConfig
from ..nn.losses import next_token_loss_sum
from ..packed import Batch, to_tensor
from ..settings.base import Settings
from .classifier import ClassifierNetwork, ClassifierTask
from .example import LabelledExample, collate_labelled
from .task import Task
from .text_network import Pooling, TextNetwork, pool_sequences
from .texts import (
    TextOptions,
    TextSettings,
    TextTask,
    settings_of_checkpoint,
)


class _LossFields(Settings):
    """An added loss."""

    lm_weight: float = Field(
        0.0, ge=0, le=1000, description="weight of an added next-piece prediction loss (GPT: 0.5)"
    )


class TextClassifierOptions(_LossFields, TextOptions):
    """Class weights."""

    balance_classes: bool = Field(
        False, description="weight rare classes higher, so that all classes count the same"
    )


class TextClassifierSettings(_LossFields, TextSettings):
    """Settings of a classifier that are saved with the weights."""

    labels: tuple[str, ...] = Field(min_length=1, description="names of the classes, in order")
    class_weights: tuple[float, ...] | None = Field(
        None, description="weight of each class in the loss; all 1 if omitted"
    )

    @model_validator(mode="after")
    def _check_classes(self) -> Self:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("two classes have the same name")
        if self.class_weights is not None and len(self.class_weights) != len(self.labels):
            raise ValueError("class_weights must have a weight for each label")
        if self.lm_weight and self.truncation == "windows":
            raise ValueError("lm_weight is not for truncation=windows")
        return self


class TextClassifierNetwork(TextNetwork, ClassifierNetwork):
    """An encoder with a classification head.

    Args:
        class_weights: weight of each class in the loss; 1 if omitted.
        lm_weight: weight of the auxiliary next-piece prediction loss (Radford et al. 2018, §3.2).
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        dropout: float | None = None,
        *,
        class_weights: Sequence[float] | None = None,
        lm_weight: float = 0.0,
        pooling: Pooling = "mean",
    ) -> None:
        super().__init__(config, num_labels, dropout, pooling)
        self._class_weights = class_weights
        self.lm_weight = lm_weight

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed losses of the rows, `classification`; with `lm_weight` also
        `weighted_lm`, the weighted next-piece loss."""
        packed, labels = batch.packed, batch.targets["labels"]
        if not self.lm_weight:
            return {"classification": self.loss_sum(self.logits(batch), labels)}
        hidden = self.encoder(packed)
        lm = next_token_loss_sum(self.encoder, hidden, packed)
        logits = pool_sequences(self.head(self.encoder, hidden, packed), packed, self.pooling)
        loss = self.loss_sum(logits, labels)
        return {"classification": loss, "weighted_lm": self.lm_weight * lm}

    @abstractmethod
    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over rows of the loss of `logits` `[rows, classes]`."""

    def class_weights(self, logits: Tensor) -> Tensor | None:
        """Return the weights of the classes, `[classes]`, on the logits' device; None if all 1."""
        if self._class_weights is None:
            return None
        weights: Tensor = to_tensor(np.asarray(self._class_weights, np.float32), logits.device)
        return weights


class TextClassifierTask(ClassifierTask[LabelledExample], TextTask):
    """Assign classes to a text or a pair of texts.

    Attributes:
        problem_type: the name of this kind of task in other tools' `config.json`.
    """

    head = CLASSIFIER
    problem_type: ClassVar[str]
    settings: TextClassifierSettings

    @classmethod
    def from_published_checkpoint(cls, checkpoint: PublishedCheckpoint) -> Self | None:
        if not checkpoint.has_head(cls.head) or not cls._is_trained_for(checkpoint):
            return None
        values = {"labels": checkpoint.labels(cls.head)} | settings_of_checkpoint(checkpoint)
        return cls(checkpoint.tokenizer, cls.settings_class.parse(values))

    @classmethod
    @abstractmethod
    def _is_trained_for(cls, checkpoint: PublishedCheckpoint) -> bool:
        """Whether another tool's classification head was trained for this kind of task."""

    def config_entries(self) -> dict[str, Any]:
        return {**super().config_entries(), "problem_type": self.problem_type}

    def network(self, config: EncoderConfig) -> TextClassifierNetwork:
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
        return self._build_network(config)

    @abstractmethod
    def _build_network(self, config: EncoderConfig) -> TextClassifierNetwork:
        """Return a freshly initialised network for a configuration that fits the settings."""

    def is_head_compatible(self, other: Task[Any]) -> bool:
        return (
            isinstance(other, TextClassifierTask)
            and other.problem_type == self.problem_type
            and other.labels == self.labels
        )

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack rows in order of length; `targets` and `counts` are set if labels are known.

        `targets["labels"]` is `[rows]` int64, or `[rows, classes]` float32 if a row may have
        several classes; `counts["classification"]` is the number of rows. With `lm_weight`,
        `counts["weighted_lm"]` is the number of predicted next pieces.
        """
        target = examples[0].target
        dtype = np.float32 if isinstance(target, np.ndarray) else np.int64
        batch = collate_labelled(examples, dtype, "classification")
        if not self.settings.lm_weight or not batch.counts:
            return batch
        more = {"weighted_lm": batch.packed.num_tokens - batch.packed.num_sequences}
        return replace(batch, counts={**batch.counts, **more})
