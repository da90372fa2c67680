"""Classification from few rows: the encoder is trained on pairs of rows, the head fitted on all.

    rows ─► pairs: equal labels or not ─► vectors of both ─► their cosine, trained to be 1 or 0
    then: rows ─► vectors ─► logistic regression: the output layer

A few rows make many pairs, and sentence encoders have learned to compare two texts.

Source: Tunstall et al. (2022), "Efficient few-shot learning without prompts" (SetFit), §3; the loss
is the regression objective of Reimers and Gurevych (2019), "Sentence-BERT", §3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..checkpoints.sentence_settings import SentenceSettings
from ..errors import DataError, SettingsError
from ..nn.config import EncoderConfig
from ..nn.head_layouts import Activate
from ..nn.layers import Linear, OutputLinear, promote_to_float32
from ..nn.pooling import pool
from ..packed import Batch, Packed, to_array
from ..text.tokenizer import Tokenizer
from .classification import ClassificationSettings, ClassificationTask
from .example import LabelledExample
from .logistic_regression import fit_logistic_regression
from .task import Outputs
from .text_network import ClassificationNetwork

_POOLINGS: Mapping[str, Literal["cls", "mean", "sep"]] = {
    "cls": "cls",
    "mean": "mean",
    "last": "sep",
    "late": "mean",
}
"""The pooling of the vectors that are compared, for each `classifier_pooling`."""

_SCALE = 0.1  # so small inputs that tanh and GELU are nearly linear


class RowPair(NamedTuple):
    """A training example: two rows, and whether they have the same label."""

    first: LabelledExample
    second: LabelledExample
    is_equal: bool

    @property
    def num_tokens(self) -> int:
        """The number of tokens of both rows."""
        return self.first.num_tokens + self.second.num_tokens


class FewShotNetwork(ClassificationNetwork):
    """A classifier whose encoder is trained on pairs; gradients do not change its head."""

    def __init__(self, config: EncoderConfig, settings: ClassificationSettings) -> None:
        super().__init__(config, settings)
        self._vector_pooling = _POOLINGS[self.encoder.config.classifier_pooling]
        pooler = self.encoder.pooler
        self._fitted_parts = [self.head] if pooler is None else [self.head, pooler]
        for part in self._fitted_parts:
            part.requires_grad_(False)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `pairs`: the summed squared differences of the pairs' cosines from 1 or 0."""
        vectors = self._vectors(batch.packed)
        cosines = (vectors[batch.targets["first"]] * vectors[batch.targets["second"]]).sum(-1)
        return {"pairs": (cosines - batch.targets["is_equal"]).square().sum()}

    def _vectors(self, packed: Packed) -> Float[Tensor, "rows hidden_size"]:
        hidden = promote_to_float32(self.encoder(packed))
        return F.normalize(pool(hidden, packed, self._vector_pooling), dim=-1)

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `logits` `[rows, classes]`, and `vectors` `[rows, hidden_size]`, the inputs of the
        output layer."""
        hidden = self.encoder(batch.packed)
        *layers, output_layer = self.head.layout
        vectors = self.head.compute(hidden, batch.packed, self.encoder, steps=layers)
        return {"logits": self.head.compute(vectors, steps=[output_layer]), "vectors": vectors}

    @torch.no_grad()
    def pass_vectors_on(self) -> None:
        """Make the layers between pooling and output layer nearly linear, with all dimensions."""
        relu = any(step == Activate("relu") for step in self.head.layout)
        layers = (layer for part in self._fitted_parts for layer in part.modules())
        for layer in layers:
            if type(layer) is Linear:  # not the output layer
                nn.init.eye_(layer.weight).mul_(_SCALE)
                if layer.bias is not None:
                    nn.init.constant_(layer.bias, float(relu))  # ReLU is linear above 0

    @property
    def output_layer(self) -> OutputLinear:
        """The last layer of the head."""
        layer = self.head.get_submodule("linear")
        assert isinstance(layer, OutputLinear)
        return layer

    @torch.no_grad()
    def set_output_layer(
        self, weight: Float[np.ndarray, "classes width"], bias: Float[np.ndarray, " classes"]
    ) -> None:
        """Set the weights of the output layer; `bias` is for a layer that has one."""
        layer = self.output_layer
        layer.weight.copy_(torch.from_numpy(weight))
        if layer.bias is not None:
            layer.bias.copy_(torch.from_numpy(bias))


class FewShotTask(ClassificationTask):
    """Classification whose training examples are pairs of rows.

    It is saved, used and evaluated like any other classifier.

    Raises:
        SettingsError: the rows are pairs of texts, or are read in windows.
    """

    def __init__(self, tokenizer: Tokenizer, settings: ClassificationSettings) -> None:
        super().__init__(tokenizer, settings)
        if settings.pair_column is not None:
            raise SettingsError(
                f"few_shot=true is for single texts, and the rows are pairs: {self.columns_text}",
                fix="Name the text with text_column=NAME, or leave few_shot out.",
            )
        if settings.truncation == "windows":
            raise SettingsError("few_shot=true: rows in several windows make no pairs")

    @classmethod
    def inherit_options(cls, sentence: SentenceSettings | None) -> dict[str, Any]:
        """Return the `classifier_pooling` that is nearest to the pooling of a sentence encoder."""
        pooling = "mean" if sentence is None else sentence.pooling
        return {"classifier_pooling": {"cls": "cls", "sep": "last"}.get(pooling, "mean")}

    def check_tables(self, count: int) -> None:
        if count > 1:
            raise SettingsError("few_shot=true takes one training table", fix="Join the tables.")

    def describe_updates(self, steps: int, batch_size: int, num_rows: int) -> str:
        pairs = f"each on {batch_size} pairs of the {num_rows:,} rows"
        return f"few_shot: {steps:,} updates, {pairs}; then the head is fitted"

    def fit_head(self, network: Any, run: Callable[[], Iterable[tuple[Outputs, Batch]]]) -> None:
        """Set the weights of the output layer to those of a logistic regression.

        Vectors are centred, if the layer has a bias, and divided by their mean length, so that the
        regularisation is the same for all encoders.

        Raises:
            BertworksError: scikit-learn is not installed.
        """
        network.pass_vectors_on()
        parts, labels = [], []
        for outputs, batch in run():
            parts.append(to_array(outputs["vectors"]).astype(np.float64))
            labels += [example.target for example in batch.examples]
        vectors, has_bias = np.concatenate(parts), network.output_layer.bias is not None
        centre = vectors.mean(0) if has_bias else np.zeros(vectors.shape[1])
        length = np.linalg.norm(vectors - centre, axis=1).mean() or 1.0
        classifier = fit_logistic_regression(
            (vectors - centre) / length, np.array(labels), has_bias=has_bias
        )
        weight, bias = classifier.coef_ / length, classifier.intercept_
        if len(weight) == 1:  # of two classes, it has the difference of the logits
            weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
        network.set_output_layer(weight, bias - weight @ centre)

    def training_pieces(self, examples: Sequence[LabelledExample], seed: int) -> list[Any]:
        """Return `pairs_per_row` pairs of each row with an equal label, and as many with others.

        They are the same in each epoch.

        Raises:
            DataError: a label has no row, or none has two.
        """
        labels = np.array([example.target for example in examples])
        counts = np.bincount(labels, minlength=len(self.labels))
        for name, count in zip(self.labels, counts.tolist(), strict=True):
            if not count:  # all of its rows were split off for dev
                raise DataError(f"few_shot=true: no training row has the label {name!r}")
        if counts.max() < 2:
            raise DataError("few_shot=true: no label has two rows that could be a pair")
        pairs = draw_pairs(labels, self.settings.pairs_per_row, seed)
        return [
            RowPair(examples[first], examples[second], bool(labels[first] == labels[second]))
            for first, second in pairs
        ]

    def collate(self, examples: Sequence[Any]) -> Batch:
        """Pack rows as in classification; of pairs, each row once.

        For pairs, `targets["first"]` and `targets["second"]` `[pairs]` int64 are indices of rows,
        `targets["is_equal"]` `[pairs]` float32 is 1 or 0, `counts["pairs"]` the number of pairs.
        """
        if not isinstance(examples[0], RowPair):
            return super().collate(examples)
        rows = {row.index: row for pair in examples for row in pair[:2]}
        batch = super().collate([*rows.values()])
        places = {row.index: place for place, row in enumerate(batch.examples)}
        targets = {
            "first": np.array([places[pair.first.index] for pair in examples]),
            "second": np.array([places[pair.second.index] for pair in examples]),
            "is_equal": np.array([pair.is_equal for pair in examples], np.float32),
        }
        return Batch(batch.packed, targets, {"pairs": len(examples)}, batch.examples)

    def _build_network(self, config: EncoderConfig) -> FewShotNetwork:
        return FewShotNetwork(config, self.settings)

    def baseline_losses(self, counts: Mapping[str, int]) -> Mapping[str, float]:  # noqa: ARG002
        return {}


def draw_pairs(labels: Int[np.ndarray, " rows"], pairs_per_row: int, seed: int) -> list[list[int]]:
    """Return random pairs of rows: of each row, as many with its label as with others.

    There are at least two labels. A row whose label no other row has is in pairs with other labels
    alone.
    """
    random = np.random.default_rng([seed, len(labels)])
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)[labels[order]]  # of each row's label
    starts = np.searchsorted(labels[order], labels[order])
    places = np.arange(len(labels))
    pairs = []
    for _ in range(pairs_per_row):
        # Another row: at least one place further, around the rows of the label, or the others.
        further = random.integers(1, np.maximum(sizes, 2))
        equal = starts + (places - starts + further) % sizes
        other = (starts + sizes + random.integers(0, len(labels) - sizes)) % len(labels)
        pairs += [np.stack([places, equal], 1)[sizes > 1], np.stack([places, other], 1)]
    result: list[list[int]] = order[np.concatenate(pairs)].tolist()
    return result
