"""A score bias as native attention takes it: numbers that depend on the distance only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..packed import Layout

if TYPE_CHECKING:
    from jaxtyping import Float


class NativeBias:
    """Numbers that are added to the scores, for the function `bias_of` of attention.h.

    Args:
        numbers: of the distances of a key from a query, from `1 - length` to `length - 1`, where no
            sequence is longer than `length`.
    """

    def __init__(self, numbers: Float[np.ndarray, "heads distances"] | None) -> None:
        # Scores are exponents of two.
        log2e = np.float32(math.log2(math.e))
        self._numbers = None if numbers is None else np.ascontiguousarray(numbers * log2e)

    @property
    def arguments(self) -> tuple[int | None, int]:
        """The numbers' address and `length`; this object owns their memory and must outlive it."""
        if self._numbers is None:
            return None, 0
        return self._numbers.ctypes.data, (self._numbers.shape[1] + 1) // 2


def can_add(numbers: NDArray[np.float32] | None, layout: Layout, heads: int) -> bool:
    """Whether native attention can add a bias: it has a number for each head and distance."""
    return numbers is None or (
        numbers.dtype == np.float32
        and len(numbers) == heads
        and numbers.shape[1] >= 2 * layout.max_seqlen - 1
    )
