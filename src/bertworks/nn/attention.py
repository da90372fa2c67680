"""Scaled dot-product attention within each sequence: softmax(Q Kᵀ / √d) V.

Three backends take the same arguments and compute the same result. Queries and keys may have
different layouts; attention may be causal or not, limited to a window or not; dropout may be
applied to the probabilities.

- *grouped*: one matrix product for each group of neighbouring sequences of equal length. When
  gradients are computed, neighbouring groups may be padded to one length. Used on the CPU, and on
  CUDA with dropout or in full precision. Inference in float32 on a CPU with AVX-512 has native code
  for it (`native/attention_fp32.py`), unless attention is causal or limited to a window.
- *varlen*: PyTorch's variable-length flash attention. CUDA, half precision, no dropout.
- *dense*: one masked product over all tokens of a pack, or over the rows of a padded batch. The
  plain formula: the reference of the tests, and the one in exported models.

Source: Vaswani et al. (2017), equation 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..native import attention_fp32
from ..packed import Group, Layout, Padded
from .layers import apply_dropout_mask, dropout_mask

Backend = Literal["grouped", "varlen", "dense"]

_CALLS = 50_000  # time of a block's calls, in units of one score or one copied number
_MULTIPLE = 8  # padded lengths are multiples of it: products are faster
_IN_FLOAT32_UP_TO = 16  # keys: up to here bfloat16 uses the float32 kernel: fewer calls
_EXPLICIT_UP_TO = 1024  # keys: up to here the formula is faster in bfloat16 than the fused kernel
_SCORES = 1 << 19  # scores computed at a time, so that they stay in the cache
_QUERIES = 16  # kernels are compiled for multiples of this number of queries
_LANES = 32  # bfloat16 numbers per register; softmax over other lengths takes up to 9 times as long


def attention(
    query: Float[Tensor, "queries heads head_size"],
    key: Float[Tensor, "keys heads head_size"],
    value: Float[Tensor, "keys heads head_size"],
    layout: Layout | Padded,
    key_layout: Layout | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    dropout: float = 0.0,
    backend: Backend | None = None,
) -> Float[Tensor, "queries heads head_size"]:
    """Let each token attend to the tokens of its sequence.

    Args:
        query: one vector per token and head. The grouped backend accepts extra rows after the last
            sequence, and returns zeros for them.
        key: likewise.
        value: likewise.
        layout: the positions of the sequences in the queries.
        key_layout: the positions of the same number of sequences in the keys; `layout` by default.
            If a sequence has more keys than queries, the queries are its last tokens.
        causal: no token attends to a later one.
        window: the largest distance at which tokens attend to each other; unlimited by default.
        dropout: the probability that a weight is dropped (zero in evaluation).
        backend: by default the fastest that the device, the dtype and the dropout allow; dense for
            a padded batch.
    """
    if isinstance(layout, Padded):
        return _dense(query, key, value, _padded_mask(layout, causal, window), dropout)
    if key_layout is None:
        key_layout = layout
    if backend is None:
        varlen = query.is_cuda and dropout == 0 and query.dtype in (torch.bfloat16, torch.float16)
        backend = "varlen" if varlen else "grouped"
    if backend == "dense":
        masked = _pack_mask(layout, key_layout, causal, window, query.device)
        return _dense(query, key, value, masked, dropout)
    if backend == "varlen":
        return _varlen(query, key, value, layout, key_layout, causal, window, dropout)
    is_inferred = torch.is_inference_mode_enabled()
    if is_inferred and not causal and window is None:
        given = (query, key, value, layout, key_layout)
        if attention_fp32.can_attend(*given):
            return attention_fp32.attention(*given)
    pairs = tuple(_paired_groups(layout, key_layout))
    if is_inferred:
        return _inferred(query, key, value, pairs, causal, window)
    return _grouped(query, key, value, pairs, causal, window, dropout)


def masked_pairs(
    queries: Any, keys: Any, causal: bool, window: int | None, device: torch.device
) -> Bool[Tensor, "queries keys"] | None:
    """Return a mask of the keys that each query must not attend to; None if it may attend to all.

    Args:
        queries: number of queries; a symbol while a network is traced for an export.
        keys: likewise.
        causal: see `attention`.
        window: see `attention`.
        device: device of the result.
    """
    if not causal and window is None:
        return None
    query_at = torch.arange(keys - queries, keys, device=device)[:, None]
    ahead = torch.arange(keys, device=device)[None, :] - query_at
    masked = torch.zeros_like(ahead, dtype=torch.bool)
    if causal:
        masked |= ahead > 0
    if window is not None:
        masked |= ahead.abs() > window
    return masked


# ---------------------------------------------------------------------------------------- grouped


def _paired_groups(layout: Layout, key_layout: Layout) -> Iterator[tuple[Group, Group]]:
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


def _empty_like(values: Tensor, last: Group) -> Tensor:
    """Return uninitialised values of the same shape, with zeros after the last group."""
    result = values.new_empty(values.shape)
    result[last.tokens.stop :].zero_()
    return result


class _Block(NamedTuple):
    """Neighbouring groups whose sequences are padded to one length: few products instead of many.

    `places` are the indices of each token's heads among `[sequences, heads, length]` vectors.
    `unseen` marks the keys that are padding. `drawn` is the index of each weight's random number
    among the `draws` for dropout, so that dropout does not depend on the division into blocks. They
    are None if nothing is padded.
    """

    group: Group
    tokens: slice
    places: Int64[Tensor, " places"] | None = None
    unseen: Bool[Tensor, "sequences 1 1 length"] | None = None
    drawn: Int64[Tensor, " weights"] | None = None
    draws: int = 0

    @classmethod
    def of(cls, groups: Sequence[Group], heads: int, device: torch.device) -> _Block:
        """Return the block of some groups, in order."""
        tokens = slice(groups[0].tokens.start, groups[-1].tokens.stop)
        if len(groups) == 1:
            return cls(groups[0], tokens)
        lengths = torch.tensor([group.length for group in groups])
        counts = torch.tensor([group.sequences for group in groups])
        weights = heads * lengths**2  # per sequence
        draws = -(-counts * weights // 4) * 4  # `dropout_mask` draws four at a time
        first = draws.cumsum(0) - draws
        first, lengths, weights = (
            values.repeat_interleave(counts)[:, None, None, None]
            for values in (first, lengths, weights)
        )
        number = torch.cat([torch.arange(group.sequences) for group in groups])
        sequences, longest = _padded(groups)
        position = torch.arange(longest)
        seen = position < lengths
        sequence, _, _, at = seen.nonzero(as_tuple=True)
        head = torch.arange(heads)
        places = (sequence[:, None] * heads + head) * longest + at[:, None]
        drawn = (first + number[:, None, None, None] * weights) + (
            (head[:, None, None] * lengths + position[:, None]) * lengths + position
        )
        drawn = drawn.where(seen & seen.transpose(2, 3), 0)
        return cls(
            Group(groups[0].start, sequences, longest),
            tokens,
            places.flatten().to(device),
            (~seen).to(device),
            drawn.flatten().to(device),
            int(draws.sum()),
        )

    def by_head(self, values: Tensor) -> Float[Tensor, "batch length head_size"]:
        """Return the block's part of `[tokens, heads, head_size]` values; padding is 0."""
        if self.places is None:
            return _by_head(values, self.group).flatten(0, 1)
        _, sequences, length = self.group
        _, heads, size = values.shape
        padded = values.new_zeros(sequences * heads * length, size)
        padded.index_copy_(0, self.places, values[self.tokens].reshape(-1, size))
        return padded.view(-1, length, size)

    def keep(self, weights: Tensor, dropout: float) -> Bool[Tensor, "batch length keys"]:
        """Return a mask of the weights that dropout keeps."""
        if self.drawn is None:
            return dropout_mask(weights.shape, dropout, weights.device)
        keep = dropout_mask(torch.Size([self.draws]), dropout, weights.device)
        return keep.index_select(0, self.drawn).view(weights.shape)

    def put(self, result: Tensor, values: Float[Tensor, "batch length head_size"]) -> None:
        """Write values in the layout of `by_head` to the block's tokens in `result`."""
        if self.places is None:
            place = _by_head(result, self.group)
            place.copy_(values.view(place.shape))
        else:
            size = values.shape[-1]
            rows = result[self.tokens].view(-1, size)
            torch.index_select(values.view(-1, size), 0, self.places, out=rows)


