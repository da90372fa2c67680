"""The modules of a sentence encoder after pooling: small maps from a text's vector to another.

They compute in float32, whatever the precision of the encoder: there is one vector a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .cpu import apply_in_whole_vectors
from .layers import LayerNorm, OutputLinear
from .vector_module_settings import (
    DenseSettings,
    DropoutSettings,
    LayerNormSettings,
    ModuleSettings,
    NormalizeSettings,
    output_width,
    path_of_activation,
    widths,
)


class Dense(nn.Module):
    """`activation(x Wᵀ + b)`, plus `x`, or a linear map of it, with `use_residual`."""

    def __init__(self, settings: DenseSettings) -> None:
        super().__init__()
        inputs, outputs = settings.in_features, settings.out_features
        self.linear = OutputLinear(inputs, outputs, bias=settings.bias)
        self.activation = getattr(nn, path_of_activation(settings.activation).rpartition(".")[2])()
        self.use_residual = settings.use_residual
        self.residual = (
            OutputLinear(inputs, outputs, bias=False)
            if settings.use_residual and inputs != outputs
            else nn.Identity()
        )

    def forward(self, vectors: Float[Tensor, "texts inputs"]) -> Float[Tensor, "texts outputs"]:
        result = apply_in_whole_vectors(self.activation, self.linear(vectors))
        return result + self.residual(vectors) if self.use_residual else result


class _Norm(nn.Module):
    """Has its parameters under the names of the file."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.norm = LayerNorm(dimension)

    def forward(self, vectors: Float[Tensor, "texts width"]) -> Float[Tensor, "texts width"]:
        result: Tensor = self.norm(vectors)
        return result


class _Normalize(nn.Module):
    def forward(self, vectors: Float[Tensor, "texts width"]) -> Float[Tensor, "texts width"]:
        return F.normalize(vectors, dim=-1)


class VectorModules(nn.Module):
    """A sequence of modules, each of which computes a new vector for each text.

    Raises:
        SettingsError: a module takes vectors of another width than the module before it gives.
    """

    def __init__(self, settings: Sequence[ModuleSettings]) -> None:
        super().__init__()
        self.settings = tuple(settings)
        self.steps = nn.ModuleList(map(_module, settings))
        for _, inputs, _ in islice(widths(settings), 1):
            output_width(settings, inputs)  # an error if they do not fit together

    def prefixes_in(self, network: nn.Module) -> tuple[str, ...]:
        """The beginning of the names of their tensors in a network; empty if they are no part."""
        return tuple(f"{name}." for name, part in network.named_modules() if part is self)

    def forward(self, vectors: Float[Tensor, "texts inputs"]) -> Float[Tensor, "texts outputs"]:
        for step in self.steps:
            vectors = step(vectors)
        return vectors

    def output_width(self, input_width: int) -> int:
        """The width of the vectors that are computed from vectors of a width.

        Raises:
            SettingsError: the modules take vectors of another width.
        """
        return output_width(self.settings, input_width)


def _module(settings: ModuleSettings) -> nn.Module:
    match settings:
        case DenseSettings():
            return Dense(settings)
        case LayerNormSettings():
            return _Norm(settings.dimension)
        case NormalizeSettings():
            return _Normalize()
        case DropoutSettings():
            return nn.Dropout(settings.dropout)
