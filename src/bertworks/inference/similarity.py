"""How similar vectors are: cosines, or the function that a sentence encoder's files name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, import_optional
from ..settings.literals import SimilarityFunction

Vectors = NDArray[np.floating]
FloatT = TypeVar("FloatT", np.float32, np.float64)


def is_sparse(vectors: object) -> bool:
    """Whether vectors are a matrix of SciPy's `sparse`."""
    return hasattr(vectors, "tocsr")


def similarities(
    texts: Vectors | Any, others: Vectors | Any, function: SimilarityFunction = "cosine"
) -> NDArray[np.float32]:
    """Return the similarity of each text's vector with each of the others: `[texts, others]`.

    They are computed in float64 and then rounded, so that they have the same bits whatever the
    number of vectors; cosines are from -1 to 1.

    Args:
        texts, others: `[texts, width]`, `[others, width]`; both may be sparse.
            With "maxsim", lists of matrices.
        function: cosine (0 with a zero vector), inner product, or negative distance.

    Raises:
        DataError: the vectors do not have the same width.
    """
    if isinstance(texts, list) and isinstance(others, list):
        return max_similarities(texts, others)
    if isinstance(texts, list) or isinstance(others, list):
        raise DataError("late interaction compares lists of matrices with lists of matrices only")
    if texts.shape[1] != others.shape[1]:
        raise DataError(f"vectors of {texts.shape[1]} and of {others.shape[1]} numbers")
    if is_sparse(texts) != is_sparse(others):
        raise DataError("sparse vectors are compared with sparse vectors only")
    if is_sparse(texts):
        return _sparse_similarities(texts, others, function)
    rows: NDArray[np.float64] = texts.astype(np.float64)
    columns: NDArray[np.float64] = others.astype(np.float64)
    result: NDArray[np.float64]
    if function == "cosine":
        result = np.clip(of_unit_length(rows) @ of_unit_length(columns).T, -1, 1)
    elif function == "dot":
        result = rows @ columns.T
    elif function in ("euclidean", "manhattan"):
        result = -_distances(rows, columns, is_squared=function == "euclidean")
    else:
        what = f"late interaction compares lists of matrices, not {rows.shape} and {columns.shape}"
        raise DataError(what)
    return result.astype(np.float32)


def _distances(
    rows: NDArray[np.float64], others: NDArray[np.float64], *, is_squared: bool
) -> NDArray[np.float64]:
    """Euclidean distances, or sums of absolute differences."""
    measure = np.square if is_squared else np.abs
    sums = np.array([measure(others - row).sum(1) for row in rows]).reshape(len(rows), len(others))
    return np.sqrt(sums) if is_squared else sums


def _sparse_similarities(
    texts: Any, others: Any, function: SimilarityFunction
) -> NDArray[np.float32]:
    if function not in ("cosine", "dot"):
        return similarities(texts.toarray(), others.toarray(), function)
    texts, others = texts.astype(np.float64), others.astype(np.float64)
    products = (texts @ others.T).toarray()
    if function == "cosine":
        lengths = [np.sqrt(part.multiply(part).sum(1)) for part in (texts, others)]
        one, other = (np.asarray(length).reshape(-1) for length in lengths)
        scale = np.outer(one, other)
        products = np.clip(products / np.where(scale, scale, 1), -1, 1)
    result: NDArray[np.float32] = products.astype(np.float32)
    return result


def max_similarities(
    queries: Sequence[Vectors], documents: Sequence[Vectors]
) -> NDArray[np.float32]:
    """Return MaxSim of each query with each document: `[queries, documents]`, in float64.

    For each row of a query, the largest inner product with a row of the document; their sum.
    Source: Khattab and Zaharia (2020), "ColBERT", §3.3.

    Args:
        queries, documents: matrices `[tokens, width]`; a document without tokens has 0.

    Raises:
        DataError: they are not matrices of the same width.
    """
    widths = {matrix.shape[-1] for matrix in (*queries, *documents)}
    if len(widths) > 1 or any(matrix.ndim != 2 for matrix in (*queries, *documents)):
        raise DataError("late interaction compares lists of matrices of one width")
    result = np.zeros((len(queries), len(documents)))
    for column, document in enumerate(documents):
        if not len(document):
            continue
        rows = document.astype(np.float64).T
        for row, query in enumerate(queries):
            result[row, column] = (query.astype(np.float64) @ rows).max(1).sum()
    return result.astype(np.float32)


def of_unit_length(vectors: NDArray[FloatT]) -> NDArray[FloatT]:
    """Return vectors divided by their lengths; a zero vector stays zero.

    Native code has `of_unit_length_by_row`, whose bits do not depend on the number of vectors.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths, lengths, 1)).astype(vectors.dtype, copy=False)


def import_sparse() -> Any:
    """Return SciPy's `sparse`.

    Raises:
        BertworksError: SciPy is not installed.
    """
    return import_optional("scipy.sparse", "metrics", "Sparse vectors")