@lru_cache(maxsize=4)  # all layers of a network use the same blocks
def _blocks(
    pairs: tuple[tuple[Group, Group], ...], heads: int, size: int, device: torch.device
) -> tuple[tuple[_Block, _Block], ...]:
    """Return blocks of queries and keys; neighbouring groups share a block if that is faster."""

    def cost(groups: Sequence[Group]) -> int:
        sequences, length = _padded(groups)
        copied = size if len(groups) > 1 else 0
        return _CALLS + heads * sequences * length * (length + copied)

    runs: list[tuple[list[Group], list[Group]]] = []
    for queries, keys in pairs:
        run = runs[-1][0] if runs and queries is keys and runs[-1][0] is runs[-1][1] else []
        if run and cost([*run, queries]) < cost(run) + cost([queries]):
            run.append(queries)
        else:
            alone = [queries]
            runs.append((alone, alone if queries is keys else [keys]))
    blocks = []
    for run, of_keys in runs:
        block = _Block.of(run, heads, device)
        blocks.append((block, block if of_keys is run else _Block.of(of_keys, heads, device)))
    return tuple(blocks)


def _padded(groups: Sequence[Group]) -> tuple[int, int]:
    """Return the number of a block's sequences, and the length to which they are padded."""
    longest = max(group.length for group in groups)
    if len(groups) > 1:
        longest = -(-longest // _MULTIPLE) * _MULTIPLE
    return sum(group.sequences for group in groups), longest


class _Grouped(torch.autograd.Function):
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
    ) -> Tensor:
        scale = 1 / math.sqrt(query.shape[-1])
        result = _empty_like(query, pairs[-1][0])
        blocks = _blocks(pairs, *query.shape[1:], query.device)
        saved: list[Tensor] = []
        for queries, keys in blocks:
            q, k, v = queries.by_head(query), keys.by_head(key), keys.by_head(value)
            scores = _product(q, k.transpose(1, 2), scale)
            masked = masked_pairs(scores.shape[-2], scores.shape[-1], causal, window, query.device)
            if keys.unseen is not None:
                # Not minus infinity: a pad token may see only padding, which would give NaN.
                by_sequence = scores.view(queries.group.sequences, -1, *scores.shape[1:])
                by_sequence.masked_fill_(keys.unseen, torch.finfo(scores.dtype).min)
            if masked is not None:
                scores.masked_fill_(masked, -math.inf)
            weights = torch.softmax(scores, -1)
            saved.append(weights)
            if dropout:
                keep = queries.keep(weights, dropout)
                saved.append(keep)
                context = _product(apply_dropout_mask(weights, keep), v, 1 / (1 - dropout))
            else:
                context = torch.bmm(weights, v)
            queries.put(result, context)
        ctx.save_for_backward(query, key, value, *saved)
        ctx.blocks, ctx.last, ctx.scale, ctx.dropout = blocks, pairs[-1], scale, dropout
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *rest = ctx.saved_tensors
        saved = iter(rest)
        d_query = _empty_like(query, ctx.last[0])
        d_key, d_value = _empty_like(key, ctx.last[1]), _empty_like(value, ctx.last[1])
        for queries, keys in ctx.blocks:
            q, k, v = queries.by_head(query), keys.by_head(key), keys.by_head(value)
            d_context = queries.by_head(gradient)
            weights = used = next(saved)
            if ctx.dropout:
                keep = next(saved)
                used = apply_dropout_mask(weights, keep)
            scale = 1 / (1 - ctx.dropout)
            keys.put(d_value, _product(used.transpose(1, 2), d_context, scale))
            d_weights = _product(d_context, v.transpose(1, 2), scale)
            if ctx.dropout:
                d_weights = apply_dropout_mask(d_weights, keep)
            d_scores = torch.ops.aten._softmax_backward_data(d_weights, weights, -1, weights.dtype)
            queries.put(d_query, _product(d_scores, k, ctx.scale))
            keys.put(d_key, _product(d_scores.transpose(1, 2), q, ctx.scale))
        return d_query, d_key, d_value, None, None, None, None


