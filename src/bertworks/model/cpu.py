"""What a CPU needs to be fast: memory that is kept, and matrix products of few different shapes.

In bfloat16, oneDNN compiles a kernel for each new shape of a matrix product: milliseconds, and
megabytes, each time. Packs are of any number of tokens, so this would cost more than the products.
Numbers of rows are therefore rounded up a little, and the kernels are kept (docs/decisions.md has
what was measured).
"""

from __future__ import annotations

import ctypes
import os
import platform

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# Read by oneDNN when it is first used. Attention meets a few thousand shapes: its default, 1,024,
# has kernels compiled again and again.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # names of mallopt(3)


def keep_freed_memory() -> bool:
    """Have glibc keep freed memory for the next tensor, rather than hand it back to the kernel.

    A step allocates and frees the same tensors each time. By default glibc returns the large ones
    to the kernel, which clears each page again when it is next touched. Up to 32 MiB, what is freed
    is kept.

    Returns:
        Whether it could be asked: not on other systems, or other C libraries.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    wanted = ((_MMAP_THRESHOLD, 2**25), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 2**26))
    taken = [mallopt(name, value) for name, value in wanted]
    return all(taken)


def align_rows(x: Float[Tensor, "rows width"]) -> Float[Tensor, "aligned width"]:
    """`x` with rows of zeros behind it, where products of its shape would need a new kernel.

    There are at most 3 % of them. They belong to no sequence, and nothing that comes of them is
    looked at.
    """
    if not x.is_cpu or x.dtype is not torch.bfloat16:
        return x
    extra = aligned(len(x)) - len(x)
    return F.pad(x, (0, 0, 0, extra)) if extra else x


def aligned(rows: int) -> int:
    """`rows` rounded up, so that there are 32 different numbers between a power of two and the
    next."""
    step = 1 << max(0, rows.bit_length() - 6)
    return -(-rows // step) * step
