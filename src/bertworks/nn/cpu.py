"""Two optimisations for CPUs: reused memory, and matrix products of few different shapes.

In bfloat16, and with packed weights, oneDNN compiles a kernel for each new shape of a matrix
product, which takes milliseconds and megabytes. Packs have any number of tokens, so compiling would
cost more than the products. Numbers of rows are therefore rounded up a little, and the kernels are
cached (docs/decisions.md has the measurements).
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# oneDNN reads this when it is first used. Attention has a few thousand shapes; with the default,
# 1,024, kernels are compiled again and again.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")

VECTOR_LENGTH = 32  # the most numbers that PyTorch's kernels process at a time
_LEAST_SHARE = 1 << 15  # numbers of a thread's share, in PyTorch's elementwise kernels

_ALIGNED_COLUMNS = 8  # 16 bytes in bfloat16, 32 in float32
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4  # names of mallopt(3)


def keep_freed_memory(*, of_any_size: bool = False) -> bool:
    """Make glibc keep freed memory for the next tensor instead of returning it to the kernel.

    Every step allocates and frees the same tensors. By default glibc returns large ones to the
    kernel, which clears each page again when it is next used. Tensors of up to 32 MiB are kept.

    Args:
        of_any_size: also keep larger ones, for the rest of the process: for training, whose steps
            create gradients of whole embedding tables (docs/decisions.md).

    Returns:
        Whether glibc accepted the options; False with other C libraries.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    options = [(_MMAP_THRESHOLD, 2**25), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 2**26)]
    if of_any_size:
        options.append((_MMAP_MAX, 0))
    accepted = [mallopt(name, value) for name, value in options]
    return all(accepted)


def align_rows(x: Float[Tensor, "rows width"]) -> Float[Tensor, "aligned width"]:
    """Append rows of zeros to `x` if products of its shape would need a new kernel.

    That is the case in bfloat16, and in inference, where weights are packed. At most about 3 % are
    added. These rows belong to no sequence, and no result depends on them.
    """
    if not x.is_cpu or not (x.dtype is torch.bfloat16 or torch.is_inference_mode_enabled()):
        return x
    extra = round_up_rows(len(x)) - len(x)
    return F.pad(x, (0, 0, 0, extra)) if extra else x


def align_columns(x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch aligned"]:
    """Append columns of zeros to `x`, so that each row begins at a multiple of 16 bytes.

    MKL sums the products of other rows in an order that depends on where in memory they begin.
    """
    extra = -x.shape[-1] % _ALIGNED_COLUMNS if x.is_cpu else 0
    return F.pad(x, (0, extra)) if extra else x


def round_up_rows(rows: int) -> int:
    """Return `rows` rounded up to one of 32 numbers between a power of two and the next."""
    step = 1 << max(0, rows.bit_length() - 6)
    return -(-rows // step) * step


def apply_in_whole_vectors(
    function: Callable[[Tensor], Tensor], x: Float[Tensor, "rows width"]
) -> Float[Tensor, "rows width"]:
    """Apply an elementwise function; results do not depend on the numbers of rows and threads.

    PyTorch's kernels compute several numbers at a time, and the last few of each thread's share
    with another formula, which rounds differently. So each share consists of whole vectors.

    With gradients there is no such guarantee, and the function is applied as it is.

    Args:
        function: such as GELU.
    """
    threads, width = torch.get_num_threads(), x.shape[-1]
    if not x.is_cpu or x.requires_grad or x.numel() == 0:
        return function(x)
    if extra := -width % VECTOR_LENGTH:
        return apply_in_whole_vectors(function, F.pad(x, (0, extra)))[..., :width].contiguous()
    num_rows = len(x)
    while not _has_whole_shares(num_rows * width, threads):
        num_rows -= 1
    if num_rows == len(x):
        return function(x)
    return torch.cat(
        [function(part) for part in (x[:num_rows], *torch.split(x[num_rows:], 1)) if len(part)]
    )


def _has_whole_shares(count: int, threads: int) -> bool:
    """Whether each thread's share of some numbers consists of whole vectors.

    GELU's kernel has a share for each thread; others have fewer if there are few numbers.
    """
    shares = min(threads, max(1, -(-count // _LEAST_SHARE)))
    return count % (threads * VECTOR_LENGTH) == 0 == count % (shares * VECTOR_LENGTH)
