"""Rows that know their place, from a file or from memory, and what can be asked of them.

Rows that Python already holds may have any of the forms in which people have them:

    a pandas, Arrow or polars table    its rows
    (texts, labels)                    a tuple of two sequences of equal length, X and y
    [(text, label), …]                 or (text, second text, label)
    [{"text": …, "label": …}, …]       rows with names of their own

None of these packages is imported: their tables are known by their methods.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from ..errors import DataError, brief, closest, some_of

SAMPLE_ROWS = 1000
"""How many rows are looked at to guess what a column is."""

_SAMPLE_CHARACTERS = 1 << 24

T = TypeVar("T")


class PlacedRow(NamedTuple):
    """A row and its place."""

    where: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """A table's rows, read afresh at each iteration (standard input and iterators: once)."""

    name: str  # the table, for people
    columns: tuple[str, ...]  # its columns; where a file names none, their numbers "1", "2", …
    # whether the file's first line named them; None where there is no such question
    has_header: bool | None
    sample: Sequence[Mapping[str, Any]]  # its first rows, for guessing what the columns are
    read: Callable[[], Iterator[PlacedRow]]  # begins a new pass over the rows

    def __iter__(self) -> Iterator[PlacedRow]:
        return self.read()

    def column(self, name: str) -> str:
        """The column that a user calls `name`: by its name, or by its number counted from 1.

        Raises:
            DataError: there is no such column.
        """
        if name in self.columns:
            return name
        if name.isascii() and name.isdigit() and 1 <= int(name) <= len(self.columns):
            return self.columns[int(name) - 1]
        close = closest(name, self.columns)
        raise DataError(
            f"there is no column {name!r}; {listing(self.columns)}",
            where=self.name,
            fix=None if close is None else f"The nearest name is {close!r}.",
        )


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


def listing(columns: Sequence[str]) -> str:
    """A phrase that lists a table's columns, a dozen at most."""
    return f"its columns are {some_of(columns)}"


def value_of(row: Row, column: str, where: str | None) -> Any:
    """A row's value in a column, or a DataError."""
    if column not in row:
        raise DataError(f"the row has no column {column!r}; {listing(list(row))}", where=where)
    return row[column]


def text_of(row: Row, column: str, where: str | None) -> str:
    """A row's text in a column, or a DataError."""
    value = value_of(row, column, where)
    if not isinstance(value, str):
        found = "nothing" if value is None else f"{brief(value)}, which is not a text"
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


NAME = "the rows given"
"""What rows in memory are called in errors."""


def unframed(table: Any) -> Any:
    """The rows of a pandas, Arrow or polars table, as mappings; anything else as it is.

    Raises:
        DataError: two columns have the same name, or names have several levels.
    """
    if hasattr(table, "iterrows"):  # pandas
        if table.columns.nlevels > 1:
            what = f"its columns have names of {table.columns.nlevels} levels"
            fix = 'Make them one: frame.columns = frame.columns.map(".".join).'
            raise DataError(what, where=NAME, fix=fix)
        check_distinct([str(name) for name in table.columns], NAME)
        return table.rename(columns=str).to_dict("records")
    if hasattr(table, "to_pylist"):  # Arrow: a table, or an array of values
        check_distinct(table.schema.names if hasattr(table, "schema") else [], NAME)
        return table.to_pylist()
    return table.to_dicts() if hasattr(table, "to_dicts") else table  # polars


def check_distinct(names: Sequence[str], where: str) -> None:
    """See that no two columns have the same name, or raise a DataError."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        what = f"{count} columns are called {brief(name)}"
        raise DataError(what, where=where, fix="Rename all but one.")


def paired(table: Any) -> Any:
    """The rows of a tuple `(X, y)` as pairs; anything else as it is.

    Raises:
        DataError: X and y are not of the same length; or there is nothing to read rows from.
    """
    if not isinstance(table, Iterable):
        raise DataError(f"expected a table, got {type(table).__name__}")
    if not (isinstance(table, tuple) and len(table) == 2 and all(map(_is_column, table))):
        return table
    inputs, labels = map(_values, table)
    if len(inputs) != len(labels):
        raise DataError(f"{len(inputs)} rows, but {len(labels)} labels", where=NAME)
    return list(zip(inputs, labels, strict=True))


def row_of(item: Any, where: str) -> dict[str, Any]:
    """A row as a mapping of plain Python values.

    Args:
        item: a mapping, `(text, label)`, `(text, second text, label)`, or `(X, y)` with the pair of
            texts, the words or the mapping that the label belongs to. A list of labels beside a
            list of words are its tags. Anything else is a DataError.
    """
    if isinstance(item, Mapping):
        return {name: _plain(value) for name, value in item.items()}
    if not isinstance(item, list | tuple) or len(item) not in (2, 3):
        raise DataError(
            f"expected a row, got {type(item).__name__}",
            where=where,
            fix="A row is a mapping of columns, (text, label) or (text, second text, label); a "
            "table may also be a tuple (texts, labels).",
        )
    *inputs, label = map(_plain, item)
    given = inputs[0] if len(inputs) == 1 else inputs
    if isinstance(given, dict):
        if "label" in given:
            raise DataError("X has a column 'label', and there is y too", where=where)
        return {**given, "label": label}
    if isinstance(given, list):
        if isinstance(label, list):
            return {"words": given, "tags": label}
        if len(given) == 2:
            return {"text1": given[0], "text2": given[1], "label": label}
    return {"text": given, "label": label}


def _is_column(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping)


def _values(column: Any) -> list[Any]:
    """The values of a list, a numpy array, or a column of pandas, Arrow or polars."""
    found = unframed(column)
    return found.tolist() if hasattr(found, "tolist") else list(found)


def _plain(value: Any) -> Any:
    """A value without numpy's types, which a cell of pandas may hold: lists, and plain numbers."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return value


Row = Mapping[str, Any]
"""A row of data: column names and their values."""
