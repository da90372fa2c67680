"""Read labelled tables: TSV, CSV, JSON, Parquet, CoNLL, SQuAD, Hugging Face data sets.

Each row has its place (`file:line`, or `file, row 12` in files without lines), so that later errors
can name it. `formats` says which format a file has.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from ..errors import BertworksWarning, DataError, shorten_list
from ..settings.literals import DataFormat
from ..utils.regular_files import why_no_file
from ..utils.remote import is_remote, remote_files
from .class_labels import ClassNames, name_classes, names_in_metadata, names_of_features
from .formats import FORMATS, detect_file_format, detect_format
from .headers import names_word_columns
from .lines import Lines, StandardInput, read_lines
from .nested_rows import rows_in_record
from .parquet import open_parquet_table
from .reading import ReadCounts, Reading, TableOptions
from .record_formats import conll_fields
from .rows import (
    IN_MEMORY,
    BufferedIterator,
    LocatedRow,
    Rows,
    row_of,
    rows_of_dataframe,
    sample_of,
    zip_inputs_and_labels,
)
from .separated_tables import open_separated
from .sources import CorpusSource, open_dataset

if TYPE_CHECKING:
    from ..settings.keywords import TableKeywords

Table: TypeAlias = str | os.PathLike[str] | Iterable[Any]
"""A table as users pass it: a path, `hf:NAME[:CONFIG][#SPLIT]`, `-` for standard input, or rows
in memory: a list of mappings or of `(text, label)`, a tuple `(texts, labels)`, a
`datasets.Dataset`, or a table of pandas, Arrow or polars (see `rows.row_of`)."""


def read_rows(
    table: Table | Rows,
    *,
    columns: Sequence[str] = (),
    document_starts: bool = False,
    **options: Unpack[TableKeywords],
) -> Rows:
    """Open a table; its rows are read when they are iterated over.

    Args:
        columns: expected column names: a first line that contains one of them is a header.
        document_starts: for CoNLL: whether `-DOCSTART-` lines are rows (see `Reading`).
        options: those of `TableOptions`: `header`, `format`, `encoding`, `max_line_bytes`.

    Raises:
        DataError: there is no such file, or it is empty or not in its format. Invalid rows raise it
            when they are reached: a wrong number of fields, an unclosed quote, a line that is too
            long or not in the encoding, invalid JSON.
        SettingsError: an option is unknown or invalid.
    """
    settings = TableOptions.parse(options)
    if isinstance(table, Rows):
        return table
    if isinstance(table, Mapping) and isinstance(table.get("data"), list):  # SQuAD's JSON, parsed
        table = table["data"]
    if not isinstance(table, str | os.PathLike):
        metadata = getattr(getattr(table, "schema", None), "metadata", None)  # of Arrow
        names = names_in_metadata(metadata, IN_MEMORY) if isinstance(metadata, Mapping) else {}
        return rows_in_memory(zip_inputs_and_labels(rows_of_dataframe(table)), class_names=names)
    path = os.fspath(table)
    reading = Reading(
        encoding=settings.encoding,
        max_line_bytes=settings.max_line_bytes,
        document_starts=document_starts,
        header=settings.header,
    )
    if path == "-":
        return _open_stdin(columns, settings, reading)
    if not Path(path).is_file() and (source := CorpusSource(path)).is_dataset:
        return rows_in_memory(open_dataset(source), path)
    return _open_file(path, columns, settings, reading)


def reiterable(table: Table) -> Table:
    """Return a table that can be read repeatedly: an iterator is read into a list."""
    return list(table) if isinstance(table, Iterator) else table


def _open_file(path: str, columns: Sequence[str], options: TableOptions, reading: Reading) -> Rows:
    if not (remote_files(path) == [path] if is_remote(path) else Path(path).is_file()):
        problem = "a folder, not a table" if Path(path).is_dir() else why_no_file(path, "file")
        if Path(path).is_fifo():
            problem = "a pipe, but tables are read more than once: write it to a file"
        raise DataError(problem, where=path)
    format = detect_file_format(path, reading, options.format, header=options.header)
    if format == "parquet":
        _check_no_header(path, options.header, format)
        return open_parquet_table(path, reading)
    return _open_lines(path, partial(read_lines, path), format, columns, reading)


def _open_stdin(column_names: Sequence[str], options: TableOptions, reading: Reading) -> Rows:
    name = StandardInput.name
    if options.format == "parquet":
        raise DataError("Parquet cannot be read from standard input", fix="Give a file.")
    lines = BufferedIterator(StandardInput.lines(reading), name)
    format = detect_format(name, lines, options.format, header=options.header)
    rows = _open_lines(name, lambda _: lines, format, column_names, reading)
    lines.close()
    return rows


def _open_lines(
    name: str,
    read: Callable[[Reading], Lines],
    format: DataFormat,
    column_names: Sequence[str],
    reading: Reading,
) -> Rows:
    readers, header = FORMATS[format], reading.header
    if readers.fields is not None:
        return open_separated(
            name, read, format, readers.fields, reading, column_names=column_names
        )
    num_headers = 0
    if format == "conll":
        num_headers = int(_has_word_header(name, read(reading)) if header is None else header)
    else:
        _check_no_header(name, header, format)

    def rows(counts: ReadCounts) -> Iterator[LocatedRow]:
        own_reading = replace(reading, counts=counts)
        lines = islice(read(own_reading), num_headers, None)
        if readers.records is not None:
            yield from readers.records(lines, name, own_reading)
        else:
            assert readers.documents is not None, f"the format {format!r} has no reader of lines"
            for document in readers.documents(lines, name, own_reading):
                yield LocatedRow(document.where, {"text": document.text})

    return _of_rows(name, _with_report(name, rows), "the file is empty")


def _check_no_header(name: str, header: bool | None, format: DataFormat) -> None:
    """Raise a DataError if a header is claimed; `header=false` may be for other files of a call."""
    if header:
        raise DataError(
            f"header=true is for tsv, csv and conll; {format} has no header line",
            where=name,
            fix="Leave it out.",
        )


def _has_word_header(name: str, lines: Lines) -> bool:
    """Return whether the first line of a CoNLL file names the columns; warn if it does."""
    _, first = next(iter(lines), (1, ""))
    fields = conll_fields(first.rstrip("\r\n"))
    if not names_word_columns(fields):
        return False
    what = f"{name}:1: {shorten_list(fields)} are read as column names"
    fix = "If they are a word and its tags, give --no-header (header=false)"
    warnings.warn(f"{what}. {fix}", BertworksWarning, stacklevel=4)
    return True


def _with_report(
    name: str, read: Callable[[ReadCounts], Iterator[LocatedRow]]
) -> Callable[[], Iterator[LocatedRow]]:
    """Return a function that reads rows; its first whole pass warns of records that have none."""
    is_reported = False

    def rows() -> Iterator[LocatedRow]:
        nonlocal is_reported
        counts = ReadCounts()
        yield from read(counts)
        if is_reported:
            return
        is_reported = True
        for kind, count in counts.num_skipped_by_kind.items():
            what = f"{name}: left out {count:,} × {kind}; the first: {counts.first_skipped[kind]}"
            warnings.warn(what, BertworksWarning, stacklevel=3)

    return rows


def _of_rows(
    name: str, rows: Callable[[], Iterator[LocatedRow]], empty: str, columns: Iterable[str] = ()
) -> Rows:
    """Create a table whose rows name their columns, in addition to `columns`."""
    sample = sample_of(rows)
    if not sample:
        raise DataError(empty, where=name)
    return Rows(name, tuple(dict.fromkeys(chain(columns, *sample))), None, sample, rows)


def rows_in_memory(
    table: Iterable[Any],
    name: str = IN_MEMORY,
    *,
    place: Callable[[int], str] | None = None,
    class_names: ClassNames | None = None,
) -> Rows:
    """Open rows in memory; numbers of classes become their names, where these are known.

    Args:
        table: rows in a form that `row_of` accepts; an iterator can be read once.
        name: what errors call the table.
        place: returns what errors call the row at an index; by default its number, from 1.
        class_names: names of classes by column; by default those of a Hugging Face data set.

    Raises:
        DataError: there are no rows, or a row has another form.
    """
    features: Mapping[str, Any] = getattr(table, "features", None) or {}
    names = class_names or names_of_features(features)
    passes = BufferedIterator(table, name) if isinstance(table, Iterator) else table

    def rows(counts: ReadCounts) -> Iterator[LocatedRow]:
        for number, row in enumerate(passes, 1):
            where = f"{name}, row {number}" if place is None else place(number - 1)
            values = name_classes(row_of(row, where), names, where)
            yield from rows_in_record(values, name, number, where, counts)

    table_rows = _of_rows(name, _with_report(name, rows), "there are no rows", features)
    if isinstance(passes, BufferedIterator):
        passes.close()
    return table_rows
