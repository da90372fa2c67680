"""Read TSV and CSV files: their fields, their header, and their rows.

Python's `csv` module cannot report the line of a quote that is never closed, and reads to the end
of the file in search of the closing quote. Here a quote that ends in the wrong place is an error at
once, which names the line of the opening quote.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from ..errors import BertworksWarning, DataError, shorten_list
from ..settings.literals import TableFormat
from .headers import check_separator, classify_first_line
from .lines import LINE_SIZE, Lines, too_long
from .rows import LocatedRow, Rows, check_distinct, sample, sample_of
from .table_detection import are_separated_by_tabs, first_lines, suffix_of

_MAX_FIELD = 1 << 24  # characters; in a longer quoted field, the closing quote is missing

SEPARATED_FORMATS = ("tsv", "csv")
"""The formats whose lines are fields between separators."""

Record: TypeAlias = tuple[int, list[str]]
"""The number of the line in which a record begins, and its fields."""


def open_separated(
    path: str,
    read: Callable[[], Lines],
    format: TableFormat,
    column_names: Sequence[str],
    *,
    header: bool | None,
    limit: int,
) -> Rows:
    """Open the lines of a TSV or CSV file as a table.

    Args:
        read: reads the lines, from the first one.
        format: one of `SEPARATED_FORMATS`.
        column_names: expected column names: a first line that contains one of them is a header.
        header: whether the first line has column names; detected if None.
        limit: maximum characters of a record.

    Raises:
        DataError: the file is empty, or its fields seem to have another separator.
    """
    if format == "csv" and are_separated_by_tabs(first_lines(read())):
        raise DataError(
            "its fields are separated by tabs, not by commas",
            where=path,
            fix='--format tsv (format="tsv") reads them.',
        )

    def records() -> Iterator[Record]:
        return split_csv(read(), path, limit) if format == "csv" else split_tsv(read())

    some = [fields for _, fields in sample(records(), lambda record: record[1])]
    if not some:
        raise DataError("the file is empty", where=path)
    check_separator(path, some, column_names, format)
    has_header = _has_header(path, some, column_names) if header is None else header
    columns = _column_names(path, some[0], has_header)

    def rows() -> Iterator[LocatedRow]:
        for number, fields in _without_blank_end(islice(records(), int(has_header), None), columns):
            if len(fields) != len(columns):
                raise _wrong_number(f"{path}:{number}", fields, columns, has_header, format)
            yield LocatedRow(f"{path}:{number}", dict(zip(columns, fields, strict=True)))

    return Rows(path, columns, has_header, sample_of(rows), rows)


def split_tsv(lines: Lines) -> Iterator[Record]:
    """Split lines at tabs. A quote is a character like any other; there is no escaping."""
    for number, line in lines:
        yield number, _without_end(line).split("\t")


def split_csv(lines: Lines, name: str, limit: int) -> Iterator[Record]:
    """Split lines at commas, by the rules of RFC 4180.

    A field that begins with a quote ends at the next single quote and may contain commas and line
    ends; two quotes in it stand for one. In other fields a quote is a character like any other, as
    in spreadsheet programs.

    Args:
        limit: maximum characters of a record; each line counts as at least 64.

    Raises:
        DataError: a quote is not closed, or there is text between a closing quote and the next
            comma; or a record is too long.
    """
    stream = iter(lines)
    for number, line in stream:
        text = _without_end(line)
        if '"' in text:
            yield number, list(_quoted_fields(number, line, stream, name, limit))
        else:
            yield number, text.split(",")


def _quoted_fields(
    number: int, line: str, stream: Iterator[tuple[int, str]], name: str, limit: int
) -> Iterator[str]:
    """Yield the fields of a record with quotes; reads more lines from the stream if needed."""
    start, first, total = 0, number, len(line)
    while True:
        text = _without_end(line)
        if not text.startswith('"', start):
            end = text.find(",", start)
            yield text[start:] if end < 0 else text[start:end]
        else:
            first_line_number, parts, end = number, [], start + 1
            size = 0
            while (close := _closing_quote(line, end)) < 0:
                parts.append(line[end:])
                size += len(line) - end
                following = next(stream, None) if size < _MAX_FIELD else None
                if following is None:
                    raise DataError(
                        "a quote is opened here and never closed",
                        where=f"{name}:{first_line_number}",
                    )
                (number, line), end = following, 0
                total += max(len(line), LINE_SIZE)
                if total > limit:
                    raise too_long("record", limit, f"{name}:{first}")
            parts.append(line[end:close])
            yield "".join(parts).replace('""', '"')
            text = _without_end(line)
            end = close + 1
            if end >= len(text):
                return
            if text[end] != ",":
                raise DataError(
                    f"the quote that is opened here ends in line {number} before "
                    f"{text[end : end + 10]!r}, which is no comma",
                    where=f"{name}:{first_line_number}",
                    fix='A quote inside a quoted field is written "".',
                )
        if end < 0:
            return
        start = end + 1


def _closing_quote(line: str, start: int) -> int:
    """Return the index of the quote that closes a field; -1 if it is not in this line."""
    while (quote := line.find('"', start)) >= 0:
        if not line.startswith('"', quote + 1):
            return quote
        start = quote + 2
    return -1


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _has_header(path: str, sample: Sequence[Sequence[str]], column_names: Sequence[str]) -> bool:
    """Return whether the first line is a header; warn if it could be either."""
    one = len(sample[0]) == 1
    is_header, is_certain = classify_first_line(sample[0], sample[1:], column_names)
    if one and suffix_of(path) == ".txt":  # one text a line, as in `texts.read_texts`
        is_header, is_certain = False, not is_header
    if not is_certain:
        verb, name = ("is", "a column name") if one else ("are", "column names")
        read = f"{verb} read as {name if is_header else 'data'}"
        fix = (
            f"If {'it is' if one else 'they are'} data, give --no-header (header=false)"
            if is_header
            else f"If {'it is' if one else 'they are'} {name}, give --header (header=true)"
        )
        warnings.warn(
            f"{path}:1: {shorten_list(sample[0])} {read}. {fix}", BertworksWarning, stacklevel=3
        )
    return is_header


def _column_names(path: str, first: Sequence[str], has_header: bool) -> tuple[str, ...]:
    numbers = [str(at) for at in range(1, len(first) + 1)]
    if not has_header:
        return tuple(numbers)
    filled = {name.strip() for name in first}
    names = [
        name.strip() or (f"column {number}" if number in filled else number)
        for name, number in zip(first, numbers, strict=True)
    ]
    check_distinct(names, f"{path}:1")
    return tuple(names)


def _without_blank_end(records: Iterable[Record], columns: Sequence[str]) -> Iterator[Record]:
    """Drop blank lines at the end of a table of several columns; in one column, they are rows."""
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
    place = "header" if has_header else "first line"
    fix = None
    if len(columns) == 1 or len(fields) == 1:
        fix = f"Are the fields separated by {'commas' if format == 'csv' else 'tabs'}?"
    return DataError(
        f"{len(fields)} field(s), where the {place} has {len(columns)}", where=where, fix=fix
    )
