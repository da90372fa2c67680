"""Two-stream attention: predict tokens in any order, each from its position and the tokens before.

The content stream has a vector of each token, which knows the token. The query stream has a vector
of each predicted token, which knows its position but not the token. Queries are of both streams;
keys and values are of the content stream alone.

`Steps` says which tokens each vector attends to. Tokens are revealed step by step: a token is seen
from its `first` step to its `last`, and each vector looks at one step. In XLNet the context has
step 0, and the predicted tokens of a sequence have the steps 1, 2, … of a random order; a content
vector looks at its token's own step, a query vector at the step before.

Source: Yang et al. (2019), "XLNet", §2.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..packed import Group, Packed
from .cpu import align_rows
from .encoder import Encoder
from .encoder_layers import AttentionScope, Layer
from .layers import add_and_norm, dropout
from .score_bias import ScoreBias, scale_of


class Steps(NamedTuple):
    """The order in which tokens are revealed, each sequence's from step 0 on."""

    targets: Int64[Tensor, " targets"]  # indices of the predicted tokens in the pack
    of_queries: Int64[Tensor, " targets"]  # the step that each query vector looks at
    of_contents: Int64[Tensor, " tokens"]  # the step that each content vector looks at
    first: Int64[Tensor, " tokens"]  # the first step at which a token is seen
    last: Int64[Tensor, " tokens"] | None = None  # the last one; None: no token is hidden again

    @classmethod
    def from_order(
        cls, targets: Int64[Tensor, " targets"], order: Int64[Tensor, " tokens"]
    ) -> Steps:
        """Return the steps of a permutation language model.

        Args:
            targets: indices of the predicted tokens in the pack.
            order: 0 for tokens of the context, and else the token's number among the predicted
                ones of its sequence, from 1. Tokens of one number do not see each other.
        """
        return cls(targets, order[targets] - 1, order, order)

    def masked(self, group: Group, num_tokens: int) -> Bool[Tensor, "sequences 1 length length"]:
        """Return which keys of its sequence each query must not attend to.

        Args:
            group: of the doubled pack: content vectors of all sequences, then query vectors.
            num_tokens: of the pack.
        """
        # Other rows of the query stream belong to no target; they see everything.
        of_rows = self.first.new_full((num_tokens,), torch.iinfo(torch.int64).max)
        steps = torch.cat([self.of_contents, of_rows.index_copy(0, self.targets, self.of_queries)])
        shape = group.sequences, group.length
        keys = slice(group.tokens.start % num_tokens, None)
        count = group.sequences * group.length
        of_queries = steps[group.tokens].view(shape)[:, None, :, None]
        masked = self.first[keys][:count].view(shape)[:, None, None, :] > of_queries
        if self.last is not None:
            masked = masked | (self.last[keys][:count].view(shape)[:, None, None, :] < of_queries)
        return masked


def query_stream(
    encoder: Encoder,
    packed: Packed,
    steps: Steps,
    queries: Float[Tensor, "targets hidden_size"],
) -> Float[Tensor, "targets hidden_size"]:
    """Return the last layer's vector of each predicted token.

    Args:
        encoder: with bidirectional attention in every layer.
        queries: the first vectors of the query stream.
    """
    *_, last = query_stream_states(encoder, packed, steps, queries)
    return last[1]


def query_stream_states(
    encoder: Encoder,
    packed: Packed,
    steps: Steps,
    queries: Float[Tensor, "targets hidden_size"],
) -> Iterator[tuple[Float[Tensor, "tokens hidden_size"], Float[Tensor, "targets hidden_size"]]]:
    """Yield the first vectors of both streams, content and query, then each layer's output."""
    config = encoder.config
    assert config.has_heads and config.attention == "bidirectional"
    assert encoder.convolution is None, "its neighbours are those of other steps"
    assert not any(map(config.is_local, range(config.num_hidden_layers)))
    num_tokens, end = packed.num_tokens, packed.num_tokens + len(queries)
    rows = torch.cat([encoder.embeddings(packed), queries])
    if encoder.compute_dtype is not None:
        rows = rows.to(encoder.compute_dtype)
    yield rows[:num_tokens], rows[num_tokens:]
    rows = align_rows(rows)
    double_pack = _double(packed)
    scopes = encoder.attention_scopes(double_pack, rows)
    layers = list(encoder.layers)
    for number, (group, scope) in enumerate(zip(config.layer_groups, scopes, strict=True)):
        layer = layers[group]
        assert isinstance(layer, Layer)
        compute = partial(_compute_layer, layer, steps=steps, scope=scope)
        if encoder.gradient_checkpointing and torch.is_grad_enabled():
            compute = partial(checkpoint, compute, use_reentrant=False)
        rows = compute(rows)
        is_last = number == config.num_hidden_layers - 1
        if encoder.final_norm is not None and is_last:
            rows = encoder.final_norm(rows)
        yield rows[:num_tokens], rows[num_tokens:end]


