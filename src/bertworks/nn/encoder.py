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

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..packed import Packed, Sequences, to_tensor
from .bottleneck import BottleneckLayer
from .config import EncoderConfig
from .convolution import make_convolution
from .cpu import align_rows, apply_in_whole_vectors
from .embeddings import Embeddings, make_embeddings
from .encoder_graphs import EncoderGraphs
from .encoder_layers import AttentionScope, Layer, TwoWayLayer
from .global_tokens import find_global_tokens
from .kv_cache import KeyValueCache
from .layers import Linear, draw_weight, initialize, make_norm
from .rotary import Rotation, make_rotary
from .score_bias import DistanceVectors, ScoreBias, round_up_length
from .score_bias_kinds import make_score_bias
from .varlen_attention import choose_kernel


class Pooler(nn.Module):
    """A sequence's vector: a linear map and tanh of the first token's (`[CLS]`) vector."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, first: Float[Tensor, "sequences hidden_size"]
    ) -> Float[Tensor, "sequences hidden_size"]:
        return apply_in_whole_vectors(torch.tanh, self.dense(first))


def make_layer(config: EncoderConfig, number: int) -> Layer | TwoWayLayer:
    """Return a new layer of the number, from 0."""
    if config.attention == "two-way":
        return TwoWayLayer(config, number)
    return Layer(config, number) if config.bottleneck is None else BottleneckLayer(config, number)


def make_pooler(config: EncoderConfig) -> nn.Module:
    """Return a new pooler; without a layer, it returns the first token's vector."""
    return nn.Identity() if config.classifier == "linear" else Pooler(config)


class ContactHead(nn.Module):
    """The weights of ESM's regression of contacts on attention, which are only kept.

    Source: Rao et al. (2021), "Transformer protein language models are unsupervised structure
    learners".
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        heads = config.num_hidden_layers * config.num_attention_heads
        self.register_buffer("weight", torch.zeros(1, heads))
        self.register_buffer("bias", torch.zeros(1))


class HasEncoder(nn.Module):
    """A module that holds an encoder: a task's network, or a bare encoder."""

    encoder: Encoder


