"""Rows of labelled tables: TSV, CSV, JSON Lines, Parquet, CoNLL, SQuAD, Hugging Face data sets.

Each row knows its place (`file:line`, or `file, row 12` where there are no lines), so that whatever
is found wrong with it later can be named by it. Only delimited text has rules of its own: see
`tasks.delimited`, and `tasks.columns` for how a header is told from a row.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ..corpus.lines import ReadCounts, Reading, read_lines, reason
from ..corpus.sources import CorpusSource
from ..corpus.tables import open_dataset
from ..errors import BertworksWarning, DataError, check_name, nearest
from .columns import SAMPLE_ROWS, check_parted, looks_like_header, may_be_header
from .conll import read_conll, read_conllu
from .delimited import Record, split_csv, split_tsv
from .in_memory import NAME, check_distinct, paired, row_of, unframed
from .placed import PlacedRow, Replay, Rows, sample_of
from .squad import holds_one_document, read_squad

TableFormat: TypeAlias = Literal[
    "auto", "tsv", "csv", "jsonl", "parquet", "conll", "conllu", "squad"
]
Table: TypeAlias = str | os.PathLike[str] | Iterable[Any]
"""A table as people give it: a path, `hf:NAME[:CONFIG][#SPLIT]`, `-` for standard input, or rows
in memory: a list of mappings or of `(text, label)`, a tuple `(texts, labels)`, a
`datasets.Dataset`, or a table of pandas, Arrow or polars (see `in_memory`)."""

_SUFFIXES: dict[str, TableFormat] = {
    ".tsv": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "squad",
    ".parquet": "parquet",
    ".conll": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".conllu": "conllu",
}
_COMPRESSED = (".gz", ".zst", ".zstd")


def read_rows(
    table: Table | Rows,
    *,
    columns: Sequence[str] = (),
    header: bool | None = None,
    format: TableFormat = "auto",
) -> Rows:
    """Open a table; its rows are read when they are iterated over.

    Args:
        table: where the rows are.
        columns: names that are looked for: a first line that holds one of them is a header.
        header: whether the first line of a TSV or CSV file names the columns; found out if None.
        format: of a file whose name does not say it; text with tabs if that does not either.

    Raises:
        DataError: there is no such file, or it is empty or not of its format. Bad rows raise it
            when they are come to: a wrong number of fields, a quote left open, broken UTF-8,
            broken JSON.
    """
    if isinstance(table, Rows):
        return table
    if not isinstance(table, str | os.PathLike):
        return _rows_in_memory(paired(unframed(table)))
    path = os.fspath(table)
    if path == "-":
        return _open_stdin(header, columns, format)
    source = CorpusSource(path)
    if source.is_dataset:
        return _rows_in_memory(open_dataset(source), path)
    return _open_file(path, columns, header, format)


def replayable(table: Table) -> Table:
    """A table that can be read again and again: what can be read once is taken into memory."""
    return list(table) if isinstance(table, Iterator) else table


def _open_file(path: str, columns: Sequence[str], header: bool | None, format: TableFormat) -> Rows:
    if not Path(path).is_file():
        problem = "a folder, not a table" if Path(path).is_dir() else "no such file"
        if Path(path).is_fifo():
            problem = "a pipe, and a table is read more than once: write it to a file"
        raise DataError(problem, where=path)
    format = format if format != "auto" else _format_of(path)
    if format == "parquet":
        return _open_parquet(path)

    def read() -> Iterator[tuple[int, str]]:
        return read_lines(path, Reading(ReadCounts()))

    if format == "squad" and not holds_one_document(read()):
        format = "jsonl"
    if format in _STREAMS:
        return _open_stream(path, lambda: _STREAMS[format](read(), path))
    return _open_lines(path, read, header, columns, format)


def _format_of(path: str) -> TableFormat:
    *_, suffix = [part for part in ["", *Path(path).suffixes] if part not in _COMPRESSED]
    if suffix in _SUFFIXES or not suffix:
        return _SUFFIXES.get(suffix, "tsv")
    raise DataError(
        f"the suffix {suffix!r} names no format",
        where=path,
        fix=f"{nearest(suffix, _SUFFIXES)}; the name of a table ends in what it is.",
    )


def _open_lines(
    path: str,
    read: Callable[[], Iterator[tuple[int, str]]],
    header: bool | None,
    wanted: Sequence[str],
    format: TableFormat,
) -> Rows:
    if format in _STREAMS:
        return _open_stream(path, lambda: _STREAMS[format](read(), path))
    assert format != "parquet", "Parquet has no lines"

    def records() -> Iterator[Record]:
        return split_csv(read(), path) if format == "csv" else split_tsv(read())

    sample = [fields for _, fields in islice(records(), SAMPLE_ROWS + 1)]
    if not sample:
        raise DataError("the file is empty", where=path)
    check_parted(path, sample, wanted, format)
    has_header = looks_like_header(sample[0], sample[1:], wanted) if header is None else header
    if header is None and not has_header and may_be_header(sample[0], sample[1:]):
        warnings.warn(
            f"{path}:1: {', '.join(map(repr, sample[0]))} are taken for data. If they name the "
            "columns, say so: header=true, or --header",
            BertworksWarning,
            stacklevel=2,
        )
    columns = _column_names(path, sample[0], has_header)

    def rows() -> Iterator[PlacedRow]:
        for number, fields in _without_blank_end(islice(records(), int(has_header), None), columns):
            if len(fields) != len(columns):
                raise _wrong_number(f"{path}:{number}", fields, columns, has_header, format)
            yield PlacedRow(f"{path}:{number}", dict(zip(columns, fields, strict=True)))

    return Rows(path, columns, has_header, sample_of(rows), rows)


def _column_names(path: str, first: Sequence[str], has_header: bool) -> tuple[str, ...]:
    numbers = [str(at) for at in range(1, len(first) + 1)]
    if not has_header:
        return tuple(numbers)
    names = [name.strip() or number for name, number in zip(first, numbers, strict=True)]
    check_distinct(names, f"{path}:1")
    return tuple(names)


def _without_blank_end(records: Iterable[Record], columns: Sequence[str]) -> Iterator[Record]:
    """Leave out blank lines at the end of a table of several columns (of one, they are rows)."""
    blank: list[Record] = []
    for record in records:
        if record[1] == [""] and len(columns) > 1:
            blank.append(record)
            continue
        yield from blank
        blank.clear()
        yield record


def _wrong_number(
    where: str, fields: Sequence[str], columns: Sequence[str], has_header: bool, format: str
) -> DataError:
    of = "header" if has_header else "first line"
    fix = None
    if len(columns) == 1 or len(fields) == 1:
        fix = f"Are the fields parted by {'commas' if format == 'csv' else 'tabs'}?"
    return DataError(
        f"{len(fields)} field(s), where the {of} has {len(columns)}", where=where, fix=fix
    )


def _open_stream(path: str, rows: Callable[[], Iterator[PlacedRow]]) -> Rows:
    """A table whose rows name their columns themselves."""
    sample = sample_of(rows)
    if not sample:
        raise DataError("the file is empty", where=path)
    return Rows(path, tuple(dict.fromkeys(chain(*sample))), None, sample, rows)


def _read_json_lines(lines: Iterable[tuple[int, str]], name: str) -> Iterator[PlacedRow]:
    for number, line in lines:
        if line.strip():
            where = f"{name}:{number}"
            yield PlacedRow(where, _json_object(line, where))


_STREAMS: dict[str, Callable[[Iterable[tuple[int, str]], str], Iterator[PlacedRow]]] = {
    "jsonl": _read_json_lines,
    "conll": read_conll,
    "conllu": read_conllu,
    "squad": read_squad,
}


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"no JSON: {error.msg} (column {error.colno})", where=where) from None
    except RecursionError:
        raise DataError("no JSON that can be read: nested too deeply", where=where) from None
    except ValueError:  # Python refuses to read more digits than a few thousand
        raise DataError("no JSON that can be read: a number is too long", where=where) from None
    if not isinstance(value, dict):
        raise DataError(
            f"a JSON {type(value).__name__}, not an object",
            where=where,
            fix='Each line must hold one object, like {"text": …, "label": …}.',
        )
    return value


def _open_parquet(path: str) -> Rows:
    check_name(path)
    try:
        with pq.ParquetFile(path) as file:
            columns = tuple(file.schema_arrow.names)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot be read as Parquet ({reason(error)})", where=path) from None
    check_distinct(columns, path)

    def rows() -> Iterator[PlacedRow]:
        number = 0
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(1024):
                    for values in batch.to_pylist():
                        number += 1
                        yield PlacedRow(f"{path}, row {number}", values)
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            what = f"cannot be read further ({reason(error)})"
            raise DataError(what, where=f"{path}, row {number + 1}") from None

    return Rows(path, columns, None, sample_of(rows), rows)


def _rows_in_memory(table: Iterable[Any], name: str = NAME) -> Rows:
    """Rows that Python has already; numbers of a data set's named labels become the names."""
    features: Mapping[str, Any] = getattr(table, "features", None) or {}
    kinds = {column: getattr(kind, "feature", kind) for column, kind in features.items()}
    names = {column: kind.names for column, kind in kinds.items() if hasattr(kind, "names")}
    passes = Replay(table, name) if isinstance(table, Iterator) else table

    def rows() -> Iterator[PlacedRow]:
        for number, row in enumerate(passes, 1):
            where = f"{name}, row {number}"
            values = row_of(row, where)
            for column, labels in names.items():
                at = values.get(column)
                if isinstance(at, list):
                    values[column] = [_label_called(each, labels) for each in at]
                else:
                    values[column] = _label_called(at, labels)
            yield PlacedRow(where, values)

    sample = sample_of(rows)
    if not sample:
        raise DataError("there are no rows", where=name)
    if isinstance(passes, Replay):
        passes.close()
    return Rows(name, tuple(dict.fromkeys(chain(features, *sample))), None, sample, rows)


def _label_called(number: Any, labels: Sequence[str]) -> Any:
    """A label by its number; -1, and what else is the number of none, stands for "not known"."""
    if not isinstance(number, int):
        return number
    return labels[number] if 0 <= number < len(labels) else None


def _open_stdin(header: bool | None, wanted: Sequence[str], format: TableFormat) -> Rows:
    name = "standard input"
    if format == "parquet":
        raise DataError("Parquet cannot be read from standard input", fix="Give a file.")
    lines = Replay(_decoded(sys.stdin.buffer, name), name)
    rows = _open_lines(name, lines.__iter__, header, wanted, "tsv" if format == "auto" else format)
    lines.close()
    return rows


def _decoded(stream: Iterable[bytes], name: str) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(stream, 1):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            what = (
                f"not UTF-8 (byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line)"
            )
            raise DataError(what, where=f"{name}:{number}") from None
        yield number, line.removeprefix("\ufeff") if number == 1 else line
