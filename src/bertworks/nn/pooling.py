"""Pooling: one vector per sequence from the vectors of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from ..packed import Padded, Sequences
from ..settings.literals import Pooling, PoolingMode
from ..settings.pooling import modes_of


def _weighted_mean(hidden: Tensor, first: int) -> Tensor:
    last = first + hidden.shape[1]
    weights = torch.arange(first + 1, last + 1, device=hidden.device, dtype=hidden.dtype)
    # Not a matrix product, whose rounding depends on the number of sequences.
    return (hidden * (weights / weights.sum())[:, None]).sum(1)


# From `[sequences, length, hidden_size]`, the tokens of sequences of equal length from the given
# one on, to `[sequences, hidden_size]`.
_REDUCE: Mapping[PoolingMode, Callable[[Tensor, int], Tensor]] = {
    "mean": lambda hidden, _: hidden.mean(1),
    "max": lambda hidden, _: hidden.amax(1),
    "mean-sqrt": lambda hidden, _: hidden.sum(1) / hidden.shape[1] ** 0.5,
    "weighted-mean": _weighted_mean,
}


def _sum(rows: Tensor, mask: Tensor) -> Tensor:
    return (rows * mask.to(rows.dtype)).sum(1)


def _weighted_padded_mean(rows: Tensor, mask: Tensor) -> Tensor:
    weights = mask.to(rows.dtype).cumsum(1) * mask.to(rows.dtype)
    return (rows * weights).sum(1) / weights.sum(1)


# The same from padded `[rows, length, hidden_size]` and `[rows, length, 1]`: which tokens are real.
_REDUCE_PADDED: Mapping[PoolingMode, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda rows, mask: _sum(rows, mask) / mask.sum(1).to(rows.dtype),
    "max": lambda rows, mask: rows.masked_fill(~mask, -torch.inf).amax(1),
    "mean-sqrt": lambda rows, mask: _sum(rows, mask) / mask.sum(1).to(rows.dtype).sqrt(),
    "weighted-mean": _weighted_padded_mean,
}


def pool(
    hidden: Float[Tensor, "tokens hidden_size"],
    packed: Sequences,
    pooling: Pooling,
    *,
    first: int = 0,
) -> Float[Tensor, "sequences width"]:
    """Return one vector per sequence, in the order of the pack or of the padded batch.

    Args:
        pooling: any but "pooler", which `Encoder.pool` computes.
        first: the number of tokens at the start of each sequence, a prompt's, that are left out.
            The weights of "weighted-mean" count them. It is 0 for padded batches.
    """
    parts = [_pool(hidden, packed, mode, first) for mode in modes_of(pooling)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _pool(
    hidden: Float[Tensor, "tokens hidden_size"], packed: Sequences, mode: PoolingMode, first: int
) -> Float[Tensor, "sequences hidden_size"]:
    if mode == "cls":
        return hidden[packed.first_tokens + first]
    if mode == "sep":
        return hidden[packed.last_tokens]
    if isinstance(packed, Padded):
        rows = hidden.view(*packed.mask.shape, -1)
        return _REDUCE_PADDED[mode](rows, packed.mask.unsqueeze(-1))
    reduce = _REDUCE[mode]
    return torch.cat(
        [
            reduce(hidden[group.tokens].view(group.sequences, group.length, -1)[:, first:], first)
            for group in packed.groups
        ]
    )
