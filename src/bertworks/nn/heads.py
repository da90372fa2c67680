"""Heads on top of an encoder: for pre-training, for sequences and for tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..native import training as native
from ..packed import Packed, Padded, Sequences
from ..settings.literals import Pooling
from .config import Classifier, EncoderConfig
from .cpu import align_rows
from .encoder import Encoder
from .layers import (
    ACTIVATIONS,
    Dropout,
    LayerNorm,
    Linear,
    OutputLinear,
    draw_weight,
    initialize,
    promote_to_float32,
)

_CHUNK = 2**24  # logits processed at a time
_GROUP = 2**25  # the most logits in memory


class MLMHead(nn.Module):
    """Predicts the token at a position: transform, decoder tied to the embeddings, bias.

    Use it only for the masked positions: the decoder is as wide as the vocabulary, and the most
    expensive part of a small BERT. Source: paper §3.1, Task #1, and the original code.

    Of a two-way encoder's vectors it uses the first half, which does not depend on later tokens.

    Args:
        word_embeddings: the encoder's `[vocab_size, embedding_width]` parameter, which the decoder
            shares unless `tie_word_embeddings` is off.
    """

    def __init__(self, config: EncoderConfig, word_embeddings: nn.Parameter) -> None:
        super().__init__()
        config = config.per_direction_config
        self.width = config.hidden_size
        self.transform = MLMTransform(config) if config.mlm_transform else nn.Identity()
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.mlm_bias else None
        self.decoder = word_embeddings
        if not config.tie_word_embeddings:
            self.decoder = nn.Parameter(torch.empty_like(word_embeddings))
            draw_weight(self.decoder, config.initializer_range)

    def forward(
        self, hidden: Float[Tensor, "masked hidden_size"]
    ) -> Float[Tensor, "masked vocab_size"]:
        return self.logits(self.transform(hidden[..., : self.width]))

    def logits(
        self, transformed: Float[Tensor, "masked width"]
    ) -> Float[Tensor, "masked vocab_size"]:
        """Apply only the decoder, in float32 at least (see `OutputLinear`)."""
        return F.linear(promote_to_float32(transformed), self.decoder, self.bias)

    def loss_sum(
        self, hidden: Float[Tensor, "masked hidden_size"], labels: Int[Tensor, " masked"]
    ) -> Float[Tensor, ""]:
        """The summed cross-entropy of the masked positions, without keeping the logits."""
        return linear_cross_entropy(
            self.transform(align_rows(hidden)), self.decoder, self.bias, labels
        )


class MLMTransform(nn.Module):
    """The layer before the decoder: a linear map to the embeddings' width, activation, norm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.dense = Linear(config.hidden_size, width, bias=config.use_bias)
        self.activation = ACTIVATIONS[config.mlm_act or config.hidden_act]
        self.norm = LayerNorm(width, config.layer_norm_eps, bias=config.norm_bias)
        initialize(self, config.initializer_range)

    def forward(self, hidden: Float[Tensor, "masked hidden_size"]) -> Float[Tensor, "masked width"]:
        result: Tensor = self.norm(self.activation(self.dense(hidden)))
        return result


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
            exponentials = _room_for_logits(x[whole], weight)
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
            given = x[: len(labels)].to(weight.dtype)
            d_x[: len(labels)] -= cast_weight[labels]
            d_weight = torch.zeros_like(weight) if d_weight is None else d_weight
            d_weight.index_add_(0, labels, given, alpha=-1)
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
    first be cast, which needs one more pass over the whole gradient.
    """
    rows, most = (1 << max(0, (size // len(weight)).bit_length() - 1) for size in (_CHUNK, _GROUP))
    few = max(1, rows // 4)
    return (few, few) if x.dtype == weight.dtype else (rows, max(rows, most))


def _room_for_logits(x: Tensor, weight: Tensor) -> Tensor:
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
    wanted = out[: len(labels)].gather(1, labels[:, None])
    sums = torch.promote_types(x.dtype, torch.float32)
    summed = out.sub_(highest).exp_().sum(-1, keepdim=True, dtype=sums)
    loss = ((summed.log() + highest)[: len(labels)] - wanted).sum()
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
    has_next = torch.ones_like(packed.input_ids, dtype=torch.bool)
    has_next[packed.last_tokens] = False
    positions = has_next.nonzero().squeeze(-1)
    weight = encoder.embeddings.word_embeddings.weight
    labels = packed.input_ids[positions + 1]
    return linear_cross_entropy(align_rows(hidden[positions]), weight, None, labels)


class NSPHead(OutputLinear):
    """Predicts whether B follows A: `[sequences, 2]` logits from the pooled vectors.

    Label 0: B is the next segment; 1: B is a random one (as in the original code).
    Source: paper §3.1, Task #2.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config.hidden_size, 2)
        initialize(self, config.initializer_range)


