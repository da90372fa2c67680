"""The network of retrieval, with one encoder for all texts, and its losses.

All vectors have length 1, so that inner products are cosines.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...nn.config import EncoderConfig
from ...nn.encoder import Encoder
from ...nn.layers import promote_to_float32
from ...nn.losses import cross_entropy_sum
from ...nn.pooling import pool
from ...packed import Batch, Packed
from ..network import Network
from ..text_network import apply_in_chunks
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

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `retrieval`: the sum of the losses of rows; of negatives in the triplet loss."""
        settings, targets = self._settings, batch.targets
        outputs = self.predict(batch)
        queries, passages = outputs["queries"], outputs["passages"]
        if settings.loss == "cosine":
            # Regression objective of Reimers and Gurevych (2019), "Sentence-BERT", §3.
            cosines = outputs["values"]
            loss = (cosines - targets["labels"].to(cosines.dtype)).square().sum()
        elif settings.loss == "triplet":
            positives, negatives = passages.tensor_split([len(queries)])
            loss = triplet_loss_sum(
                queries, positives, negatives, targets["negative_row"], margin=settings.margin
            )
        else:
            loss = in_batch_loss_sum(
                queries,
                passages,
                targets["is_excluded"],
                scale=settings.scale,
                symmetric=settings.symmetric,
            )
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


def in_batch_loss_sum(
    queries: Float[Tensor, "rows width"],
    passages: Float[Tensor, "passages width"],
    is_excluded: Bool[Tensor, "rows passages"],
    *,
    scale: float,
    symmetric: bool = False,
) -> Float[Tensor, ""]:
    """The sum over queries of the cross-entropy of selecting their passage among all passages.

    Source: van den Oord et al. (2018), "CPC", equation 4 (InfoNCE); Henderson et al. (2017),
    §4.4, for using other rows' passages as negatives.

    Args:
        passages: the passages of the rows, in their order, then any number of negatives.
        is_excluded: passages that are not negatives of a query: they also belong to it, or
            equal it.
        scale: factor of the cosines; one over the temperature.
        symmetric: return the mean of this loss and the loss of selecting each passage's query.
    """
    positives = torch.arange(len(queries), device=queries.device)
    scores = (scale * queries @ passages.T).masked_fill(is_excluded, -torch.inf)
    loss = cross_entropy_sum(scores, positives)
    if symmetric:
        loss = (loss + cross_entropy_sum(scores[:, : len(queries)].T, positives)) / 2
    return loss


def triplet_loss_sum(
    queries: Float[Tensor, "rows width"],
    passages: Float[Tensor, "rows width"],
    negatives: Float[Tensor, "negatives width"],
    negative_row: Int[Tensor, " negatives"],
    *,
    margin: float,
) -> Float[Tensor, ""]:
    """The sum of the triplet losses of the negatives: `max(0, cos⁻ - cos⁺ + margin)`.

    Source: Schroff et al. (2015), "FaceNet", §3.1; the squared distance of two vectors of
    length 1 is 2 - 2 cos, so that the margin in cosines is half of that in distances.

    Args:
        passages: the passage of each row.
        negatives: the negatives of all rows.
        negative_row: index of the row that each negative belongs to.
        margin: minimum difference between the cosines of a row's passage and of its negatives.
    """
    near = (queries * passages).sum(-1)[negative_row]
    far = (queries[negative_row] * negatives).sum(-1)
    return (far - near + margin).clamp(min=0).sum()
