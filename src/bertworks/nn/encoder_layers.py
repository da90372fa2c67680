"""The layers of an encoder: attention or an LSTM, then a feed-forward network.

    post-norm:  x ─► attention ─► + ─► norm ─► feed-forward ─► + ─► norm
    pre-norm:   x ─► norm ─► attention ─► + ─► norm ─► feed-forward ─► +

Source: paper §3 and its reference, Vaswani et al. (2017) §3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor, nn

from ..native import training as native
from ..packed import Layout, Packed, Sequences
from .attention import attention
from .config import EncoderConfig
from .global_tokens import GlobalTokens
from .kv_cache import KeyValueCache
from .layers import (
    ACTIVATIONS,
    Dropout,
    GroupedLinear,
    Linear,
    QueryKeyAndValue,
    add_and_norm,
    make_linear,
    make_norm,
)
from .rotary import Rotation
from .score_bias import DistanceVectors, ScoreBias
from .score_bias_kinds import make_distance_maps
from .transformer_xl import TransformerXLTerms


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
    # added to the scores of attention, or what a layer makes that of
    bias: ScoreBias | DistanceVectors | None = None
    global_tokens: GlobalTokens | None = None


class SelfAttention(nn.Module):
    """Multi-head self-attention and its output map, without the residual."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size, bias = config.hidden_size, config.has_attention_bias
        # of queries, keys and values
        self.num_heads = [config.num_attention_heads, config.num_key_heads, config.num_key_heads]
        self.head_size = config.head_size
        self.is_by_head = config.query_key_value_order == "head"
        self.dropout_prob = config.attention_probs_dropout_prob
        groups, size_of_all = config.groups, sum(self.num_heads) * self.head_size
        has_all_biases = bias and config.has_key_bias
        self.query_key_value: Linear | GroupedLinear | QueryKeyAndValue = make_linear(
            size, size_of_all, groups=groups.query_key_value, parts=3, bias=has_all_biases
        )
        has_some_biases = bias and not has_all_biases
        self.query_bias = nn.Parameter(torch.zeros(size)) if has_some_biases else None
        self.value_bias = nn.Parameter(torch.zeros(size)) if has_some_biases else None
        self.distance_maps = make_distance_maps(config)
        self.output = make_linear(size, size, groups=groups.attention_output, bias=bias)

    def forward(
        self, hidden: Float[Tensor, "tokens inputs"], scope: AttentionScope
    ) -> Float[Tensor, "tokens hidden_size"]:
        result: Tensor = self.output(self.context(hidden, scope))
        return result

    def context(
        self, hidden: Float[Tensor, "tokens inputs"], scope: AttentionScope
    ) -> Float[Tensor, "tokens hidden_size"]:
        """Compute the input of the output map: the heads' results, concatenated."""
        mixed = self.query_key_value(hidden)
        dropout = self.dropout_prob if self.training else 0.0
        if self._is_native(mixed, scope):
            assert isinstance(scope.packed, Packed)
            return native.attention(mixed, scope.packed, self.num_heads[0], dropout)
        query, key, value = self.compute_heads(mixed)
        if scope.rotation is not None:
            query, key = scope.rotation.rotate(query), scope.rotation.rotate(key)
        query, key, bias = self.with_bias(query, key, scope)
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
            bias=bias,
            is_global=None if scope.global_tokens is None else scope.global_tokens.mask,
        )
        return context.flatten(1)

    def compute_heads(
        self, mixed: Float[Tensor, "tokens rows"]
    ) -> tuple[
        Float[Tensor, "tokens heads head_size"],
        Float[Tensor, "tokens key_heads head_size"],
        Float[Tensor, "tokens key_heads head_size"],
    ]:
        """Return queries, keys and values by head, from the output of their map.

        Biases that are not the map's, because keys have none, are added.
        """
        query, key, value = self.split_heads(mixed)
        if self.query_bias is not None and self.value_bias is not None:
            query = query + self.query_bias.to(mixed.dtype).view(-1, self.head_size)
            value = value + self.value_bias.to(mixed.dtype).view(-1, self.head_size)
        return query, key, value

    def split_heads(
        self, mixed: Float[Tensor, "tokens rows"]
    ) -> tuple[
        Float[Tensor, "tokens heads head_size"],
        Float[Tensor, "tokens key_heads head_size"],
        Float[Tensor, "tokens key_heads head_size"],
    ]:
        """Return the rows of queries, keys and values of their map's output, by head."""
        if self.is_by_head:
            query, key, value = mixed.view(-1, self.num_heads[0], 3, self.head_size).unbind(2)
        else:
            by_head = mixed.view(-1, sum(self.num_heads), self.head_size)
            query, key, value = torch.split(by_head, self.num_heads, 1)
        return query, key, value

    def with_bias(
        self,
        query: Float[Tensor, "tokens heads head_size"],
        key: Float[Tensor, "tokens key_heads head_size"],
        scope: AttentionScope,
    ) -> tuple[
        Float[Tensor, "tokens heads features"],
        Float[Tensor, "tokens key_heads features"],
        ScoreBias | None,
    ]:
        """Return queries and keys, maybe with more features, and what is added to their scores."""
        if not isinstance(scope.bias, DistanceVectors):
            return query, key, scope.bias
        assert self.distance_maps is not None
        bias: ScoreBias = self.distance_maps(scope.bias, self.query_key_value, query.dtype)
        if isinstance(self.distance_maps, TransformerXLTerms):
            query, key = self.distance_maps.add_features(query, key, scope.packed.token_type_ids)
        return query, key, bias

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
            and scope.bias is None
            and len(set(self.num_heads)) == 1
            and not self.is_by_head
            and native.can_attend(self.head_size, scope.packed.max_seqlen)
        )


