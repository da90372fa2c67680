"""Masks of attention (True for each key that a query must not attend to), and distances."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ..packed import Layout, Padded


def make_pair_mask(
    queries: Any,
    keys: Any,
    causal: bool,
    window: int | None,
    device: torch.device,
    num_global: int = 0,
) -> Bool[Tensor, "queries keys"] | None:
    """Return a mask of the keys that each query must not attend to; None if it may attend to all.

    Args:
        queries: number of queries; a symbol while a network is traced for an export.
        keys: likewise.
        causal: see `attention`.
        window: see `attention`.
        device: device of the result.
        num_global: see `attention`.
    """
    if not causal and window is None:
        return None
    distances = make_pair_distances(queries, keys, device)
    masked = torch.zeros_like(distances, dtype=torch.bool)
    if causal:
        masked |= distances > 0
    if window is not None:
        is_far = distances.abs() > window
        if num_global:
            is_far &= torch.arange(keys, device=device) >= num_global
        masked |= is_far
    return masked


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
    num_global: int = 0,
) -> Bool[Tensor, "1 1 queries keys"]:
    """Return a mask of the keys of a pack that each query must not attend to."""
    edges, key_edges = (one.on_host.cu_seqlens.tolist() for one in (layout, key_layout))
    masked = torch.ones(1, 1, edges[-1], key_edges[-1], dtype=torch.bool, device=device)
    for (q0, q1), (k0, k1) in zip(pairwise(edges), pairwise(key_edges), strict=True):
        pairs = make_pair_mask(q1 - q0, k1 - k0, causal, window, device, num_global)
        masked[..., q0:q1, k0:k1] = False if pairs is None else pairs
    return masked


def make_padded_mask(
    padded: Padded, causal: bool, window: int | None, num_global: int = 0
) -> Bool[Tensor, "rows 1 #length length"]:
    """Return a mask of the keys of its row that each query must not attend to."""
    length = padded.max_seqlen
    masked = ~padded.mask[:, None, None, :]
    pairs = make_pair_mask(length, length, causal, window, padded.mask.device, num_global)
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
