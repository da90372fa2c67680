"""The network of tagging: an encoder with a layer that tells the tags of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from ...model.encoder import Encoder
from ...model.heads import TokenHead, cross_entropy_sum
from ...packed import Batch, Padded
from ..task import Network, by_row

if TYPE_CHECKING:
    from ...model.config import EncoderConfig


class TaggingNetwork(Network):
    """An encoder with a layer that tells the tags of tokens.

    Args:
        config: the geometry.
        num_labels: how many tags there are.
        dropout: before the output layer; `config.tagging_dropout`, if left out.
    """

    def __init__(
        self, config: EncoderConfig, num_labels: int, dropout: float | None = None
    ) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)
        dropout = config.head_dropout("tagging_dropout") if dropout is None else dropout
        self.tag_head = TokenHead(config, num_labels, dropout)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed cross-entropies of the pieces that tell a tag: `tagging`."""
        return {"tagging": cross_entropy_sum(self._logits(batch), batch.targets["labels"])}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`logits` `[pieces, num_labels]`, of the pieces that tell a tag."""
        return {"logits": self._logits(batch)}

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """`logits` `[rows, length, num_labels]`."""
        return {"logits": by_row(self.tag_head(self.encoder(padded)), padded)}

    def _logits(self, batch: Batch) -> Float[Tensor, "pieces num_labels"]:
        hidden = self.encoder(batch.packed)
        logits: Tensor = self.tag_head(hidden[batch.targets["positions"]])
        return logits
