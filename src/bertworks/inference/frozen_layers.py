"""Layers of a frozen network: linear maps with packed weights and fused activations."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor, nn

from ..nn.cpu import VECTOR_LENGTH, apply_in_whole_vectors
from ..nn.encoder_layers import AttentionScope, FeedForward, Layer, SelfAttention
from ..nn.heads import MLMHead
from ..nn.layers import ACTIVATIONS, GroupedLinear, Linear, promote_to_float32
from ..nn.module_copies import copy_module

_ROWS = 2048  # per block of the feed-forward layers
_FIXED_ROWS = 1024  # per product, if results must not depend on the batch; divides _ROWS
ORDERED_SUMS = 384  # AMX's bfloat16 kernels add up to this many products in a fixed order
# oneDNN's names of activations: the operation and its algorithm.
FUSED_ACTIVATIONS = {
    ACTIVATIONS["gelu"]: ("gelu", "none"),
    ACTIVATIONS["gelu_new"]: ("gelu", "tanh"),
    ACTIVATIONS["relu"]: ("relu", ""),
    ACTIVATIONS["silu"]: ("swish", ""),
    ACTIVATIONS["tanh"]: ("tanh", ""),
}


class FrozenLinear(Linear):
    """`activation(x Wᵀ + b)` with weights that were cast and packed once."""

    dtype: torch.dtype
    packed_weight: Tensor
    cast_bias: Tensor | None
    kernel: Any
    residual_kernel: Any  # the kernel that adds a residual
    activation: Any
    fused: tuple[str, str]
    fixed_rows = False  # whether each product has `_FIXED_ROWS` rows

    @classmethod
    def from_linear(
        cls, linear: Linear, dtype: torch.dtype | None, *, is_packed: bool, fixed_rows: bool
    ) -> Self:
        """Return a map with the parameters of `linear`, and a copy of its weights for the kernels.

        Args:
            dtype: of the copy; by default that of the weights.
            is_packed: whether oneDNN's kernels compute products.
            fixed_rows: whether results must not depend on the batch.
        """
        dtype = dtype or linear.weight.dtype
        weight, kernels = linear.weight.detach().to(dtype), torch.ops.mkldnn._linear_pointwise
        if is_packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        return copy_module(
            linear,
            linear._modules,
            cls,
            training=False,
            dtype=dtype,
            packed_weight=weight,
            cast_bias=None if linear.bias is None else linear.bias.detach().to(dtype),
            kernel=kernels.default if is_packed else None,
            residual_kernel=kernels.binary if is_packed else None,
            activation=None,
            fused=("none", ""),
            fixed_rows=fixed_rows and needs_fixed_rows(dtype, linear.in_features),
        )

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        if x.dtype is not self.dtype or not x.numel():  # a head may compute in float32
            result = super().forward(x)
        elif self.kernel is not None:
            name, algorithm = self.fused
            weight, bias = self.packed_weight, self.cast_bias
            return self._by_rows(lambda x: self.kernel(x, weight, bias, name, [], algorithm), x)
        else:
            result = self._by_rows(lambda x: F.linear(x, self.packed_weight, self.cast_bias), x)
        if self.activation is None:
            return result
        return apply_in_whole_vectors(self.activation, result)

    def plus(
        self, x: Float[Tensor, "*batch inputs"], residual: Float[Tensor, "*batch outputs"]
    ) -> Float[Tensor, "*batch outputs"]:
        if self.kernel is None or not x.dtype is residual.dtype is self.dtype or not x.numel():
            return super().plus(x, residual)
        weight, bias = self.packed_weight, self.cast_bias
        return self._by_rows(
            lambda x, y: self.residual_kernel(x, y, weight, bias, "add"), x, residual
        )

    def _by_rows(self, compute: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        return _by_fixed_rows(compute, *tensors) if self.fixed_rows else compute(*tensors)


class FrozenOutputLinear(FrozenLinear):
    """The last map of a head, in float32 at least, whatever the form's precision."""

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        return super().forward(promote_to_float32(x))


class FrozenGroupedLinear(GroupedLinear):
    """Linear maps side by side, each packed once.

    Attributes:
        linears: the map of each group, without biases.
    """

    linears: Sequence[FrozenLinear]

    def outputs(self, x: Float[Tensor, "rows inputs"]) -> list[Tensor]:
        parts = zip(self.linears, x.chunk(self.groups, -1), strict=True)
        return [linear(inputs.contiguous()) for linear, inputs in parts]


class FrozenFeedForward(FeedForward):
    """Computes in blocks of rows, which bounds the memory between the two maps."""

    has_separate_activation = False  # whether the activation is separate from the first map

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"]
    ) -> Float[Tensor, "tokens hidden_size"]:
        return _in_blocks(super().forward, hidden)

    def inner(
        self, hidden: Float[Tensor, "tokens hidden_size"]
    ) -> Num[Tensor, "tokens intermediate_size"]:
        if self.has_separate_activation:
            return apply_in_whole_vectors(self.activation, self.intermediate(hidden))
        if self.gated:
            inner, gate = self.intermediate(hidden).chunk(2, -1)
            # Next to each other, since a half of a matrix is computed by another formula.
            activated = apply_in_whole_vectors(self.activation, inner.contiguous())
            return activated.mul_(gate)
        return super().inner(hidden)

    def plus(
        self,
        hidden: Float[Tensor, "tokens hidden_size"],
        residual: Float[Tensor, "tokens hidden_size"],
    ) -> Float[Tensor, "tokens hidden_size"]:
        """The output of the feed-forward layer plus a residual."""
        output = self.output.plus
        return _in_blocks(
            lambda rows, residual: output(self.inner(rows), residual), hidden, residual
        )


