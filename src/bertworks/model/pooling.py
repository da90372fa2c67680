"""One vector a sequence, from the vectors of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from ..literals import Pooling
from ..packed import Packed, Sequences


def _weighted_mean(hidden: Tensor) -> Tensor:
    weights = torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)
    # No matrix product, whose sums would depend on the number of sequences.
    return (hidden * (weights / weights.sum())[:, None]).sum(1)


# From `[sequences, length, hidden_size]`, sequences of equal length, to `[sequences, width]`.
_REDUCE: Mapping[Pooling, Callable[[Tensor], Tensor]] = {
    "mean": lambda hidden: hidden.mean(1),
    "max": lambda hidden: hidden.amax(1),
    "mean-sqrt": lambda hidden: hidden.sum(1) / hidden.shape[1] ** 0.5,
    "weighted-mean": _weighted_mean,
    "mean+max": lambda hidden: torch.cat([hidden.mean(1), hidden.amax(1)], -1),
}


def pool(
    hidden: Float[Tensor, "tokens hidden_size"], packed: Packed, pooling: Pooling
) -> Float[Tensor, "sequences width"]:
    """One vector a sequence, in the order of the pack.

    Args:
        hidden: the tokens' vectors.
        packed: the sequences.
        pooling: any but "pooler", which `Encoder.pooled` computes.
    """
    if pooling == "cls":
        return hidden[packed.first_tokens]
    if pooling == "sep":
        return hidden[packed.last_tokens]
    reduce = _REDUCE[pooling]
    return torch.cat(
        [
            reduce(hidden[group.tokens].view(group.sequences, group.length, -1))
            for group in packed.groups
        ]
    )


def token_mean(
    hidden: Float[Tensor, "tokens hidden_size"], packed: Sequences
) -> Float[Tensor, "sequences hidden_size"]:
    """The mean of each sequence's tokens, of a pack or of a padded batch."""
    if isinstance(packed, Packed):
        return pool(hidden, packed, "mean")
    is_token = packed.mask.unsqueeze(-1).to(hidden.dtype)
    rows = hidden.view(*packed.mask.shape, -1)
    return (rows * is_token).sum(1) / is_token.sum(1)


def width_factor(pooling: Pooling) -> int:
    """The width of a sequence's vector, as a multiple of a token's."""
    return 2 if pooling == "mean+max" else 1