class GlobalTokenAttention(SelfAttention):
    """Self-attention in which some tokens may be global.

    They attend to all tokens of their sequence, with other queries, keys and values, and all
    attend to them. Source: see `global_tokens.py`.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.global_query_key_value = Linear(size, 3 * size, bias=config.use_bias)

    def context(
        self, hidden: Float[Tensor, "tokens inputs"], scope: AttentionScope
    ) -> Float[Tensor, "tokens hidden_size"]:
        context = super().context(hidden, scope)
        tokens = scope.global_tokens
        if tokens is None:
            return context
        query, key, value = self.split_heads(self.global_query_key_value(hidden))
        dropout = self.dropout_prob if self.training else 0.0
        if tokens.indices is None or tokens.layout is None:  # a padded batch
            full = attention(query, key, value, scope.packed, dropout=dropout).flatten(1)
            return torch.where(tokens.mask[:, None], full, context)
        assert isinstance(scope.packed, Layout)
        result = attention(
            query[tokens.indices], key, value, tokens.layout, scope.packed, dropout=dropout
        ).flatten(1)
        # A sequence without global tokens has its first one among the queries.
        is_global = tokens.mask[tokens.indices][:, None]
        rows = torch.where(is_global, result, context[tokens.indices])
        return context.index_copy(0, tokens.indices, rows)


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
        size, inner, bias = config.hidden_size, config.intermediate_size, config.use_bias
        groups = config.groups
        self.gated, has_bias = config.gated, config.has_intermediate_bias
        self.intermediate = make_linear(
            size, inner * (1 + config.gated), groups=groups.intermediate, bias=has_bias
        )
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output = make_linear(inner, size, groups=groups.output, bias=bias)

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
        kind = SelfAttention if config.global_tokens is None else GlobalTokenAttention
        self.attention = kind(config) if config.mixer == "attention" else None
        self.recurrence = Recurrence(config) if config.mixer == "lstm" else None
        size = config.hidden_size
        has_norm = config.has_attention_norm(number)
        self.attention_norm = make_norm(config, size) if has_norm else nn.Identity()
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = make_norm(config, size)
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
