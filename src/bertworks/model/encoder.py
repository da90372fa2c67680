"""The encoder: a pack of token ids in, a vector for each token out.

    embeddings ─► [ attention ─► + ─► norm ─► feed-forward ─► + ─► norm ] × layers
                       └── residual ──┘            └── residual ──┘

So in BERT and most of its family: post-norm, as in the original code. Where `norm_first` is set,
each half normalises what it takes instead, and a last norm follows the layers.

The linear maps never see a pad token, since a pack has none (in bfloat16 on the CPU, a few rows of
zeros may stand behind the last: see `cpu.align_rows`). Source: paper §3 and its reference,
Vaswani et al. (2017) §3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..packed import Packed, Padded, Sequences
from .attention import Layout, PaddedLayout, attention
from .config import EncoderConfig
from .cpu import align_rows
from .embeddings import Embeddings
from .layers import ACTIVATIONS, Dropout, LayerNorm, Linear, initialize
from .memory import Memory
from .rotary import Rotation


class Sight(NamedTuple):
    """What a layer's tokens may see: their sequence, or what is behind them, or what is near; and
    what is remembered of tokens before them."""

    layout: Layout | PaddedLayout
    causal: bool = False
    window: int | None = None
    rotation: Rotation | None = None
    memory: Memory | None = None
    layer: int = 0


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
        self, hidden: Float[Tensor, "tokens hidden_size"], sight: Sight
    ) -> Float[Tensor, "tokens hidden_size"]:
        query, key, value = self.query_key_value(hidden).unflatten(-1, self.heads_shape).unbind(1)
        if sight.rotation is not None:
            query, key = sight.rotation.turn(query), sight.rotation.turn(key)
        key_layout = None
        if sight.memory is not None:
            key, value = sight.memory.extend(sight.layer, key, value)
            key_layout = sight.memory.layout
        context = attention(
            query,
            key,
            value,
            sight.layout,
            key_layout,
            causal=sight.causal,
            window=sight.window,
            dropout=self.dropout_prob if self.training else 0.0,
        )
        result: Tensor = self.output(context.flatten(1))
        return result


class FeedForward(nn.Module):
    """Two linear maps with the activation between them, without the residual.

    If it is gated, the first map has two halves, and the second one is multiplied with the
    activation of the first.
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
        inner = self.intermediate(hidden)
        if self.gated:
            inner, gate = inner.chunk(2, -1)
            inner = self.activation(inner) * gate
        else:
            inner = self.activation(inner)
        result: Tensor = self.output(inner)
        return result


class Layer(nn.Module):
    """One layer: each half's output is dropped out, added to its input, and normalised.

    Args:
        config: the geometry.
        number: which layer it is.
    """

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        is_normed_already = config.norm_first and config.embedding_norm and number == 0
        self.attention = SelfAttention(config)
        self.attention_norm = nn.Identity() if is_normed_already else _norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = _norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], sight: Sight
    ) -> Float[Tensor, "tokens hidden_size"]:
        if self.norm_first:
            attended = self.attention(self.attention_norm(hidden), sight)
            hidden = hidden + self.dropout(attended)
            output = self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))
            added: Tensor = hidden + output
            return added
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, sight)))
        output = self.dropout(self.feed_forward(hidden))
        result: Tensor = self.feed_forward_norm(hidden + output)
        return result


