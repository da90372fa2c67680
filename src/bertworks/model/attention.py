"""Scaled dot-product attention within each sequence of a pack: softmax(Q Kᵀ / √d) V.

Backends under one contract (queries and keys of separate layouts, causal or not, a window, dropout
on the probabilities):

- *grouped*: one matrix product for each group of neighbouring sequences of equal length. What the
  CPU uses, and CUDA where there is dropout.
- *varlen*: PyTorch's variable-length flash attention. CUDA, half precision, no dropout.
- *dense*: one masked product over all tokens of the pack. The plain formula, quadratic in the size
  of the pack: the oracle of the tests.

A padded batch (`Padded`), which only exports compute with, has the formula to itself.

Source: Vaswani et al. (2017), equation 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..packed import Group, Packed
from .layers import keep_mask

Backend = Literal["grouped", "varlen", "dense"]


class Layout(NamedTuple):
    """Where the sequences of a pack lie."""

    cu_seqlens: Any
    max_seqlen: int
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, packed: Packed) -> Layout:
        return cls(packed.cu_seqlens, packed.max_seqlen, packed.groups)


class PaddedLayout(NamedTuple):
    """Which tokens of a padded batch are real: `[rows, length]`."""

    mask: Tensor


def attention(
    query: Float[Tensor, "queries heads head_size"],
    key: Float[Tensor, "keys heads head_size"],
    value: Float[Tensor, "keys heads head_size"],
    layout: Layout | PaddedLayout,
    key_layout: Layout | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    dropout: float = 0.0,
    backend: Backend | None = None,
) -> Float[Tensor, "queries heads head_size"]:
    """Let each token attend to the tokens of its own sequence.

    Args:
        query: what asks, `[queries, heads, head_size]`; rows behind the last sequence, if there
            are any, come out as zeros.
        key: what is asked, `[keys, heads, head_size]`.
        value: what is answered, likewise.
        layout: where the sequences of the queries lie.
        key_layout: where those of the keys lie, as many of them; `layout`, if left out.
        causal: no token sees a later one. Where a sequence has more keys than queries, the
            queries are its last tokens.
        window: no token sees one more than so many places away.
        dropout: probability that a weight is dropped (zero in evaluation).
        backend: chosen by device, dtype and dropout, if left out.
    """
    rules = _Rules(causal, window)
    if isinstance(layout, PaddedLayout):
        return _padded(query, key, value, layout.mask, rules)
    key_layout = key_layout or layout
    if backend is None:
        varlen = query.is_cuda and dropout == 0 and query.dtype in (torch.bfloat16, torch.float16)
        backend = "varlen" if varlen else "grouped"
    if backend == "varlen":
        return _varlen(query, key, value, layout, key_layout, rules, dropout)
    if backend == "dense":
        return _dense(query, key, value, layout, key_layout, rules, dropout)
    pairs = tuple(_pair_groups(layout, key_layout))
    return _grouped(query, key, value, pairs, rules, dropout)


class _Rules(NamedTuple):
    """Which keys of its sequence a query may see."""

    causal: bool
    window: int | None

    def hidden(self, queries: Any, keys: Any, device: torch.device) -> Bool[Tensor, "q k"] | None:
        """The pairs that may not see each other, or None if all may.

        Args:
            queries: how many there are; while a network is traced, a symbol for the number.
            keys: likewise.
            device: where the answer is wanted.
        """
        if not self.causal and self.window is None:
            return None
        query_at = torch.arange(keys - queries, keys, device=device)[:, None]
        ahead = torch.arange(keys, device=device)[None, :] - query_at
        hidden = torch.zeros_like(ahead, dtype=torch.bool)
        if self.causal:
            hidden |= ahead > 0
        if self.window is not None:
            hidden |= ahead.abs() > self.window
        return hidden


# ---------------------------------------------------------------------------------------- grouped


def _pair_groups(layout: Layout, key_layout: Layout) -> Iterator[tuple[Group, Group]]:
    """Runs of sequences that are equally long both as queries and as keys."""
    if key_layout is layout:
        yield from ((group, group) for group in layout.groups)
        return
    queries, keys = iter(layout.groups), iter(key_layout.groups)
    q, k = next(queries, None), next(keys, None)
    while q is not None and k is not None:
        count = min(q.sequences, k.sequences)
        yield q._replace(sequences=count), k._replace(sequences=count)
        q = _rest(q, count) or next(queries, None)
        k = _rest(k, count) or next(keys, None)
    assert q is None and k is None, "as many sequences of keys as of queries"


def _rest(group: Group, count: int) -> Group | None:
    if count == group.sequences:
        return None
    return Group(group.start + count * group.length, group.sequences - count, group.length)


def _by_head(values: Tensor, group: Group) -> Float[Tensor, "sequences heads length head_size"]:
    """A group's slice of `[tokens, heads, head_size]` values: a view, nothing is moved."""
    part = values[group.start : group.start + group.sequences * group.length]
    return part.view(group.sequences, group.length, *values.shape[1:]).transpose(1, 2)


def _end_of(groups: Iterable[Group]) -> int:
    """Where the last sequence ends."""
    return max(group.start + group.sequences * group.length for group in groups)


def _empty_like(values: Tensor, end: int) -> Tensor:
    """Room for as many values, zero from row `end` on: rows that belong to no sequence."""
    room = values.new_empty(values.shape)
    room[end:].zero_()
    return room


