"""Probabilities and losses from a network's outputs, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Num


def softmax(logits: Num[np.ndarray, "rows classes"]) -> Float[np.ndarray, "rows classes"]:
    """The probabilities of the classes, row by row."""
    result: NDArray[np.float64] = np.exp(log_softmax(logits))
    return result


def log_softmax(logits: Num[np.ndarray, "rows classes"]) -> Float[np.ndarray, "rows classes"]:
    """The logarithms of the probabilities of the classes, row by row."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(1, keepdims=True, initial=-np.inf)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return result


def cross_entropy_sum(
    logits: Num[np.ndarray, "rows classes"], labels: Int[np.ndarray, " rows"]
) -> float:
    """The summed cross-entropy of the rows."""
    return -float(log_softmax(logits)[np.arange(len(labels)), labels].sum())
