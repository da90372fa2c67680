"""The network of retrieval: one encoder for all texts, whose vectors have length 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...model.encoder import Encoder
from ...model.pooling import pool
from ...packed import Batch, Packed
from ..parts import in_parts
from ..task import Network
from .losses import cosine_loss_sum, in_batch_loss_sum, triplet_loss_sum

if TYPE_CHECKING:
    from ...model.config import EncoderConfig
    from .settings import RetrievalSettings


class RetrievalNetwork(Network):
    """An encoder and a pooling.

    With `chunk_tokens` a batch is encoded part by part, and what the encoder computed on the way is
    forgotten and computed again, with the same dropout, when the part's gradients are wanted: the
    loss still sees all rows, while memory holds one part at a time and the vectors. Source: Gao et
    al. (2021), "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", §3.2.

    Args:
        config: the geometry.
        settings: pooling, loss, chunks.
    """

    def __init__(self, config: EncoderConfig, settings: RetrievalSettings) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)
        self._settings = settings

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed losses of the rows: `retrieval`."""
        settings, targets = self._settings, batch.targets
        outputs = self.predict(batch)
        queries, passages = outputs["queries"], outputs["passages"]
        if settings.loss == "cosine":
            loss = cosine_loss_sum(outputs["values"], targets["labels"])
        elif settings.loss == "triplet":
            own, negatives = passages.tensor_split([len(queries)])
            loss = triplet_loss_sum(
                queries, own, negatives, targets["negative_row"], margin=settings.margin
            )
        else:
            loss = in_batch_loss_sum(
                queries,
                passages,
                targets["excluded"],
                scale=settings.scale,
                symmetric=settings.symmetric,
            )
        return {"retrieval": loss}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`queries` `[rows, hidden_size]`; `passages`, the rows' own and then all negatives; and
        `values` `[rows]`, the cosine of each row's query and passage."""
        vectors = self._vectors(batch.packed)
        queries, passages = vectors[batch.targets["query"]], vectors[batch.targets["passage"]]
        values = (queries * passages[: len(queries)]).sum(-1)
        return {"queries": queries, "passages": passages, "values": values}

    def _vectors(self, packed: Packed) -> Float[Tensor, "sequences hidden_size"]:
        return in_parts(self._encode, packed, self._settings.chunk_tokens or packed.num_tokens)

    def _encode(self, packed: Packed) -> Float[Tensor, "sequences hidden_size"]:
        vectors = pool(self.encoder(packed), packed, self._settings.pooling)
        return F.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=-1)