class _Grouped(torch.autograd.Function):
    """The formula and its gradient, group by group, written out.

    One node in the autograd graph rather than eight a group; the CPU's fused attention is several
    times slower backwards at BERT's lengths (see docs/decisions.md).
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pairs: tuple[tuple[Group, Group], ...],
        rules: _Rules,
        dropout: float,
    ) -> Tensor:
        scale = 1 / math.sqrt(query.shape[-1])
        result = _empty_like(query, _end_of(pair[0] for pair in pairs))
        saved: list[Tensor] = []
        for q_group, k_group in pairs:
            q, k, v = _by_head(query, q_group), _by_head(key, k_group), _by_head(value, k_group)
            scores = torch.matmul(q, k.transpose(-1, -2)).mul_(scale)
            hidden = rules.hidden(q_group.length, k_group.length, query.device)
            if hidden is not None:
                scores.masked_fill_(hidden, -math.inf)
            weights = torch.softmax(scores, -1)
            if dropout:
                keep = keep_mask(weights.shape, dropout, weights.device)
                context = torch.matmul(weights * keep, v).mul_(1 / (1 - dropout))
                saved += (weights, keep)
            else:
                context = torch.matmul(weights, v)
                saved += (weights,)
            _by_head(result, q_group).copy_(context)
        ctx.save_for_backward(query, key, value, *saved)
        ctx.pairs, ctx.scale, ctx.dropout = pairs, scale, dropout
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *rest = ctx.saved_tensors
        saved = iter(rest)
        queries, keys = (_end_of(pair[side] for pair in ctx.pairs) for side in (0, 1))
        d_query = _empty_like(query, queries)
        d_key, d_value = _empty_like(key, keys), _empty_like(value, keys)
        for q_group, k_group in ctx.pairs:
            q, k, v = _by_head(query, q_group), _by_head(key, k_group), _by_head(value, k_group)
            d_context = _by_head(gradient, q_group)
            weights = kept = next(saved)
            if ctx.dropout:
                keep = next(saved)
                kept = weights * keep
                d_context = d_context * (1 / (1 - ctx.dropout))
            _by_head(d_value, k_group).copy_(torch.matmul(kept.transpose(-1, -2), d_context))
            d_weights = torch.matmul(d_context, v.transpose(-1, -2))
            if ctx.dropout:
                d_weights.mul_(keep)
            d_scores = torch.ops.aten._softmax_backward_data(
                d_weights, weights, -1, weights.dtype
            ).mul_(ctx.scale)
            _by_head(d_query, q_group).copy_(torch.matmul(d_scores, k))
            _by_head(d_key, k_group).copy_(torch.matmul(d_scores.transpose(-1, -2), q))
        return d_query, d_key, d_value, None, None, None


_grouped: Callable[..., Tensor] = _Grouped.apply


# ------------------------------------------------------------------------------------------ dense


def _dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    key_layout: Layout,
    rules: _Rules,
    dropout: float,
) -> Tensor:
    hidden = torch.ones(len(query), len(key), dtype=torch.bool, device=query.device)
    edges, key_edges = _edges(layout), _edges(key_layout)
    for q0, q1, k0, k1 in zip(edges, edges[1:], key_edges, key_edges[1:], strict=False):
        own = rules.hidden(q1 - q0, k1 - k0, query.device)
        hidden[q0:q1, k0:k1] = False if own is None else own
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1])
    weights = torch.softmax(scores.masked_fill(hidden, -math.inf), -1)
    weights = torch.nn.functional.dropout(weights, dropout)
    return torch.einsum("hqk,khd->qhd", weights, value)


def _padded(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, rules: _Rules) -> Tensor:
    rows, length = mask.shape
    shape = (rows, length, *query.shape[1:])
    q, k, v = (part.reshape(shape).transpose(1, 2) for part in (query, key, value))
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(query.shape[-1])
    hidden = ~mask[:, None, None, :]
    own = rules.hidden(length, length, query.device)
    if own is not None:
        hidden = hidden | own
    # Not minus infinity: a pad token's row may be hidden as a whole, and must not become NaN.
    weights = torch.softmax(scores.masked_fill(hidden, torch.finfo(scores.dtype).min), -1)
    return torch.matmul(weights, v).transpose(1, 2).flatten(0, 1)


def _edges(layout: Layout) -> list[int]:
    lengths = [length for _, count, length in layout.groups for _ in range(count)]
    return [0, *np.cumsum(lengths).tolist()]


# ----------------------------------------------------------------------------------------- varlen


def check_varlen(device: str, dtype: torch.dtype, head_size: int, dropout: float) -> None:
    """Refuse what the flash-attention kernel refuses, also where there is no such kernel.

    Raises:
        ValueError: not on CUDA, not half precision, a head too wide or of an odd size, or dropout.
    """
    if device != "cuda":
        raise ValueError(f"variable-length attention runs on CUDA, not on {device}")
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"variable-length attention takes half precision, not {dtype}")
    if head_size % 8 or head_size > 256:
        raise ValueError(f"head_size={head_size} is no multiple of 8 up to 256")
    if dropout:
        raise ValueError("variable-length attention has no dropout")


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    key_layout: Layout,
    rules: _Rules,
    dropout: float,
) -> Tensor:
    check_varlen(query.device.type, query.dtype, query.shape[-1], dropout)
    from torch.nn.attention.varlen import varlen_attn

    width = -1 if rules.window is None else rules.window
    result = varlen_attn(
        query,
        key,
        value,
        layout.cu_seqlens,
        key_layout.cu_seqlens,
        layout.max_seqlen,
        key_layout.max_seqlen,
        window_size=(width, 0 if rules.causal else width),
    )
    assert isinstance(result, Tensor)
    return result
