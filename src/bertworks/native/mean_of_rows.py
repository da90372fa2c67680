"""Means of rows of a table in native code: the vectors of texts of a static model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..utils.threads import num_threads
from .library import library


def write_means_of_rows(
    table: NDArray[np.float32],
    ids: NDArray[np.int32],
    lengths: NDArray[np.int64],
    means: NDArray[np.float32],
    *,
    unit_length: bool,
) -> None:
    """Write the mean of each text's rows; zero for a text without rows.

    Args:
        table: `[rows, width]`, contiguous.
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
    assert means.flags.c_contiguous and ids.flags.c_contiguous and table.flags.c_contiguous
    assert table.dtype == np.float32
    error_code = library().bertworks_mean_of_rows(
        table.ctypes.data,
        *table.shape,
        ids.ctypes.data,
        starts.ctypes.data,
        len(lengths),
        unit_length,
        means.ctypes.data,
        num_threads(),
    )
    if error_code:
        raise IndexError("an id is not in the table")
