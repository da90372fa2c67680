"""What stands on top of an encoder: the heads of pre-training and of classification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .config import EncoderConfig
from .cpu import align_rows
from .layers import ACTIVATIONS, Dropout, LayerNorm, Linear, initialize

_CHUNK = 2**21  # logits that are held at a time, at most


class MLMHead(nn.Module):
    """Which piece stood at a masked position: transform, decoder tied to the embeddings, bias.

    It is meant for the masked positions only: the decoder is as wide as the vocabulary, and the
    dearest part of a small BERT. Source: paper §3.1, Task #1, and the original code.

    Args:
        config: the encoder's geometry.
        word_embeddings: the encoder's `[vocab_size, hidden_size]` parameter, which is shared.
    """

    def __init__(self, config: EncoderConfig, word_embeddings: nn.Parameter) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        initialize(self, config.initializer_range)
        self.decoder = word_embeddings

    def forward(
        self, hidden: Float[Tensor, "masked hidden_size"]
    ) -> Float[Tensor, "masked vocab_size"]:
        transformed = self._transform(hidden)
        dtype = transformed.dtype
        return F.linear(transformed, self.decoder.to(dtype), self.bias.to(dtype))

    def loss_sum(
        self, hidden: Float[Tensor, "masked hidden_size"], labels: Int[Tensor, " masked"]
    ) -> Float[Tensor, ""]:
        """The sum of the cross-entropies of the masked positions, without keeping the logits."""
        return _linear_cross_entropy(
            self._transform(align_rows(hidden)), self.decoder, self.bias, labels
        )

    def _transform(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.norm(self.activation(self.dense(hidden)))
        return result


class _LinearCrossEntropy(torch.autograd.Function):
    """Sum of cross-entropies of `x Wᵀ + b`, its gradient taken in the same pass.

    A chunk of the positions' logits is held at a time, and only once: they become their own
    gradient, softmax minus the one-hot labels.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        cast_weight, cast_bias = weight.to(x.dtype), bias.to(x.dtype)
        sums = torch.promote_types(x.dtype, torch.float32)
        want_gradient = any(ctx.needs_input_grad[:3])
        total = x.new_zeros((), dtype=sums)
        d_x = torch.empty_like(x)
        d_weight = d_bias = None
        chunk = 1 << max(0, (_CHUNK // len(weight)).bit_length() - 1)
        for start in range(0, len(x), chunk):
            rows = slice(start, start + chunk)
            own_labels = labels[rows, None]
            count = len(own_labels)  # fewer than the rows, where rows of zeros stand behind
            logits = F.linear(x[rows], cast_weight, cast_bias)
            log_sum = torch.logsumexp(logits[:count].to(sums), -1, keepdim=True)
            total += (log_sum - logits[:count].gather(1, own_labels)).sum()
            if not want_gradient:
                continue
            d_logits = torch.softmax(logits, -1)
            d_logits[:count].scatter_add_(1, own_labels, -torch.ones_like(d_logits[:count, :1]))
            d_logits[count:].zero_()
            d_x[rows] = d_logits @ cast_weight
            part_weight = (d_logits.t() @ x[rows]).to(weight.dtype)
            part_bias = d_logits.sum(0, dtype=sums).to(bias.dtype)
            d_weight = part_weight if d_weight is None else d_weight.add_(part_weight)
            d_bias = part_bias if d_bias is None else d_bias.add_(part_bias)
        if want_gradient:
            if d_weight is None or d_bias is None:  # there was not a single position
                d_weight, d_bias = torch.zeros_like(weight), torch.zeros_like(bias)
            ctx.save_for_backward(d_x, d_weight, d_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        d_x, d_weight, d_bias = ctx.saved_tensors
        scale = gradient.item() if gradient.is_cpu else gradient
        return d_x * scale, d_weight * scale, d_bias * scale, None


_linear_cross_entropy: Callable[..., Tensor] = _LinearCrossEntropy.apply


class NSPHead(Linear):
    """Whether B follows A: `[sequences, 2]` logits from the pooled vectors.

    Label 0 says that B is the next segment, 1 that it is a random one (the original's order).
    Source: paper §3.1, Task #2.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config.hidden_size, 2)
        initialize(self, config.initializer_range)


class ClassificationHead(nn.Module):
    """`[sequences, num_labels]` logits from the pooled vectors, after dropout (paper §4.1).

    Args:
        config: the encoder's geometry.
        num_labels: how many classes there are.
        dropout: `hidden_dropout_prob`, if left out.
    """

    def __init__(
        self, config: EncoderConfig, num_labels: int, dropout: float | None = None
    ) -> None:
        super().__init__()
        self.dropout = Dropout(config.hidden_dropout_prob if dropout is None else dropout)
        self.linear = Linear(config.hidden_size, num_labels)
        initialize(self, config.initializer_range)

    def forward(
        self, pooled: Float[Tensor, "sequences hidden_size"]
    ) -> Float[Tensor, "sequences num_labels"]:
        result: Tensor = self.linear(self.dropout(pooled))
        return result


def cross_entropy_sum(
    logits: Float[Tensor, "rows classes"], labels: Int[Tensor, " rows"]
) -> Float[Tensor, ""]:
    """The sum of the rows' cross-entropies, in float32 at least."""
    sums = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(sums), labels, reduction="sum")
