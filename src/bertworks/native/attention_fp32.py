"""Attention in float32 in native code, for inference."""

from __future__ import annotations

from ctypes import byref, c_int64

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ..packed import Layout
from .library import AttentionFp32, has_kernels, library
from .score_bias import NativeBias, can_add


def can_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    key_layout: Layout,
    bias: Tensor | None = None,
) -> bool:
    """Whether `attention` supports such queries, keys and values, layouts, and a bias."""
    head_shape = query.shape[1:]
    return (
        has_kernels("fp32")
        and all(
            tensor.dtype is torch.float32
            and tensor.is_cpu
            and tensor.shape[1:] == head_shape
            and tensor.stride()[1:] == (head_shape[-1], 1)
            for tensor in (query, key, value)
        )
        and can_add(_numbers(bias), key_layout, query.shape[1])
        and layout.num_sequences == key_layout.num_sequences
        and _has_all_tokens(query, layout)
        and _has_all_tokens(key, key_layout)
        and _has_all_tokens(value, key_layout)
    )


def _numbers(bias: Tensor | None) -> NDArray[np.float32] | None:
    return None if bias is None else bias.detach().numpy()


def _has_all_tokens(tokens: Tensor, layout: Layout) -> bool:
    """Whether there are all tokens of a layout, whose edges are a tensor on the CPU."""
    edges = layout.cu_seqlens
    is_tensor = isinstance(edges, Tensor) and edges.is_cpu and edges.dtype is torch.int32
    return is_tensor and layout.groups[-1].tokens.stop <= len(tokens)


def attention(
    query: Float[Tensor, "queries heads head_size"],
    key: Float[Tensor, "keys heads head_size"],
    value: Float[Tensor, "keys heads head_size"],
    layout: Layout,
    key_layout: Layout,
    bias: Float[Tensor, "heads distances"] | None = None,
) -> Float[Tensor, "queries heads head_size"]:
    """Let each token attend to all tokens of its sequence: softmax(Q Kᵀ / √d) V, head by head.

    Each result is summed in a fixed order, whatever the other sequences are.

    Args:
        query, key, value: as `can_attend` says; the result is zero in rows after the last sequence.
        layout, key_layout: the positions of the sequences, in the queries and in the keys.
        bias: a number that is added to the scores, for the distances of a key from a query from
            `1 - length` to `length - 1`, where no sequence is longer than `length`.

    Raises:
        MemoryError: there is no memory for intermediate results.
    """
    rows, heads, size = query.shape
    result = torch.empty(rows, heads, size, dtype=torch.float32, device="cpu")
    result[layout.groups[-1].tokens.stop :].zero_()
    native_bias = NativeBias(_numbers(bias))
    arguments = AttentionFp32(
        *(tensor.data_ptr() for tensor in (query, key, value)),
        (c_int64 * 3)(*(tensor.stride(0) for tensor in (query, key, value))),
        *(tensor.data_ptr() for tensor in (result, layout.cu_seqlens, key_layout.cu_seqlens)),
        *(layout.num_sequences, heads, size),
        *native_bias.arguments,
        *(0, heads, -1),  # no number is padding; as many key heads; no window
    )
    error_code = library().bertworks_attention_fp32(byref(arguments), torch.get_num_threads())
    if error_code:
        raise MemoryError("no memory for the attention of a layer")
    return result
