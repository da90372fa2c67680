"""The network of multiple choice."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..nn.config import EncoderConfig
from ..nn.encoder import Encoder
from ..nn.head_layouts import choice_kind
from ..nn.heads import ClassificationHead
from ..packed import Batch, Padded
from .network import ClassifierNetwork


class ChoiceNetwork(ClassifierNetwork):
    """An encoder with a head that computes one score per sequence.

    Args:
        dropout: dropout before the output layer; `config.classifier_dropout` if omitted.
    """

    has_array_form = True

    loss_name = "choice"

    def __init__(self, config: EncoderConfig, dropout: float | None = None) -> None:
        super().__init__()
        kind = choice_kind(config)
        with_pooler = kind == "pooler" and config.classifier_pooling == "cls"
        self.encoder = Encoder(config, pooler=with_pooler)
        self.choice_head = ClassificationHead(config, 1, dropout, kind=kind, bias=True)

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """Return `logits` `[rows, 1]`: the score of each prompt with one of its choices."""
        return {"logits": self.choice_head(self.encoder, self.encoder(padded), padded)}

    def logits(self, batch: Batch) -> Float[Tensor, "rows choices"]:
        """Return the scores of the choices; rows with fewer choices than `choices` are filled up
        with the lowest finite number."""
        packed = batch.packed
        hidden = self.encoder(packed)
        scores = self.choice_head(self.encoder, hidden, packed).squeeze(-1)
        rows = batch.targets["row"]
        shape = (len(batch.examples), batch.targets["max_choices"].shape[0])
        lowest = torch.finfo(scores.dtype).min
        logits: Tensor = scores.new_full(shape, lowest)
        return logits.index_put((rows, packed.sequence_number), scores)
