"""Summed losses: cross-entropy, also of logits that are never all in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..native import training as native
from ..packed import Packed, to_tensor
from .cpu import align_rows
from .encoder import Encoder
from .layers import promote_to_float32

_CHUNK = 2**24  # logits processed at a time
_GROUP = 2**25  # the most logits in memory
_GPU_GROUP = 2**27  # on a GPU, where large products are faster and memory is filled by activations


def cross_entropy_sum(
    logits: Float[Tensor, "rows classes"], labels: Int[Tensor, " rows"]
) -> Float[Tensor, ""]:
    """The summed cross-entropy of the rows, in float32 at least."""
    return F.cross_entropy(promote_to_float32(logits), labels, reduction="sum")


class _LinearCrossEntropy(torch.autograd.Function):
    """The summed cross-entropy of `x Wᵀ + b`, with its gradient from the same pass.

    The logits of a chunk of positions are replaced by their exponentials in place. These are the
    wide factor of the gradient's matrix products; the narrow factor is divided by their sums. The
    contribution of the one-hot labels, one row of the weights per position, is subtracted
    separately.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        cast_weight = weight.to(x.dtype)
        sums = torch.promote_types(x.dtype, torch.float32)
        want_gradient = any(ctx.needs_input_grad[:3])
        total = x.new_zeros((), dtype=sums)
        inverse = x.new_zeros((len(x), 1), dtype=sums)  # of the sums; 0 without a label
        d_x, d_weight, d_bias = torch.empty_like(x), None, None
        chunk, group = _chunk_and_group(x, weight)
        for begin in range(0, len(x), group):
            whole = slice(begin, begin + group)
            exponentials = _allocate_logits(x[whole], weight)
            for start in range(0, len(exponentials), chunk):
                logits = exponentials[start : start + chunk]
                rows = slice(begin + start, begin + start + len(logits))
                loss, inverse[rows, 0] = _exponentials(
                    x[rows], cast_weight, bias, labels[rows], logits
                )
                total += loss
                if want_gradient:
                    d_x[rows] = (logits @ cast_weight) * inverse[rows]
            if want_gradient:
                wide_factor, narrow_factor = exponentials.t(), inverse[whole]
                narrow_x = x[whole] * narrow_factor
                d_weight = _add_product(d_weight, wide_factor, narrow_x, dtype=weight.dtype)
                if bias is not None:
                    d_bias = _add_product(d_bias, wide_factor, narrow_factor, dtype=bias.dtype)
        if want_gradient:
            labelled_x = x[: len(labels)].to(weight.dtype)
            d_x[: len(labels)] -= cast_weight[labels]
            d_weight = torch.zeros_like(weight) if d_weight is None else d_weight
            d_weight.index_add_(0, labels, labelled_x, alpha=-1)
            if bias is not None:
                d_bias = torch.zeros_like(bias) if d_bias is None else d_bias.squeeze(1)
                d_bias.index_add_(0, labels, bias.new_ones(len(labels)), alpha=-1)
            ctx.save_for_backward(d_x, d_weight, d_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        d_x, d_weight, d_bias = ctx.saved_tensors
        scale = gradient.item() if gradient.is_cpu else gradient
        # In place: the gradient of an embedding table is large. PyTorch raises an error in a second
        # backward pass, since the saved tensors have changed.
        return (
            d_x.mul_(scale),
            d_weight.mul_(scale),
            None if d_bias is None else d_bias.mul_(scale),
            None,
        )


linear_cross_entropy: Callable[..., Tensor] = _LinearCrossEntropy.apply
"""Summed cross-entropy of inputs, weights, bias (or None) and labels; keeps no logits."""


def _chunk_and_group(x: Tensor, weight: Tensor) -> tuple[int, int]:
    """Return how many positions' logits to compute at a time, and how many per product with `x`.

    A product in the weights' dtype is added directly to their gradient. In another dtype it must
    first be cast, which needs one more pass over the whole gradient. On a GPU both numbers are the
    same.
    """
    if not x.is_cpu:
        rows = max(1, _GPU_GROUP // len(weight))
        return rows, rows
    rows, most = (1 << max(0, (size // len(weight)).bit_length() - 1) for size in (_CHUNK, _GROUP))
    few = max(1, rows // 4)
    return (few, few) if x.dtype == weight.dtype else (rows, max(rows, most))


def _allocate_logits(x: Tensor, weight: Tensor) -> Tensor:
    """Allocate `[rows, vocab_size]` logits; without a cast, a piece's logits are contiguous.

    The CPU's float32 product fills this layout 1.5 times as fast (docs/decisions.md).
    """
    if x.dtype == weight.dtype:
        return x.new_empty(len(weight), len(x)).t()
    return x.new_empty(len(x), len(weight))


def _exponentials(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, out: Tensor
) -> tuple[Tensor, Tensor]:
    """Fill `out` with the exponentials of `x Wᵀ + b`, scaled so that the maximum of each row is 1.

    Args:
        weight: in the dtype of `x`.
        bias: in the dtype of the parameters.
        labels: labels of the first rows; the other rows are not part of the loss.

    Returns:
        The summed cross-entropy; and for each row the factor that turns its exponentials into
        probabilities, 0 without a label.
    """
    if native.can_take_logits(out, bias):
        return native.exponentials(torch.mm(x, weight.t(), out=out), bias, labels)
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias.to(x.dtype), x, weight.t(), out=out)
    highest = out.amax(-1, keepdim=True)
    label_logits = out[: len(labels)].gather(1, labels[:, None])
    sums = torch.promote_types(x.dtype, torch.float32)
    summed = out.sub_(highest).exp_().sum(-1, keepdim=True, dtype=sums)
    loss = ((summed.log() + highest)[: len(labels)] - label_logits).sum()
    return loss, F.pad(summed[: len(labels), 0].reciprocal(), (0, len(x) - len(labels)))


def _add_product(
    total: Tensor | None, left: Tensor, right: Tensor, *, dtype: torch.dtype
) -> Tensor:
    """Return `total + left @ right` in a dtype; `total` is changed in place."""
    right = right.to(left.dtype)
    if total is None:
        return (left @ right).to(dtype)
    if total.dtype == left.dtype:
        return total.addmm_(left, right)
    return total.add_(left @ right)


def next_token_loss_sum(
    encoder: Encoder, hidden: Float[Tensor, "tokens hidden_size"], packed: Packed
) -> Float[Tensor, ""]:
    """The summed cross-entropy of predicting each next token, with the embeddings as decoder.

    For models such as GPT, whose head has neither a layer nor a bias.
    """
    last_tokens = packed.on_host.last_tokens
    positions = to_tensor(np.delete(np.arange(packed.num_tokens), last_tokens), hidden.device)
    weight = encoder.embeddings.word_embeddings.weight
    labels = packed.input_ids[positions + 1]
    return linear_cross_entropy(align_rows(hidden[positions]), weight, None, labels)