_grouped: Callable[..., Tensor] = _Grouped.apply


def _product(
    left: Float[Tensor, "batch rows inner"],
    right: Float[Tensor, "batch inner columns"],
    scale: float,
) -> Float[Tensor, "batch rows columns"]:
    """Return matrix products times `scale`, rounded once."""
    # With `beta=0` the first argument is ignored.
    return torch.baddbmm(left.new_empty(1), left, right, beta=0, alpha=scale)


def _inferred(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pairs: tuple[tuple[Group, Group], ...],
    causal: bool,
    window: int | None,
) -> Tensor:
    """Compute the same formula without gradients, in the fastest way.

    That is PyTorch's fused attention, except for some lengths in bfloat16 on the CPU
    (docs/decisions.md). The choice depends only on a sequence's lengths, so that its result does
    not depend on its pack.
    """
    half = query.dtype is torch.bfloat16 and query.device.type == "cpu"
    parts: list[Tensor] = []
    for q_group, k_group in pairs:
        q, k, v = _by_head(query, q_group), _by_head(key, k_group), _by_head(value, k_group)
        masked = masked_pairs(q_group.length, k_group.length, causal, window, query.device)
        if half and masked is None and k_group.length <= _IN_FLOAT32_UP_TO:
            context = F.scaled_dot_product_attention(q.float(), k.float(), v.float())
            contexts: Sequence[Tensor] = [context.to(query.dtype)]
        elif half and masked is None and k_group.length <= _EXPLICIT_UP_TO:
            scores = q.shape[1] * q_group.length * k_group.length  # per sequence
            some = max(1, _SCORES // scores)
            every = zip(*(torch.split(part, some) for part in (q, k, v)), strict=True)
            contexts = [_padded_to_lanes(*run) for run in every]
        else:
            seen = None if masked is None else masked.logical_not_()
            contexts = [F.scaled_dot_product_attention(q, k, v, seen)]
        # The fused kernel orders its result by token, so this is a view of it.
        parts.extend(context.transpose(1, 2).flatten(0, 1) for context in contexts)
    after = len(query) - pairs[-1][0].tokens.stop
    if after:
        parts.append(query.new_zeros(after, *query.shape[1:]))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _padded_to_lanes(
    query: Float[Tensor, "sequences heads queries head_size"],
    key: Float[Tensor, "sequences heads keys head_size"],
    value: Float[Tensor, "sequences heads keys head_size"],
) -> Float[Tensor, "sequences heads queries head_size"]:
    """Compute the formula with padding, so that oneDNN compiles kernels for few shapes.

    Keys of zero weight are added up to a multiple of `_LANES`, and queries up to a multiple of
    `_QUERIES`; the results of the added queries are dropped.
    """
    queries, keys = query.shape[2], key.shape[2]
    added = (0, 0, 0, -keys % _LANES)
    more = (0, 0, 0, -queries % _QUERIES)
    padded = F.pad(query, more), F.pad(key, added), F.pad(value, added)
    q, k, v = (part.reshape(-1, *part.shape[2:]) for part in padded)
    scores = _product(q, k.transpose(1, 2), 1 / math.sqrt(q.shape[-1]))
    scores[..., keys:] = -math.inf
    context = torch.bmm(torch.softmax(scores, -1, out=scores), v)
    return context.view(*query.shape[:2], *context.shape[1:])[:, :, :queries]


# ------------------------------------------------------------------------------------------ dense


def _dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masked: Bool[Tensor, "rows 1 #queries keys"],
    dropout: float,
) -> Tensor:
    rows = masked.shape[0]
    q, k, v = (
        part.reshape(rows, -1, *part.shape[1:]).transpose(1, 2) for part in (query, key, value)
    )
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(query.shape[-1])
    # Not minus infinity: all keys of a pad token may be masked, which would give NaN.
    weights = torch.softmax(scores.masked_fill(masked, torch.finfo(scores.dtype).min), -1)
    if dropout:
        weights = F.dropout(weights, dropout)
    return torch.matmul(weights, v).transpose(1, 2).flatten(0, 1)