class ReplacedTokenHead(nn.Module):
    """Predicts whether a token was replaced: a layer, and one logit per token.

    Source: Clark et al. (2020), §2, and the original code's `discriminator_predictions`.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dense_prediction = OutputLinear(config.hidden_size, 1)
        initialize(self, config.initializer_range)

    def forward(self, hidden: Float[Tensor, "tokens hidden_size"]) -> Float[Tensor, " tokens"]:
        logits: Tensor = self.dense_prediction(self.activation(self.dense(hidden)))
        return logits.squeeze(-1)


class ClassificationHead(nn.Module):
    """`[sequences, num_labels]` logits from a vector of each sequence (paper §4.1).

    `config.classifier_pooling` chooses the vector: the first token's, the mean of all, or the last
    token's (GPT). `config.classifier` is the layer between the vector and the output layer:

    - `pooler`: the encoder's pooler (BERT, ALBERT, ERNIE); no layer if the vector is not the first
      token's;
    - `tanh`, `gelu`, `relu`: a layer of this head with this activation (RoBERTa, ELECTRA,
      DistilBERT); with `tanh` and `gelu`, dropout also precedes it;
    - `norm`: the layer of the masked-language-model head (ModernBERT);
    - `none`: no layer (GPT).

    Args:
        dropout: `config.classifier_dropout` by default.
        kind: `config.classifier` by default.
        bias: whether the output layer has a bias; by default it has, except with kind `none`.
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        dropout: float | None = None,
        *,
        kind: Classifier | None = None,
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.kind = kind or config.classifier
        self.pooling = config.classifier_pooling
        default = config.head_dropout("classifier_dropout")
        self.dropout = Dropout(default if dropout is None else dropout)
        size = config.hidden_size
        self.transform: nn.Module | None = None
        if self.kind in ("tanh", "gelu", "relu"):
            self.transform = Linear(size, size)
        elif self.kind == "norm":
            self.transform = MLMTransform(config)
        bias = self.kind != "none" if bias is None else bias
        self.linear = OutputLinear(size, num_labels, bias=bias)
        initialize(self, config.initializer_range)

    def forward(
        self,
        encoder: Encoder,
        hidden: Float[Tensor, "tokens hidden_size"],
        packed: Sequences,
    ) -> Float[Tensor, "sequences num_labels"]:
        vectors = self._vectors(encoder, hidden, packed)
        result: Tensor = self.linear(self.dropout(vectors))
        return result

    def _vectors(
        self, encoder: Encoder, hidden: Tensor, packed: Sequences
    ) -> Float[Tensor, "sequences hidden_size"]:
        if self.kind == "pooler" and self.pooling == "cls":
            return encoder.pool(hidden, packed)
        if self.pooling == "mean":
            pooled = pool(hidden, packed, "mean")
        else:
            pooled = hidden[packed.first_tokens if self.pooling == "cls" else packed.last_tokens]
        if self.transform is None:
            return pooled
        if self.kind == "norm":
            transformed: Tensor = self.transform(pooled)
            return transformed
        if self.kind != "relu":
            pooled = self.dropout(pooled)
        return ACTIVATIONS[self.kind](self.transform(pooled))


