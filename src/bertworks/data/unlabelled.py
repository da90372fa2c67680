"""Rows without a label: left out on request, otherwise counted in the error about the first one.

A label is missing if its cell is empty or blank, null, or not a number (NaN, as pandas reads an
empty cell); so it is the same in every format. Rows without a label may be left out with the option
`drop_unlabelled` (`--drop-unlabelled`) of `finetune`, `evaluate` and `score`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pydantic import Field

from ..errors import BertworksWarning, DataError
from .reading import TableOptions
from .rows import LocatedRow, Row, Rows, is_missing, is_unmarked

_DROP = "Leave such rows out with --drop-unlabelled (drop_unlabelled=true), or label them."


class LabelledTableOptions(TableOptions):
    """Table format, and rows without a label."""

    drop_unlabelled: bool = Field(False, description="leave out rows whose label is empty")


class UnlabelledError(DataError):
    """A row has no label, or no prediction where one is read."""

    def __init__(
        self, what: str, *, column: str = "", where: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.column = column


@contextmanager
def counted_unlabelled(*tables: Rows, fix: str = _DROP) -> Iterator[None]:
    """Within the block, complete the error about a row without a label: with the number of them.

    Args:
        tables: the tables that are read; the error names a row of one of them.
        fix: what to do about such rows.
    """
    try:
        yield
    except UnlabelledError as error:
        table = next((t for t in tables if str(error.where).startswith(t.name)), None)
        count = "" if table is None else _count_missing(table, error.column)
        raise DataError(f"{error.what}{count}", where=error.where, fix=fix) from None


def _count_missing(table: Rows, column: str) -> str:
    missing = total = 0
    try:
        for row in table:
            total += 1
            missing += is_missing(row.values.get(column))
    except DataError:  # rows that can be read only once, or that cannot be read to the end
        return ""
    return f", as in {missing:,} of {total:,} rows"


def without_unlabelled(
    rows: Rows, columns: Sequence[str], *, may_have_no_label: bool = False
) -> Rows:
    """Return the rows that have a value in each of the columns; a warning counts the others.

    Args:
        may_have_no_label: whether an annotator who marked nothing said that a row has no label.
    """
    is_reported = False

    def is_labelled(row: Row) -> bool:
        return not any(
            is_missing(row.get(column)) and not (may_have_no_label and is_unmarked(row, column))
            for column in columns
        )

    def read() -> Iterator[LocatedRow]:
        nonlocal is_reported
        num_dropped = total = 0
        for total, row in enumerate(rows, 1):  # noqa: B007  (the number of rows, at the end)
            if is_labelled(row.values):
                yield row
            else:
                num_dropped += 1
        if num_dropped and not is_reported:
            is_reported = True
            what = f"{num_dropped:,} of {total:,} rows have no label, and are left out"
            warnings.warn(f"{rows.name}: {what}", BertworksWarning, stacklevel=3)

    sample = [values for values in rows.sample if is_labelled(values)]
    return replace(rows, sample=sample, read=read)
