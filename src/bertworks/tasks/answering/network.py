"""The network of question answering: an encoder with the start and end vectors of answers."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...nn.config import EncoderConfig
from ...nn.encoder import Encoder
from ...nn.heads import TokenHead
from ...nn.layers import promote_to_float32
from ...packed import Batch, Padded, to_tensor
from ..network import Network, reshape_by_row
from .settings import Softmax, SpanLoss


class AnsweringNetwork(Network):
    """An encoder with the start and end vectors of answers.

    Args:
        dropout: before the output layer. The default is `config.answering_dropout`, which is no
            dropout in all families except DistilBERT, as in the original.
        span_loss: whether a window's loss is the mean or the sum of its start and end losses.
        softmax: over all tokens of a sequence, or only over `[CLS]` and the passage.
    """

    has_array_form = True

    def __init__(
        self,
        config: EncoderConfig,
        dropout: float | None = None,
        span_loss: SpanLoss = "mean",
        softmax: Softmax = "sequence",
    ) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)
        dropout = config.head_dropout("answering_dropout") if dropout is None else dropout
        self.span_head = TokenHead(config, 2, dropout)
        self._span_loss, self._softmax = span_loss, softmax

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `answering`: the sum of the windows' losses."""
        logits = self._logits(batch)
        return {"answering": answering_loss_sum(logits, batch, self._span_loss, self._softmax)}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `logits` `[tokens, 2]`: start and end logits of each token."""
        return {"logits": self._logits(batch)}

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """Return `start_logits` and `end_logits`, each `[rows, length]`."""
        start, end = reshape_by_row(self.span_head(self.encoder(padded)), padded).unbind(-1)
        return {"start_logits": start, "end_logits": end}

    def _logits(self, batch: Batch) -> Float[Tensor, "tokens 2"]:
        logits: Tensor = self.span_head(self.encoder(batch.packed))
        return logits


def answering_loss_sum(
    logits: Float[Tensor, "tokens 2"], batch: Batch, span_loss: SpanLoss, softmax: Softmax
) -> Float[Tensor, ""]:
    """The sum over windows of the mean or sum of the start and end cross-entropies."""
    logits, packed = promote_to_float32(logits), batch.packed
    numbers = np.repeat(np.arange(packed.num_sequences), packed.lengths)
    sequence = to_tensor(numbers, logits.device)
    padded = logits.new_full((packed.num_sequences, packed.max_seqlen, 2), -torch.inf).index_put(
        (sequence, packed.position_ids), logits
    )
    if softmax == "passage":
        is_excluded = padded.new_ones(padded.shape[:2], dtype=torch.bool).index_put(
            (sequence, packed.position_ids), ~batch.targets["may_answer"]
        )
        padded = padded.masked_fill(is_excluded[..., None], -torch.inf)
    targets = batch.targets["spans"]
    start = F.cross_entropy(padded[..., 0], targets[:, 0], reduction="sum")
    end = F.cross_entropy(padded[..., 1], targets[:, 1], reduction="sum")
    return (start + end) * (0.5 if span_loss == "mean" else 1.0)
