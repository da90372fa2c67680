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
from .settings import AnsweringSettings


class AnsweringNetwork(Network):
    """An encoder with the start and end vectors of answers.

    Args:
        settings: the default of `dropout` is `config.answering_dropout`, which is no dropout in all
            families except DistilBERT, as in the original.
    """

    has_array_form = True

    def __init__(self, config: EncoderConfig, settings: AnsweringSettings) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)
        dropout = settings.dropout
        dropout = config.head_dropout("answering_dropout") if dropout is None else dropout
        self.span_head = TokenHead(config, 2, dropout)
        self._settings = settings

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `answering`: the sum of the windows' losses."""
        return {"answering": answering_loss_sum(self._logits(batch), batch, self._settings)}

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
    logits: Float[Tensor, "tokens 2"], batch: Batch, settings: AnsweringSettings
) -> Float[Tensor, ""]:
    """The sum over windows of the mean or sum of the start and end cross-entropies."""
    logits, packed = promote_to_float32(logits), batch.packed
    if settings.softmax == "passage":
        logits = logits.masked_fill(~batch.targets["may_answer"][:, None], -torch.inf)
    numbers = np.repeat(np.arange(packed.num_sequences), packed.lengths)
    sequence = to_tensor(numbers, logits.device)
    padded = logits.new_full((packed.num_sequences, packed.max_seqlen, 2), -torch.inf).index_put(
        (sequence, packed.position_ids), logits
    )
    targets = batch.targets["spans"]
    start = F.cross_entropy(padded[..., 0], targets[:, 0], reduction="sum")
    end = F.cross_entropy(padded[..., 1], targets[:, 1], reduction="sum")
    return (start + end) * (0.5 if settings.span_loss == "mean" else 1.0)
