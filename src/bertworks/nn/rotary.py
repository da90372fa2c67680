"""Rotary positions: queries and keys are rotated by an angle that grows with the position.

The product of a query and a key then depends on their distance, not on their positions. Source: Su
et al. (2021), "RoFormer", §3.2. The two halves of the features form the pairs, rather than
neighbouring features, as in ModernBERT's published weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


class Rotation(NamedTuple):
    """The cosines and sines of each token's angles, `[rows, 1, head_size]`."""

    cosine: Tensor
    sine: Tensor

    @classmethod
    def from_positions(
        cls,
        position_ids: Int[Tensor, " tokens"],
        *,
        rows: int,
        head_size: int,
        theta: float,
        dtype: torch.dtype,
    ) -> Rotation:
        """Return the rotation of each token; rows after the last token are not rotated.

        The angles are computed in float32, as in the training of the published weights.
        """
        device = position_ids.device
        places = F.pad(position_ids.float(), (0, rows - len(position_ids)))
        pairs = torch.arange(0, head_size, 2, dtype=torch.float32, device=device)
        angles = torch.outer(places, 1.0 / theta ** (pairs / head_size))
        both = torch.cat((angles, angles), -1).unsqueeze(1)
        return cls(both.cos().to(dtype), both.sin().to(dtype))

    def rotate(
        self, x: Float[Tensor, "rows heads head_size"]
    ) -> Float[Tensor, "rows heads head_size"]:
        """Return `x` rotated, computed in float32 or wider."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        first, second = wide.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
        return (wide * self.cosine + turned * self.sine).to(x.dtype)
