"""What vectors of texts are trained by. All vectors have length 1, so that products are cosines."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...model.heads import cross_entropy_sum


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
        queries: one of each row.
        passages: those of the rows, in their order, and any number of other negatives.
        excluded: passages that are no negatives of a query, since they belong to it too.
        scale: what cosines are multiplied with; one over the temperature.
        symmetric: the mean of this loss and of that of each passage finding its query.
    """
    own = torch.arange(len(queries), device=queries.device)
    scores = (scale * queries @ passages.T).masked_fill(excluded, -torch.inf)
    loss = cross_entropy_sum(scores, own)
    if symmetric:
        loss = (loss + cross_entropy_sum(scores[:, : len(queries)].T, own)) / 2
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
        queries: one of each row.
        passages: the rows' own.
        negatives: of all rows together.
        negative_row: whose each of them is.
        margin: by how much the cosine of a row's own passage is to be larger.
    """
    near = (queries * passages).sum(-1)[negative_row]
    far = (queries[negative_row] * negatives).sum(-1)
    return (far - near + margin).clamp(min=0).sum()


def cosine_loss_sum(
    cosines: Float[Tensor, " rows"], wanted: Float[Tensor, " rows"]
) -> Float[Tensor, ""]:
    """The sum of the squared errors of cosines.

    Source: Reimers and Gurevych (2019), "Sentence-BERT", §3, the regression objective.
    """
    return (cosines - wanted.to(cosines.dtype)).square().sum()
