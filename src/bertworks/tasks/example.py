"""A labelled row as token ids, and functions that pack several rows: the same for all tasks.

A row has one or several sequences: the windows of a long text, a prompt with each of its choices, a
query with its passages. A batch holds its rows or sequences in order of length, so that neighbours
have nearly the same length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from ..packed import Batch, Packed


class TokenIds(Protocol):
    """A sequence for the network, such as an `Encoding`; both arrays are `[tokens]`."""

    @property
    def input_ids(self) -> np.ndarray: ...

    @property
    def token_type_ids(self) -> np.ndarray: ...


class Tokens(NamedTuple):
    """A sequence without the other fields of an `Encoding`.

    It saves memory: all rows of a table are kept in memory.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray

    @classmethod
    def from_encoding(cls, encoding: TokenIds) -> Tokens:
        """Take only the tokens of an encoding."""
        return cls(encoding.input_ids, encoding.token_type_ids)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LabelledExample:
    """A row as token ids.

    Attributes:
        index: the row's number.
        sequences: at least one.
        target: the target in the task's form (a class number, a value, an array); None if unknown.
        truncated_tokens: number of tokens removed by truncation.
        texts: the texts of the row, for display.
        where: the row's location, for messages: file and line, or row number.
        table: the number of the training table that it is from, if there are several.
    """

    index: int
    sequences: Sequence[TokenIds]
    target: Any = None
    truncated_tokens: int = 0
    texts: Sequence[str] = ()
    where: str = ""
    table: int = 0

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all sequences."""
        return sum(len(one.input_ids) for one in self.sequences)

    @property
    def content(self) -> bytes:
        """The token ids as bytes: two rows with the same content are duplicates."""
        return b"".join(one.input_ids.tobytes() for one in self.sequences)

    @property
    def target_bytes(self) -> bytes:
        """The target as bytes: a resumed run compares it with that of the first run."""
        return np.asarray(np.nan if self.target is None else self.target).tobytes()

    @property
    def display_text(self) -> str:
        """The texts, joined for display."""
        return " | ".join(self.texts)


ExampleT = TypeVar("ExampleT", bound=LabelledExample)

SequenceIndex = tuple[int, int]
"""A sequence: the index of its example, and its number within the example."""


def list_sequences(examples: Sequence[LabelledExample]) -> list[SequenceIndex]:
    """List all sequences, grouped by example."""
    return [(at, number) for at, one in enumerate(examples) for number in range(len(one.sequences))]


def sort_sequences(examples: Sequence[LabelledExample]) -> list[SequenceIndex]:
    """List all sequences in order of length."""
    return sorted(
        list_sequences(examples), key=lambda index: len(_sequence(examples, index).input_ids)
    )


def pack(examples: Sequence[LabelledExample], indices: Sequence[SequenceIndex]) -> Packed:
    """Pack the sequences at `indices`, in this order, with the row and number of each."""
    sequences = [_sequence(examples, index) for index in indices]
    return Packed.from_arrays(
        [one.input_ids for one in sequences],
        [one.token_type_ids for one in sequences],
        rows=[examples[example].index for example, _ in indices],
        numbers=[number for _, number in indices],
    )


def collate_labelled(
    examples: Sequence[LabelledExample], dtype: type[np.generic], loss: str
) -> Batch:
    """Pack rows in order of length, the sequences of each row together, with one target per row.

    The batch's examples are in the order of the packed rows. If all targets are known, they are
    `targets["labels"]` (`[rows, …]`, `dtype`), and `counts[loss]` is the number of rows.
    """
    order = sorted(examples, key=lambda example: example.num_tokens)
    packed = pack(order, list_sequences(order))
    labels = [example.target for example in order]
    if any(label is None for label in labels):
        return Batch(packed, examples=order)
    return Batch(packed, {"labels": np.array(labels, dtype)}, {loss: len(labels)}, order)


def _sequence(examples: Sequence[LabelledExample], index: SequenceIndex) -> TokenIds:
    return examples[index[0]].sequences[index[1]]
