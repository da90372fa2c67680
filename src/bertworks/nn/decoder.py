"""The decoder of a Transformer, on packed sequences: it generates a target from a source.

    target ─► causal self-attention ─(+)─► norm ─► cross-attention ─(+)─► norm ─► feed-forward …
                                                        ▲
    source ─► encoder ──────────────────────────────────┘

Cross-attention uses the same function as the encoder's attention; its keys have another layout.
Source: Vaswani et al. (2017), §3.1 and §3.2.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from ..packed import Layout, Packed
from .attention import attention
from .config import EncoderConfig
from .encoder import AttentionScope, FeedForward, SelfAttention
from .kv_cache import Memory
from .layers import Dropout, LayerNorm, Linear, initialize


class Seen(NamedTuple):
    """The source's keys, values and layout, to which a layer's cross-attention attends."""

    key: Float[Tensor, "keys heads head_size"]
    value: Float[Tensor, "keys heads head_size"]
    layout: Layout


class CrossAttention(nn.Module):
    """Multi-head attention to another sequence, and its output map, without the residual."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size, bias = config.hidden_size, config.use_bias
        self.heads_shape = (config.num_attention_heads, config.head_size)
        self.dropout_prob = config.attention_probs_dropout_prob
        self.query = Linear(size, size, bias=bias)
        self.key_value = Linear(size, 2 * size, bias=bias)
        self.output = Linear(size, size, bias=bias)

    def seen(self, source: Float[Tensor, "keys hidden_size"], layout: Layout) -> Seen:
        """Compute the source's keys and values, which are the same for all target tokens."""
        key, value = self.key_value(source).unflatten(-1, (2, *self.heads_shape)).unbind(1)
        return Seen(key, value, layout)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], target: Layout, seen: Seen
    ) -> Float[Tensor, "tokens hidden_size"]:
        context = attention(
            self.query(hidden).unflatten(-1, self.heads_shape),
            seen.key,
            seen.value,
            target,
            seen.layout,
            dropout=self.dropout_prob if self.training else 0.0,
        )
        result: Tensor = self.output(context.flatten(1))
        return result


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention and feed-forward, each with dropout, residual and norm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.cross_attention = CrossAttention(config)
        self.feed_forward = FeedForward(config)
        norms = (LayerNorm(config.hidden_size, config.layer_norm_eps) for _ in range(3))
        self.attention_norm, self.cross_attention_norm, self.feed_forward_norm = norms
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], scope: AttentionScope, seen: Seen
    ) -> Float[Tensor, "tokens hidden_size"]:
        assert isinstance(scope.packed, Packed)
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, scope)))
        looked = self.cross_attention(hidden, scope.packed, seen)
        hidden = self.cross_attention_norm(hidden + self.dropout(looked))
        result: Tensor = self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))
        return result


class Decoder(nn.Module):
    """The layers of a decoder; embeddings and output layer are the encoder's word embeddings.

    Args:
        config: the encoder's geometry, also used for the decoder, which has at least one layer.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        count = max(1, config.num_hidden_layers)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(count))
        initialize(self, config.initializer_range)

    def seen(self, source: Float[Tensor, "keys hidden_size"], layout: Layout) -> list[Seen]:
        """Compute each layer's keys and values of the encoder's output."""
        return [layer.cross_attention.seen(source, layout) for layer in self.layers]  # type: ignore[union-attr,operator]

    def forward(
        self,
        hidden: Float[Tensor, "tokens hidden_size"],
        target: Packed,
        seen: Sequence[Seen],
        memory: Memory | None = None,
    ) -> Float[Tensor, "tokens hidden_size"]:
        """Return the last layer's vector of each target token.

        Args:
            hidden: the embeddings of the target's tokens.
            target: as many sequences as the source has, in the same order.
            seen: the result of the method `seen`.
            memory: keys and values of earlier target tokens; those of the new tokens are added.
        """
        if memory is not None:
            memory.take(target)
        for number, (layer, one) in enumerate(zip(self.layers, seen, strict=True)):
            scope = AttentionScope(target, True, None, None, memory, number, None)
            hidden = layer(hidden, scope, one)
        return hidden
