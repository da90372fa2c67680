"""The parts of heads in native code: linear maps and activations of float32 vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..utils.threads import num_threads
from .layer import ACTIVATION_NUMBERS
from .library import empty, library

if TYPE_CHECKING:
    from jaxtyping import Float

Vectors = NDArray[np.float32]
_VECTOR_LENGTH = 16  # numbers that an instruction takes


def apply_linear(
    x: Float[np.ndarray, "rows inputs"],
    weight: Float[np.ndarray, "outputs inputs"],
    bias: Float[np.ndarray, " outputs"] | None = None,
) -> Float[np.ndarray, "rows outputs"]:
    """`x Wᵀ + b`, with the same bits whatever the other rows are.

    Args:
        x, weight, bias: contiguous float32.
    """
    arrays = [x, weight] if bias is None else [x, weight, bias]
    assert all(one.dtype == np.float32 and one.flags.c_contiguous for one in arrays)
    result = empty((len(x), len(weight)), np.float32)
    library().bertworks_linear(
        x.ctypes.data,
        weight.ctypes.data,
        None if bias is None else bias.ctypes.data,
        len(x),
        *weight.shape[::-1],
        result.ctypes.data,
        num_threads(),
    )
    return result


def _native(number: int) -> Callable[[Vectors], Vectors]:
    def apply(x: Vectors) -> Vectors:
        count = -(-x.size // _VECTOR_LENGTH) * _VECTOR_LENGTH
        padded, result = np.zeros(count, np.float32), empty((count,), np.float32)
        padded[: x.size] = x.ravel()
        library().bertworks_function(padded.ctypes.data, count, number, True, result.ctypes.data)
        return result[: x.size].reshape(x.shape)

    return apply


ACTIVATIONS: Mapping[str, Callable[[Vectors], Vectors]] = {
    **{name: _native(number) for name, number in ACTIVATION_NUMBERS.items()},
    "tanh": np.tanh,
}
"""Activations of float32 numbers, each of which does not depend on the others."""
