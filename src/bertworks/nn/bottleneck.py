"""Layers that are narrower inside than between them, with several feed-forward networks.

    hidden ─► bottleneck ─► attention ─► + ─► norm ─► [ feed-forward ─► + ─► norm ] × n ─► map ─┐
       │           └──── residual ───────┘               └── residual ──┘                       │
       └──────────────────────────────────── residual ────────────────────────────────► + ◄─────┘

A norm follows. Source: Sun et al. (2020), "MobileBERT: a Compact Task-Agnostic BERT for
Resource-Limited Devices", §3.1 and figure 1c.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .config import EncoderConfig
from .encoder_layers import AttentionScope, FeedForward, Layer
from .layers import Linear, QueryKeyAndValue, add_and_norm, make_norm


class BottleneckLayer(Layer):
    """A layer that maps its input to narrow vectors, and its result back to the wide ones.

    The inherited parts are narrow: attention, and the last feed-forward network. Dropout is only
    applied to the result.
    """

    def __init__(self, config: EncoderConfig, number: int) -> None:
        narrow, settings = config.narrow_config, config.bottleneck
        assert settings is not None
        super().__init__(narrow, number)
        size = settings.size
        self.bottleneck = Bottleneck(config)
        self.query_key_bottleneck = Bottleneck(config) if settings.shared_query_key else None
        self.is_attention_narrow = settings.attention
        if not settings.attention:
            assert self.attention is not None
            self.attention.query_key_value = QueryKeyAndValue(
                size, config.hidden_size, outputs=size, bias=config.use_bias
            )
        others = range(settings.num_feed_forward - 1)
        self.feed_forward_blocks = nn.ModuleList(FeedForwardBlock(narrow) for _ in others)
        self.feed_forward_norm = make_norm(config, size, settings.norm_eps)
        self.output = Linear(size, config.hidden_size, bias=config.use_bias)
        self.output_norm = make_norm(config, config.hidden_size)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], scope: AttentionScope
    ) -> Float[Tensor, "tokens hidden_size"]:
        assert self.attention is not None
        narrow = self.bottleneck(hidden)
        inputs = narrow
        if not self.is_attention_narrow:
            assert self.query_key_bottleneck is not None
            inputs = torch.cat([self.query_key_bottleneck(hidden), hidden], -1)
        result = self.attention_norm(narrow + self.attention(inputs, scope))
        for block in self.feed_forward_blocks:
            result = block(result)
        result = self.feed_forward_norm(result + self.feed_forward(result))
        return add_and_norm(self.output(result), hidden, self.dropout, self.output_norm)


class Bottleneck(nn.Module):
    """A linear map from wide to narrow vectors, and a norm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size = config.narrow_config.hidden_size
        self.dense = Linear(config.hidden_size, size, bias=config.use_bias)
        self.norm = make_norm(config, size)

    def forward(self, hidden: Float[Tensor, "tokens hidden_size"]) -> Float[Tensor, "tokens size"]:
        result: Tensor = self.norm(self.dense(hidden))
        return result


class FeedForwardBlock(nn.Module):
    """A feed-forward network, a residual and a norm."""

    def __init__(self, narrow_config: EncoderConfig) -> None:
        super().__init__()
        self.feed_forward = FeedForward(narrow_config)
        self.norm = make_norm(narrow_config, narrow_config.hidden_size)

    def forward(self, hidden: Float[Tensor, "tokens size"]) -> Float[Tensor, "tokens size"]:
        result: Tensor = self.norm(hidden + self.feed_forward(hidden))
        return result
