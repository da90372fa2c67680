"""Exact search: the vectors that are most similar to a query's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.floating]

_CHUNK_QUERIES = 1024  # queries compared at a time


def _products(queries: Vectors, passages: Vectors) -> Vectors:
    return queries @ passages.T


def top_k(
    queries: Vectors,
    passages: Vectors,
    k: int,
    *,
    compare: Callable[[Vectors, Vectors], Vectors] = _products,
    chunk_size: int = 16384,
) -> tuple[Vectors, NDArray[np.int64]]:
    """The `k` passages that are most similar to each query.

    Args:
        queries: `[queries, width]`; sparse, if `compare` takes that.
        passages: `[passages, width]`; may be a memory-mapped file, which is read chunk by chunk.
        k: number of passages per query; all passages if there are fewer.
        compare: from some queries and passages to their similarities `[queries, passages]`; inner
            products if omitted.
        chunk_size: number of passages compared at a time, with at most 1,024 queries.

    Returns:
        The similarities `[queries, k]`, the largest first, and the passages' indices
        `[queries, k]`; of equal ones, the lower index comes first.
    """
    parts = [
        _search_passages(queries[start : start + _CHUNK_QUERIES], passages, k, compare, chunk_size)
        for start in range(0, queries.shape[0], _CHUNK_QUERIES)
    ]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _search_passages(
    queries: Vectors,
    passages: Vectors,
    k: int,
    compare: Callable[[Vectors, Vectors], Vectors],
    chunk_size: int,
) -> tuple[Vectors, NDArray[np.int64]]:
    num_queries = queries.shape[0]
    best = np.empty((num_queries, 0), queries.dtype)
    numbers = np.empty((num_queries, 0), np.int64)
    for start in range(0, passages.shape[0], chunk_size):
        scores = compare(queries, passages[start : start + chunk_size])
        passage_numbers = np.broadcast_to(np.arange(start, start + scores.shape[1]), scores.shape)
        # The best so far come first: their indices are lower, which decides between equal scores.
        scores, passage_numbers = np.hstack([best, scores]), np.hstack([numbers, passage_numbers])
        order = _largest(scores, k)
        best, numbers = (
            np.take_along_axis(scores, order, 1),
            np.take_along_axis(passage_numbers, order, 1),
        )
    return best, numbers


def _largest(scores: Vectors, k: int) -> NDArray[np.int64]:
    """The indices `[rows, k]` of each row's largest values, in order; of equal ones the first."""
    rows, count = scores.shape
    if k < count:
        least = np.partition(scores, count - k, axis=1)[:, count - k, None]
        is_above, is_least = scores > least, scores == least
        num_ties = k - is_above.sum(1, keepdims=True)
        is_largest = is_above | (is_least & (is_least.cumsum(1) <= num_ties))
        columns = np.nonzero(is_largest)[1].reshape(rows, k)
    else:
        columns = np.broadcast_to(np.arange(count), (rows, count))
    order = np.argsort(-np.take_along_axis(scores, columns, 1), axis=1, kind="stable")
    largest: NDArray[np.int64] = np.take_along_axis(columns, order, 1)
    return largest
