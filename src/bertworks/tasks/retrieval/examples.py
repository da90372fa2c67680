"""The pack of queries, passages and negatives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...packed import Packed
from ..example import LabelledExample, pack


def pack_texts(examples: Sequence[LabelledExample]) -> tuple[Packed, dict[str, np.ndarray]]:
    """All texts in order of length, and what is what.

    Returns:
        The pack, and by name:
        `query` `[rows]` int64: where in the pack the queries are;
        `passage` `[rows + negatives]` int64: the like for their passages, and then all negatives;
        `negative_row` `[negatives]` int64: whose each negative is;
        `excluded` `[rows, rows + negatives]` bool: the passages that are no negatives of a query.
    """
    roles = [
        (at, number)
        for at, example in enumerate(examples)
        for number in range(len(example.sequences))
    ]
    # Queries, then their passages, then the negatives, each in the order of the rows.
    roles.sort(key=lambda role: min(role[1], 2))
    texts = [examples[at].sequences[number].input_ids for at, number in roles]
    order = sorted(range(len(texts)), key=lambda role: len(texts[role]))
    packed = pack(examples, [roles[role] for role in order])
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    rows = len(examples)
    return packed, {
        "query": places[:rows],
        "passage": places[rows:],
        "negative_row": np.array([at for at, _ in roles[2 * rows :]], np.int64),
        "excluded": _no_negatives(texts[:rows], texts[rows:]),
    }


def _no_negatives(
    queries: Sequence[np.ndarray], passages: Sequence[np.ndarray]
) -> NDArray[np.bool_]:
    """Which passages are no negatives of a query, given as token ids: `[queries, passages]`.

    Those that belong to the same query in another row, and those that are the query's own text. The
    first passages are the queries' own, in order; they are what is to be found.
    """
    numbers: dict[bytes, int] = {}
    own = np.array([numbers.setdefault(ids.tobytes(), len(numbers)) for ids in queries])
    told = np.array([numbers.setdefault(ids.tobytes(), len(numbers)) for ids in passages])
    pairs = own[:, None] * len(numbers) + told
    excluded: NDArray[np.bool_] = np.isin(pairs, pairs.diagonal()) | (own[:, None] == told)
    np.fill_diagonal(excluded, val=False)
    return excluded
