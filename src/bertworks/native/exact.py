"""Attention in float32 in native code, for inference."""

from __future__ import annotations

from ctypes import byref, c_int64

import torch
from jaxtyping import Float
from torch import Tensor

from ..packed import Layout
from .library import PANEL, ExactAttention, has_kernels, library, parallel


def can_attend(*tensors: Tensor) -> bool:
    """Whether `attention` supports such queries, keys and values."""
    return has_kernels("fp32") and all(
        one.dtype is torch.float32
        and one.is_cpu
        and one.shape[-1] % PANEL == 0
        and one.stride()[1:] == (one.shape[-1], 1)
        for one in tensors
    )


def attention(
    query: Float[Tensor, "queries heads head_size"],
    key: Float[Tensor, "keys heads head_size"],
    value: Float[Tensor, "keys heads head_size"],
    layout: Layout,
    key_layout: Layout,
) -> Float[Tensor, "queries heads head_size"]:
    """Let each token attend to all tokens of its sequence: softmax(Q Kᵀ / √d) V, head by head.

    Each result is summed in a fixed order, whatever the other sequences are.

    Args:
        query, key, value: see `can_attend`; the result is zero in rows after the last sequence.
        layout, key_layout: the positions of the sequences, in the queries and in the keys.

    Raises:
        MemoryError: there is no memory for intermediate results.
    """
    rows, heads, size = query.shape
    result = torch.empty(rows, heads, size, device="cpu")
    result[layout.groups[-1].tokens.stop :].zero_()
    described = ExactAttention(
        *(one.data_ptr() for one in (query, key, value)),
        (c_int64 * 3)(*(one.stride(0) for one in (query, key, value))),
        *(one.data_ptr() for one in (result, layout.cu_seqlens, key_layout.cu_seqlens)),
        *(layout.num_sequences, heads, size),
    )
    failed = library().bertworks_exact_attention(
        byref(described), torch.get_num_threads(), parallel()
    )
    if failed:
        raise MemoryError("no memory for the attention of a layer")
    return result
