"""Regression: predict a number for a text or a pair of texts, such as their similarity.

    [CLS] text [SEP] (second text [SEP]) ─► encoder ─► pooler on [CLS] ─► dropout ─► W ─► value

Source: paper §4.1 and appendix B.1 (STS-B). The loss is the squared error, as in Hugging Face's
implementation.

A published model with a single output may be a cross-encoder, whose value is an activation of the
output: the one that sentence-transformers' files name, or else the sigmoid, as in
sentence-transformers and Hugging Face's pipeline. A model whose `problem_type` is "regression" has
none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.heads import CLASSIFIER, PublishedCheckpoint
from ..data.rows import Row
from ..errors import CheckpointError, DataError
from ..nn.config import EncoderConfig
from ..nn.head_layouts import HeadLayout
from ..packed import Batch, to_array
from .array_network import ArrayNetwork
from .evaluators import RegressionEvaluator
from .example import LabelledExample, collate_labelled
from .labels import build_label_entries, read_finite_number
from .task import DisplayValue, Evaluator, Outputs, Prediction, TaskSettings, detected_setting
from .texts import (
    VALUED_TEXTS,
    TextSettings,
    TextTask,
    columns_of_checkpoint,
    has_single_output,
    sigmoid,
)

if TYPE_CHECKING:
    from .text_network import RegressionNetwork
else:
    RegressionNetwork = Any

Activation = Literal["identity", "sigmoid", "tanh"]

_ACTIVATIONS: Mapping[Activation, Callable[[float], float]] = {
    "identity": float,
    "sigmoid": sigmoid,
    "tanh": math.tanh,
}
_MODULES: Mapping[Activation, str] = {
    "identity": "torch.nn.modules.linear.Identity",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "tanh": "torch.nn.modules.activation.Tanh",
}
"""Their names in sentence-transformers' files."""

_MAX_TARGET = float(np.finfo(np.float32).max)  # targets are float32


class RegressionSettings(TextSettings):
    """Settings of a regression."""

    activation: Activation = detected_setting(
        "identity", "function of the network's output that gives the value"
    )


class RegressionTask(TextTask):
    """Predict a number for a text or a pair of texts."""

    name: ClassVar[str] = "regression"
    schema = VALUED_TEXTS
    head = CLASSIFIER
    best_metric = "pearson"
    has_majority_baseline = False
    settings_class: ClassVar[type[TaskSettings]] = RegressionSettings
    settings: RegressionSettings
    metrics: ClassVar[tuple[str, ...]] = RegressionEvaluator.metrics

    @classmethod
    def settings_of_checkpoint(cls, checkpoint: PublishedCheckpoint) -> dict[str, Any] | None:
        if not has_single_output(checkpoint):
            return None
        return {"activation": _find_activation(checkpoint), **columns_of_checkpoint(checkpoint)}

    def config_entries(self) -> dict[str, Any]:
        entries = build_label_entries(("value",))
        activation = self.settings.activation
        if activation == "identity":
            entries["problem_type"] = "regression"  # otherwise others apply a sigmoid
        if self.settings.pair_column is not None or activation == "tanh":
            entries["sentence_transformers"] = {"activation_fn": _MODULES[activation]}
        return entries

    def network(self, config: EncoderConfig) -> RegressionNetwork:
        from .text_network import RegressionNetwork

        settings = self.settings
        return RegressionNetwork(
            settings.encoder_config(config), 1, settings.dropout, settings.pooling
        )

    def head_layouts(self, config: EncoderConfig) -> Mapping[str, HeadLayout]:
        return self._layouts(config, 1)

    def compute(self, network: ArrayNetwork, batch: Batch) -> dict[str, NDArray[Any]]:
        return {"values": self.compute_logits(network, batch)[:, 0]}

    def read_label(self, row: Row, column: str, where: str) -> float:
        number = read_finite_number(row, column, where)
        if abs(number) > _MAX_TARGET:
            limit = f"{_MAX_TARGET:.2g}"
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
        return collate_labelled(examples, np.float32, "regression")

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """Return for each row its `value`."""
        outcomes = zip(
            batch.examples, to_array(outputs["values"]).astype(np.float64).tolist(), strict=True
        )
        return {
            example.index: {"value": self.output_to_value(output)} for example, output in outcomes
        }

    @property
    def output_to_value(self) -> Callable[[float], float]:
        """The function from the network's output for a row to its value."""
        return _ACTIVATIONS[self.settings.activation]

    def display_values(self, prediction: Prediction) -> list[DisplayValue]:
        return [(prediction["value"], None)]

    def evaluator(self) -> Evaluator:
        return RegressionEvaluator(self.output_to_value)


def _find_activation(checkpoint: PublishedCheckpoint) -> Activation:
    """Return the activation of another tool's model with a single output.

    Raises:
        CheckpointError: its files name an activation that is not supported.
    """
    if checkpoint.activation is None:
        return "identity" if checkpoint.raw.get("problem_type") == "regression" else "sigmoid"
    name = checkpoint.activation.rpartition(".")[2].lower()
    for activation in _ACTIVATIONS:
        if checkpoint.activation.startswith("torch.") and name == activation:
            return activation
    raise CheckpointError(
        f"the activation {checkpoint.activation!r} is not supported; supported are "
        + ", ".join(_MODULES.values()),
        fix="Change activation_fn in the model's files, or load only the encoder.",
    )