class TokenHead(nn.Module):
    """`[tokens, num_outputs]` from each token's vector, for tagging and for spans (paper §4.2).

    ModernBERT has the layer of its masked-language-model head before the output layer; the other
    families have only dropout.
    """

    def __init__(self, config: EncoderConfig, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.transform = MLMTransform(config) if config.classifier == "norm" else None
        self.dropout = Dropout(dropout)
        self.linear = OutputLinear(config.hidden_size, num_outputs)
        initialize(self, config.initializer_range)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"]
    ) -> Float[Tensor, "tokens num_outputs"]:
        if self.transform is not None:
            hidden = self.transform(hidden)
        result: Tensor = self.linear(self.dropout(hidden))
        return result


def cross_entropy_sum(
    logits: Float[Tensor, "rows classes"], labels: Int[Tensor, " rows"]
) -> Float[Tensor, ""]:
    """The summed cross-entropy of the rows, in float32 at least."""
    return F.cross_entropy(promote_to_float32(logits), labels, reduction="sum")


def _weighted_mean(hidden: Tensor) -> Tensor:
    weights = torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)
    # Not a matrix product, whose rounding depends on the number of sequences.
    return (hidden * (weights / weights.sum())[:, None]).sum(1)


# From `[sequences, length, hidden_size]`, sequences of equal length, to `[sequences, width]`.
_REDUCE: Mapping[Pooling, Callable[[Tensor], Tensor]] = {
    "mean": lambda hidden: hidden.mean(1),
    "max": lambda hidden: hidden.amax(1),
    "mean-sqrt": lambda hidden: hidden.sum(1) / hidden.shape[1] ** 0.5,
    "weighted-mean": _weighted_mean,
    "mean+max": lambda hidden: torch.cat([hidden.mean(1), hidden.amax(1)], -1),
}


def _sum(rows: Tensor, mask: Tensor) -> Tensor:
    return (rows * mask.to(rows.dtype)).sum(1)


def _mean(rows: Tensor, mask: Tensor) -> Tensor:
    return _sum(rows, mask) / mask.sum(1).to(rows.dtype)


def _max(rows: Tensor, mask: Tensor) -> Tensor:
    return rows.masked_fill(~mask, -torch.inf).amax(1)


def _weighted_padded_mean(rows: Tensor, mask: Tensor) -> Tensor:
    weights = mask.to(rows.dtype).cumsum(1) * mask.to(rows.dtype)
    return (rows * weights).sum(1) / weights.sum(1)


# The same from padded `[rows, length, hidden_size]` and `[rows, length, 1]`: which tokens are real.
_REDUCE_PADDED: Mapping[Pooling, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": _mean,
    "max": _max,
    "mean-sqrt": lambda rows, mask: _sum(rows, mask) / mask.sum(1).to(rows.dtype).sqrt(),
    "weighted-mean": _weighted_padded_mean,
    "mean+max": lambda rows, mask: torch.cat([_mean(rows, mask), _max(rows, mask)], -1),
}


def pool(
    hidden: Float[Tensor, "tokens hidden_size"], packed: Sequences, pooling: Pooling
) -> Float[Tensor, "sequences width"]:
    """Return one vector per sequence, in the order of the pack or of the padded batch.

    Args:
        pooling: any but "pooler", which `Encoder.pooled` computes.
    """
    if pooling == "cls":
        return hidden[packed.first_tokens]
    if pooling == "sep":
        return hidden[packed.last_tokens]
    if isinstance(packed, Padded):
        rows = hidden.view(*packed.mask.shape, -1)
        return _REDUCE_PADDED[pooling](rows, packed.mask.unsqueeze(-1))
    reduce = _REDUCE[pooling]
    return torch.cat(
        [
            reduce(hidden[group.tokens].view(group.sequences, group.length, -1))
            for group in packed.groups
        ]
    )


def width_factor(pooling: Pooling) -> int:
    """The width of a sequence's vector, as a multiple of a token's."""
    return 2 if pooling == "mean+max" else 1
