"""The network of multiple choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ...model.encoder import Encoder
from ...model.heads import ClassificationHead, cross_entropy_sum
from ...packed import Batch, Padded
from ..task import Network

if TYPE_CHECKING:
    from ...model.config import EncoderConfig


class ChoiceNetwork(Network):
    """An encoder with a head that gives a sequence one score.

    Args:
        config: the geometry.
        dropout: before the output layer; `config.classifier_dropout`, if left out.
    """

    def __init__(self, config: EncoderConfig, dropout: float | None = None) -> None:
        super().__init__()
        # RoBERTa's published head stands on a pooler here, unlike its classifier's.
        kind = "pooler" if config.classifier == "tanh" else config.classifier
        with_pooler = kind == "pooler" and config.classifier_pooling == "cls"
        self.encoder = Encoder(config, pooler=with_pooler)
        self.choice_head = ClassificationHead(config, 1, dropout, kind=kind, bias=True)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed cross-entropies of the rows: `choice`."""
        return {"choice": cross_entropy_sum(self._logits(batch), batch.targets["labels"])}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`logits` `[rows, most choices of a row]`, in the order of the batch's examples; the
        lowest finite number where a row has fewer choices."""
        return {"logits": self._logits(batch)}

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """`logits` `[rows, 1]`: the score of each prompt with one of its choices."""
        return {"logits": self.choice_head(self.encoder, self.encoder(padded), padded)}

    def _logits(self, batch: Batch) -> Float[Tensor, "rows choices"]:
        packed = batch.packed
        hidden = self.encoder(packed)
        scores = self.choice_head(self.encoder, hidden, packed).squeeze(-1)
        rows = batch.targets["row"]
        shape = (len(batch.examples), batch.targets["most"].shape[0])
        lowest = torch.finfo(scores.dtype).min
        logits: Tensor = scores.new_full(shape, lowest)
        return logits.index_put((rows, packed.sequence_number), scores)
