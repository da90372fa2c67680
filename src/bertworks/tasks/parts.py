"""A long pack through a network part by part: memory that does not grow with the batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..packed import Packed


def in_parts(function: Callable[[Packed], Tensor], packed: Packed, tokens: int) -> Tensor:
    """What a function makes of a pack, `[sequences, …]`, of at most so many tokens at a time.

    Where gradients are taken, each part keeps nothing, and is computed again for them with the same
    dropout (Chen et al. 2016; of a contrastive loss, Gao et al. 2021).
    """
    if packed.num_tokens <= tokens:
        return function(packed)

    def of_part(_: Tensor, part: Packed) -> Tensor:
        return function(part)

    # `checkpoint` keeps the random state of the devices of the tensors among its arguments.
    made: list[Tensor] = [
        checkpoint(of_part, part.input_ids, part, use_reentrant=False)
        if torch.is_grad_enabled()
        else function(part)
        for part in packed.parts(tokens)
    ]
    return torch.cat(made)
