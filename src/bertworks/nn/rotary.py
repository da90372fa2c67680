"""Rotary positions: queries and keys are rotated by an angle that grows with the position.

The product of a query and a key then depends on their distance, not on their positions. Source: Su
et al. (2021), "RoFormer", §3.2. In RoFormer's and NeoBERT's published weights neighbouring features
form the pairs, in all others the two halves of the features.

A rotary part of an encoder returns the rotations of tokens. Its tensors, if it has any, are
buffers: they are saved, but not trained.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .config import EncoderConfig
from .part_settings import RopeKind


class Rotation(NamedTuple):
    """The cosines and sines of each token's angles, `[rows, 1, head_size]`."""

    cosine: Tensor
    sine: Tensor
    has_neighbours: bool = False  # whether neighbouring features form the pairs

    @classmethod
    def from_frequencies(
        cls,
        position_ids: Int[Tensor, " tokens"],
        frequencies: Float[Tensor, " pairs"],
        *,
        rows: int,
        dtype: torch.dtype,
    ) -> Rotation:
        """Return the rotation of each token, from the angle of each pair at position 1.

        Rows after the last token are not rotated. The angles are computed in float32, as in the
        training of the published weights.
        """
        places = F.pad(position_ids.float(), (0, rows - len(position_ids)))
        angles = torch.outer(places, frequencies.float())
        both = torch.cat((angles, angles), -1).unsqueeze(1)
        return cls(both.cos().to(dtype), both.sin().to(dtype))

    def rotate(
        self, x: Float[Tensor, "rows heads head_size"]
    ) -> Float[Tensor, "rows heads head_size"]:
        """Return `x` rotated, computed in float32 or wider."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.has_neighbours:
            partners = torch.stack((-wide[..., 1::2], wide[..., ::2]), -1).flatten(-2)
        else:
            first, second = wide.chunk(2, -1)
            partners = torch.cat((-second, first), -1)
        return (wide * self.cosine + partners * self.sine).to(x.dtype)


def make_frequencies(
    config: EncoderConfig, *, is_local: bool = False, device: torch.device | None = None
) -> Float[Tensor, " pairs"]:
    """Return the angle of each pair of features at position 1.

    With `rotary.scaling=ntk` the base is multiplied by the factor `f`, and the angles are divided
    by `f^(2/d)`: the slowest is then divided by `f`. Source: Su, https://kexue.fm/archives/9706,
    equation 6, as in GTE's published code.
    """
    theta = config.rotary.local_theta if is_local else config.rotary.theta
    size, factor = config.head_size, config.rotary.factor
    if config.rotary.scaling == "ntk":
        theta, factor = theta * factor, factor ** (2 / size)
    pairs = torch.arange(0, size, 2, dtype=torch.float32, device=device)
    return 1.0 / theta ** (pairs / size) / factor


class Rotary(nn.Module):
    """Rotations computed from the configuration."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config

    def forward(
        self, position_ids: Int[Tensor, " tokens"], *, rows: int, dtype: torch.dtype, is_local: bool
    ) -> Rotation:
        """Return the rotation of each token; rows after the last token are not rotated.

        Args:
            rows: the number of rows, at least one for each token.
            dtype: the dtype of sines and cosines.
            is_local: whether the layer's attention is limited to a window.
        """
        frequencies = make_frequencies(self.config, is_local=is_local, device=position_ids.device)
        return Rotation.from_frequencies(position_ids, frequencies, rows=rows, dtype=dtype)


class RotaryNeighbours(Rotary):
    """Rotations of neighbouring features."""

    def forward(
        self, position_ids: Int[Tensor, " tokens"], *, rows: int, dtype: torch.dtype, is_local: bool
    ) -> Rotation:
        of_halves = super().forward(position_ids, rows=rows, dtype=dtype, is_local=is_local)
        cosine, sine = (
            part.chunk(2, -1)[0].repeat_interleave(2, -1)
            for part in (of_halves.cosine, of_halves.sine)
        )
        return Rotation(cosine, sine, has_neighbours=True)


class RotaryFrequencies(Rotary):
    """Rotations from the frequencies in the checkpoint, which may be rounded (ESM's are)."""

    frequencies: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.register_buffer("frequencies", make_frequencies(config))

    def forward(
        self, position_ids: Int[Tensor, " tokens"], *, rows: int, dtype: torch.dtype, is_local: bool
    ) -> Rotation:
        del is_local  # one kind of layers
        return Rotation.from_frequencies(position_ids, self.frequencies, rows=rows, dtype=dtype)


class RotaryTable(Rotary):
    """Rotations of neighbouring features, from a table in the checkpoint.

    Each row is a position's sines, then its cosines.
    """

    weight: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        pairs = torch.arange(0, config.head_size, 2, dtype=torch.float64)
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float64)
        angles = torch.outer(positions, config.rotary.theta ** (-pairs / config.head_size))
        self.register_buffer("weight", torch.cat((angles.sin(), angles.cos()), -1).float())

    def forward(
        self, position_ids: Int[Tensor, " tokens"], *, rows: int, dtype: torch.dtype, is_local: bool
    ) -> Rotation:
        del is_local  # one kind of layers
        table = self.weight[F.pad(position_ids, (0, rows - len(position_ids)))].to(dtype)
        sine, cosine = table.repeat_interleave(2, -1).unsqueeze(1).chunk(2, -1)
        return Rotation(cosine, sine, has_neighbours=True)


_CLASSES: dict[RopeKind, type[Rotary]] = {
    "halves": Rotary,
    "neighbours": RotaryNeighbours,
    "frequencies": RotaryFrequencies,
    "table": RotaryTable,
}


def make_rotary(config: EncoderConfig) -> Rotary | None:
    """Return the rotary part of an encoder; None if its positions are not rotary."""
    return _CLASSES[config.rotary.kind](config) if config.positions == "rotary" else None
