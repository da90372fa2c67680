"""The parts of every layer: linear maps, layer norm, dropout, initialisation.

Parameters keep their dtype (float32 while training). Each part computes in the dtype of the hidden
states, to which it casts its weights inside the autograd graph, so that gradients accumulate in the
dtype of the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..native import training as native
from .config import EncoderConfig
from .quantization import InputCodes


def gelu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`x Φ(x)`, with the exact distribution (paper §A.2; Hendrycks and Gimpel 2016)."""
    return native.gelu(x) if native.can_compute(x) else F.gelu(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class Linear(nn.Linear):
    """`x Wᵀ + b` in the precision of `x`."""

    input_codes: InputCodes | None = None
    """Fixed codes of the inputs for computing in 8-bit numbers, if calibrated."""

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)

    def plus(
        self, x: Float[Tensor, "*batch inputs"], residual: Float[Tensor, "*batch outputs"]
    ) -> Float[Tensor, "*batch outputs"]:
        """Return the result plus a residual."""
        result: Tensor = residual + self(x)
        return result


class GroupedLinear(nn.Module):
    """Linear maps side by side: a group of outputs depends on one group of inputs.

    Source: Iandola et al. (2020), "SqueezeBERT", §3. The weight has the rows of all groups, one
    below another, as in a convolution with groups.

    Args:
        groups: the number of groups of inputs, and of outputs in each part.
        parts: the number of parts of the outputs, of equal size; each has all groups.
        kernel_size: the last dimension of the weight, if it is that of a convolution; inputs are
            then windows of so many neighbours, for each feature.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        groups: int,
        parts: int = 1,
        kernel_size: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.groups, self.parts = groups, parts
        columns = inputs // groups
        shape = (columns,) if kernel_size is None else (columns // kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(outputs, *shape))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        outputs = [output.view(*x.shape[:-1], self.parts, -1) for output in self.outputs(x)]
        result = torch.stack(outputs, -2).flatten(-3)
        return result if self.bias is None else result + self.bias.to(x.dtype)

    def outputs(self, x: Float[Tensor, "rows inputs"]) -> list[Tensor]:
        """Return the outputs of each group, without biases."""
        weights = (weight.to(x.dtype) for weight in self.group_weights)
        return list(map(F.linear, x.chunk(self.groups, -1), weights))

    @property
    def group_weights(self) -> list[Float[Tensor, "outputs inputs"]]:
        """The map of each group, with the rows of all parts."""
        return [weight.flatten(0, 1) for weight in self._maps.unbind(1)]

    def plus(
        self, x: Float[Tensor, "rows inputs"], residual: Float[Tensor, "rows outputs"]
    ) -> Float[Tensor, "rows outputs"]:
        """Return the result plus a residual."""
        result: Tensor = residual + self(x)
        return result

    @property
    def _maps(self) -> Float[Tensor, "parts groups outputs inputs"]:
        """The map of each group in each part."""
        rows = self.weight.flatten(1)
        return rows.view(self.parts, self.groups, -1, rows.shape[-1])

    @property
    def dense_weight(self) -> Float[Tensor, "outputs inputs"]:
        """The matrix of the whole map, with zeros between groups."""
        parts, groups, outputs, inputs = self._maps.shape
        dense = self.weight.new_zeros(parts, groups, outputs, groups, inputs)
        at = torch.arange(groups, device=dense.device)
        dense[:, at, :, at] = self._maps.transpose(0, 1).detach()
        return dense.view(parts * groups * outputs, groups * inputs)


class QueryKeyAndValue(nn.Module):
    """A map to queries and keys, and one to values, each of other inputs.

    The input is both side by side, so that attention calls it like a map of one.

    Args:
        inputs: the width of the inputs of queries and keys.
        value_inputs: the width of the inputs of values.
        outputs: the width of queries, of keys and of values.
    """

    def __init__(self, inputs: int, value_inputs: int, *, outputs: int, bias: bool) -> None:
        super().__init__()
        self.widths = [inputs, value_inputs]
        self.query_key = Linear(inputs, 2 * outputs, bias=bias)
        self.value = Linear(value_inputs, outputs, bias=bias)

    def forward(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        inputs, value_inputs = (part.contiguous() for part in torch.split(x, self.widths, -1))
        return torch.cat([self.query_key(inputs), self.value(value_inputs)], -1)


def make_linear(
    inputs: int, outputs: int, *, groups: int, parts: int = 1, bias: bool = True
) -> Linear | GroupedLinear:
    """Return a new linear map, with groups (see `GroupedLinear`) if there is more than one."""
    if groups == 1:
        return Linear(inputs, outputs, bias=bias)
    return GroupedLinear(inputs, outputs, groups=groups, parts=parts, bias=bias)


class OutputLinear(Linear):
    """The last map of a head: `x Wᵀ + b` in float32 at least, whatever the precision of `x`.

    In bfloat16 many rows would get the same score: it has eight bits.
    """

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        return super().forward(promote_to_float32(x))


def promote_to_float32(values: Tensor) -> Tensor:
    """Return the values in float32 or wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


