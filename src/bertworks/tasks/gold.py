"""Rows with and without a gold label: the latter are left out of training and evaluation."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..data.rows import LocatedRow, Rows
from ..errors import BertworksWarning, DataError, shorten_list
from .labelled import LabelledTask


class GoldRows:
    """The rows of a table that have a gold label, as the task determines from their labels.

    Attributes:
        rows: the table without the other rows.
        name: of the table.

    Args:
        task: for the table's columns.
        table: any table.
    """

    def __init__(self, task: LabelledTask[Any], table: Rows) -> None:
        self._task, self._table = task, table
        self._total = 0
        self._unlabelled: Counter[str] = Counter()
        self._spellings: dict[str, str] = {}
        self.rows = replace(table, read=self._read)
        self.name = table.name

    def _read(self) -> Iterator[LocatedRow]:
        return (row for _, row in self.number_rows())

    def number_rows(self) -> Iterator[tuple[int, LocatedRow]]:
        """Yield the rows with their numbers in the whole table, from 1."""
        self._total, self._unlabelled = 0, Counter()
        for row in self._table:
            self._total += 1
            mark = self._task.find_unlabelled_mark(row.values)
            if mark is not None:
                self._unlabelled[mark] += 1
                continue
            self._spellings |= self._task.find_other_spelling(row.values)
            yield self._total, row
        if self._total and self._unlabelled.total() == self._total:
            raise DataError(
                f"no row has a gold label: all have {shorten_list(list(self._unlabelled))}",
                where=self._table.name,
            )

    def notes(self, *, with_advice: bool = False) -> list[str]:
        """Return notes on the last pass: rows left out, and labels with another spelling.

        Args:
            with_advice: also how else the rows could be read.
        """
        notes = []
        if self._unlabelled:
            count, marks = self._unlabelled.total(), shorten_list(list(self._unlabelled))
            advice = self._task.marks_advice if with_advice else ""
            notes.append(
                f"{count:,} of {self._total:,} rows have no gold label ({marks}) and are left out"
                f"{advice}"
            )
        if self._spellings:
            pairs = sorted(self._spellings.items())
            names = ", ".join(f"{name} is read as {label}" for name, label in pairs[:3])
            more = ", …" if len(pairs) > 3 else ""
            notes.append(f"labels are spelled otherwise than in training: {names}{more}")
        return notes

    def warn(self) -> None:
        """Warn the user about the notes on the last pass."""
        for note in self.notes(with_advice=True):
            warnings.warn(f"{self._table.name}: {note}", BertworksWarning, stacklevel=3)
