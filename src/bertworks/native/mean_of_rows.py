"""Means of rows of a table in native code: the vectors of texts of a static model."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .library import library, parallel


def write_means_of_rows(
    table: Tensor,
    ids: NDArray[np.int32],
    lengths: NDArray[np.int64],
    means: NDArray[np.float32],
    *,
    unit_length: bool,
) -> None:
    """Write the mean of each text's rows; zero for a text without rows.

    Args:
        table: float32 `[rows, width]`, contiguous, on the CPU.
        ids: the rows of all texts, laid end to end.
        lengths: how many rows each text has; their sum is the number of ids.
        means: `[texts, width]`, contiguous; the result.
        unit_length: whether to scale the means to length 1.

    Raises:
        IndexError: an id is not in the table.
    """
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    assert means.shape == (len(lengths), table.shape[1]) and starts[-1] == len(ids)
    assert means.flags.c_contiguous and ids.flags.c_contiguous and table.is_contiguous()
    assert table.dtype is torch.float32 and table.is_cpu
    error_code = library().bertworks_mean_of_rows(
        table.data_ptr(),
        *table.shape,
        ids.ctypes.data,
        starts.ctypes.data,
        len(lengths),
        unit_length,
        means.ctypes.data,
        torch.get_num_threads(),
        parallel(),
    )
    if error_code:
        raise IndexError("an id is not in the table")
