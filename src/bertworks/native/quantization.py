"""Numbers of 8 and 16 bits: matrices as integers with a scale for each row, and bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
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


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of float32 numbers rounded to bfloat16, half to even."""
    bits = values.view(np.uint32)
    rounded = ((bits + ((bits >> 16) & 1) + np.uint32(0x7FFF)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def to_floats(values: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers, or the bits of bfloat16 numbers, as float32."""
    if values.dtype == np.uint16:
        bits = values.astype(np.uint32)
        bits <<= 16  # in place
        return bits.view(np.float32)
    return values.astype(np.float32, copy=False)
