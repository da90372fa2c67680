"""Exact search: the vectors that are most similar to a query's.

    products in float32, of all passages ─► those that may be among the best ─► the same products
                                                                                again, in float64

Libraries of linear algebra add up in an order that depends on a vector's place and on the number of
queries: equal passages would have scores that differ in their last digits, and other places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.floating]

_CHUNK_QUERIES = 1024  # queries compared at a time


def top_k(
    queries: Vectors,
    passages: Vectors,
    k: int,
    *,
    compare: Callable[[Vectors, Vectors], Vectors] | None = None,
    decode: Callable[[NDArray[np.generic]], Vectors] | None = None,
    is_excluded: NDArray[np.bool_] | None = None,
    longest: float | None = None,
    chunk_size: int = 16384,
) -> tuple[Vectors, NDArray[np.int64]]:
    """The `k` passages that are most similar to each query.

    Args:
        queries: `[queries, width]`; sparse, if `compare` takes that.
        passages: `[passages, width]`; may be a memory-mapped file, which is read chunk by chunk.
        k: number of passages per query; all passages if there are fewer.
        compare: from some queries and passages to their similarities `[queries, passages]`, which
            depend on nothing else; inner products if omitted.
        decode: from some passages to their vectors, for inner products; the same if omitted.
        is_excluded: `[passages]`, true for those whose similarity is to be `-inf`.
        longest: the length of the longest vector of a passage, for inner products; it is measured
            if omitted.
        chunk_size: number of passages compared at a time, with at most 1,024 queries.

    Returns:
        The similarities `[queries, k]`, the largest first, and the passages' indices
        `[queries, k]`; of equal ones, the lower index comes first. Inner products are computed in
        float64 and then rounded, so they depend on nothing but the two vectors.
    """

    def compare_chunk(some: Vectors, chunk: slice, least: Vectors) -> Vectors:
        part = passages[chunk]
        vectors = part if decode is None else decode(part)
        scores = some @ vectors.T if compare is None else compare(some, vectors)
        if is_excluded is not None:
            scores[:, is_excluded[chunk]] = -np.inf
        if compare is not None:
            return scores
        length = longest_length(vectors) if longest is None else longest
        return exact_products(some, vectors, scores, k, least, longest=length)

    count = passages.shape[0]
    chunks = [slice(start, start + chunk_size) for start in range(0, count, chunk_size)]
    parts = [
        _search_passages(queries[start : start + _CHUNK_QUERIES], chunks, k, compare_chunk)
        for start in range(0, queries.shape[0], _CHUNK_QUERIES)
    ]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _search_passages(
    queries: Vectors,
    chunks: Sequence[slice],
    k: int,
    compare: Callable[[Vectors, slice, Vectors], Vectors],
) -> tuple[Vectors, NDArray[np.int64]]:
    num_queries = queries.shape[0]
    best = np.empty((num_queries, 0), queries.dtype)
    numbers = np.empty((num_queries, 0), np.int64)
    for chunk in chunks:
        least = best[:, -1] if best.shape[1] == k else np.full(num_queries, -np.inf, best.dtype)
        scores = compare(queries, chunk, least)
        own_numbers = np.arange(chunk.start, chunk.start + scores.shape[1])
        passage_numbers = np.broadcast_to(own_numbers, scores.shape)
        # The best so far come first: their indices are lower, which decides between equal scores.
        scores, passage_numbers = np.hstack([best, scores]), np.hstack([numbers, passage_numbers])
        order = largest(scores, k)
        best, numbers = (
            np.take_along_axis(scores, order, 1),
            np.take_along_axis(passage_numbers, order, 1),
        )
    return best, numbers


def exact_products(
    queries: Vectors,
    vectors: Vectors,
    rough: Vectors,
    k: int,
    least: Vectors | None = None,
    *,
    longest: float,
) -> Vectors:
    """Return the inner products of the vectors that may be among the `k` best; else `-inf`.

    Args:
        queries, vectors: `[queries, width]`, `[vectors, width]`.
        rough: their inner products with any rounding, `[queries, vectors]`; `-inf` for a vector
            that is left out.
        least: scores `[queries]` that the best are known to reach.
        longest: the length of the longest vector.
    """
    count, width = vectors.shape
    lengths = np.linalg.norm(queries, axis=1)
    # A product is wrong by less than half of this, whatever the order of its sum.
    tolerance = 2 * (width + 2) * np.finfo(rough.dtype).eps * longest * lengths
    bound = np.full(len(queries), -np.inf) if least is None else least
    if k < count:
        bound = np.maximum(bound, np.partition(rough, count - k, axis=1)[:, count - k])
    is_candidate = (rough >= (bound - tolerance)[:, None]) & (rough > -np.inf)
    scores = np.full_like(rough, -np.inf)
    kinds, rows_of_kinds = np.arange(count), np.arange(count)
    if is_candidate.sum() > count:  # many vectors are equal: one product for each kind
        rows = np.ascontiguousarray(vectors).view(np.dtype((np.void, vectors[0].nbytes))).ravel()
        _, rows_of_kinds, kinds = np.unique(rows, return_index=True, return_inverse=True)
    for row, query in enumerate(queries):
        columns = np.flatnonzero(is_candidate[row])
        own_kinds, places = np.unique(kinds[columns], return_inverse=True)
        scores[row, columns] = products_with(query, vectors[rows_of_kinds[own_kinds]])[places]
    return scores


def longest_length(vectors: Vectors) -> float:
    """Return the length of the longest vector of `[vectors, width]`."""
    return float(np.sqrt(np.einsum("ij,ij->i", vectors, vectors).max(initial=0)))


def products_with(query: Vectors, vectors: Vectors) -> NDArray[np.float64]:
    """Return the inner products of a vector with each of some others, in float64.

    They depend on nothing but the two vectors, unlike those of linear algebra.
    """
    products: NDArray[np.float64] = np.multiply(vectors, query, dtype=np.float64).sum(1)
    return products


def largest(scores: Vectors, k: int) -> NDArray[np.int64]:
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
    indices: NDArray[np.int64] = np.take_along_axis(columns, order, 1)
    return indices
