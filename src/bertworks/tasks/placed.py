"""Rows that know their place, and what can be asked of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from ..errors import DataError, brief
from .columns import SAMPLE_ROWS, listing

_SAMPLE_CHARACTERS = 1 << 24

T = TypeVar("T")


class PlacedRow(NamedTuple):
    """A row and its place."""

    where: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """A table's rows, read afresh at each iteration (standard input and iterators: once).

    Attributes:
        name: the table, for people.
        columns: its columns; where a file names none, their numbers "1", "2", ….
        has_header: whether the file's first line named them; None where there is no such question.
        sample: its first rows, for guessing what the columns are.
        read: begins a new pass over the rows.
    """

    name: str
    columns: tuple[str, ...]
    has_header: bool | None
    sample: Sequence[Mapping[str, Any]]
    read: Callable[[], Iterator[PlacedRow]]

    def __iter__(self) -> Iterator[PlacedRow]:
        return self.read()


def sample(items: Iterable[T], values: Callable[[T], Iterable[Any]]) -> list[T]:
    """The first items of a pass: `SAMPLE_ROWS`, or fewer where their values are long."""
    found: list[T] = []
    size = 0
    for item in islice(items, SAMPLE_ROWS + 1):
        found.append(item)
        size += sum(len(value) for value in values(item) if isinstance(value, str))
        if size > _SAMPLE_CHARACTERS:
            break
    return found


def sample_of(rows: Callable[[], Iterator[PlacedRow]]) -> list[dict[str, Any]]:
    """The first rows of a pass."""
    return [row.values for row in sample(rows(), lambda row: row.values.values())][:SAMPLE_ROWS]


def missing_column(column: str, row: Mapping[str, Any], where: str | None) -> DataError:
    """The error of a row that lacks a column."""
    return DataError(f"the row has no column {column!r}; {listing(list(row))}", where=where)


def text_of(row: Mapping[str, Any], column: str, where: str | None) -> str:
    """A row's text in a column.

    Raises:
        DataError: there is no such column, or no text in it.
    """
    if column not in row:
        raise missing_column(column, row, where)
    value = row[column]
    if not isinstance(value, str):
        found = "nothing" if value is None else f"{brief(value)}, which is no text"
        raise DataError(f"the column {column!r} holds {found}", where=where)
    return value


def unpacked(value: Any, kind: type[list[Any]] | type[dict[Any, Any]], parts: type = str) -> Any:
    """A list of texts (or other parts), or a mapping, from the JSON that `predict` writes in TSV.

    Whatever is something else stays as it is.
    """
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    fits = not isinstance(found, list) or all(isinstance(part, parts) for part in found)
    return found if isinstance(found, kind) and fits else value


class Replay(Generic[T]):
    """What can be read once, opened: what is looked at before `close` is kept for one more pass."""

    def __init__(self, items: Iterator[T], name: str) -> None:
        self._items, self._name = items, name
        self._kept: list[T] = []
        self._passes_left: int | None = None

    def close(self) -> None:
        """From now on nothing is kept, and there is one pass left."""
        self._passes_left = 1

    def __iter__(self) -> Iterator[T]:
        if self._passes_left == 0:
            raise DataError("can be read only once", where=self._name, fix="Give a file.")
        if self._passes_left is not None:
            self._passes_left = 0
        yield from self._kept
        for item in self._items:
            if self._passes_left is None:
                self._kept.append(item)
            yield item
