"""The network of retrieval: one encoder for all texts, and the losses that it is trained by.

All vectors have length 1, so that products are cosines.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...model.config import EncoderConfig
from ...model.encoder import Encoder
from ...model.heads import cross_entropy_sum, pool, wide
from ...packed import Batch, Packed
from ..task import Network
from ..texts import in_parts
from .columns import RetrievalSettings


class RetrievalNetwork(Network):
    """An encoder and a pooling.

    With `chunk_tokens` a batch is encoded part by part, and what the encoder computed on the way is
    forgotten and computed again, with the same dropout, when the part's gradients are taken: the
    loss still sees all rows, while memory holds one part at a time and the vectors. Source: Gao et
    al. (2021), "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", §3.2.
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
            # Reimers and Gurevych (2019), "Sentence-BERT", §3, the regression objective.
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
        return F.normalize(wide(vectors), dim=-1)


def in_batch_loss_sum(
    queries: Float[Tensor, "rows width"],
    passages: Float[Tensor, "passages width"],
    excluded: Bool[Tensor, "rows passages"],
    *,
    scale: float,
    symmetric: bool = False,
) -> Float[Tensor, ""]:
    """The sum over queries of the cross-entropy of finding their own passage among all.

    Source: van den Oord et al. (2018), "CPC", equation 4 (InfoNCE); Henderson et al. (2017),
    §4.4, for the other rows' passages as negatives.

    Args:
        passages: those of the rows, in their order, and any number of other negatives.
        excluded: passages that are no negatives of a query, since they belong to it too.
        scale: what cosines are multiplied with; one over the temperature.
        symmetric: the mean of this loss and of that of each passage finding its query.
    """
    positives = torch.arange(len(queries), device=queries.device)
    scores = (scale * queries @ passages.T).masked_fill(excluded, -torch.inf)
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
    """The sum over negatives of how much they come too near: `max(0, cos⁻ - cos⁺ + margin)`.

    Source: Schroff et al. (2015), "FaceNet", §3.1; the squared distance of two vectors of
    length 1 is 2 - 2 cos, so that the margin in cosines is half of that in distances.

    Args:
        passages: the rows' own.
        negatives: of all rows together.
        negative_row: whose each of them is.
        margin: by how much the cosine of a row's own passage is to be larger.
    """
    near = (queries * passages).sum(-1)[negative_row]
    far = (queries[negative_row] * negatives).sum(-1)
    return (far - near + margin).clamp(min=0).sum()
