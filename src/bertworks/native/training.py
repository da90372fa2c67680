"""Parts of a layer in native code for training, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL, byref, c_void_p, cast
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..packed import Layout
from .library import PANEL, AddAndNorm, Attention, Entropy, has_kernels, library

_VECTOR_LENGTH = 16  # numbers computed together
_MAX_TOKENS = 1 << 16  # of a sequence: dropout numbers tokens with 16 bits


def can_attend(head_size: int, max_length: int) -> bool:
    """Whether `attention` supports heads of this size and sequences of this length."""
    return head_size % PANEL == 0 and max_length < _MAX_TOKENS and has_kernels("training")


def can_compute(x: Tensor) -> bool:
    """Whether `add_and_norm` and `gelu` support such values."""
    return (
        x.dtype is torch.bfloat16
        and x.is_cpu
        and x.is_contiguous()
        and x.dim() > 0
        and x.shape[-1] % _VECTOR_LENGTH == 0
        and has_kernels("training")
    )


def can_take_logits(logits: Tensor, bias: Tensor | None) -> bool:
    """Whether `exponentials` supports such logits."""
    return (
        logits.dtype is torch.bfloat16
        and logits.is_cpu
        and logits.is_contiguous()
        and (bias is None or (bias.dtype is torch.float32 and bias.is_contiguous()))
        and has_kernels("training")
    )


class _AttentionFunction(torch.autograd.Function):
    """Attention of packed sequences; backward computes the attention weights again."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, layout: Layout, heads: int, dropout: float) -> Tensor:
        rows, width = len(qkv), qkv.shape[1] // 3
        context = qkv.new_empty(rows, width)
        logs = torch.empty(heads, rows, dtype=torch.float32, device="cpu")
        below, kept, seed = _dropout(dropout)
        ctx.settings = heads, width // heads, logs.data_ptr(), rows, below, kept, seed
        ctx.layout, ctx.logs = layout, logs
        _attend(qkv, context, ctx.settings, layout, None, context)
        ctx.save_for_backward(qkv, context)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, context = ctx.saved_tensors
        result = torch.empty_like(qkv)
        _attend(qkv, context, ctx.settings, ctx.layout, gradient.contiguous(), result)
        return result, None, None, None


_attention: Callable[..., Tensor] = _AttentionFunction.apply


def attention(
    qkv: Float[Tensor, "tokens three_hidden_sizes"], layout: Layout, heads: int, dropout: float
) -> Float[Tensor, "tokens hidden_size"]:
    """Each token's context: softmax(Q Kᵀ / √d) V within its sequence, head by head.

    Args:
        qkv: bfloat16 queries, then keys, then values of all heads; the result is zero in rows after
            the last sequence.
        layout: the positions of the sequences, each of fewer than 65,536 tokens.
        heads: the number of heads; their size is a multiple of `PANEL`.
        dropout: the probability that a weight is dropped, drawn from PyTorch's generator.

    Raises:
        MemoryError: there is no memory for intermediate results.
    """
    return _attention(qkv, layout, heads, dropout)


def _attend(
    qkv: Tensor,
    context: Tensor,
    settings: tuple[Any, ...],
    layout: Layout,
    gradient: Tensor | None,
    result: Tensor,
) -> None:
    """Fill `result`: the context or, given its gradient, the gradient of `qkv`."""
    assert qkv.dtype is torch.bfloat16 and qkv.is_contiguous()
    result[layout.groups[-1].tokens.stop :].zero_()
    error_code = library().bertworks_attention(
        Attention(qkv.data_ptr(), context.data_ptr(), *settings),
        layout.cu_seqlens.data_ptr(),
        len(layout.cu_seqlens) - 1,
        None if gradient is None else gradient.data_ptr(),
        result.data_ptr(),
        *_threads(),
    )
    if error_code:
        raise MemoryError("no memory for the attention of a layer")


