"""Labels as names: read from rows, counted, and put in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..errors import DataError
from .placed import PlacedRow, missing_column
from .task import Row


def count_labels(rows: Iterable[PlacedRow], column: str) -> Counter[str]:
    """How often each label stands in a table.

    Raises:
        DataError: a row has no label, or there are fewer than two different ones.
    """
    counts: Counter[str] = Counter()
    where = None
    for where, row in rows:
        counts[label_name(row, column, where)] += 1
    if len(counts) < 2:
        found = ", ".join(map(repr, counts)) or "none"
        raise DataError(
            f"a classifier needs two different labels, and column {column!r} holds {found}",
            where=where.rpartition(":")[0] or where if where is not None else None,
        )
    return counts


def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels in order: by their value where all are whole numbers, else by the alphabet."""
    names = list(labels)
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def label_name(row: Row, column: str, where: str | None) -> str:
    """A row's label as a name: numbers and truth values become text.

    Raises:
        DataError: the column is missing or empty, or holds something else.
    """
    if column not in row:
        raise missing_column(column, row, where)
    value = row[column]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    if value is None or (isinstance(value, str) and not value.strip()):
        raise DataError(f"the label (column {column!r}) is empty", where=where)
    if not isinstance(value, str):
        raise DataError(f"the label {value!r} (column {column!r}) is no name", where=where)
    return value.strip()
