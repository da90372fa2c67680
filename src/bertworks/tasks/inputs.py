"""Inputs of a model as rows of its task: texts, pairs of texts, mappings, tables.

    texts, pairs, mappings ─ iterate_task_rows ─► rows ─┐
    a file, a data frame ───────────────────────┴─ open_table ─► the task that reads these columns,
                                                                 and its rows with their locations

`Model` and the server both prepare their rows here, so that both read the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..data.missing_columns import columns_cannot_be_named
from ..data.rows import IN_MEMORY, Row, Rows
from ..data.tables import Table, read_rows, rows_in_memory
from ..errors import DataError, truncate_repr
from .task import Task
from .texts import TextTask


class OpenTable(NamedTuple):
    """A table, and the task that reads its columns."""

    task: Task[Any]
    rows: Rows


def open_table(task: Task[Any], table: Table, *, labelled: bool, **options: Any) -> OpenTable:
    """Open a table for a task.

    Args:
        task: the model's task; its columns are used where the table has them, and others are
            detected.
        table: see `data.tables.Table`.
        labelled: whether the columns of targets are required.
        options: those of `TableOptions`.

    Raises:
        DataError: the table cannot be read, or does not have the task's columns.
        SettingsError: an option is unknown or invalid.
    """
    rows = read_rows(table, columns=task.column_names, **options)
    with columns_cannot_be_named():
        return OpenTable(task.for_table(rows, labelled=labelled), rows)


def open_inputs(
    task: Task[Any],
    inputs: Iterable[Any],
    *,
    name: str = IN_MEMORY,
    place: Callable[[int], str] | None = None,
) -> OpenTable:
    """Open texts, pairs of texts and rows in memory for a task; their targets are not read.

    Args:
        inputs: at least one; see `iterate_task_rows`.
        name: what errors call all inputs.
        place: returns what errors call the input at an index.

    Raises:
        DataError: an input does not fit the task, or its columns cannot be detected.
    """
    rows = rows_in_memory(iterate_task_rows(task, inputs), name, place=place)
    with columns_cannot_be_named():
        return OpenTable(task.for_table(rows, labelled=False), rows)


def iterate_task_rows(task: Task[Any], inputs: Iterable[Any]) -> Iterator[Row]:
    """Yield the row of each input.

    Args:
        inputs: each a text, a list or tuple of one text or two, or a mapping of columns.

    Raises:
        DataError: an input has another form, or the task does not take it; or single texts and
            pairs are mixed in a task on texts.
    """
    sizes: set[int] = set()
    for item in inputs:
        if isinstance(item, Mapping):
            yield item
            continue
        texts = (item,) if isinstance(item, str) else item
        if not isinstance(texts, list | tuple) or len(texts) not in (1, 2):
            raise DataError(
                f"{truncate_repr(item)} is neither a text, a pair of texts nor a row of columns"
            )
        sizes.add(len(texts))
        if len(sizes) > 1 and isinstance(task, TextTask):
            raise DataError("single texts and pairs cannot be mixed", where=truncate_repr(item))
        yield task.text_row(*texts)
