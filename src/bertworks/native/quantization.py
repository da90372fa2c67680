"""Numbers of 8 bits for weights: integers, and a scale for each row of a matrix."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int8

LARGEST = 127
SMALLEST = 1e-30  # so that a row of zeros has a nonzero scale


def quantize_rows(
    weight: Float[np.ndarray, "outputs inputs"],
) -> tuple[Int8[np.ndarray, "outputs inputs"], Float[np.ndarray, " outputs"]]:
    """Return a matrix as `codes · scale`: integers up to ±127, and a float32 scale per row."""
    largest = np.maximum(np.abs(weight).max(1), np.float32(SMALLEST))
    scales = largest / np.float32(LARGEST)
    return np.rint(weight / scales[:, None]).astype(np.int8), scales
