"""Rows with their places, from a file or from memory, and functions that read their values.

Rows in memory may have any of these forms:

    a pandas, Arrow or polars table    its rows
    (texts, labels)                    a tuple of two sequences of equal length, X and y
    [(text, label), …]                 or (text, second text, label)
    [{"text": …, "label": …}, …]       rows with column names

None of these packages is imported: their tables are recognised by their methods.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Any, Generic, NamedTuple, TypeVar

from ..errors import DataError, SettingsError, closest_name, shorten_list, truncate_repr
from ..utils.formatting import format_count
from .reading import TableOptions

SAMPLE_ROWS = 1000
"""The number of rows that are inspected to detect the columns."""

_SAMPLE_CHARACTERS = 1 << 24

_CHUNK_CHARACTERS = 1 << 24
"""A chunk of rows ends at this many characters of text, even if it has few rows."""

IN_MEMORY = "rows in memory"
"""The name of rows in memory, in errors."""

T = TypeVar("T")

Row = Mapping[str, Any]
"""A row of data: column names and their values."""


class WholeLabel(str):
    """A label of a format that separates labels itself: a separator inside it is part of it."""

    __slots__ = ()


class NoLabel(str):
    """The value of a label that the table itself declares missing, such as -1 of a `ClassLabel`."""

    __slots__ = ()


class LocatedRow(NamedTuple):
    """A row and its place (file and line, or row number)."""

    where: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """A table's rows, read anew at each iteration (standard input and iterators: once)."""

    name: str  # of the table, for messages
    columns: tuple[str, ...]  # column names; if the file has none, the numbers "1", "2", …
    # whether the first line is a header; None for formats without headers
    has_header: bool | None
    sample: Sequence[Mapping[str, Any]]  # the first rows, for detecting columns
    read: Callable[[], Iterator[LocatedRow]]  # starts a new pass over the rows

    def __iter__(self) -> Iterator[LocatedRow]:
        return self.read()

    def has(self, name: str) -> bool:
        """Whether there is a column of this name, or of this number, counted from 1."""
        is_number = name.isascii() and name.isdigit()
        return name in self.columns or (is_number and 1 <= int(name) <= len(self.columns))

    def column(self, name: str) -> str:
        """Return the column that a user names: by its name, or by its number, counted from 1.

        Raises:
            DataError: there is no such column.
        """
        if name in self.columns:
            return name
        if self.has(name):
            return self.columns[int(name) - 1]
        close = closest_name(name, self.columns)
        raise DataError(
            f"there is no column {name!r}; {listing(self.columns)}",
            where=self.name,
            fix=None if close is None else f"The nearest name is {close!r}.",
        )


def sample(items: Iterable[T], values: Callable[[T], Iterable[Any]]) -> list[T]:
    """Return the first `SAMPLE_ROWS + 1` items (one may be a header), fewer if values are long."""
    first_items: list[T] = []
    size = 0
    for item in islice(items, SAMPLE_ROWS + 1):
        first_items.append(item)
        size += sum(len(value) for value in values(item) if isinstance(value, str))
        if size > _SAMPLE_CHARACTERS:
            break
    return first_items


