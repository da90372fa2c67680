"""Attention by groups: a matrix product for each group of neighbouring sequences of equal length.

With gradients, neighbouring groups may share a block, padded to one length; without, PyTorch's
fused attention is used where it is fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..packed import Group, Layout, to_tensor
from .attention_masks import make_group_mask
from .cpu import align_columns
from .layers import apply_dropout_mask, dropout_mask
from .score_bias import ScoreBias, ScoreBiasGradients, scale_of

_CALL_COST = 50_000  # time of a block's calls, in units of one score or one copied number
_MULTIPLE_OF_LENGTH = 8  # padded lengths are multiples of it: products are faster
_MAX_FLOAT32_KEYS = 16  # up to so many keys bfloat16 uses the float32 kernel: fewer calls
# Up to so many keys the formula is faster in bfloat16 than the fused kernel.
_MAX_EXPLICIT_KEYS = 1024
_CHUNK_SCORES = 1 << 19  # scores computed at a time, so that they stay in the cache
_MULTIPLE_OF_QUERIES = 16  # kernels are compiled for multiples of this number of queries
# bfloat16 numbers per register; softmax over other lengths takes up to 9 times as long.
_MULTIPLE_OF_KEYS = 32


def pair_groups(layout: Layout, key_layout: Layout) -> Iterator[tuple[Group, Group]]:
    """Yield runs of sequences that have equally many queries and equally many keys."""
    if key_layout is layout:
        yield from ((group, group) for group in layout.groups)
        return
    lengths = zip(layout.lengths.tolist(), key_layout.lengths.tolist(), strict=True)
    start = key_start = 0
    for (length, key_length), run in groupby(lengths):
        count = len(list(run))
        yield Group(start, count, length), Group(key_start, count, key_length)
        start, key_start = start + count * length, key_start + count * key_length


def _by_head(values: Tensor, group: Group) -> Float[Tensor, "sequences heads length head_size"]:
    """Return a view of a group's tokens in `[tokens, heads, head_size]` values."""
    is_all = group.sequences * group.length == len(values)
    part = values if is_all else values[group.tokens]
    return part.view(group.sequences, group.length, *values.shape[1:]).transpose(1, 2)


def _empty_like(values: Tensor, last: Group, width: int | None = None) -> Tensor:
    """Return uninitialised values of the same shape, with zeros after the last group.

    Args:
        width: of the vectors, if it is another.
    """
    result = values.new_empty(*values.shape[:-1], values.shape[-1] if width is None else width)
    result[last.tokens.stop :].zero_()
    return result