def _pack_mask(
    layout: Layout, key_layout: Layout, causal: bool, window: int | None, device: torch.device
) -> Bool[Tensor, "1 1 queries keys"]:
    """Return a mask of the keys of a pack that each query must not attend to."""
    edges, key_edges = layout.cu_seqlens.tolist(), key_layout.cu_seqlens.tolist()
    masked = torch.ones(1, 1, edges[-1], key_edges[-1], dtype=torch.bool, device=device)
    for (q0, q1), (k0, k1) in zip(pairwise(edges), pairwise(key_edges), strict=True):
        pairs = masked_pairs(q1 - q0, k1 - k0, causal, window, device)
        masked[..., q0:q1, k0:k1] = False if pairs is None else pairs
    return masked


def _padded_mask(
    padded: Padded, causal: bool, window: int | None
) -> Bool[Tensor, "rows 1 #length length"]:
    """Return a mask of the keys of its row that each query must not attend to."""
    length = padded.max_seqlen
    masked = ~padded.mask[:, None, None, :]
    pairs = masked_pairs(length, length, causal, window, padded.mask.device)
    return masked if pairs is None else masked | pairs


# ----------------------------------------------------------------------------------------- varlen


def check_varlen(device: str, dtype: torch.dtype, head_size: int, dropout: float) -> None:
    """Reject what the flash-attention kernel rejects, also on machines without it.

    Raises:
        ValueError: the device is not CUDA, the dtype is not half precision, the head size is not a
            multiple of 8 up to 256, or there is dropout.
    """
    if device != "cuda":
        raise ValueError(f"variable-length attention runs on CUDA, not on {device}")
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"variable-length attention takes half precision, not {dtype}")
    if head_size % 8 or head_size > 256:
        raise ValueError(f"head_size={head_size} is not a multiple of 8 up to 256")
    if dropout:
        raise ValueError("variable-length attention has no dropout")


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    key_layout: Layout,
    causal: bool,
    window: int | None,
    dropout: float,
) -> Tensor:
    check_varlen(query.device.type, query.dtype, query.shape[-1], dropout)
    from torch.nn.attention.varlen import varlen_attn

    width = -1 if window is None else window
    result = varlen_attn(
        query,
        key,
        value,
        layout.cu_seqlens,
        key_layout.cu_seqlens,
        layout.max_seqlen,
        key_layout.max_seqlen,
        window_size=(width, 0 if causal else width),
    )
    assert isinstance(result, Tensor)
    return result
