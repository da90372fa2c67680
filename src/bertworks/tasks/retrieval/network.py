"""The network of retrieval, with one encoder for all texts.

All vectors have length 1, so that inner products are cosines.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...nn.config import EncoderConfig
from ...nn.encoder import Encoder
from ...nn.layers import promote_to_float32
from ...nn.pooling import pool
from ...packed import Batch, Packed
from ..network import Network
from ..text_network import apply_in_chunks
from .losses import loss_sum
from .settings import RetrievalSettings


class RetrievalNetwork(Network):
    """An encoder and a pooling.

    With `chunk_tokens` a batch is encoded in parts. The activations of a part are not kept: they
    are computed again, with the same dropout, in the backward pass. So the loss sees all rows,
    while memory holds the activations of one part and all vectors. Source: Gao et al. (2021),
    "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", §3.2.
    """

    has_array_form = True

    def __init__(self, config: EncoderConfig, settings: RetrievalSettings) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)
        assert settings.pooling is not None, "the task has chosen one"
        self._settings, self._pooling = settings, settings.pooling

    def settings_of(self, batch: Batch) -> RetrievalSettings:
        """The settings of the training table that a batch is of."""
        return self._settings.of_table(batch.examples[0].table)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `retrieval`: the sum of the losses of rows, or of negatives; see `losses`.

        With `dimensions`, the sum of the losses of the first numbers of the vectors. Source:
        Kusupati et al. (2022), "Matryoshka Representation Learning", equation 1, with weights of 1.
        """
        outputs = self.predict(batch)
        queries, passages = outputs["queries"], outputs["passages"]
        settings, targets = self.settings_of(batch), batch.targets
        if settings.dimensions is None:
            return {"retrieval": loss_sum(settings, queries, passages, targets)}
        loss = queries.new_zeros(())
        for width in settings.dimensions:
            short_queries = F.normalize(queries[:, :width], dim=-1)
            short_passages = F.normalize(passages[:, :width], dim=-1)
            loss = loss + loss_sum(settings, short_queries, short_passages, targets)
        return {"retrieval": loss}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `queries` `[rows, hidden_size]`; `passages` `[rows + negatives, hidden_size]`, the
        rows' passages, then all negatives; and `values` `[rows]`, the cosine of each row's query
        and passage."""
        vectors = self._vectors(batch.packed)
        queries, passages = vectors[batch.targets["query"]], vectors[batch.targets["passage"]]
        values = (queries * passages[: len(queries)]).sum(-1)
        return {"queries": queries, "passages": passages, "values": values}

    def _vectors(self, packed: Packed) -> Float[Tensor, "sequences hidden_size"]:
        return apply_in_chunks(
            self._encode, packed, self._settings.chunk_tokens or packed.num_tokens
        )

    def _encode(self, packed: Packed) -> Float[Tensor, "sequences hidden_size"]:
        vectors = pool(promote_to_float32(self.encoder(packed)), packed, self._pooling)
        return F.normalize(vectors, dim=-1)
