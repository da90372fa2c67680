"""The network of sparse retrieval: an encoder with a masked-language-model head.

    tokens ─ encoder ─► hidden states ─ head ─► logits ─ log(1 + max(0, logit)) ─► weights
                                                largest, or sum, over the tokens of a text

Source: Formal et al. (2021), "SPLADE: Sparse Lexical and Expansion Model", and "SPLADE v2".
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...errors import TrainingError
from ...nn.config import EncoderConfig
from ...nn.heads import MLMHead
from ...nn.layers import promote_to_float32
from ...packed import Batch, Packed
from .losses import flops, loss_sum
from .network import RetrievalNetwork
from .settings import RetrievalSettings


class SparseNetwork(RetrievalNetwork):
    """A `RetrievalNetwork` whose vectors are `[sequences, vocab_size]`, and not of length 1."""

    def __init__(self, config: EncoderConfig, settings: RetrievalSettings) -> None:
        super().__init__(config, settings)
        word_embeddings = self.encoder.embeddings.word_embeddings.weight
        assert isinstance(word_embeddings, nn.Parameter)
        self.mlm_head = MLMHead(config, word_embeddings)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `retrieval`: the sum of the losses, with the FLOPS of queries and passages.

        Raises:
            TrainingError: in training, all queries or all passages have empty vectors.
        """
        outputs = self.predict(batch)
        queries, passages = outputs["queries"], outputs["passages"]
        if self.training and not (queries.any() and passages.any()):
            # All scores are 0, and so are their gradients.
            raise TrainingError(
                "the sparse vectors of a batch are empty, so that nothing can be learned any more",
                fix="Lower learning_rate, or the regularization.",
            )
        settings = self.settings_of(batch)
        penalty = settings.query_regularization * flops(queries)
        penalty = penalty + settings.passage_regularization * flops(passages)
        weight = batch.counts["retrieval"] * regularization_share(settings, self.num_updates)
        return {
            "retrieval": loss_sum(settings, queries, passages, batch.targets) + weight * penalty
        }

    def _encode(self, packed: Packed) -> Float[Tensor, "sequences vocab_size"]:
        lengths = np.diff(packed.on_host.cu_seqlens).tolist()
        all_logits = promote_to_float32(self.mlm_head(self.encoder(packed)))
        logits = torch.split(all_logits, lengths)
        if not self._pooling.startswith("splade-sum"):
            # The weight of a piece rises with its logit, so the largest logit gives the largest.
            largest = torch.stack([part.amax(0) for part in logits])
            return splade_weights(largest, self._pooling)
        return torch.stack([splade_weights(part, self._pooling).sum(0) for part in logits])


def regularization_share(settings: RetrievalSettings, num_updates: int) -> float:
    """By what the weights of FLOPS are multiplied after a number of updates.

    It grows quadratically, so that ranking is learned before weights are removed. Source: Formal
    et al. (2021), "SPLADE", §4.
    """
    steps = settings.regularization_warmup
    return 1.0 if num_updates >= steps else (num_updates / steps) ** 2


def splade_weights(logits: Tensor, pooling: str) -> Tensor:
    """Return the weights of pieces by their logits."""
    weights = logits.relu()
    for _ in range(2 if pooling.endswith("-log") else 1):
        weights = weights.log1p()
    return weights