class FrozenLayer(Layer):
    """A layer without dropout, whose linear maps add the residuals."""

    attention: SelfAttention
    feed_forward: FrozenFeedForward

    @staticmethod
    def can_compute(attention: nn.Module | None, feed_forward: nn.Module | None) -> bool:
        """Whether a layer's submodules are those that this class calls."""
        return (
            isinstance(attention, SelfAttention)
            and type(attention).forward is SelfAttention.forward
            and isinstance(feed_forward, FrozenFeedForward)
            and isinstance(attention.output, Linear)
            and isinstance(feed_forward.output, Linear)
        )

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], scope: AttentionScope
    ) -> Float[Tensor, "tokens hidden_size"]:
        attention, first, second = self.attention, self.attention_norm, self.feed_forward_norm
        if self.norm_first:
            hidden = attention.output.plus(attention.context(first(hidden), scope), hidden)
            return self.feed_forward.plus(second(hidden), hidden)
        hidden = first(attention.output.plus(attention.context(hidden, scope), hidden))
        result: Tensor = second(self.feed_forward.plus(hidden, hidden))
        return result


class FrozenMLMHead(MLMHead):
    """An MLM head whose decoder is packed for bfloat16, with logits in float32."""

    packed_weight: Tensor
    fixed_rows = False

    @staticmethod
    def from_head(
        head: MLMHead, submodules: Mapping[str, nn.Module | None], *, fixed_rows: bool
    ) -> FrozenMLMHead:
        """Return a head with the parameters of `head` and other submodules."""
        weight = head.decoder_weight.detach().to(torch.bfloat16)
        return copy_module(
            head,
            submodules,
            FrozenMLMHead,
            training=False,
            packed_weight=torch.ops.mkldnn._reorder_linear_weight(weight),
            fixed_rows=fixed_rows and needs_fixed_rows(torch.bfloat16, weight.shape[-1]),
        )

    def logits(self, features: Float[Tensor, "masked width"]) -> Float[Tensor, "masked vocab"]:
        if features.dtype is not torch.bfloat16 or not features.numel():
            return super().logits(features)
        if self.fixed_rows:
            return _by_fixed_rows(self._logits, features)
        return self._logits(features)

    def _logits(self, features: Float[Tensor, "masked width"]) -> Float[Tensor, "masked vocab"]:
        """Compute the product, then what rounding it left out, which the kernel has in float32.

        The sum has 16 bits instead of 8. A product in float32 takes twice as long as these two.
        """
        kernels, weight = torch.ops.mkldnn._linear_pointwise, self.packed_weight
        product = kernels.default(features, weight, None, "none", [], "")
        rest = kernels.binary(features, -product, weight, None, "add")
        logits = promote_to_float32(product).add_(rest)
        return logits if self.bias is None else logits.add_(self.bias)


def _in_blocks(
    compute: Callable[..., Tensor], *tensors: Tensor, max_rows: int | None = None
) -> Tensor:
    """Apply a function of rows to blocks of at most `max_rows` rows (`_ROWS` by default)."""
    max_rows = max_rows or _ROWS
    if len(tensors[0]) <= max_rows:
        return compute(*tensors)
    blocks = zip(*(torch.split(tensor, max_rows) for tensor in tensors), strict=True)
    return torch.cat([compute(*block) for block in blocks])


def _by_fixed_rows(compute: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply a function of rows to blocks of exactly `_FIXED_ROWS` rows, padded with zeros."""
    *batch, _ = tensors[0].shape
    rows = [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]
    count = len(rows[0])
    filled = [F.pad(part, (0, 0, 0, -count % _FIXED_ROWS)) for part in rows]
    result = _in_blocks(compute, *filled, max_rows=_FIXED_ROWS)
    return result[:count].reshape(*batch, -1)


def needs_fixed_rows(dtype: torch.dtype, inputs: int) -> bool:
    """Whether the order of a product's sums may depend on its rows."""
    return dtype is torch.bfloat16 and inputs > ORDERED_SUMS


def identity(x: Tensor) -> Tensor:
    return x


def is_faster_separate(first: Linear, activation: Callable[[Tensor], Tensor]) -> bool:
    """Whether an activation is faster after a map than in its kernel (docs/decisions.md)."""
    is_tabulated = activation is not ACTIVATIONS["relu"]  # oneDNN computes all others with tables
    is_whole = first.out_features % VECTOR_LENGTH == 0
    return is_tabulated and is_whole and not torch.cpu._is_avx512_supported()


def has_packed_kernels(dtype: torch.dtype) -> bool:
    """Whether oneDNN has kernels for packed weights of a dtype on this processor."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    if not (torch._C._has_mkldnn and torch.backends.mkldnn.enabled):
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32
