"""A labelled row as token ids, and the pack of several: one type for all tasks.

A row is one sequence or several: the windows of a long text, a prompt with each of its choices, a
query with its passages. A batch holds the sequences of all rows in order of length, so that
neighbours have nearly the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from ..packed import Batch, Packed


class TokenIds(Protocol):
    """A sequence for the network, such as an `Encoding`: `[tokens]` of each."""

    @property
    def input_ids(self) -> np.ndarray: ...

    @property
    def token_type_ids(self) -> np.ndarray: ...


class Tokens(NamedTuple):
    """A sequence, without what an `Encoding` knows beside: a table's rows are held in memory."""

    input_ids: np.ndarray
    token_type_ids: np.ndarray

    @classmethod
    def of(cls, encoding: TokenIds) -> Tokens:
        """The tokens of an encoding alone."""
        return cls(encoding.input_ids, encoding.token_type_ids)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LabelledExample:
    """A row as token ids.

    Attributes:
        index: the row's number.
        sequences: one at least.
        target: the target in the task's form (a class number, a value, an array); None if unknown.
        truncated_tokens: number of tokens that were cut off.
        texts: the texts of the row, for display.
        where: the row's place: file and line, or row.
    """

    index: int
    sequences: Sequence[TokenIds]
    target: Any = None
    truncated_tokens: int = 0
    texts: Sequence[str] = ()
    where: str = ""

    @property
    def num_tokens(self) -> int:
        """The tokens of all sequences."""
        return sum(len(one.input_ids) for one in self.sequences)

    @property
    def content(self) -> bytes:
        """The tokens: two rows of the same content are duplicates."""
        return b"".join(one.input_ids.tobytes() for one in self.sequences)

    @property
    def target_bytes(self) -> bytes:
        """The target: a resumed run must find the same again."""
        return np.asarray(np.nan if self.target is None else self.target).tobytes()

    @property
    def shown(self) -> str:
        """The texts for people."""
        return " | ".join(self.texts)


ExampleT = TypeVar("ExampleT", bound=LabelledExample)

Place = tuple[int, int]
"""A sequence: the place of its example among the examples, and its number there."""


def places_of(examples: Sequence[LabelledExample]) -> list[Place]:
    """All sequences, those of an example together."""
    return [(at, number) for at, one in enumerate(examples) for number in range(len(one.sequences))]


def by_length(examples: Sequence[LabelledExample]) -> list[Place]:
    """All sequences in order of length."""
    return sorted(places_of(examples), key=lambda place: len(_at(examples, place).input_ids))


def pack(examples: Sequence[LabelledExample], places: Sequence[Place]) -> Packed:
    """The sequences at some places, in their order; each knows its row and its number there."""
    sequences = [_at(examples, place) for place in places]
    return Packed.from_arrays(
        [one.input_ids for one in sequences],
        [one.token_type_ids for one in sequences],
        rows=[examples[at].index for at, _ in places],
        numbers=[number for _, number in places],
    )


def labelled_batch(
    examples: Sequence[LabelledExample], dtype: type[np.generic], loss: str
) -> Batch:
    """Rows in order of length, the sequences of each together, and one target for each row.

    The batch's examples are in the order of the rows. If all targets are known, they are
    `targets["labels"]`, and the rows are counted for the loss.
    """
    order = sorted(examples, key=lambda example: example.num_tokens)
    packed = pack(order, places_of(order))
    labels = [example.target for example in order]
    if any(label is None for label in labels):
        return Batch(packed, examples=order)
    return Batch(packed, {"labels": np.array(labels, dtype)}, {loss: len(labels)}, order)


def _at(examples: Sequence[LabelledExample], place: Place) -> TokenIds:
    return examples[place[0]].sequences[place[1]]
