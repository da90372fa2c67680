"""Batches of retrieval: all texts in one pack, and which passages are negatives of which query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...packed import Packed
from ..example import LabelledExample, list_sequences, pack


def pack_texts(examples: Sequence[LabelledExample]) -> tuple[Packed, dict[str, np.ndarray]]:
    """Pack all texts in order of length.

    Returns:
        The pack, and by name:
        `query` `[rows]` int64: indices of the queries' sequences in the pack;
        `passage` `[rows + negatives]` int64: the same for the rows' passages, then all negatives;
        `negative_row` `[negatives]` int64: index of the row that each negative belongs to;
        `is_excluded` `[rows, rows + negatives]` bool: passages that are not negatives of a query.
    """
    # First queries, then their passages, then the negatives, each in the order of the rows.
    roles = sorted(list_sequences(examples), key=lambda role: min(role[1], 2))
    token_ids = [examples[at].sequences[number].input_ids for at, number in roles]
    texts = [examples[at].texts[number] for at, number in roles]
    order = sorted(range(len(roles)), key=lambda role: len(token_ids[role]))
    packed = pack(examples, [roles[role] for role in order])
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    rows = len(examples)
    return packed, {
        "query": positions[:rows],
        "passage": positions[rows:],
        "negative_row": np.array([at for at, _ in roles[2 * rows :]], np.int64),
        "is_excluded": _find_excluded(token_ids, texts, rows),
    }


def _find_excluded(
    token_ids: Sequence[np.ndarray], texts: Sequence[str], num_queries: int
) -> NDArray[np.bool_]:
    """Which passages must not be used as negatives of a query: `[queries, passages]`.

    These are passages that belong to the same query in another row, and passages that equal the
    query. The first passages are the positives, in the order of the queries; they are not excluded.
    Texts are compared by their token ids; a query and a passage, which may have different prompts,
    also as they are in the table.

    Args:
        token_ids, texts: of the queries, then of the passages.
    """
    numbers: dict[bytes, int] = {}
    ids = np.array([numbers.setdefault(one.tobytes(), len(numbers)) for one in token_ids])
    text_numbers: dict[str, int] = {}
    of_texts = np.array([text_numbers.setdefault(text, len(text_numbers)) for text in texts])
    queries, passages = ids[:num_queries, None], ids[num_queries:]
    pairs = queries * len(numbers) + passages
    is_excluded: NDArray[np.bool_] = np.isin(pairs, pairs.diagonal()) | (queries == passages)
    is_excluded |= of_texts[:num_queries, None] == of_texts[num_queries:]
    np.fill_diagonal(is_excluded, val=False)
    return is_excluded