class _Block(NamedTuple):
    """Neighbouring groups whose sequences are padded to one length: few products instead of many.

    `head_indices` are the indices of each token's heads among `[sequences, heads, length]` vectors.
    `padding` marks the keys that are padding. `draw_indices` is the index of each weight's random
    number among the `num_draws` for dropout, so that dropout does not depend on the division into
    blocks. They are None if nothing is padded.
    """

    group: Group
    tokens: slice
    head_indices: Int64[Tensor, " token_heads"] | None = None
    padding: Bool[Tensor, "sequences 1 1 length"] | None = None
    draw_indices: Int64[Tensor, " weights"] | None = None
    num_draws: int = 0

    @classmethod
    def from_group(cls, group: Group) -> _Block:
        """Return the block of one group, without padding."""
        return cls(group, group.tokens)

    @classmethod
    def from_groups(cls, groups: Sequence[Group], heads: int, device: torch.device) -> _Block:
        """Return the block of some groups, in order."""
        if len(groups) == 1:
            return cls.from_group(groups[0])
        tokens = slice(groups[0].tokens.start, groups[-1].tokens.stop)
        lengths = torch.tensor([group.length for group in groups])
        counts = torch.tensor([group.sequences for group in groups])
        weights = heads * lengths**2  # per sequence
        num_draws = -(-counts * weights // 4) * 4  # `dropout_mask` draws four at a time
        first = num_draws.cumsum(0) - num_draws
        first, lengths, weights = (
            values.repeat_interleave(counts)[:, None, None, None]
            for values in (first, lengths, weights)
        )
        number = torch.cat([torch.arange(group.sequences) for group in groups])
        sequences, longest = _padded_shape(groups)
        position = torch.arange(longest)
        is_token = position < lengths
        sequence, _, _, token = is_token.nonzero(as_tuple=True)
        head = torch.arange(heads)
        head_indices = (sequence[:, None] * heads + head) * longest + token[:, None]
        draw_indices = (first + number[:, None, None, None] * weights) + (
            (head[:, None, None] * lengths + position[:, None]) * lengths + position
        )
        draw_indices = draw_indices.where(is_token & is_token.transpose(2, 3), 0)
        return cls(
            Group(groups[0].start, sequences, longest),
            tokens,
            to_tensor(head_indices.flatten(), device),
            to_tensor(~is_token, device),
            to_tensor(draw_indices.flatten(), device),
            int(num_draws.sum()),
        )

    def by_head(self, values: Tensor) -> Float[Tensor, "batch length head_size"]:
        """Return the block's part of `[tokens, heads, head_size]` values; padding is 0."""
        if self.head_indices is None:
            return _by_head(values, self.group).flatten(0, 1)
        _, sequences, length = self.group
        _, heads, size = values.shape
        padded = values.new_zeros(sequences * heads * length, size)
        padded.index_copy_(0, self.head_indices, values[self.tokens].reshape(-1, size))
        return padded.view(-1, length, size)

    def draw_dropout_mask(
        self, weights: Tensor, dropout: float
    ) -> Bool[Tensor, "batch length keys"]:
        """Return a mask of the weights that dropout keeps."""
        if self.draw_indices is None:
            return dropout_mask(weights.shape, dropout, weights.device)
        mask = dropout_mask(torch.Size([self.num_draws]), dropout, weights.device)
        return mask.index_select(0, self.draw_indices).view(weights.shape)

    def write(self, result: Tensor, values: Float[Tensor, "batch length head_size"]) -> None:
        """Write values in the layout of `by_head` to the block's tokens in `result`."""
        if self.head_indices is None:
            place = _by_head(result, self.group)
            place.copy_(values.view(place.shape))
        else:
            size = values.shape[-1]
            rows = result[self.tokens].view(-1, size)
            torch.index_select(values.view(-1, size), 0, self.head_indices, out=rows)


@lru_cache(maxsize=4)  # all layers of a network use the same blocks
def divide_into_blocks(
    pairs: tuple[tuple[Group, Group], ...], heads: int, size: int, device: torch.device
) -> tuple[tuple[_Block, _Block], ...]:
    """Return blocks of queries and keys; neighbouring groups share a block if that is faster."""

    def cost(groups: Sequence[Group]) -> int:
        sequences, length = _padded_shape(groups)
        copied = size if len(groups) > 1 else 0
        return _CALL_COST + heads * sequences * length * (length + copied)

    runs: list[tuple[list[Group], list[Group]]] = []
    for queries, keys in pairs:
        run = runs[-1][0] if runs and queries is keys and runs[-1][0] is runs[-1][1] else []
        if run and cost([*run, queries]) < cost(run) + cost([queries]):
            run.append(queries)
        else:
            groups = [queries]
            runs.append((groups, groups if queries is keys else [keys]))
    blocks = []
    for query_groups, key_groups in runs:
        block = _Block.from_groups(query_groups, heads, device)
        is_shared = key_groups is query_groups
        blocks.append(
            (block, block if is_shared else _Block.from_groups(key_groups, heads, device))
        )
    return tuple(blocks)


def _padded_shape(groups: Sequence[Group]) -> tuple[int, int]:
    """Return the number of a block's sequences, and the length to which they are padded."""
    longest = max(group.length for group in groups)
    if len(groups) > 1:
        longest = -(-longest // _MULTIPLE_OF_LENGTH) * _MULTIPLE_OF_LENGTH
    return sum(group.sequences for group in groups), longest


class _GroupedAttention(torch.autograd.Function):
    """The formula and its gradient, written out block by block.

    This makes one node in the autograd graph instead of eight per block; PyTorch's fused attention
    is several times slower backwards on the CPU at BERT's lengths (see docs/decisions.md).
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pairs: tuple[tuple[Group, Group], ...],
        causal: bool,
        window: int | None,
        dropout: float,
        bias: ScoreBias | None,
        is_global: Tensor | None,
        *_: Tensor | None,  # the bias's matrix, keys and queries, which get gradients
    ) -> Tensor:
        scale = scale_of(query, bias)
        result = _empty_like(query, pairs[-1][0], value.shape[-1])
        if is_global is None:
            blocks = divide_into_blocks(pairs, *query.shape[1:], query.device)
        else:
            blocks = tuple((_Block.from_group(q), _Block.from_group(k)) for q, k in pairs)
        saved_tensors: list[Tensor] = []
        for queries, keys in blocks:
            q, k, v = queries.by_head(query), keys.by_head(key), keys.by_head(value)
            scores = _product(q, k.transpose(1, 2), scale)
            if bias is not None:
                _by_sequence(scores, queries).add_(
                    bias.of_group(_by_sequence(q, queries), _by_sequence(k, keys))
                )
            places = queries.group, keys.group
            masked = make_group_mask(*places, causal, window, query.device, is_global)
            if keys.padding is not None:
                # Not minus infinity: a pad token may see only padding, which would give NaN.
                minimum = torch.finfo(scores.dtype).min
                _by_sequence(scores, queries).masked_fill_(keys.padding, minimum)
            if masked is not None:
                _by_sequence(scores, queries).masked_fill_(masked, -math.inf)
            weights = torch.softmax(scores, -1)
            saved_tensors.append(weights)
            if dropout:
                keep = queries.draw_dropout_mask(weights, dropout)
                saved_tensors.append(keep)
                context = _product(apply_dropout_mask(weights, keep), v, 1 / (1 - dropout))
            else:
                context = torch.bmm(weights, v)
            queries.write(result, context)
        ctx.save_for_backward(query, key, value, *saved_tensors)
        ctx.blocks, ctx.last, ctx.scale, ctx.dropout = blocks, pairs[-1], scale, dropout
        ctx.bias = bias
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *rest = ctx.saved_tensors
        saved_tensors = iter(rest)
        d_query = _empty_like(query, ctx.last[0])
        d_key, d_value = _empty_like(key, ctx.last[1]), _empty_like(value, ctx.last[1])
        bias_gradients = None if ctx.bias is None else ScoreBiasGradients(ctx.bias)
        for queries, keys in ctx.blocks:
            q, k, v = queries.by_head(query), keys.by_head(key), keys.by_head(value)
            d_context = queries.by_head(gradient)
            weights = dropped_weights = next(saved_tensors)
            if ctx.dropout:
                keep = next(saved_tensors)
                dropped_weights = apply_dropout_mask(weights, keep)
            scale = 1 / (1 - ctx.dropout)
            keys.write(d_value, _product(dropped_weights.transpose(1, 2), d_context, scale))
            d_weights = _product(d_context, v.transpose(1, 2), scale)
            if ctx.dropout:
                d_weights = apply_dropout_mask(d_weights, keep)
            d_scores = torch.ops.aten._softmax_backward_data(d_weights, weights, -1, weights.dtype)
            d_q = _product(d_scores, k, ctx.scale)
            d_k = _product(d_scores.transpose(1, 2), q, ctx.scale)
            if bias_gradients is not None:
                d_query_terms, d_key_terms = bias_gradients.add_group(
                    _by_sequence(d_scores, queries),
                    _by_sequence(q, queries),
                    _by_sequence(k, keys),
                )
                for total, terms in ((d_q, d_query_terms), (d_k, d_key_terms)):
                    if terms is not None:
                        _by_sequence(total, queries).add_(terms)
            queries.write(d_query, d_q)
            keys.write(d_key, d_k)
        of_bias = () if bias_gradients is None else bias_gradients.tensors
        return d_query, d_key, d_value, None, None, None, None, None, None, *of_bias


_grouped_attention: Callable[..., Tensor] = _GroupedAttention.apply


def grouped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pairs: tuple[tuple[Group, Group], ...],
    causal: bool,
    window: int | None,
    dropout: float,
    bias: ScoreBias | None = None,
    is_global: Tensor | None = None,
) -> Tensor:
    """Compute attention with its gradients, also those of a bias."""
    tensors = () if bias is None else (bias.matrix, bias.keys, bias.queries)
    return _grouped_attention(
        query, key, value, pairs, causal, window, dropout, bias, is_global, *tensors
    )


def _by_sequence(
    values: Float[Tensor, "batch rows columns"], block: _Block
) -> Float[Tensor, "sequences heads rows columns"]:
    """Return a view of a block's values, of each head of each sequence."""
    return values.view(block.group.sequences, -1, *values.shape[1:])


def _product(
    left: Float[Tensor, "batch rows inner"],
    right: Float[Tensor, "batch inner columns"],
    scale: float,
) -> Float[Tensor, "batch rows columns"]:
    """Return matrix products times `scale`, rounded once."""
    # With `beta=0` the first argument is ignored.
    return torch.baddbmm(left.new_empty(1), left, right, beta=0, alpha=scale)


def infer_grouped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pairs: tuple[tuple[Group, Group], ...],
    causal: bool,
    window: int | None,
    bias: ScoreBias | None = None,
    is_global: Tensor | None = None,
) -> Tensor:
    """Compute the same formula without gradients, in the fastest way.

    That is PyTorch's fused attention, except for some lengths in bfloat16 on the CPU
    (docs/decisions.md). The choice depends only on a sequence's lengths, so that its result does
    not depend on its pack.
    """
    scale, value_size = scale_of(query, bias), value.shape[-1]
    query, key, value = map(align_columns, (query, key, value))
    if bias is not None and bias.has_vectors:
        bias = bias.with_aligned_columns(scale)
    is_half = query.dtype is torch.bfloat16 and query.device.type == "cpu"
    parts: list[Tensor] = []
    for q_group, k_group in pairs:
        q, k, v = _by_head(query, q_group), _by_head(key, k_group), _by_head(value, k_group)
        masked = make_group_mask(q_group, k_group, causal, window, query.device, is_global)
        # PyTorch's kernel takes neither vectors of distances nor values of another size.
        is_general = (bias is not None and bias.has_vectors) or q.shape[-1] != v.shape[-1]
        is_unmasked_half = is_half and masked is None and not is_general
        if is_unmasked_half and k_group.length <= _MAX_FLOAT32_KEYS:
            context = _attend_fused(q.float(), k.float(), v.float(), scale, bias, None)
            contexts = [context.to(query.dtype)]
        elif is_general or (is_unmasked_half and k_group.length <= _MAX_EXPLICIT_KEYS):
            scores = q.shape[1] * q_group.length * k_group.length  # per sequence
            chunks = (torch.split(part, max(1, _CHUNK_SCORES // scores)) for part in (q, k, v))
            contexts = [
                _attend_explicitly(*qkv, scale=scale, bias=bias, masked=masked)
                for qkv in zip(*chunks, strict=True)
            ]
        else:
            contexts = [_attend_fused(q, k, v, scale, bias, masked)]
        # The fused kernel orders its result by token, so this is a view of it.
        parts.extend(
            context.transpose(1, 2).flatten(0, 1)[..., :value_size] for context in contexts
        )
    num_extra = len(query) - pairs[-1][0].tokens.stop
    if num_extra:
        parts.append(value.new_zeros(num_extra, value.shape[1], value_size))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_fused(
    query: Float[Tensor, "sequences heads queries head_size"],
    key: Float[Tensor, "sequences heads keys head_size"],
    value: Float[Tensor, "sequences heads keys value_size"],
    scale: float,
    bias: ScoreBias | None,
    masked: Bool[Tensor, "#sequences 1 queries keys"] | None,
) -> Float[Tensor, "sequences heads queries value_size"]:
    """Compute the formula with PyTorch's fused kernel."""
    mask = None if masked is None else masked.logical_not()
    if bias is not None:
        mask = bias.of_group(query, key)
        mask = mask if masked is None else mask.masked_fill(masked, -math.inf)
    return F.scaled_dot_product_attention(query, key, value, mask, scale=scale)


def _attend_explicitly(
    query: Float[Tensor, "sequences heads queries head_size"],
    key: Float[Tensor, "sequences heads keys head_size"],
    value: Float[Tensor, "sequences heads keys value_size"],
    *,
    scale: float,
    bias: ScoreBias | None,
    masked: Bool[Tensor, "#sequences 1 queries keys"] | None,
) -> Float[Tensor, "sequences heads queries value_size"]:
    """Compute the formula; in bfloat16 with padding, so that oneDNN compiles few kernels.

    Keys of zero weight are added up to a multiple of `_MULTIPLE_OF_KEYS`, and queries up to a
    multiple of `_MULTIPLE_OF_QUERIES`; the results of the added queries are dropped.
    """
    queries, keys = query.shape[2], key.shape[2]
    padded = query, key, value
    if query.dtype is torch.bfloat16:
        key_padding = (0, 0, 0, -keys % _MULTIPLE_OF_KEYS)
        query_padding = (0, 0, 0, -queries % _MULTIPLE_OF_QUERIES)
        padded = F.pad(query, query_padding), F.pad(key, key_padding), F.pad(value, key_padding)
    q, k, v = (part.reshape(-1, *part.shape[2:]) for part in padded)
    scores = _product(q, k.transpose(1, 2), scale)
    real = scores.view(*query.shape[:2], *scores.shape[1:])[..., :queries, :keys]
    if bias is not None:
        real.add_(bias.of_group(query, key))
    if masked is not None:
        real.masked_fill_(masked, -math.inf)
    scores[..., keys:] = -math.inf
    context = torch.bmm(torch.softmax(scores, -1, out=scores), v)
    return context.view(*query.shape[:2], *context.shape[1:])[:, :, :queries]
