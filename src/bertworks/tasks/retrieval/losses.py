"""The losses of retrieval: functions of scores, or of the vectors of queries and passages.

Dense vectors have length 1, so that inner products are cosines. Each loss is a sum over rows or
over negatives, which the training loop divides by their number.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...nn.losses import cross_entropy_sum
from .settings import PAIR_LOSSES, RetrievalSettings


def loss_sum(
    settings: RetrievalSettings,
    queries: Float[Tensor, "rows width"],
    passages: Float[Tensor, "passages width"],
    targets: Mapping[str, Tensor],
) -> Float[Tensor, ""]:
    """The loss that the settings name.

    Args:
        settings: with one loss; see `RetrievalSettings.of_table`.
        passages: the passages of the rows, in their order, then all negatives.
        targets: those of `RetrievalTask.collate`.
    """
    loss = settings.loss
    if loss not in PAIR_LOSSES:
        return score_loss_sum(settings, queries @ passages.T, targets)
    positives = passages[: len(queries)]
    cosines = (queries * positives).sum(-1)
    labels = targets["labels"].to(cosines.dtype)
    if loss == "cosine":
        # Regression objective of Reimers and Gurevych (2019), "Sentence-BERT", §3.
        return (cosines - labels).square().sum()
    similarities = angle_similarities(queries, positives) if loss == "angle" else cosines
    return cosent_loss_sum(similarities, labels, scale=settings.score_scale)


def score_loss_sum(
    settings: RetrievalSettings,
    scores: Float[Tensor, "rows passages"],
    targets: Mapping[str, Tensor],
) -> Float[Tensor, ""]:
    """The loss that the settings name, of the scores of each query with all passages.

    Args:
        scores: cosines, inner products, or those of `max_similarities`.
        settings, targets: as in `loss_sum`.
    """
    loss, scaled_scores = settings.loss, settings.score_scale * scores
    if loss == "in-batch":
        return in_batch_loss_sum(
            scaled_scores, targets["is_excluded"], symmetric=settings.symmetric
        )
    negative_row = targets["negative_row"]
    if loss == "triplet":
        return triplet_loss_sum(scores, negative_row, margin=settings.margin)
    teacher_scores = targets["labels"].to(scores.dtype)
    function = kl_loss_sum if loss == "kl" else margin_mse_loss_sum
    return function(scaled_scores, negative_row, teacher_scores)


def max_similarities(
    queries: Float[Tensor, "rows query_tokens width"],
    passages: Float[Tensor, "passages tokens width"],
) -> Float[Tensor, "rows passages"]:
    """MaxSim: the sum, over a query's tokens, of the largest inner product with a passage's token.

    Source: Khattab and Zaharia (2020), "ColBERT", equation 3. The products of one query at a time
    are in memory, and the backward pass keeps only which tokens were the largest.

    Args:
        passages: shorter ones are filled with copies of one of their tokens, which change nothing.
    """
    tokens = passages.flatten(0, 1).T
    largest = [(query @ tokens).unflatten(1, passages.shape[:2]).max(-1)[0] for query in queries]
    return torch.stack(largest).sum(1)


def in_batch_loss_sum(
    scores: Float[Tensor, "rows passages"],
    is_excluded: Bool[Tensor, "rows passages"],
    *,
    symmetric: bool = False,
) -> Float[Tensor, ""]:
    """The sum over queries of the cross-entropy of selecting their passage among all passages.

    Source: van den Oord et al. (2018), "CPC", equation 4 (InfoNCE); Henderson et al. (2017),
    §4.4, for using other rows' passages as negatives.

    Args:
        scores: of each query with the passages of the rows, in their order, then with any number
            of negatives.
        is_excluded: passages that are not negatives of a query: they also belong to it, or
            equal it.
        symmetric: return the mean of this loss and the loss of selecting each passage's query.
    """
    positives = torch.arange(len(scores), device=scores.device)
    scores = scores.masked_fill(is_excluded, -torch.inf)
    loss = cross_entropy_sum(scores, positives)
    if symmetric:
        loss = (loss + cross_entropy_sum(scores[:, : len(scores)].T, positives)) / 2
    return loss


def triplet_loss_sum(
    cosines: Float[Tensor, "rows passages"],
    negative_row: Int[Tensor, " negatives"],
    *,
    margin: float,
) -> Float[Tensor, ""]:
    """The sum of the triplet losses of the negatives: `max(0, cos⁻ - cos⁺ + margin)`.

    Source: Schroff et al. (2015), "FaceNet", §3.1; the squared distance of two vectors of
    length 1 is 2 - 2 cos, so that the margin in cosines is half of that in distances.

    Args:
        cosines: of each query with the passages of the rows, in their order, then with all
            negatives.
        negative_row: index of the row that each negative belongs to.
        margin: minimum difference between the cosines of a row's passage and of its negatives.
    """
    return (margin - _margins(cosines, negative_row)).clamp(min=0).sum()


def _margins(
    scores: Float[Tensor, "rows passages"], negative_row: Int[Tensor, " negatives"]
) -> Float[Tensor, " negatives"]:
    """How much higher each negative's query scores its passage than the negative."""
    negatives = torch.arange(len(negative_row), device=scores.device) + len(scores)
    return scores.diagonal()[negative_row] - scores[negative_row, negatives]


