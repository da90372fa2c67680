"""The networks of tasks on whole texts: the logits of a row's sequences are pooled.

    windows of a row ─► encoder ─► head ─► logits of each ─► their mean or maximum: the row's logits

A row's sequences are adjacent in the pack, in order of their numbers. Logits are pooled, not
probabilities: the loss is computed from the pooled logits, and outputs without a softmax are pooled
in the same way. The mean weights all windows equally; with the maximum, one passage can decide.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..nn.config import EncoderConfig
from ..nn.encoder import Encoder
from ..nn.heads import ClassificationHead
from ..nn.layers import promote_to_float32
from ..nn.losses import cross_entropy_sum, next_token_loss_sum
from ..packed import Batch, Packed, Padded, Sequences, to_tensor
from .array_network import CHUNK_TOKENS, SequencePooling
from .classification import ClassificationSettings, TextClassifierSettings
from .network import ClassifierNetwork, Network


class TextNetwork(Network):
    """An encoder with a classification head, whose outputs are pooled for each row.

    Args:
        outputs: the number of outputs of the head.
        dropout: dropout before the output layer; `config.classifier_dropout` if omitted.
        pooling: how the outputs are pooled if a row has several sequences.
    """

    def __init__(
        self,
        config: EncoderConfig,
        outputs: int,
        dropout: float | None = None,
        pooling: SequencePooling = "mean",
    ) -> None:
        super().__init__()
        self.pooling = pooling
        config = config.with_global_tokens("first")
        self.encoder = Encoder(config, pooler=config.has_pooler)
        self.head = ClassificationHead(config, outputs, dropout)

    def logits(self, batch: Batch) -> Float[Tensor, "rows outputs"]:
        """Return the pooled logits of each row.

        Memory does not grow with the number of windows, except for their logits; in training, the
        backward pass computes each part a second time.
        """
        packed = batch.packed
        has_windows = packed.on_host.sequence_number.any()
        tokens = CHUNK_TOKENS if has_windows else packed.num_tokens
        return pool_sequences(
            apply_in_chunks(self._sequence_logits, packed, tokens), packed, self.pooling
        )

    def _sequence_logits(self, packed: Sequences) -> Float[Tensor, "sequences outputs"]:
        logits: Tensor = self.head(self.encoder, self.encoder(packed), packed)
        return logits

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """Return `logits` `[rows, outputs]`."""
        return {"logits": self._sequence_logits(padded)}


class TextClassifierNetwork(TextNetwork, ClassifierNetwork):
    """An encoder with a classification head."""

    def __init__(self, config: EncoderConfig, settings: TextClassifierSettings) -> None:
        super().__init__(config, len(settings.labels), settings.dropout, settings.pooling)
        self._settings = settings

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed losses of the rows, `classification`; with `lm_weight` also
        `weighted_lm`, the weighted next-piece loss (Radford et al. 2018, §3.2)."""
        packed, labels = batch.packed, batch.targets["labels"]
        if not self._settings.lm_weight:
            return {"classification": self.loss_sum(self.logits(batch), labels)}
        hidden = self.encoder(packed)
        lm = next_token_loss_sum(self.encoder, hidden, packed)
        logits = pool_sequences(self.head(self.encoder, hidden, packed), packed, self.pooling)
        loss = self.loss_sum(logits, labels)
        return {"classification": loss, "weighted_lm": self._settings.lm_weight * lm}

    @abstractmethod
    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over rows of the loss of `logits` `[rows, classes]`."""

    def class_weights(self, logits: Tensor) -> Tensor | None:
        """Return the weights of the classes, `[classes]`, on the logits' device; None if all 1."""
        if self._settings.class_weights is None:
            return None
        values = np.asarray(self._settings.class_weights, np.float32)
        weights: Tensor = to_tensor(values, logits.device)
        return weights


class ClassificationNetwork(TextClassifierNetwork):
    """An encoder with a classification head, and a softmax over the classes."""

    has_array_form = True

    _settings: ClassificationSettings

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        weights, smoothing = self.class_weights(logits), self._settings.label_smoothing
        if weights is None and not smoothing:
            return cross_entropy_sum(logits, labels)
        # Weight each row by its gold class: with label smoothing, PyTorch's `weight` would weight
        # each class of the smoothed target instead of the row.
        rows = F.cross_entropy(
            promote_to_float32(logits), labels, reduction="none", label_smoothing=smoothing
        )
        return (rows if weights is None else rows * weights[labels]).sum()


class MultiLabelNetwork(TextClassifierNetwork):
    """An encoder with a classification head, and a sigmoid for each class."""

    has_array_form = True

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


class RegressionNetwork(TextNetwork):
    """An encoder with a head of one output."""

    has_array_form = True

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed squared errors of the rows: `regression`."""
        values = promote_to_float32(self.predict(batch)["values"])
        errors = values - batch.targets["labels"].to(values.dtype)
        return {"regression": errors.square().sum()}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `values` `[rows]`."""
        return {"values": self.logits(batch).squeeze(-1)}


def pool_sequences(logits: Tensor, packed: Packed, pooling: SequencePooling) -> Tensor:
    """Pool the logits of sequences to one vector per row.

    For a pair in both orders, the sum of the logits equals the output layer applied to the sum of
    the two vectors (Radford et al. 2018, §3.3), except that the bias counts twice.
    """
    firsts = np.flatnonzero(packed.on_host.sequence_number == 0)
    if len(firsts) == len(logits):
        return logits
    row_counts = np.diff(firsts, append=len(logits))
    values = promote_to_float32(logits)
    if pooling == "max":  # with ties, segment_reduce repeats a negative gradient for each maximum
        rows = to_tensor(np.repeat(np.arange(len(firsts)), row_counts), values.device)
        result = values.new_zeros(len(firsts), values.shape[1])
        where = rows[:, None].expand_as(values)
        return result.scatter_reduce(0, where, values, "amax", include_self=False)
    counts = to_tensor(row_counts, values.device)
    return torch.segment_reduce(values, pooling, lengths=counts, axis=0, unsafe=True)


def apply_in_chunks(function: Callable[[Packed], Tensor], packed: Packed, tokens: int) -> Tensor:
    """Apply a function to a pack in parts of at most `tokens` tokens, or of one sequence.

    In training, no activations are kept; the backward pass computes each part again, with the same
    dropout (Chen et al. 2016; for a contrastive loss, Gao et al. 2021).

    Returns:
        The function's results `[sequences, …]` for all sequences of the pack.
    """
    if packed.num_tokens <= tokens:
        return function(packed)

    def apply_to_chunk(_: Tensor, part: Packed) -> Tensor:
        return function(part)

    # `input_ids` is an argument because `checkpoint` saves the random state only of the devices of
    # its tensor arguments.
    results: list[Tensor] = [
        checkpoint(apply_to_chunk, part.input_ids, part, use_reentrant=False)
        if torch.is_grad_enabled()
        else function(part)
        for part in packed.split(tokens)
    ]
    return torch.cat(results)
