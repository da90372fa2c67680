"""From the tokens' vectors to one vector a sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..packed import Packed, Sequences

Pooling = Literal["mean", "cls", "max", "mean-sqrt", "weighted-mean", "sep", "pooler", "mean+max"]
"""How a sequence's vector is made of its tokens', special tokens included.

- `mean`: their mean;
- `cls`: the first token's, `[CLS]`'s;
- `max`: of each feature its largest value;
- `mean-sqrt`: their sum over the square root of the length;
- `weighted-mean`: their mean, the first token counted once, the second twice, and so on: for causal
  models, whose later tokens know more. Source: Muennighoff (2022), "SGPT", §4.1.1;
- `sep`: the last token's, in BERT `[SEP]`'s;
- `pooler`: what the pooler makes of the first token's. Source: the paper's code, §3.2 "C";
- `mean+max`: both, side by side.
"""


def _weighted_mean(own: Tensor) -> Tensor:
    length = own.shape[1]
    weights = torch.arange(1, length + 1, device=own.device, dtype=own.dtype)
    return torch.einsum("slh,l->sh", own, weights / weights.sum())


# Of `[sequences, length, hidden_size]`, sequences of one length.
_OF_GROUPS: Mapping[Pooling, Callable[[Tensor], Tensor]] = {
    "mean": lambda own: own.mean(1),
    "max": lambda own: own.amax(1),
    "mean-sqrt": lambda own: own.sum(1) / own.shape[1] ** 0.5,
    "weighted-mean": _weighted_mean,
    "mean+max": lambda own: torch.cat([own.mean(1), own.amax(1)], -1),
}


def pool(
    hidden: Float[Tensor, "tokens hidden_size"], packed: Packed, pooling: Pooling
) -> Float[Tensor, "sequences width"]:
    """One vector of each sequence, in the order of the pack.

    Args:
        hidden: the tokens' vectors.
        packed: where the sequences lie.
        pooling: any but "pooler", which is the encoder's (`Encoder.pooled`).
    """
    if pooling == "cls":
        return hidden[packed.first_tokens]
    if pooling == "sep":
        return hidden[packed.last_tokens]
    reduced = _OF_GROUPS[pooling]
    return torch.cat(
        [
            reduced(hidden[start : start + count * length].view(count, length, -1))
            for start, count, length in packed.groups
        ]
    )


def token_mean(
    hidden: Float[Tensor, "tokens hidden_size"], packed: Sequences
) -> Float[Tensor, "sequences hidden_size"]:
    """The mean of each sequence's tokens, also of a padded batch's."""
    if isinstance(packed, Packed):
        return pool(hidden, packed, "mean")
    is_token = packed.mask.unsqueeze(-1).to(hidden.dtype)
    rows = hidden.view(*packed.mask.shape, -1)
    return (rows * is_token).sum(1) / is_token.sum(1)


def width_factor(pooling: Pooling) -> int:
    """How many times as wide as a token's a sequence's vector is."""
    return 2 if pooling == "mean+max" else 1
