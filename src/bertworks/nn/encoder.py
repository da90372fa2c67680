"""The encoder: from a pack of token ids to one vector per token.

    embeddings ─► [ attention ─► + ─► norm ─► feed-forward ─► + ─► norm ] × layers
                       └── residual ──┘            └── residual ──┘

This is BERT and most of its family: post-norm, as in the original code. With `norm_first` each half
of a layer normalises its input instead, and a final norm follows the layers. Other settings give
BERT's predecessors: an LSTM instead of attention, or two causal encoders side by side.

The linear maps never compute pad tokens, since a pack has none (in bfloat16 on the CPU, a few rows
of zeros may follow the last token: see `cpu.align_rows`). Source: paper §3 and its reference,
Vaswani et al. (2017) §3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Num
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..native import training as native
from ..packed import Packed, Sequences
from .attention import attention
from .config import EncoderConfig
from .cpu import align_rows
from .kv_cache import KeyValueCache
from .layers import (
    ACTIVATIONS,
    Dropout,
    Embeddings,
    LayerNorm,
    Linear,
    add_and_norm,
    initialize,
)
from .rotary import Rotation


class AttentionScope(NamedTuple):
    """Which tokens the tokens of one layer attend to."""

    packed: Sequences  # the sequences
    causal: bool  # whether tokens do not attend to later ones
    # the largest distance at which tokens attend to each other, if it is limited
    window: int | None
    rotation: Rotation | None  # of queries and keys, if positions are rotary
    cache: KeyValueCache | None  # keys and values of earlier tokens, if there are any
    layer: int  # the number of the layer
    reversed_index: Tensor | None  # index of each token in reversed sequences, for two-way layers


class SelfAttention(nn.Module):
    """Multi-head self-attention and its output map, without the residual."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size, bias = config.hidden_size, config.use_bias
        self.heads_shape = (3, config.num_attention_heads, config.head_size)
        self.dropout_prob = config.attention_probs_dropout_prob
        self.query_key_value = Linear(size, 3 * size, bias=bias)
        self.output = Linear(size, size, bias=bias)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], scope: AttentionScope
    ) -> Float[Tensor, "tokens hidden_size"]:
        result: Tensor = self.output(self.context(hidden, scope))
        return result

    def context(
        self, hidden: Float[Tensor, "tokens hidden_size"], scope: AttentionScope
    ) -> Float[Tensor, "tokens hidden_size"]:
        """Compute the input of the output map: the heads' results, concatenated."""
        mixed = self.query_key_value(hidden)
        dropout = self.dropout_prob if self.training else 0.0
        if self._is_native(mixed, scope):
            assert isinstance(scope.packed, Packed)
            return native.attention(mixed, scope.packed, self.heads_shape[1], dropout)
        query, key, value = mixed.view(-1, *self.heads_shape).unbind(1)
        if scope.rotation is not None:
            query, key = scope.rotation.rotate(query), scope.rotation.rotate(key)
        key_layout = None
        if scope.cache is not None:
            key, value = scope.cache.extend(scope.layer, key, value)
            key_layout = scope.cache.layout
        context = attention(
            query,
            key,
            value,
            scope.packed,
            key_layout,
            causal=scope.causal,
            window=scope.window,
            dropout=dropout,
        )
        return context.flatten(1)

    def _is_native(self, mixed: Tensor, scope: AttentionScope) -> bool:
        """Whether native code computes the heads' results."""
        return (
            mixed.dtype is torch.bfloat16
            and mixed.is_cpu
            and mixed.is_contiguous()
            and isinstance(scope.packed, Packed)
            and not scope.causal
            and scope.window is None
            and scope.rotation is None
            and scope.cache is None
            and native.can_attend(self.heads_shape[2], scope.packed.max_seqlen)
        )