def margin_mse_loss_sum(
    scores: Float[Tensor, "rows passages"],
    negative_row: Int[Tensor, " negatives"],
    teacher_scores: Float[Tensor, " passages"],
) -> Float[Tensor, ""]:
    """The sum over negatives of the squared difference between the margins of student and teacher.

    A margin is the score of a row's passage less that of its negative. Source: Hofstätter et al.
    (2020), "Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge
    Distillation", equation 3.

    Args:
        scores: of each query with the passages of the rows, in their order, then with all
            negatives.
        negative_row: index of the row that each negative belongs to.
        teacher_scores: of each passage with its row's query.
    """
    positive_scores, negative_scores = teacher_scores.tensor_split([len(scores)])
    margins = positive_scores[negative_row] - negative_scores
    return (_margins(scores, negative_row) - margins).square().sum()


def kl_loss_sum(
    scores: Float[Tensor, "rows passages"],
    negative_row: Int[Tensor, " negatives"],
    teacher_scores: Float[Tensor, " passages"],
) -> Float[Tensor, ""]:
    """The sum over rows of the divergence of the student's distribution from the teacher's.

    Both are softmaxes over the row's passage and its negatives. Source: Ren et al. (2021),
    "RocketQAv2", equation 4. For the arguments see `margin_mse_loss_sum`.
    """
    rows = torch.arange(len(scores), device=scores.device)
    is_other = torch.cat([rows, negative_row])[None] != rows[:, None]
    own = scores.masked_fill(is_other, -torch.inf).log_softmax(-1)
    teacher = teacher_scores[None].expand_as(own).masked_fill(is_other, -torch.inf).log_softmax(-1)
    divergences = teacher.exp() * (teacher - own).masked_fill(is_other, 0)
    return divergences.sum()


def cosent_loss_sum(
    cosines: Float[Tensor, " rows"], labels: Float[Tensor, " rows"], *, scale: float
) -> Float[Tensor, ""]:
    """The loss of the order of the pairs' cosines (or others), times the number of rows.

    log(1 + Σ exp(scale · (cosⱼ - cosᵢ))) over all pairs i, j of rows of which i has the higher
    score. Source: Su (2022), "CoSENT".
    """
    differences = scale * (cosines[None] - cosines[:, None])
    is_higher = labels[:, None] > labels[None]
    terms = differences.masked_fill(~is_higher, -torch.inf).flatten()
    loss = torch.cat([terms.new_zeros(1), terms]).logsumexp(0)
    return loss * len(cosines)


def flops(vectors: Float[Tensor, "texts vocab_size"]) -> Float[Tensor, ""]:
    """The sum over pieces of the squared mean of their weights, which is less if few are used.

    Source: Paria et al. (2020), "Minimizing FLOPs to Learn Efficient Sparse Representations",
    equation 4; Formal et al. (2021), "SPLADE", equation 4.
    """
    return vectors.mean(0).square().sum()


def angle_similarities(
    queries: Float[Tensor, "rows width"], passages: Float[Tensor, "rows width"]
) -> Float[Tensor, " rows"]:
    """How near the angles of the pairs are, which, unlike cosines, have no flat ends.

    The halves of a vector are the real and imaginary parts of complex numbers. The similarity is
    the absolute sum of the parts of the inner product of these.
    Source: Li and Li (2024), "AoE: Angle-optimized Embeddings", equations 6 to 8.
    """
    odd = queries.shape[-1] % 2
    first, second = (
        torch.complex(*F.pad(vectors, (0, odd)).chunk(2, -1)) for vectors in (queries, passages)
    )
    products = first * second.conj()
    return (products.real + products.imag).sum(-1).abs()
