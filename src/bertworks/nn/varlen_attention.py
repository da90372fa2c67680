"""Attention of sequences of several lengths by PyTorch's kernels for CUDA.

Both kernels take all sequences in one call and store no matrix of scores:

- *flash*: bfloat16 and float16, on cards since Ampere;
- *efficient*: float32, and float16 on older cards; no window.

Head sizes that they do not take are padded with zeros, which changes neither the scores nor the
outputs. PyTorch's function `varlen_attn` has no dropout, so this module calls the operators, which
PyTorch differentiates. They take random numbers of the device's generator, whose state checkpoints
contain.

Sources: Dao (2023), "FlashAttention-2"; Rabe and Staats (2021), "Self-attention Does Not Need O(n²)
Memory"; PyTorch's `native_functions.yaml` for the operators.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..packed import Layout

Kernel = Literal["flash", "efficient"]

_MAX_HEAD_SIZE = 256  # of both: the efficient kernel is slower than groups for larger ones
_SIZE_STEP = 8
_FIRST_FLASH_CAPABILITY = (8, 0)  # Ampere
_NO_MASK, _CAUSAL = 0, 2  # the efficient kernel's numbers; the second counts from the last key


def choose_kernel(query: Tensor, value: Tensor, window: int | None) -> Kernel | None:
    """Return the kernel for these inputs; None if there is none."""
    if not query.is_cuda or max(query.shape[-1], value.shape[-1]) > _MAX_HEAD_SIZE:
        return None
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    if is_half and _capability(query.get_device()) >= _FIRST_FLASH_CAPABILITY:
        return "flash"
    has_kernel = query.dtype in (torch.float32, torch.float16) and window is None
    return "efficient" if has_kernel else None


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
    """Compute `attention` by a kernel.

    Raises:
        ValueError: there is none: see `choose_kernel`.
    """
    kernel = choose_kernel(query, value, window)
    if kernel is None:
        raise ValueError(
            f"no kernel for {query.dtype} on {query.device}, head_size={query.shape[-1]}, "
            f"window={window}"
        )
    scale = query.shape[-1] ** -0.5
    size = max(query.shape[-1], value.shape[-1])
    size += -size % _SIZE_STEP
    inputs = tuple(_pad_last(part, size) for part in (query, key, value))
    edges = (layout.cu_seqlens, key_layout.cu_seqlens)
    lengths = (layout.max_seqlen, key_layout.max_seqlen)
    result: Tensor
    if kernel == "flash":
        width = -1 if window is None else window
        result, *_ = torch.ops.aten._flash_attention_forward(
            *inputs,
            *edges,
            *lengths,
            dropout,
            causal and window is None,
            return_debug_mask=False,
            scale=scale,
            window_size_left=width,
            window_size_right=0 if causal else width,
        )
    else:
        result, *_ = torch.ops.aten._efficient_attention_forward(
            *(part.unsqueeze(0) for part in inputs),
            None,
            *edges,
            *lengths,
            dropout,
            _CAUSAL if causal else _NO_MASK,
            torch.is_grad_enabled(),  # whether the sums for the backward pass are computed
            scale=scale,
        )
        result = result.squeeze(0)
    return result[..., : value.shape[-1]]


def _pad_last(part: Tensor, size: int) -> Tensor:
    missing = size - part.shape[-1]
    return F.pad(part, (0, missing)) if missing else part