class BareEncoder(HasEncoder):
    """An encoder without a task, to fine-tune or to embed texts."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder


class Encoder(nn.Module):
    """An encoder of the BERT family on packed sequences.

    Args:
        config: the geometry.
        pooler: whether to add a pooler, even if `keep_pooler` is off;
            `Encoder.pool(hidden, packed)` applies it.

    Attributes:
        compute_dtype: the dtype of the hidden states; None: as the parameters.
        gradient_checkpointing: whether layers keep no activations for the backward pass, which
            computes them again (Chen et al. 2016); dropout is the same both times.
        graphs: CUDA graphs for small packs; None: each operator is launched by itself.
    """

    def __init__(self, config: EncoderConfig, *, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype: torch.dtype | None = None
        self.gradient_checkpointing = False
        self.graphs: EncoderGraphs | None = None
        self.embeddings = make_embeddings(config.per_direction_config)
        numbers = range(len(set(config.layer_groups)))
        self.rotary = make_rotary(config)
        self.layers = nn.ModuleList(make_layer(config, number) for number in numbers)
        self.convolution = make_convolution(config)
        self.score_bias = make_score_bias(config)
        self.final_norm = make_norm(config, config.hidden_size) if config.norm_first else None
        self.pooler = make_pooler(config) if pooler or config.keep_pooler else None
        self.contact_head = ContactHead(config) if config.contact_head else None
        # The first input of the query stream (`two_stream.py`).
        has_vector = config.is_transformer_xl
        self.mask_vector = (
            nn.Parameter(torch.empty(1, 1, config.hidden_size)) if has_vector else None
        )
        initialize(self, config.initializer_range)
        if self.mask_vector is not None:
            draw_weight(self.mask_vector, config.initializer_range)

    @property
    def parts(self) -> list[nn.Module]:
        """The embeddings, then each layer from the bottom (shared layers once).

        The terms of distances, which all layers share, are part of the embeddings, and a
        convolution of the first layer.
        """
        lowest: nn.Module = self.embeddings
        if self.score_bias is not None:
            lowest = nn.ModuleList((self.embeddings, self.score_bias))
        layers = list(self.layers)
        if self.convolution is not None:
            layers[0] = nn.ModuleList((layers[0], self.convolution))
        return [lowest, *layers]

    def forward(self, packed: Sequences) -> Float[Tensor, "tokens hidden_size"]:
        """The last layer's vector of each token, in the order of the pack.

        Args:
            packed: sequences no longer than `max_seqlen`, as tensors.
        """
        graphs = self.graphs
        if graphs is not None and isinstance(packed, Packed) and graphs.can_compute(self, packed):
            return graphs(self, packed)
        return self.compute(packed)

    def compute(self, packed: Sequences) -> Float[Tensor, "tokens hidden_size"]:
        """Do as `forward`, without a graph."""
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
        scopes = self.attention_scopes(packed, hidden, cache)
        layers = list(self.layers)
        for group, scope in zip(config.layer_groups[layer:], scopes[layer:], strict=True):
            compute: Callable[..., Tensor] = layers[group]
            if self.gradient_checkpointing and torch.is_grad_enabled():
                compute = partial(checkpoint, compute, use_reentrant=False)
            output = compute(hidden, scope)
            if self.convolution is not None and scope.layer == 0:
                output = self.convolution(hidden, output, packed)
            hidden = output
            if self.final_norm is not None and scope is scopes[-1]:
                hidden = self.final_norm(hidden)
            yield hidden[: packed.num_tokens] if has_more else hidden

    def attention_scopes(
        self, packed: Sequences, hidden: Tensor, cache: KeyValueCache | None = None
    ) -> list[AttentionScope]:
        """Return which tokens the tokens of each layer attend to."""
        config = self.config
        rotations: list[Rotation | None] = [None, None]
        if self.rotary is not None:
            dtype = torch.promote_types(hidden.dtype, torch.float32)
            rows = len(hidden)
            rotations = [
                self.rotary(packed.position_ids, rows=rows, is_local=is_local, dtype=dtype)
                for is_local in (False, True)
            ]
        bias = self._make_score_bias(packed, hidden, cache)
        global_tokens = find_global_tokens(config.global_tokens, packed, hidden.device)
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
                bias,
                global_tokens,
            )
            for layer in range(config.num_hidden_layers)
        ]

    def _make_score_bias(
        self, packed: Sequences, hidden: Tensor, cache: KeyValueCache | None = None
    ) -> ScoreBias | DistanceVectors | None:
        if self.score_bias is None:
            return None
        layout = packed if cache is None or cache.layout is None else cache.layout
        length = layout.max_seqlen
        if isinstance(length, int):
            length = round_up_length(length)
        template = hidden.new_empty(0, dtype=torch.promote_types(hidden.dtype, torch.float32))
        bias: ScoreBias | DistanceVectors = self.score_bias(length, template)
        # A layer that is computed again in the backward pass must not make the matrix.
        if isinstance(bias, ScoreBias) and torch.is_grad_enabled():
            return bias.in_graph()
        return bias

    @property
    def can_be_recorded(self) -> bool:
        """Whether a CUDA graph may hold a training step: nothing is read from the host.

        Attention must have a kernel of PyTorch's; all other terms, and layers that run once for
        each group of sequences, take lengths from the host.
        """
        config, weight = self.config, self.embeddings.word_embeddings.weight
        heads = weight.new_empty(1, 1, config.head_size, dtype=self.compute_dtype or weight.dtype)
        windows = {config.window(layer) for layer in range(config.num_hidden_layers)}
        return (
            self.score_bias is None
            and self.convolution is None
            and type(self.embeddings) is Embeddings
            and config.global_tokens is None
            and config.attention != "two-way"
            and config.mixer == "attention"
            and all(choose_kernel(heads, heads, window) is not None for window in windows)
            and not self.gradient_checkpointing
        )

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
    edges = packed.on_host.cu_seqlens.astype(np.int64)
    # The sum of a token's index and its reversed index: that of its sequence's first and last.
    sums = np.repeat(edges[:-1] + edges[1:] - 1, packed.lengths)
    indices = np.arange(rows)
    indices[: len(sums)] = sums - indices[: len(sums)]
    result: Tensor = to_tensor(indices, packed.input_ids.device)
    return result