class _AddAndNormFunction(torch.autograd.Function):
    """`norm(residual + dropout(x))`; of the inputs, only the sum is kept for backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        dropout: float,
    ) -> Tensor:
        sums, result = torch.empty_like(x), torch.empty_like(x)
        means, inverses = torch.empty(2, len(x), dtype=torch.float32, device="cpu").unbind()
        shift = torch.zeros_like(weight) if bias is None else bias
        below, kept, seed = _dropout(dropout)
        ctx.settings = *x.shape, epsilon, kept, below, seed % 2**32
        ctx.has_bias = bias is not None
        parts = (x, residual, sums, result, means, inverses, weight, shift)
        _run_add_and_norm(AddAndNorm(*map(Tensor.data_ptr, parts), *ctx.settings))
        ctx.save_for_backward(sums, means, inverses, weight)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        sums, means, inverses, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        d_x, d_residual = torch.empty_like(sums), torch.empty_like(sums)
        items = library().bertworks_add_and_norm_items(len(sums))
        d_weight, d_bias = weight.new_empty(2, items, len(weight)).unbind()
        parts = (sums, sums, sums, sums, means, inverses, weight, weight)
        others = (gradient, d_x, d_residual, d_weight, d_bias)
        inputs, gradients = (map(Tensor.data_ptr, tensors) for tensors in (parts, others))
        _run_add_and_norm(AddAndNorm(*inputs, *ctx.settings, *gradients))
        d_bias_sum = d_bias.sum(0) if ctx.has_bias else None
        return d_x, d_residual, d_weight.sum(0), d_bias_sum, None, None


_add_and_norm: Callable[..., Tensor] = _AddAndNormFunction.apply


def add_and_norm(
    x: Float[Tensor, "rows width"],
    residual: Float[Tensor, "rows width"],
    norm: nn.LayerNorm,
    dropout: float,
) -> Float[Tensor, "rows width"]:
    """`norm(residual + dropout(x))`, with dropout drawn from PyTorch's generator.

    Args:
        x: values that `can_compute` accepts.
        residual: likewise.
        norm: with float32 weights.
        dropout: the probability that a value is dropped.
    """
    return _add_and_norm(x, residual, norm.weight, norm.bias, norm.eps, dropout)


def _run_add_and_norm(arguments: AddAndNorm) -> None:
    library().bertworks_add_and_norm(byref(arguments), *_threads())


class _GeluFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _run_gelu(x, None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return _run_gelu(x, gradient.contiguous())


gelu: Callable[[Tensor], Tensor] = _GeluFunction.apply
"""`x Φ(x)` of values that `can_compute` accepts."""


def _run_gelu(x: Tensor, gradient: Tensor | None) -> Tensor:
    """GELU of `x` or, given the gradient of GELU, the gradient of `x`."""
    result = torch.empty_like(x)
    library().bertworks_gelu(
        x.data_ptr(),
        None if gradient is None else gradient.data_ptr(),
        result.data_ptr(),
        x.numel(),
        *_threads(),
    )
    return result


def exponentials(
    logits: Float[Tensor, "rows classes"],
    bias: Float[Tensor, " classes"] | None,
    labels: Int[Tensor, " labelled"],
) -> tuple[Float[Tensor, ""], Float[Tensor, " rows"]]:
    """Replace logits by exponentials, in place: `exp(z - max z)` of `z = logits + bias`, by rows.

    Args:
        logits: bfloat16; rows after the labelled ones do not count in the loss.
        bias: float32.
        labels: the class of each of the first rows; an invalid class makes the loss NaN.

    Returns:
        The summed cross-entropy of the labelled rows; and for each row the factor that turns its
        exponentials into probabilities, 0 for rows without a label.
    """
    labels = labels.to(torch.int64).contiguous()
    losses, inverses = logits.new_empty(2, len(logits), dtype=torch.float32).unbind()
    parts = (logits, bias, labels, losses, inverses)
    addresses = (None if part is None else part.data_ptr() for part in parts)
    arguments = Entropy(*addresses, len(logits), len(labels), logits.shape[1])
    library().bertworks_entropy(byref(arguments), *_threads())
    return losses[: len(labels)].sum(), inverses


def _threads() -> tuple[int, int | None]:
    """The number of threads, and the function that runs another in PyTorch's (threads.h)."""
    return torch.get_num_threads(), _address_of_parallel()


@cache
def _address_of_parallel() -> int | None:
    try:
        function = CDLL(f"{torch.__path__[0]}/lib/libtorch_cpu.so").GOMP_parallel
    except (OSError, AttributeError):  # a build of PyTorch with other threads
        return None
    return cast(function, c_void_p).value


def _dropout(probability: float) -> tuple[int, float, int]:
    """The bound below which a 32-bit random number drops a value, the factor of others, a seed."""
    seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if probability else 0
    below = min(round(probability * 2**32), 2**32 - 1)  # 2**32 would be 0 in 32 bits
    return below, 1 / (1 - probability) if probability < 1 else 0.0, seed
