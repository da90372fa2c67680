"""Rows of queries, passages and negatives as token ids, and their pack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...packed import Packed


@dataclass(frozen=True, eq=False, slots=True)
class RetrievalExample:
    """A row as token ids.

    Attributes:
        index: the row's number.
        input_ids: of the query, of its passage, and of each negative, `[tokens]` int32.
        score: the cosine that is wanted of the first two; None where rows have none.
        truncated_tokens: how many tokens the limit cut off, of all texts together.
        texts: the query, its passage, and the negatives.
        where: the row's place: file and line, or row.
    """

    index: int
    input_ids: Sequence[np.ndarray]
    score: float | None
    truncated_tokens: int
    texts: Sequence[str] = ()
    where: str = ""

    @property
    def shown(self) -> str:
        """The query and its passage for people."""
        return " | ".join(self.texts[:2])

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.input_ids))

    @property
    def content(self) -> bytes:
        return b"".join(ids.tobytes() for ids in self.input_ids)

    @property
    def target(self) -> bytes:
        return np.array([np.nan if self.score is None else self.score]).tobytes()


def pack_texts(examples: Sequence[RetrievalExample]) -> tuple[Packed, dict[str, np.ndarray]]:
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
        for number in range(len(example.input_ids))
    ]
    # Queries, then their passages, then the negatives, each in the order of the rows.
    roles.sort(key=lambda role: min(role[1], 2))
    texts = [examples[at].input_ids[number] for at, number in roles]
    order = sorted(range(len(texts)), key=lambda role: len(texts[role]))
    packed = Packed.from_arrays(
        [texts[role] for role in order],
        rows=[examples[roles[role][0]].index for role in order],
        numbers=[roles[role][1] for role in order],
    )
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
