"""Buckets and slopes of the distances of two tokens, for numbers added to attention's scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jaxtyping import Int64


def buckets_of(length: int, num_buckets: int, max_distance: int) -> Int64[np.ndarray, " distances"]:
    """The bucket of each distance from `1 - length` to `length - 1`."""
    distances = np.arange(1 - length, length)
    half = num_buckets // 2
    exact = half // 2
    size = np.abs(distances)
    # In float32, as in the training of the published weights.
    growth = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact))
    growth /= np.float32(math.log(max_distance / exact))
    ranges = exact + (growth * np.float32(half - exact)).astype(np.int64)
    buckets: NDArray[np.int64] = np.where(size < exact, size, np.minimum(ranges, half - 1))
    return buckets + half * (distances > 0)


def slopes_of(heads: int) -> list[float]:
    """The slope of each head."""
    power = 1 << (heads.bit_length() - 1)
    fine = [2 ** (-4 * head / power) for head in range(1, 2 * power + 1)]
    return [*fine[1::2], *fine[: 2 * (heads - power) : 2]]