class Recurrence(nn.LSTM):
    """An LSTM over the tokens of each sequence, from left to right, without the residual.

    It runs once for each group of sequences of equal length, so that no pad token is computed. The
    results of a text alone and in a batch are equal up to rounding. New weights have PyTorch's
    default initialisation. Source: Hochreiter and Schmidhuber (1997), with the forget gate of Gers
    et al. (2000).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config.hidden_size, config.hidden_size, bias=config.use_bias)

    def forward(  # type: ignore[override]
        self, hidden: Float[Tensor, "tokens hidden_size"], scope: AttentionScope
    ) -> Float[Tensor, "tokens hidden_size"]:
        packed = scope.packed
        assert isinstance(packed, Packed) and scope.cache is None
        weights = [weight.to(hidden.dtype) for weight in self.parameters()]
        parts = []
        for group in packed.groups:
            rows = hidden[group.tokens].view(group.sequences, group.length, self.hidden_size)
            first = rows.new_zeros(1, group.sequences, self.hidden_size)
            # has_biases, num_layers, dropout, train, bidirectional, batch_first
            how = (self.bias, 1, 0.0, self.training, False, True)
            parts.append(torch.lstm(rows, (first, first), weights, *how)[0].flatten(0, 1))
        return F.pad(torch.cat(parts), (0, 0, 0, len(hidden) - packed.num_tokens))


class FeedForward(nn.Module):
    """Two linear maps with the activation between them, without the residual.

    If gated, the first map has two halves: the activation of the first is multiplied by the second.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size, bias = config.hidden_size, config.use_bias
        self.gated = config.gated
        inner = config.intermediate_size * (2 if config.gated else 1)
        self.intermediate = Linear(size, inner, bias=bias)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output = Linear(config.intermediate_size, size, bias=bias)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"]
    ) -> Float[Tensor, "tokens hidden_size"]:
        result: Tensor = self.output(self.inner(hidden))
        return result

    def inner(
        self, hidden: Float[Tensor, "tokens hidden_size"]
    ) -> Num[Tensor, "tokens intermediate_size"]:
        """Compute the input of the second map: numbers, or in a frozen form their 8-bit codes."""
        inner: Tensor = self.intermediate(hidden)
        if self.gated:
            inner, gate = inner.chunk(2, -1)
            return self.activation(inner) * gate
        return self.activation(inner)


class Layer(nn.Module):
    """Attention, or an LSTM, and feed-forward; dropout, a residual and a norm around each.

    Args:
        number: the number of the layer, from 0.
    """

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        input_is_normed = config.norm_first and config.embedding_norm and number == 0
        self.attention = SelfAttention(config) if config.mixer == "attention" else None
        self.recurrence = Recurrence(config) if config.mixer == "lstm" else None
        self.attention_norm = nn.Identity() if input_is_normed else _norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = _norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], scope: AttentionScope
    ) -> Float[Tensor, "tokens hidden_size"]:
        mix: Callable[..., Tensor] | None = self.attention or self.recurrence
        assert mix is not None
        if self.norm_first:
            hidden = hidden + self.dropout(mix(self.attention_norm(hidden), scope))
            result = hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))
        else:
            norms = self.attention_norm, self.feed_forward_norm
            hidden = add_and_norm(mix(hidden, scope), hidden, self.dropout, norms[0])
            result = add_and_norm(self.feed_forward(hidden), hidden, self.dropout, norms[1])
        assert isinstance(result, Tensor)
        return result


class TwoWayLayer(nn.Module):
    """Two layers side by side, each for one half of every vector.

    The first reads from left to right, the second from right to left. Source: Peters et al. (2018),
    "Deep contextualized word representations".
    """

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        self.forwards = Layer(config.per_direction_config, number)
        self.backwards = Layer(config.per_direction_config, number)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], scope: AttentionScope
    ) -> Float[Tensor, "tokens hidden_size"]:
        left, right = hidden.chunk(2, -1)
        assert scope.reversed_index is not None
        index = scope.reversed_index
        forwards = self.forwards(left.contiguous(), scope)
        backwards = self.backwards(right.index_select(0, index), scope)
        return torch.cat((forwards, backwards.index_select(0, index)), -1)


def _norm(config: EncoderConfig) -> LayerNorm:
    return LayerNorm(config.hidden_size, config.layer_norm_eps, bias=config.norm_bias)


class Pooler(nn.Module):
    """A sequence's vector: a linear map and tanh of the first token's (`[CLS]`) vector."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, first: Float[Tensor, "sequences hidden_size"]
    ) -> Float[Tensor, "sequences hidden_size"]:
        return torch.tanh(self.dense(first))


class HasEncoder(nn.Module):
    """A module that holds an encoder: a task's network, or a bare encoder."""

    encoder: Encoder


