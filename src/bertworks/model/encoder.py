"""The encoder: a pack of token ids in, a vector for each token out.

    embeddings ─► [ attention ─► + ─► norm ─► feed-forward ─► + ─► norm ] × layers
                       └── residual ──┘            └── residual ──┘

The linear maps never see a pad token, since a pack has none (in bfloat16 on the CPU, a few rows of
zeros may stand behind the last: see `cpu.align_rows`). Source: paper §3 and its reference,
Vaswani et al. (2017) §3; post-norm, as in the original code.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..packed import Packed
from .attention import Layout, attention
from .config import EncoderConfig
from .cpu import align_rows
from .embeddings import Embeddings
from .layers import ACTIVATIONS, Dropout, LayerNorm, Linear, initialize


class SelfAttention(nn.Module):
    """Multi-head self-attention and its output map, without the residual."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads_shape = (3, config.num_attention_heads, config.head_size)
        self.dropout_prob = config.attention_probs_dropout_prob
        self.query_key_value = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], layout: Layout
    ) -> Float[Tensor, "tokens hidden_size"]:
        query, key, value = self.query_key_value(hidden).unflatten(-1, self.heads_shape).unbind(1)
        dropout = self.dropout_prob if self.training else 0.0
        context = attention(query, key, value, layout, dropout=dropout)
        result: Tensor = self.output(context.flatten(1))
        return result


class FeedForward(nn.Module):
    """Two linear maps with the activation between them, without the residual."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.intermediate = Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output = Linear(config.intermediate_size, config.hidden_size)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"]
    ) -> Float[Tensor, "tokens hidden_size"]:
        result: Tensor = self.output(self.activation(self.intermediate(hidden)))
        return result


class Layer(nn.Module):
    """One layer: each half's output is dropped out, added to its input, and normalised."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], layout: Layout
    ) -> Float[Tensor, "tokens hidden_size"]:
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, layout)))
        output = self.dropout(self.feed_forward(hidden))
        result: Tensor = self.feed_forward_norm(hidden + output)
        return result


class Pooler(nn.Module):
    """The vector of a whole sequence: tanh of a linear map of its first token's, `[CLS]`'s."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, first: Float[Tensor, "sequences hidden_size"]
    ) -> Float[Tensor, "sequences hidden_size"]:
        return torch.tanh(self.dense(first))


class Encoder(nn.Module):
    """BERT's encoder on packed sequences.

    Args:
        config: the geometry.
        pooler: whether there is a pooler; `encoder.pooler(hidden[packed.first_tokens])` calls it.

    Attributes:
        compute_dtype: the precision that hidden states are computed in; that of the parameters, if
            None.
    """

    def __init__(self, config: EncoderConfig, *, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype: torch.dtype | None = None
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.pooler = Pooler(config) if pooler else None
        initialize(self, config.initializer_range)

    def forward(self, packed: Packed) -> Float[Tensor, "tokens hidden_size"]:
        """The last layer's vector of each token, in the order of the pack.

        Args:
            packed: sequences no longer than `max_position_embeddings`, as tensors.
        """
        hidden = torch.empty(0)
        for hidden in self.hidden_states(packed):  # noqa: B007  (the last one is wanted)
            pass
        return hidden

    def hidden_states(self, packed: Packed) -> Iterator[Float[Tensor, "tokens hidden_size"]]:
        """The embeddings, then each layer's output: `num_hidden_layers + 1` in all."""
        assert packed.max_seqlen <= self.config.max_position_embeddings, (
            f"a sequence of {packed.max_seqlen} tokens is longer than "
            f"max_position_embeddings={self.config.max_position_embeddings}"
        )
        layout = Layout.of(packed)
        hidden = self.embeddings(packed)
        if self.compute_dtype is not None:
            hidden = hidden.to(self.compute_dtype)
        yield hidden
        hidden = align_rows(hidden)
        for layer in self.layers:
            hidden = layer(hidden, layout)
            yield hidden[: packed.num_tokens]

    def pooled(
        self, hidden: Float[Tensor, "tokens hidden_size"], packed: Packed
    ) -> Float[Tensor, "sequences hidden_size"]:
        """The pooler's vector of each sequence, in the order of the pack."""
        assert self.pooler is not None, "this encoder has no pooler"
        result: Tensor = self.pooler(hidden[packed.first_tokens])
        return result
