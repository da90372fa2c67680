"""Pooling: one vector per sequence from the vectors of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from ..packed import Padded, Sequences
from ..settings.literals import Pooling


def _weighted_mean(hidden: Tensor) -> Tensor:
    weights = torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)
    # Not a matrix product, whose rounding depends on the number of sequences.
    return (hidden * (weights / weights.sum())[:, None]).sum(1)


# From `[sequences, length, hidden_size]`, sequences of equal length, to `[sequences, width]`.
_REDUCE: Mapping[Pooling, Callable[[Tensor], Tensor]] = {
    "mean": lambda hidden: hidden.mean(1),
    "max": lambda hidden: hidden.amax(1),
    "mean-sqrt": lambda hidden: hidden.sum(1) / hidden.shape[1] ** 0.5,
    "weighted-mean": _weighted_mean,
    "mean+max": lambda hidden: torch.cat([hidden.mean(1), hidden.amax(1)], -1),
}


def _sum(rows: Tensor, mask: Tensor) -> Tensor:
    return (rows * mask.to(rows.dtype)).sum(1)


def _mean(rows: Tensor, mask: Tensor) -> Tensor:
    return _sum(rows, mask) / mask.sum(1).to(rows.dtype)


def _max(rows: Tensor, mask: Tensor) -> Tensor:
    return rows.masked_fill(~mask, -torch.inf).amax(1)


def _weighted_padded_mean(rows: Tensor, mask: Tensor) -> Tensor:
    weights = mask.to(rows.dtype).cumsum(1) * mask.to(rows.dtype)
    return (rows * weights).sum(1) / weights.sum(1)


# The same from padded `[rows, length, hidden_size]` and `[rows, length, 1]`: which tokens are real.
_REDUCE_PADDED: Mapping[Pooling, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": _mean,
    "max": _max,
    "mean-sqrt": lambda rows, mask: _sum(rows, mask) / mask.sum(1).to(rows.dtype).sqrt(),
    "weighted-mean": _weighted_padded_mean,
    "mean+max": lambda rows, mask: torch.cat([_mean(rows, mask), _max(rows, mask)], -1),
}


def pool(
    hidden: Float[Tensor, "tokens hidden_size"], packed: Sequences, pooling: Pooling
) -> Float[Tensor, "sequences width"]:
    """Return one vector per sequence, in the order of the pack or of the padded batch.

    Args:
        pooling: any but "pooler", which `Encoder.pooled` computes.
    """
    if pooling == "cls":
        return hidden[packed.first_tokens]
    if pooling == "sep":
        return hidden[packed.last_tokens]
    if isinstance(packed, Padded):
        rows = hidden.view(*packed.mask.shape, -1)
        return _REDUCE_PADDED[pooling](rows, packed.mask.unsqueeze(-1))
    reduce = _REDUCE[pooling]
    return torch.cat(
        [
            reduce(hidden[group.tokens].view(group.sequences, group.length, -1))
            for group in packed.groups
        ]
    )


def width_factor(pooling: Pooling) -> int:
    """The width of a sequence's vector, as a multiple of a token's."""
    return 2 if pooling == "mean+max" else 1
