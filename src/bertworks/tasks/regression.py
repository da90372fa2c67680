"""Regression: a number for a text or a pair of texts, such as how alike two sentences are.

    [CLS] text [SEP] (second text [SEP]) ─► encoder ─► pooler on [CLS] ─► dropout ─► W ─► value

Source: paper §4.1 and appendix B.1 (STS-B). The loss is the squared error, as Hugging Face has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ..checkpoints.heads import CLASSIFIER, Published
from ..model.config import EncoderConfig
from ..model.encoder import Encoder
from ..model.heads import ClassificationHead
from ..packed import Batch, Padded
from ..tables.rows import Row
from .example import LabelledExample, labelled_batch
from .labels import finite_number
from .metrics import RegressionEvaluator
from .task import Evaluator, Network, Prediction, Shown
from .texts import (
    Pooling,
    TextSettings,
    TextTask,
    is_single_value,
    row_logits,
    shared_settings,
)


class RegressionNetwork(Network):
    """An encoder with a head of one output.

    Args:
        dropout: before the output layer; `config.classifier_dropout`, if left out.
        pooling: of the values of a row's sequences, where it has several.
    """

    def __init__(
        self, config: EncoderConfig, dropout: float | None = None, pooling: Pooling = "mean"
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.encoder = Encoder(config, pooler=config.has_pooler)
        self.head = ClassificationHead(config, 1, dropout)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed squared errors of the rows: `regression`."""
        values = self.predict(batch)["values"]
        sums = torch.promote_types(values.dtype, torch.float32)
        return {"regression": (values.to(sums) - batch.targets["labels"].to(sums)).square().sum()}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`values` `[rows]`."""
        found = row_logits(self.encoder, self.head, batch.packed, self.pooling)
        return {"values": found.squeeze(-1)}

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """`logits` `[rows, 1]`."""
        return {"logits": self.head(self.encoder, self.encoder(padded), padded)}


class RegressionTask(TextTask):
    """Which number belongs to a text, or to a pair of texts."""

    name: ClassVar[str] = "regression"
    head = CLASSIFIER
    best_metric = "pearson"
    is_guessable = False
    metrics: ClassVar[tuple[str, ...]] = RegressionEvaluator.metrics

    @classmethod
    def published(cls, of: Published) -> Self | None:
        is_regression = of.has_head(cls.head) and is_single_value(of)
        return cls(of.tokenizer, TextSettings.parse(shared_settings(of))) if is_regression else None

    def config_entries(self) -> dict[str, Any]:
        entries: dict[str, Any] = {
            "id2label": {"0": "value"},
            "label2id": {"value": 0},
            "problem_type": "regression",
        }
        if self.settings.columns.pair is not None:
            # Else sentence-transformers applies a sigmoid to a cross-encoder's only value.
            entries["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
        return entries

    def network(self, config: EncoderConfig) -> RegressionNetwork:
        settings = self.settings
        return RegressionNetwork(settings.geometry(config), settings.dropout, settings.pooling)

    def label_of(self, row: Row, column: str, where: str) -> float:
        """The row's number.

        Raises:
            DataError: there is none, or it is not finite.
        """
        return finite_number(row, column, where)

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack rows in order of length; `targets` and `counts` are there if values are known.

        `targets["labels"]` is `[rows]` float32; `counts["regression"]` the rows.
        """
        return labelled_batch(examples, np.float32, "regression")

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """For each row its `value`."""
        values = outputs["values"].double().tolist()
        examples = zip(batch.examples, values, strict=True)
        return {example.index: {"value": value} for example, value in examples}

    def shown(self, prediction: Prediction) -> list[Shown]:
        return [(prediction["value"], None)]

    def evaluator(self) -> Evaluator:
        return RegressionEvaluator()
