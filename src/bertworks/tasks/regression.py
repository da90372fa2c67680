"""Regression: predict a number for a text or a pair of texts, such as their similarity.

    [CLS] text [SEP] (second text [SEP]) ─► encoder ─► pooler on [CLS] ─► dropout ─► W ─► value

Source: paper §4.1 and appendix B.1 (STS-B). The loss is the squared error, as in Hugging Face's
implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from ..checkpoints.heads import CLASSIFIER, Published
from ..errors import DataError
from ..model.config import EncoderConfig
from ..model.layers import wide
from ..packed import Batch
from ..tables.rows import Row
from .example import LabelledExample, labelled_batch
from .labels import finite_number, label_entries
from .metrics import RegressionEvaluator
from .task import Evaluator, Prediction, Shown
from .texts import TextNetwork, TextSettings, TextTask, is_single_value, shared_settings

_MOST = float(np.finfo(np.float32).max)  # targets are float32


class RegressionNetwork(TextNetwork):
    """An encoder with a head of one output."""

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed squared errors of the rows: `regression`."""
        values = wide(self.predict(batch)["values"])
        errors = values - batch.targets["labels"].to(values.dtype)
        return {"regression": errors.square().sum()}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `values` `[rows]`."""
        return {"values": self.logits(batch).squeeze(-1)}


class RegressionTask(TextTask):
    """Predict a number for a text or a pair of texts."""

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
        entries = {**label_entries(("value",)), "problem_type": "regression"}
        if self.settings.columns.pair is not None:
            # Otherwise sentence-transformers applies a sigmoid to a cross-encoder's single output.
            entries["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
        return entries

    def network(self, config: EncoderConfig) -> RegressionNetwork:
        settings = self.settings
        return RegressionNetwork(settings.geometry(config), 1, settings.dropout, settings.pooling)

    def label_of(self, row: Row, column: str, where: str) -> float:
        number = finite_number(row, column, where)
        if abs(number) > _MOST:
            limit = f"{_MOST:.2g}"
            raise DataError(
                f"{number:g} (column {column!r}) is beyond the numbers of float32, up to {limit}",
                where=where,
                fix="Scale the values.",
            )
        return number

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack rows in order of length; `targets` and `counts` are set if values are known.

        `targets["labels"]` is `[rows]` float32; `counts["regression"]` is the number of rows.
        """
        return labelled_batch(examples, np.float32, "regression")

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """Return for each row its `value`."""
        values = outputs["values"].double().tolist()
        examples = zip(batch.examples, values, strict=True)
        return {example.index: {"value": value} for example, value in examples}

    def shown(self, prediction: Prediction) -> list[Shown]:
        return [(prediction["value"], None)]

    def evaluator(self) -> Evaluator:
        return RegressionEvaluator()