def _double(packed: Packed) -> Packed:
    """Return the pack twice, end to end."""
    num_tokens = packed.num_tokens
    second_groups = tuple(group._replace(start=group.start + num_tokens) for group in packed.groups)
    names = ("input_ids", "token_type_ids", "position_ids", "sequence_row", "sequence_number")
    return replace(
        packed,
        cu_seqlens=torch.cat([packed.cu_seqlens, packed.cu_seqlens[1:] + num_tokens]),
        groups=packed.groups + second_groups,
        **{name: getattr(packed, name).repeat(2) for name in names},
    )


def _compute_layer(
    layer: Layer,
    rows: Float[Tensor, "rows hidden_size"],
    *,
    steps: Steps,
    scope: AttentionScope,
) -> Float[Tensor, "rows hidden_size"]:
    """Compute a layer's vectors of both streams from those of the layer below.

    Args:
        rows: content vectors, query vectors, and possibly rows of padding.
        scope: of the doubled pack.
    """
    if layer.norm_first:
        rows = rows + layer.dropout(_attend(layer, layer.attention_norm(rows), steps, scope))
        result: Tensor = rows + layer.dropout(layer.feed_forward(layer.feed_forward_norm(rows)))
        return result
    mixed = _attend(layer, rows, steps, scope)
    rows = add_and_norm(mixed, rows, layer.dropout, layer.attention_norm)
    return add_and_norm(layer.feed_forward(rows), rows, layer.dropout, layer.feed_forward_norm)


def _attend(
    layer: Layer, rows: Float[Tensor, "rows hidden_size"], steps: Steps, scope: AttentionScope
) -> Float[Tensor, "rows hidden_size"]:
    """Compute attention and its output map, for both streams."""
    attention = layer.attention
    assert attention is not None and isinstance(scope.packed, Packed)
    num_tokens, num_targets = len(steps.first), len(steps.targets)
    query, key, value = attention.compute_heads(attention.query_key_value(rows))
    # The query stream's queries at their tokens' places: distances are then those of the tokens.
    places = query.new_zeros(num_tokens, *query.shape[1:])
    targets = query[num_tokens : num_tokens + num_targets]
    query = torch.cat([query[:num_tokens], places.index_copy(0, steps.targets, targets)])
    key, value = (part[:num_tokens].repeat(2, 1, 1) for part in (key, value))
    if scope.rotation is not None:
        query, key = scope.rotation.rotate(query), scope.rotation.rotate(key)
    query, key, bias = attention.with_bias(query, key, scope)
    dropout_prob = attention.dropout_prob if attention.training else 0.0
    context = _attend_in_steps(query, key, value, scope.packed, steps, bias, dropout_prob)
    contents, queries = context[:num_tokens], context[num_tokens:].index_select(0, steps.targets)
    joined = torch.cat([contents, queries]).flatten(1)
    result: Tensor = attention.output(F.pad(joined, (0, 0, 0, len(rows) - len(joined))))
    return result


def _attend_in_steps(
    query: Float[Tensor, "rows heads features"],
    key: Float[Tensor, "rows heads features"],
    value: Float[Tensor, "rows heads head_size"],
    double_pack: Packed,
    steps: Steps,
    bias: ScoreBias | None,
    dropout_prob: float,
) -> Float[Tensor, "rows heads head_size"]:
    """Compute attention group by group, each vector over the tokens that it sees."""
    contexts = []
    for group in double_pack.groups:
        q, k, v = (
            part[group.tokens].view(group.sequences, group.length, *part.shape[1:]).transpose(1, 2)
            for part in (query, key, value)
        )
        scores = q @ k.transpose(-1, -2) * scale_of(q, bias)
        if bias is not None and bias.has_numbers_only:  # several tokens may have one position
            positions = double_pack.position_ids[group.tokens].view(group.sequences, group.length)
            scores = scores + bias.of_positions(positions).to(scores.dtype)
        elif bias is not None:
            scores = scores + bias.of_group(q, k)
        # Not minus infinity: a vector that sees no token would be NaN.
        masked = steps.masked(group, len(steps.first))
        scores = scores.masked_fill(masked, torch.finfo(scores.dtype).min)
        weights = dropout(torch.softmax(scores, -1), dropout_prob)
        contexts.append((weights @ v).transpose(1, 2).flatten(0, 1))
    return torch.cat(contexts)