class Encoder(nn.Module):
    """An encoder of the BERT family on packed sequences.

    Args:
        config: the geometry.
        pooler: whether to add a pooler; `encoder.pooler(hidden[packed.first_tokens])` calls it.

    Attributes:
        compute_dtype: the dtype of the hidden states; None: as the parameters.
        gradient_checkpointing: whether layers keep no activations for the backward pass, which
            computes them again (Chen et al. 2016); dropout is the same both times.
    """

    def __init__(self, config: EncoderConfig, *, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype: torch.dtype | None = None
        self.gradient_checkpointing = False
        self.embeddings = Embeddings(config.per_direction_config)
        numbers = range(len(set(config.layer_groups)))
        kind = TwoWayLayer if config.attention == "two-way" else Layer
        self.layers = nn.ModuleList(kind(config, number) for number in numbers)
        self.final_norm = _norm(config) if config.norm_first else None
        self.pooler = Pooler(config) if pooler else None
        initialize(self, config.initializer_range)

    @property
    def parts(self) -> list[nn.Module]:
        """The embeddings, then each layer from the bottom (shared layers once)."""
        return [self.embeddings, *self.layers]

    def forward(self, packed: Sequences) -> Float[Tensor, "tokens hidden_size"]:
        """The last layer's vector of each token, in the order of the pack.

        Args:
            packed: sequences no longer than `max_seqlen`, as tensors.
        """
        return deque(self.hidden_states(packed), maxlen=1).pop()

    def hidden_states(
        self, packed: Sequences, cache: KeyValueCache | None = None
    ) -> Iterator[Float[Tensor, "tokens hidden_size"]]:
        """Yield the embeddings, then each layer's output: `num_hidden_layers + 1` in all.

        With `norm_first`, the final norm is part of the last one.

        Args:
            packed: sequences no longer than `max_seqlen`, as tensors.
            cache: keys and values of earlier tokens; those of the new tokens are added to it. The
                encoder must be causal.
        """
        config = self.config
        assert packed.max_seqlen <= config.max_seqlen, (
            f"a sequence of {packed.max_seqlen} tokens is longer than the {config.max_seqlen} "
            f"that max_position_embeddings={config.max_position_embeddings} has room for"
        )
        hidden = self.embeddings(packed)
        if config.attention == "two-way":
            hidden = hidden.repeat(1, 2)
        if self.compute_dtype is not None:
            hidden = hidden.to(self.compute_dtype)
        yield hidden
        yield from self.hidden_states_above(hidden, packed, cache)

    def hidden_states_above(
        self,
        hidden: Float[Tensor, "tokens hidden_size"],
        packed: Sequences,
        cache: KeyValueCache | None = None,
        layer: int = 0,
    ) -> Iterator[Float[Tensor, "tokens hidden_size"]]:
        """Yield the outputs of a layer and of those above it; see `hidden_states`.

        Args:
            hidden: the input of the layer.
            packed: the sequences.
            cache: the keys and values of earlier tokens.
            layer: the number of the layer.
        """
        config = self.config
        if cache is not None:
            assert isinstance(packed, Packed) and config.can_generate
            cache.prepare(packed)
        rows = hidden
        if cache is None and isinstance(packed, Packed):
            hidden = align_rows(rows)
        has_more = hidden is not rows
        scopes = self._scopes(packed, hidden, cache)
        layers = list(self.layers)
        for group, scope in zip(config.layer_groups[layer:], scopes[layer:], strict=True):
            compute: Callable[..., Tensor] = layers[group]
            if self.gradient_checkpointing and torch.is_grad_enabled():
                compute = partial(checkpoint, compute, use_reentrant=False)
            hidden = compute(hidden, scope)
            if self.final_norm is not None and scope is scopes[-1]:
                hidden = self.final_norm(hidden)
            yield hidden[: packed.num_tokens] if has_more else hidden

    def _scopes(
        self, packed: Sequences, hidden: Tensor, cache: KeyValueCache | None
    ) -> list[AttentionScope]:
        """Return which tokens the tokens of each layer attend to."""
        config = self.config
        rotations: list[Rotation | None] = [None, None]
        if config.positions == "rotary":
            rotations = [
                Rotation.from_positions(
                    packed.position_ids,
                    rows=len(hidden),
                    head_size=config.head_size,
                    theta=theta,
                    dtype=torch.promote_types(hidden.dtype, torch.float32),
                )
                for theta in (config.rope_theta, config.local_rope_theta)
            ]
        is_two_way = config.attention == "two-way"
        reversed_index = _reverse_index(packed, len(hidden)) if is_two_way else None
        return [
            AttentionScope(
                packed,
                config.attention != "bidirectional",
                config.window(layer),
                rotations[config.is_local(layer)],
                cache,
                layer,
                reversed_index,
            )
            for layer in range(config.num_hidden_layers)
        ]

    def pool(
        self, hidden: Float[Tensor, "tokens hidden_size"], packed: Sequences
    ) -> Float[Tensor, "sequences hidden_size"]:
        """The pooler's output for each sequence, in the order of the pack."""
        assert self.pooler is not None, "this encoder has no pooler"
        result: Tensor = self.pooler(hidden[packed.first_tokens])
        return result


def _reverse_index(packed: Sequences, rows: int) -> Int64[Tensor, " rows"]:
    """Return each token's index in its reversed sequence; rows after the last token keep theirs."""
    assert isinstance(packed, Packed)
    edges = packed.cu_seqlens.long()
    # The sum of a token's index and its reversed index: that of its sequence's first and last.
    sums = torch.repeat_interleave(edges[:-1] + edges[1:] - 1, edges.diff())
    indices = torch.arange(rows, device=sums.device)
    indices[: len(sums)] = sums - indices[: len(sums)]
    return indices
