"""The modules of a sentence encoder after pooling: small maps from a text's vector to another.

They compute in float32, whatever the precision of the encoder: there is one vector a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from ..errors import SettingsError
from ..settings.base import Settings
from .layers import LayerNorm, OutputLinear

DenseActivation = Literal[
    "identity", "tanh", "sigmoid", "relu", "gelu", "silu", "elu", "leakyrelu", "mish", "softplus"
]
_ACTIVATIONS: Mapping[DenseActivation, type[nn.Module]] = {
    "identity": nn.Identity,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "leakyrelu": nn.LeakyReLU,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
}


def path_of_activation(activation: DenseActivation) -> str:
    """The full name of PyTorch's class of an activation."""
    kind = _ACTIVATIONS[activation]
    return f"{kind.__module__}.{kind.__qualname__}"


def find_activation(path: str) -> DenseActivation | None:
    """The activation of a class of PyTorch, with its defaults; None if it is not supported."""
    package, _, name = path.rpartition(".")
    names = {name.lower(): name for name in _ACTIVATIONS}
    return names.get(name.lower()) if package.startswith("torch.nn") else None


class DenseSettings(Settings):
    """A linear map, then an activation; the vector itself may be added."""

    kind: Literal["Dense"] = "Dense"
    in_features: int = Field(ge=1)
    out_features: int = Field(ge=1)
    bias: bool = True
    activation: DenseActivation = "tanh"
    use_residual: bool = False


class LayerNormSettings(Settings):
    """Layer normalisation."""

    kind: Literal["LayerNorm"] = "LayerNorm"
    dimension: int = Field(ge=1)


class NormalizeSettings(Settings):
    """Scaling to length 1."""

    kind: Literal["Normalize"] = "Normalize"


class DropoutSettings(Settings):
    """Dropout, which does nothing in inference."""

    kind: Literal["Dropout"] = "Dropout"
    dropout: float = Field(0.2, ge=0, le=1)


ModuleSettings = Annotated[
    DenseSettings | LayerNormSettings | NormalizeSettings | DropoutSettings,
    Field(discriminator="kind"),
]


class Dense(nn.Module):
    """`activation(x Wᵀ + b)`, plus `x`, or a linear map of it, with `use_residual`."""

    def __init__(self, settings: DenseSettings) -> None:
        super().__init__()
        inputs, outputs = settings.in_features, settings.out_features
        self.linear = OutputLinear(inputs, outputs, bias=settings.bias)
        self.activation = _ACTIVATIONS[settings.activation]()
        self.use_residual = settings.use_residual
        self.residual = (
            OutputLinear(inputs, outputs, bias=False)
            if settings.use_residual and inputs != outputs
            else nn.Identity()
        )

    def forward(self, vectors: Float[Tensor, "texts inputs"]) -> Float[Tensor, "texts outputs"]:
        result: Tensor = self.activation(self.linear(vectors))
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
        width: int | None = None
        for one, inputs, outputs in _widths(settings):
            if width not in (None, inputs):
                raise SettingsError(
                    f"the module {one.kind} takes vectors of {inputs} numbers, and the module "
                    f"before it gives {width}"
                )
            width = outputs

    def forward(self, vectors: Float[Tensor, "texts inputs"]) -> Float[Tensor, "texts outputs"]:
        for step in self.steps:
            vectors = step(vectors)
        return vectors

    def output_width(self, input_width: int) -> int:
        """The width of the vectors that are computed from vectors of a width.

        Raises:
            SettingsError: the modules take vectors of another width.
        """
        widths = list(_widths(self.settings))
        if not widths:
            return input_width
        first, inputs, _ = widths[0]
        if inputs != input_width:
            raise SettingsError(
                f"the model's module {first.kind} takes vectors of {inputs} numbers, and pooling "
                f"gives {input_width}",
                fix="Leave pooling, layers and combine out: the model's files define them.",
            )
        return widths[-1][2]


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


def _widths(settings: Sequence[ModuleSettings]) -> Iterator[tuple[ModuleSettings, int, int]]:
    """Yield each module that has a fixed width, with the widths of its inputs and outputs."""
    for one in settings:
        if isinstance(one, DenseSettings):
            yield one, one.in_features, one.out_features
        elif isinstance(one, LayerNormSettings):
            yield one, one.dimension, one.dimension
