"""How similar vectors are: cosines, or the function that a sentence encoder's files name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..settings.literals import SimilarityFunction

Vectors = NDArray[np.floating]


def similarities(
    texts: Vectors, others: Vectors, function: SimilarityFunction = "cosine"
) -> NDArray[np.float32]:
    """Return the similarity of each text's vector with each of the others: `[texts, others]`.

    They are computed in float64 and then rounded, so that they have the same bits whatever the
    number of vectors; cosines are from -1 to 1.

    Args:
        texts, others: `[texts, width]`, `[others, width]`.
        function: cosine (0 with a zero vector), inner product, or negative distance.

    Raises:
        DataError: the vectors do not have the same width.
    """
    if texts.shape[1] != others.shape[1]:
        raise DataError(f"vectors of {texts.shape[1]} and of {others.shape[1]} numbers")
    result = _FUNCTIONS[function](texts.astype(np.float64), others.astype(np.float64))
    return result.astype(np.float32)


def _cosines(texts: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(_unit(texts) @ _unit(others).T, -1, 1)


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths, lengths, 1)


def _products(texts: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    return texts @ others.T


def _euclidean(texts: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = [-np.sqrt(np.square(others - text).sum(1)) for text in texts]
    return np.array(rows).reshape(len(texts), len(others))


def _manhattan(texts: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = [-np.abs(others - text).sum(1) for text in texts]
    return np.array(rows).reshape(len(texts), len(others))


_FUNCTIONS: Mapping[
    SimilarityFunction,
    Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]],
] = {
    "cosine": _cosines,
    "dot": _products,
    "euclidean": _euclidean,
    "manhattan": _manhattan,
}


def of_unit_length(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors divided by their lengths; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    result: NDArray[np.float32] = (vectors / np.where(lengths, lengths, 1)).astype(
        np.float32, copy=False
    )
    return result
