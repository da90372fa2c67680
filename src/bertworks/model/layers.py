"""The parts of every layer: linear maps, layer norm, dropout, initialisation.

Parameters keep their dtype (float32 while training). Each part computes in the dtype of the hidden
states, to which it casts its weights inside the autograd graph, so that gradients accumulate in the
dtype of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class Linear(nn.Linear):
    """`x Wᵀ + b` in the precision of `x`."""

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class LayerNorm(nn.LayerNorm):
    """Layer normalisation in the precision of `x`, with sums in float32 at least."""

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        if x.is_cpu:  # the CPU's kernel takes float32 weights with bfloat16 values
            return super().forward(x)
        weight = self.weight.to(x.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class Dropout(nn.Module):
    """Dropout that is fast on the CPU too."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


def dropout(x: Float[Tensor, "*shape"], p: float) -> Float[Tensor, "*shape"]:
    """Zero each value with probability `p` and divide the others by `1 - p`."""
    if p == 0:
        return x
    if not x.is_cpu:
        return F.dropout(x, p)
    return _dropout(x, p)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        keep = keep_mask(x.shape, p, x.device)
        ctx.save_for_backward(keep)
        ctx.scale = 1 / (1 - p)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return (gradient * keep).mul_(ctx.scale), None


_dropout: Callable[..., Tensor] = _Dropout.apply


def keep_mask(shape: torch.Size, p: float, device: torch.device) -> Bool[Tensor, "*shape"]:
    """A random mask in which each value is False with probability `p`.

    On the CPU each 64-bit draw decides four values, by comparing 16 bits with a threshold (so `p`
    is rounded to 1 / 65,536). PyTorch's mask takes one draw a value, and seven times as long.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(1 - p)
    count = shape.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    threshold = round(p * 2**16) - 2**15
    return (bits.view(torch.int16)[:count] >= threshold).view(shape)


def initialize(module: nn.Module, initializer_range: float) -> None:
    """Initialise every parameter of a new module as the original code does.

    Weights are drawn from a normal distribution with standard deviation `initializer_range`,
    truncated at two standard deviations (`truncated_normal_initializer`); biases are 0, layer norms
    the identity.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            draw_weight(part.weight, initializer_range)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def draw_weight(weight: Tensor, initializer_range: float) -> None:
    """Draw a matrix as `initialize` does; PyTorch truncates at ±2 by default."""
    bound = 2 * initializer_range
    nn.init.trunc_normal_(weight, std=initializer_range, a=-bound, b=bound)
