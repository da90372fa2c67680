"""Rows that Python already holds, in the forms in which people have them.

    a pandas, Arrow or polars table    its rows
    (texts, labels)                    a tuple of two sequences of equal length, X and y
    [(text, label), …]                 or (text, second text, label)
    [{"text": …, "label": …}, …]       rows with names of their own

None of these packages is imported: their tables are known by their methods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import DataError, brief

NAME = "the rows given"
"""What rows in memory are called in errors."""


def unframed(table: Any) -> Any:
    """The rows of a pandas, Arrow or polars table, as mappings; anything else as it is.

    Raises:
        DataError: two columns have the same name.
    """
    if hasattr(table, "iterrows"):  # pandas
        check_distinct([str(name) for name in table.columns], NAME)
        return table.rename(columns=str).to_dict("records")
    if hasattr(table, "to_pylist"):  # Arrow: a table, or an array of values
        check_distinct(table.schema.names if hasattr(table, "schema") else [], NAME)
        return table.to_pylist()
    return table.to_dicts() if hasattr(table, "to_dicts") else table  # polars


def check_distinct(names: Sequence[str], where: str) -> None:
    """See that no two columns have the same name.

    Raises:
        DataError: two have.
    """
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
            list of words are its tags.
        where: what to call the row in an error.

    Raises:
        DataError: it is none of these.
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
