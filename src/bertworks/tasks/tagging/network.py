"""The network of tagging."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ...nn.config import EncoderConfig
from ...nn.encoder import Encoder
from ...nn.heads import TokenHead
from ...packed import Batch, Padded
from ..network import ClassifierNetwork, reshape_by_row


class TaggingNetwork(ClassifierNetwork):
    """An encoder with a layer that predicts the tags of tokens.

    Args:
        dropout: before the output layer; `config.tagging_dropout` if None.
    """

    has_array_form = True

    loss_name = "tagging"

    def __init__(
        self, config: EncoderConfig, num_labels: int, dropout: float | None = None
    ) -> None:
        super().__init__()
        self.encoder = Encoder(config.with_global_tokens("none"), pooler=False)
        dropout = config.head_dropout("tagging_dropout") if dropout is None else dropout
        self.tag_head = TokenHead(config, num_labels, dropout)

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """Return `logits` `[rows, length, num_labels]`."""
        return {"logits": reshape_by_row(self.tag_head(self.encoder(padded)), padded)}

    def logits(self, batch: Batch) -> Float[Tensor, "pieces num_labels"]:
        """The logits of the labelled pieces."""
        hidden = self.encoder(batch.packed)
        logits: Tensor = self.tag_head(hidden[batch.targets["positions"]])
        return logits
