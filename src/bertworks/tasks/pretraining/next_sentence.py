"""Next-sentence prediction alone: checkpoints that have this head and none for masked words.

`transformers` saves them with `BertForNextSentencePrediction`. Source: paper §3.1, Task #2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor

from ...checkpoints.heads import MLM, NSP, PublishedCheckpoint
from ...nn.config import EncoderConfig
from ...nn.encoder import Encoder
from ...nn.heads import NSPHead
from ...nn.losses import cross_entropy_sum
from ...packed import Batch, Padded
from ..task import Network, Prediction
from .instances import InstanceSettings
from .task import PretrainingTask


class NextSentenceNetwork(Network):
    """An encoder with a pooler and a next-sentence head."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=True)
        self.nsp_head = NSPHead(config)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed loss `nsp` over sequences."""
        logits = self.predict(batch)["nsp_logits"]
        return {"nsp": cross_entropy_sum(logits, batch.targets["next_sentence_labels"])}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `nsp_logits` `[sequences, 2]`."""
        hidden = self.encoder(batch.packed)
        return {"nsp_logits": self.nsp_head(self.encoder.pool(hidden, batch.packed))}

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """Return `logits` `[rows, 2]`."""
        return {"logits": self.nsp_head(self.encoder.pool(self.encoder(padded), padded))}


class NextSentenceTask(PretrainingTask):
    """Next-sentence prediction: whether the second text of a pair follows the first."""

    name: ClassVar[str] = "next-sentence"
    has_masked_lm = False

    @property
    def model_class(self) -> str:
        return "next-sentence"

    @classmethod
    def from_published_checkpoint(cls, checkpoint: PublishedCheckpoint) -> Self | None:
        family, tensors = checkpoint.family, checkpoint.tensors
        has_head = family.has(f"{NSP.name}.weight", tensors)
        if not has_head or family.has(f"{MLM.name}.bias", tensors):
            return None
        instances = InstanceSettings(format="segment-pair")
        return cls(checkpoint.tokenizer, instances, max_length=checkpoint.config.max_seqlen)

    def network(self, config: EncoderConfig) -> NextSentenceNetwork:  # type: ignore[override]
        """A new network."""
        return NextSentenceNetwork(config)

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """For each pair the `next_sentence_probability`: whether B follows A."""
        packed = batch.packed
        probabilities = torch.softmax(outputs["nsp_logits"].float(), -1)[:, 0].tolist()
        is_pair = packed.on_host.token_type_ids[packed.on_host.last_tokens].tolist()
        return {
            row: {"next_sentence_probability": probability} if pair else {}
            for row, pair, probability in zip(
                packed.on_host.sequence_row.tolist(), is_pair, probabilities, strict=True
            )
        }
