"""Masks of attention (True for each key that a query must not attend to), and distances."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ..packed import Group, Layout, Padded


def make_pair_mask(
    queries: Any,
    keys: Any,
    causal: bool,
    window: int | None,
    device: torch.device,
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
    distances = make_pair_distances(queries, keys, device)
    masked = torch.zeros_like(distances, dtype=torch.bool)
    if causal:
        masked |= distances > 0
    if window is not None:
        masked |= distances.abs() > window
    return masked


def make_group_mask(
    queries: Group,
    keys: Group,
    causal: bool,
    window: int | None,
    device: torch.device,
    is_global: Bool[Tensor, " tokens"] | None = None,
) -> Bool[Tensor, "#sequences 1 queries keys"] | None:
    """Return a mask of the keys that each query of equally long sequences must not attend to.

    Args:
        queries: the places of the sequences' queries.
        keys: likewise, of their keys.
        causal: see `attention`.
        window: see `attention`.
        device: device of the result.
        is_global: see `attention`.
    """
    lengths = queries.length, keys.length
    masked = make_pair_mask(*lengths, causal, window, device)
    if masked is None or window is None or is_global is None:
        return None if masked is None else masked[None, None]
    is_exempt = is_global[keys.tokens].view(keys.sequences, 1, 1, keys.length)
    later = make_pair_mask(*lengths, causal, None, device)
    return masked & (~is_exempt if later is None else later | ~is_exempt)


def make_pair_distances(
    queries: Any, keys: Any, device: torch.device
) -> Int64[Tensor, "queries keys"]:
    """Return the distance of each key from each query; see `make_pair_mask`."""
    query_positions = torch.arange(keys - queries, keys, device=device)[:, None]
    return torch.arange(keys, device=device)[None, :] - query_positions


def make_pack_mask(
    layout: Layout,
    key_layout: Layout,
    causal: bool,
    window: int | None,
    device: torch.device,
    is_global: Bool[Tensor, " tokens"] | None = None,
) -> Bool[Tensor, "1 1 queries keys"]:
    """Return a mask of the keys of a pack that each query must not attend to."""
    edges, key_edges = (one.on_host.cu_seqlens.tolist() for one in (layout, key_layout))
    masked = torch.ones(1, 1, edges[-1], key_edges[-1], dtype=torch.bool, device=device)
    for (q0, q1), (k0, k1) in zip(pairwise(edges), pairwise(key_edges), strict=True):
        groups = Group(q0, 1, q1 - q0), Group(k0, 1, k1 - k0)
        pairs = make_group_mask(*groups, causal, window, device, is_global)
        masked[..., q0:q1, k0:k1] = False if pairs is None else pairs
    return masked


def make_padded_mask(
    padded: Padded,
    causal: bool,
    window: int | None,
    is_global: Bool[Tensor, " tokens"] | None = None,
) -> Bool[Tensor, "rows 1 #length length"]:
    """Return a mask of the keys of its row that each query must not attend to."""
    length = padded.max_seqlen
    masked = ~padded.mask[:, None, None, :]
    pairs = make_pair_mask(length, length, causal, window, padded.mask.device)
    if pairs is not None and is_global is not None:
        assert not causal, "global tokens are for attention in both directions"
        pairs = pairs & ~is_global.view(padded.mask.shape)[:, None, None, :]
    return masked if pairs is None else masked | pairs


def make_pack_distances(
    layout: Layout, key_layout: Layout, device: torch.device
) -> Int64[Tensor, "queries keys"]:
    """Return the distance of each key of a pack from each query of the same sequence; else 0."""
    edges, key_edges = (one.on_host.cu_seqlens.tolist() for one in (layout, key_layout))
    distances = torch.zeros(edges[-1], key_edges[-1], dtype=torch.int64, device=device)
    for (q0, q1), (k0, k1) in zip(pairwise(edges), pairwise(key_edges), strict=True):
        distances[q0:q1, k0:k1] = make_pair_distances(q1 - q0, k1 - k0, device)
    return distances


def make_padded_distances(padded: Padded) -> Int64[Tensor, "length length"]:
    """Return the distance of each key of a row from each query."""
    return make_pair_distances(padded.max_seqlen, padded.max_seqlen, padded.mask.device)
