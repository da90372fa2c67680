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
from .encoder_layers import AttentionScope, FeedForward, SelfAttention
from .kv_cache import KeyValueCache
from .layers import Dropout, LayerNorm, Linear, initialize


class CrossAttentionKeysValues(NamedTuple):
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

    def project_source(
        self, source: Float[Tensor, "keys hidden_size"], layout: Layout
    ) -> CrossAttentionKeysValues:
        """Compute the source's keys and values, which are the same for all target tokens."""
        key, value = self.key_value(source).unflatten(-1, (2, *self.heads_shape)).unbind(1)
        return CrossAttentionKeysValues(key, value, layout)

    def forward(
        self,
        hidden: Float[Tensor, "tokens hidden_size"],
        target: Layout,
        source: CrossAttentionKeysValues,
    ) -> Float[Tensor, "tokens hidden_size"]:
        context = attention(
            self.query(hidden).unflatten(-1, self.heads_shape),
            source.key,
            source.value,
            target,
            source.layout,
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
        self,
        hidden: Float[Tensor, "tokens hidden_size"],
        scope: AttentionScope,
        source: CrossAttentionKeysValues,
    ) -> Float[Tensor, "tokens hidden_size"]:
        assert isinstance(scope.packed, Packed)
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, scope)))
        context = self.cross_attention(hidden, scope.packed, source)
        hidden = self.cross_attention_norm(hidden + self.dropout(context))
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

    def project_source(
        self, source: Float[Tensor, "keys hidden_size"], layout: Layout
    ) -> list[CrossAttentionKeysValues]:
        """Compute each layer's keys and values of the encoder's output."""
        attentions = [layer.cross_attention for layer in self.layers]
        # All layers of a decoder have such attention.
        return [attention.project_source(source, layout) for attention in attentions]  # type: ignore[union-attr,operator]

    def forward(
        self,
        hidden: Float[Tensor, "tokens hidden_size"],
        target: Packed,
        sources: Sequence[CrossAttentionKeysValues],
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "tokens hidden_size"]:
        """Return the last layer's vector of each target token.

        Args:
            hidden: the embeddings of the target's tokens.
            target: as many sequences as the source has, in the same order.
            sources: the result of `project_source`, for each layer.
            cache: keys and values of earlier target tokens; those of the new tokens are added.
        """
        if cache is not None:
            cache.prepare(target)
        for number, (layer, source) in enumerate(zip(self.layers, sources, strict=True)):
            scope = AttentionScope(target, True, None, None, cache, number, None)
            hidden = layer(hidden, scope, source)
        return hidden
