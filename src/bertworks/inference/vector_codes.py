"""Vectors as 8-bit integers or bits, for models that compare cosines: lengths are not kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..settings.literals import Quantization

CODE_TYPES: Mapping[Quantization, np.dtype[Any]] = {
    "none": np.dtype("<f4"),
    "int8": np.dtype("i1"),
    "binary": np.dtype("u1"),
}
"""The type of the numbers in each form."""


def code_width(width: int, quantization: Quantization) -> int:
    """Return how many numbers the code of a vector of `width` numbers has."""
    return (width + 7) // 8 if quantization == "binary" else width


def fills_bytes(width: int, quantization: Quantization) -> bool:
    """Whether the codes of vectors of `width` numbers have no bits that only fill the last byte.

    Such bits would count as equal numbers.
    """
    return quantization != "binary" or width % 8 == 0


def quantize_vectors(vectors: NDArray[np.float32], quantization: Quantization) -> NDArray[Any]:
    """Return the codes of vectors.

    With "int8", each vector is divided by its largest number and multiplied by 127. With "binary",
    a bit is 1 for a positive number; eight are a byte, the first one its highest bit, as in
    `numpy.packbits`, Faiss and sentence-transformers' `ubinary`.

    Args:
        vectors: float32 `[vectors, width]`.

    Returns:
        `[vectors, width]` of int8, or `[vectors, width / 8]` of uint8; with "none" the vectors.
    """
    if quantization == "none":
        return vectors
    if quantization == "binary":
        return np.packbits(vectors > 0, axis=1)
    largest = np.abs(vectors).max(1, keepdims=True, initial=1e-30)
    codes: NDArray[np.int8] = np.round(127 / largest * vectors).astype(np.int8)
    return codes


def vectors_of_codes(codes: NDArray[Any]) -> NDArray[np.float32]:
    """Return vectors in the directions of codes: int8 as it is, bits as 1 and -1."""
    if codes.dtype == np.uint8:
        return np.unpackbits(codes, axis=1).astype(np.float32) * 2 - 1
    return codes.astype(np.float32)