def sample_of(rows: Callable[[], Iterator[LocatedRow]]) -> list[dict[str, Any]]:
    """Return the first rows of a pass, at most `SAMPLE_ROWS`.

    Rows in which annotators marked nothing do not show the columns of marks. If the first are all
    of this kind, the first others are returned.
    """

    def first_of(some: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
        return sample(some, lambda row: row.values())[:SAMPLE_ROWS]

    first_rows = first_of(row.values for row in rows())
    if any(not isinstance(row, AnnotatedRow) or row.is_marked for row in first_rows):
        return first_rows
    return (
        first_of(
            row.values
            for row in rows()
            if not isinstance(row.values, AnnotatedRow) or row.values.is_marked
        )
        or first_rows
    )


def chunks(
    items: Iterable[T], size: int, characters: Callable[[T], int] | None = None
) -> Iterator[list[T]]:
    """Yield lists of `size` items; the last list may be shorter, and lists of long texts are.

    Args:
        items: in order.
        size: maximum items per list.
        characters: returns the characters of an item's texts; a list ends at `_CHUNK_CHARACTERS`.
    """
    chunk: list[T] = []
    num_characters = 0
    for item in items:
        chunk.append(item)
        num_characters += 0 if characters is None else characters(item)
        if len(chunk) == size or num_characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, num_characters = [], 0
    if chunk:
        yield chunk


def characters_in(row: tuple[LocatedRow, Row]) -> int:
    """Return the number of characters of a row's texts, for `chunks`; context is not counted."""
    return sum(len(value) for value in row[0].values.values() if isinstance(value, str))


def listing(columns: Sequence[str]) -> str:
    """Return a phrase that lists a table's columns, at most a dozen."""
    return f"its columns are {shorten_list(columns)}"


def value_of(row: Row, column: str, where: str | None) -> Any:
    """Return a row's value in a column; raise a DataError if there is no such column."""
    if column not in row:
        raise DataError(f"the row has no column {column!r}; {listing(list(row))}", where=where)
    return row[column]


class AnnotatedRow(dict[str, Any]):
    """What an annotator marked; a control without a column is one that nothing was marked with.

    Args:
        data: the columns of the task.
        marks: those of controls.
    """

    def __init__(self, data: Mapping[str, Any], marks: Mapping[str, Any]) -> None:
        super().__init__({**data, **marks})
        self.is_marked = bool(marks)


def is_unmarked(row: Row, column: str) -> bool:
    """Whether a row's annotator, in an export of Label Studio, marked nothing for a column."""
    is_annotated = isinstance(row, AnnotatedRow) or "annotation_id" in row  # in JSON-MIN
    return is_annotated and column not in row


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: blank, null, or not a number, as pandas reads an empty cell."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and math.isnan(value))


def id_of(value: object) -> str | None:
    """Return an id as a text; None for what is neither a text nor a whole number, or empty."""
    if isinstance(value, bool) or not isinstance(value, str | Integral) or value == "":
        return None
    return str(value)


def text_of(row: Row, column: str, where: str | None) -> str:
    """Return a row's text in a column; an empty one if the cell is empty, in any format.

    Raises:
        DataError: there is no such column, or it holds something else.
    """
    value = value_of(row, column, where)
    if isinstance(value, str):
        return value
    if is_missing(value):
        return ""
    raise DataError(
        f"the column {column!r} holds {truncate_repr(value)}, which is not a text", where=where
    )


def texts_of(rows: Sequence[Row], column: str, where: Sequence[str]) -> list[str]:
    """Return the texts of a column.

    Raises:
        DataError: a row does not have the column, or has no text in it.
    """
    return [text_of(row, column, location) for row, location in zip(rows, where, strict=True)]


def has_lone_surrogate(text: str) -> bool:
    """Whether a text has half of a character (a lone surrogate), which UTF-8 cannot encode."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def parse_json_cell(
    value: Any, kind: type[list[Any]] | type[dict[Any, Any]], parts: type = str
) -> Any:
    """Parse a list of texts (or other parts), or a mapping, from the JSON that `predict` writes in
    TSV; any other value is returned unchanged."""
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    try:
        content = json.loads(value)
    except (ValueError, RecursionError):
        return value
    fits = not isinstance(content, list) or all(isinstance(part, parts) for part in content)
    return content if isinstance(content, kind) and fits else value


class BufferedIterator(Generic[T]):
    """An iterator that can be inspected repeatedly before one full pass.

    Items that are read before `close` are kept, for the pass that follows it.
    """

    def __init__(self, items: Iterator[T], name: str) -> None:
        self._items, self._name = items, name
        self._buffer: list[T] = []
        self._passes_left: int | None = None

    def close(self) -> None:
        """Stop keeping items; one pass is left."""
        self._passes_left = 1

    def __iter__(self) -> Iterator[T]:
        if self._passes_left == 0:
            raise DataError("can be read only once", where=self._name, fix="Give a file.")
        if self._passes_left is not None:
            self._passes_left = 0
        yield from self._buffer
        for item in self._items:
            if self._passes_left is None:
                self._buffer.append(item)
            yield item


def rows_of_dataframe(table: Any) -> Any:
    """Return the rows of a pandas, Arrow or polars table as mappings; anything else unchanged.

    Raises:
        DataError: two columns have the same name, or names have several levels.
    """
    if hasattr(table, "iterrows"):  # pandas
        if table.columns.nlevels > 1:
            what = f"its columns have names of {table.columns.nlevels} levels"
            fix = 'Make them one: frame.columns = frame.columns.map(".".join).'
            raise DataError(what, where=IN_MEMORY, fix=fix)
        check_distinct([str(name) for name in table.columns], IN_MEMORY)
        cells = table.rename(columns=str).astype(object)
        return cells.where(cells.notna(), None).to_dict("records")  # NaN, NaT, NA: an empty cell
    if hasattr(table, "to_pylist"):  # Arrow: a table, or an array of values
        check_distinct(table.schema.names if hasattr(table, "schema") else [], IN_MEMORY)
        return table.to_pylist()
    return table.to_dicts() if hasattr(table, "to_dicts") else table  # polars


def check_distinct(names: Sequence[str], where: str) -> None:
    """Raise a DataError if two columns have the same name."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        what = f"{count} columns are called {truncate_repr(name)}"
        raise DataError(what, where=where, fix="Rename all but one.")


def zip_inputs_and_labels(table: Any) -> Any:
    """Return the rows of a tuple `(X, y)` as pairs; any other table unchanged.

    Raises:
        DataError: X and y differ in length; or the table is not iterable.
    """
    if not isinstance(table, Iterable):
        raise DataError(f"expected a table, got {type(table).__name__}")
    if not (isinstance(table, tuple) and len(table) == 2 and all(map(_is_column, table))):
        return table
    inputs, labels = map(_values, table)
    if len(inputs) != len(labels):
        what = f"{format_count(len(inputs), 'row')}, but {format_count(len(labels), 'label')}"
        raise DataError(what, where=IN_MEMORY)
    return list(zip(inputs, labels, strict=True))


def row_of(item: Any, where: str) -> dict[str, Any]:
    """Convert a row to a mapping of plain Python values.

    Args:
        item: a mapping, `(text, label)`, `(text, second text, label)`, or `(X, y)`, where X is a
            pair of texts, a list of words, or a mapping. If X is a list of words and y a list, y
            holds the tags of the words.

    Raises:
        DataError: the item has another form.
    """
    if isinstance(item, Mapping):
        return {str(name): _plain(value) for name, value in item.items()}
    if not isinstance(item, list | tuple) or len(item) not in (2, 3):
        raise DataError(
            f"expected a row, got {type(item).__name__}",
            where=where,
            fix="A row is a mapping of columns, (text, label) or (text, second text, label); a "
            "table may also be a tuple (texts, labels).",
        )
    *inputs, label = map(_plain, item)
    values = inputs[0] if len(inputs) == 1 else inputs
    if isinstance(values, dict):
        if "label" in values:
            raise DataError("X has a column 'label', and there is y too", where=where)
        return {**values, "label": label}
    if isinstance(values, list):
        if isinstance(label, list):
            return {"words": values, "tags": label}
        if len(values) == 2:
            return {"text1": values[0], "text2": values[1], "label": label}
    return {"text": values, "label": label}


def _is_column(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping)


def _values(column: Any) -> list[Any]:
    """Return the values of a list, a numpy array, or a column of pandas, Arrow or polars."""
    found = rows_of_dataframe(column)
    return found.tolist() if hasattr(found, "tolist") else list(found)


def _plain(value: Any) -> Any:
    """Convert numpy's types, which a cell of pandas may hold, to lists and plain numbers."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return value


def check_table_options(options: Mapping[str, Any], *tables: Any) -> None:
    """Check that options of files are given only if one of the tables is a file.

    Args:
        options: those of `TableOptions` that are given; others are ignored.
        tables: as users pass them; None: not given.

    Raises:
        SettingsError: an option has no effect, since there are only rows or texts in memory.
    """
    if any(isinstance(table, str | os.PathLike | Rows) for table in tables):
        return
    for name, field in TableOptions.model_fields.items():
        if options.get(name, field.default) != field.default:
            what = f"{name}={options[name]!r} is for files, and has no effect on rows in memory"
            raise SettingsError(what, fix="Leave it out, or give a file (--data FILE, data=).")
