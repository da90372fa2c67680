"""Attention of sequences of several lengths by PyTorch's flash attention, on CUDA.

The kernel takes half precision and head sizes that are multiples of 8; other head sizes are padded
with zeros, which changes neither the scores nor the outputs. It stores no matrix of scores.

PyTorch's function `varlen_attn` has no dropout. Its operator has: with dropout, this module calls
the operator, which PyTorch differentiates. The operator takes the random numbers of the device's
generator, whose state checkpoints contain.

Sources: Dao (2023), "FlashAttention-2"; PyTorch's `native_functions.yaml` for the operator.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..packed import Layout

_MAX_HEAD_SIZE = 256
_SIZE_STEP = 8
_FIRST_CAPABILITY = (8, 0)  # Ampere, the first cards for which the kernel is written


def can_use_varlen(query: Tensor, value: Tensor) -> bool:
    """Whether the device, the dtype and the head sizes are those of the kernel."""
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and max(query.shape[-1], value.shape[-1]) <= _MAX_HEAD_SIZE
        and _capability(query.get_device()) >= _FIRST_CAPABILITY
    )


@cache
def _capability(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    key_layout: Layout,
    causal: bool,
    window: int | None,
    dropout: float,
) -> Tensor:
    """Compute `attention` by the kernel.

    Raises:
        ValueError: the kernel cannot: see `can_use_varlen`.
    """
    if not can_use_varlen(query, value):
        raise ValueError(
            "variable-length attention needs CUDA of compute capability 8, half precision and "
            f"head sizes up to {_MAX_HEAD_SIZE}: not {query.dtype} on {query.device}, "
            f"head_size={query.shape[-1]}"
        )
    scale = query.shape[-1] ** -0.5
    size = max(query.shape[-1], value.shape[-1])
    size += -size % _SIZE_STEP
    query, key, padded_value = (_pad_last(part, size) for part in (query, key, value))
    inputs = (query, key, padded_value, layout.cu_seqlens, key_layout.cu_seqlens)
    lengths = (layout.max_seqlen, key_layout.max_seqlen)
    width = -1 if window is None else window
    result: Tensor
    if dropout:
        result, *_ = torch.ops.aten._flash_attention_forward(
            *inputs,
            *lengths,
            dropout,
            causal and window is None,
            return_debug_mask=False,
            scale=scale,
            window_size_left=width,
            window_size_right=0 if causal else width,
        )
    else:
        from torch.nn.attention.varlen import varlen_attn

        window_size = (width, 0 if causal else width)
        output = varlen_attn(*inputs, *lengths, scale=scale, window_size=window_size)
        assert isinstance(output, Tensor)
        result = output
    return result[..., : value.shape[-1]]


def _pad_last(part: Tensor, size: int) -> Tensor:
    missing = size - part.shape[-1]
    return F.pad(part, (0, missing)) if missing else part
