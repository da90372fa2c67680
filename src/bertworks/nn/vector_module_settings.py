"""The settings of the modules of a sentence encoder after pooling, as its files hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from ..errors import SettingsError
from ..settings.base import Settings

DenseActivation = Literal[
    "identity", "tanh", "sigmoid", "relu", "gelu", "silu", "elu", "leakyrelu", "mish", "softplus"
]
_CLASSES: Mapping[DenseActivation, str] = {
    "identity": "linear.Identity",
    "tanh": "activation.Tanh",
    "sigmoid": "activation.Sigmoid",
    "relu": "activation.ReLU",
    "gelu": "activation.GELU",
    "silu": "activation.SiLU",
    "elu": "activation.ELU",
    "leakyrelu": "activation.LeakyReLU",
    "mish": "activation.Mish",
    "softplus": "activation.Softplus",
}
"""PyTorch's classes, in `torch.nn.modules`."""


def path_of_activation(activation: DenseActivation) -> str:
    """The full name of PyTorch's class of an activation."""
    return f"torch.nn.modules.{_CLASSES[activation]}"


def find_activation(path: str) -> DenseActivation | None:
    """The activation of a class of PyTorch, with its defaults; None if it is not supported."""
    package, _, name = path.rpartition(".")
    names = {name.lower(): name for name in _CLASSES}
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


def output_width(settings: Sequence[ModuleSettings], input_width: int) -> int:
    """The width of the vectors that modules compute from vectors of a width.

    Raises:
        SettingsError: the modules take vectors of another width, or do not fit together.
    """
    width = input_width
    for number, (one, inputs, outputs) in enumerate(widths(settings)):
        if inputs != width and number:
            raise SettingsError(
                f"the module {one.kind} takes vectors of {inputs} numbers, and the module "
                f"before it gives {width}"
            )
        if inputs != width:
            raise SettingsError(
                f"the model's module {one.kind} takes vectors of {inputs} numbers, and pooling "
                f"gives {input_width}",
                fix="Leave pooling, layers and combine out: the model's files define them.",
            )
        width = outputs
    return width


def widths(settings: Sequence[ModuleSettings]) -> Iterator[tuple[ModuleSettings, int, int]]:
    """Yield each module that has a fixed width, with the widths of its inputs and outputs."""
    for one in settings:
        if isinstance(one, DenseSettings):
            yield one, one.in_features, one.out_features
        elif isinstance(one, LayerNormSettings):
            yield one, one.dimension, one.dimension