def _norm(config: EncoderConfig) -> LayerNorm:
    return LayerNorm(config.hidden_size, config.layer_norm_eps, bias=config.norm_bias)


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
    """An encoder of BERT's family on packed sequences.

    Args:
        config: the geometry.
        pooler: whether there is a pooler; `encoder.pooler(hidden[packed.first_tokens])` calls it.

    Attributes:
        compute_dtype: the precision that hidden states are computed in; that of the parameters, if
            None.
        gradient_checkpointing: whether layers keep nothing for the backward pass, and are computed
            again there (Chen et al. 2016); dropout is the same both times.
    """

    def __init__(self, config: EncoderConfig, *, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype: torch.dtype | None = None
        self.gradient_checkpointing = False
        self.embeddings = Embeddings(config)
        numbers = range(len(set(config.layer_groups)))
        self.layers = nn.ModuleList(Layer(config, number) for number in numbers)
        self.final_norm = _norm(config) if config.norm_first else None
        self.pooler = Pooler(config) if pooler else None
        initialize(self, config.initializer_range)

    @property
    def parts(self) -> list[nn.Module]:
        """What is stacked, from the bottom: the embeddings, then the layers that have weights of
        their own."""
        return [self.embeddings, *self.layers]

    def forward(self, packed: Sequences) -> Float[Tensor, "tokens hidden_size"]:
        """The last layer's vector of each token, in the order of the pack.

        Args:
            packed: sequences no longer than `max_seqlen`, as tensors.
        """
        hidden = torch.empty(0)
        for hidden in self.hidden_states(packed):  # noqa: B007  (the last one is wanted)
            pass
        return hidden

    def hidden_states(
        self, packed: Sequences, memory: Memory | None = None
    ) -> Iterator[Float[Tensor, "tokens hidden_size"]]:
        """The embeddings, then each layer's output: `num_hidden_layers + 1` in all.

        With a memory, the tokens go on from those that it has taken before, and only see what is
        behind them (`attention` is "causal").

        Where layers normalise first, the last one's output is what the final norm makes of it.
        """
        config = self.config
        assert packed.max_seqlen <= config.max_seqlen, (
            f"a sequence of {packed.max_seqlen} tokens is longer than the {config.max_seqlen} "
            f"that max_position_embeddings={config.max_position_embeddings} has room for"
        )
        hidden = self.embeddings(packed)
        if self.compute_dtype is not None:
            hidden = hidden.to(self.compute_dtype)
        last = config.num_hidden_layers - 1
        yield hidden
        if memory is None:
            hidden = align_rows(hidden)
        else:
            assert isinstance(packed, Packed) and config.attention == "causal"
            memory.take(packed)
        far, near = self._sights(packed, hidden)
        for number, group in enumerate(config.layer_groups):
            sight = near if config.is_local(number) else far
            sight = sight._replace(memory=memory, layer=number)
            if self.gradient_checkpointing and torch.is_grad_enabled():
                hidden = checkpoint(self.layers[group], hidden, sight, use_reentrant=False)
            else:
                hidden = self.layers[group](hidden, sight)
            if number == last and self.final_norm is not None:
                hidden = self.final_norm(hidden)
            yield hidden[: packed.num_tokens]

    def _sights(self, packed: Sequences, hidden: Tensor) -> tuple[Sight, Sight]:
        """What the tokens of global layers and of local ones see."""
        config = self.config
        rotations: list[Rotation | None] = [None, None]
        if config.positions == "rotary":
            rotations = [
                Rotation.of(
                    packed.position_ids,
                    rows=len(hidden),
                    head_size=config.head_size,
                    theta=theta,
                    dtype=torch.promote_types(hidden.dtype, torch.float32),
                )
                for theta in (config.rope_theta, config.local_rope_theta)
            ]
        window = None if config.local_attention is None else config.local_attention // 2
        causal = config.attention == "causal"
        layout = PaddedLayout(packed.mask) if isinstance(packed, Padded) else Layout.of(packed)
        return (
            Sight(layout, causal, None, rotations[0]),
            Sight(layout, causal, window, rotations[1]),
        )

    def pooled(
        self, hidden: Float[Tensor, "tokens hidden_size"], packed: Sequences
    ) -> Float[Tensor, "sequences hidden_size"]:
        """The pooler's vector of each sequence, in the order of the pack."""
        assert self.pooler is not None, "this encoder has no pooler"
        result: Tensor = self.pooler(hidden[packed.first_tokens])
        return result