class LayerNorm(nn.LayerNorm):
    """Layer normalisation in the precision of `x`, with sums in float32 at least."""

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        if x.is_cpu:  # the CPU's kernel takes float32 weights with bfloat16 values
            norm = torch.layer_norm  # called directly: less overhead for short texts
            return norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        weight = self.weight.to(x.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """Division by the root mean square in the precision of `x`, with sums in float32 at least.

    Source: Zhang and Sennrich (2019), "Root Mean Square Layer Normalization", equation 4.
    """

    bias: None = None

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class NoNorm(nn.Module):
    """A factor and a bias of each feature, in place of a norm.

    Source: Sun et al. (2020), "MobileBERT", §3.3.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        return x * self.weight.to(x.dtype) + self.bias.to(x.dtype)


def make_norm(
    config: EncoderConfig, width: int, eps: float | None = None
) -> LayerNorm | RMSNorm | NoNorm:
    """Return a new norm of vectors of a width, of the kind that the configuration names.

    Args:
        eps: `layer_norm_eps` by default.
    """
    eps = config.layer_norm_eps if eps is None else eps
    if config.norm == "none":
        return NoNorm(width)
    if config.norm == "rms":
        return RMSNorm(width, eps)
    return LayerNorm(width, eps, bias=config.norm_bias)


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
        keep = dropout_mask(x.shape, p, x.device)
        ctx.save_for_backward(keep)
        ctx.scale = 1 / (1 - p)
        return apply_dropout_mask(x, keep).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return apply_dropout_mask(gradient, keep).mul_(ctx.scale), None


_dropout: Callable[..., Tensor] = _Dropout.apply


def dropout_mask(shape: torch.Size, p: float, device: torch.device) -> Bool[Tensor, "*shape"]:
    """A random mask in which each value is False with probability `p`.

    On the CPU each 64-bit draw decides four values, by comparing 16 bits with a threshold (so `p`
    is rounded to a multiple of 1 / 65,536, but not to 0 or 1). PyTorch's mask needs one draw per
    value, and takes seven times as long.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(1 - p)
    count = shape.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    below = min(max(round(p * 2**16), 1), 2**16 - 1) - 2**15 - 1  # the largest that is dropped
    # 0 up to `below`, else 1; PyTorch's comparison takes five times as long.
    ones = bits.view(torch.int16)[:count].clamp_(below, below + 1).sub_(below)
    return ones.to(torch.int8).view(torch.bool).view(shape)


_INTEGERS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def apply_dropout_mask(
    x: Float[Tensor, "*shape"], keep: Bool[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Return the values where a mask is True, and zeros elsewhere."""
    integers = _INTEGERS.get(x.dtype) if x.is_cpu else None
    if integers is None:
        return x * keep
    # The bits of each value times 0 or 1: a product with the mask itself takes ten times as long.
    return keep.to(integers).mul_(x.view(integers)).view(x.dtype)


def add_and_norm(
    x: Float[Tensor, "tokens width"],
    residual: Float[Tensor, "tokens width"],
    dropout: Dropout,
    norm: nn.Module,
) -> Float[Tensor, "tokens width"]:
    """Return `norm(residual + dropout(x))`."""
    if (
        native.can_compute(x)
        and residual.dtype is x.dtype
        and residual.shape == x.shape
        and residual.is_contiguous()
        and type(dropout) is Dropout
        and type(norm) is LayerNorm
        and norm.normalized_shape == x.shape[-1:]
        and all(part.dtype is torch.float32 for part in norm.parameters())
    ):
        return native.add_and_norm(x, residual, norm, dropout.p if dropout.training else 0.0)
    result: Tensor = norm(residual + dropout(x))
    return result


def initialize(module: nn.Module, initializer_range: float) -> None:
    """Initialise every parameter of a new module as the original code does.

    Weights are drawn from a normal distribution with standard deviation `initializer_range`,
    truncated at two standard deviations (`truncated_normal_initializer`); biases are 0, the weights
    of norms 1.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | GroupedLinear | nn.Embedding):
            draw_weight(part.weight, initializer_range)
        if isinstance(part, nn.Linear | GroupedLinear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm | nn.RMSNorm | NoNorm):
            nn.init.ones_(part.weight)
            if not isinstance(part, nn.RMSNorm) and part.bias is not None:
                nn.init.zeros_(part.bias)


def draw_weight(weight: Tensor, initializer_range: float) -> None:
    """Draw a matrix as `initialize` does.

    By the inverse of the distribution function: one draw a number. `nn.init.trunc_normal_` of
    PyTorch 2.13 draws the whole matrix again until no number is outside the bounds.
    """
    if weight.is_meta:
        return
    bound, scale = 2 * initializer_range, initializer_range * math.sqrt(2)
    share = math.erf(math.sqrt(2))  # of a normal distribution within two standard deviations
    with torch.no_grad():
        weight.uniform_(-share, share).erfinv_().mul_(scale).clamp_(-bound, bound)
