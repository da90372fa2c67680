"""Read TSV and CSV files: their fields, their header, and their rows.

Python's `csv` module cannot report the line of a quote that is never closed, and reads to the end
of the file in search of the closing quote. Here a quote that ends in the wrong place is an error at
once, which names the line of the opening quote.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TypeAlias

from ..errors import BertworksWarning, DataError, shorten_list
from ..settings.literals import DataFormat
from .headers import check_separator, classify_first_line, csv_separator
from .lines import LINE_SIZE, Lines, first_lines, too_long
from .reading import Reading
from .rows import LocatedRow, Rows, check_distinct, sample, sample_of
from .streams import suffix_of

_LINES = 400
_HEADER, _NO_HEADER = "give --header (header=true)", "give --no-header (header=false)"
_QUOTES_FIX = 'To read them as CSV does, give --format csv (format="csv")'
# The first line of files for Excel; csv writers that quote all fields put it in quotes.
_SEPARATOR_LINE = re.compile(r"""("?)sep=([^\w\s"]|\t)\1\s*""")
_MAX_FIELD = 1 << 24  # characters; in a longer quoted field, the closing quote is missing

Record: TypeAlias = tuple[int, list[str]]
"""The number of the line in which a record begins, and its fields."""


def open_separated(
    name: str,
    read: Callable[[Reading], Lines],
    format: DataFormat,
    split: Callable[[Lines, str, Reading], Iterator[Record]],
    reading: Reading,
    *,
    column_names: Sequence[str] = (),
) -> Rows:
    """Open the lines of a TSV or CSV file as a table.

    Args:
        name: of the file.
        read: reads the lines, from the first one.
        format: the name of the format.
        split: splits lines into records.
        column_names: expected column names: a first line that contains one of them is a header.

    Raises:
        DataError: the file is empty, or its fields seem to have another separator.
    """
    glance = reading.with_other_counts()
    if format == "csv":
        beginning = first_lines(read(glance), _LINES)
        separator = csv_separator(beginning, column_names)
        if _are_separated_by_tabs(beginning):
            separator = "\t"
        if beginning and (match := _SEPARATOR_LINE.fullmatch(beginning[0])):
            separator, read = match[2], partial(_skip_first, read)
        elif separator != ",":
            what = f"{name}: its fields are read as separated by {separator!r}, not by commas"
            warnings.warn(what, BertworksWarning, stacklevel=3)
        split = partial(split_csv, separator=separator)
    some = [fields for _, fields in sample(split(read(glance), name, glance), lambda one: one[1])]
    if not some:
        raise DataError("the file is empty", where=name)
    check_separator(name, some, column_names, format)
    has_header = reading.header
    if has_header is None:
        has_header = _has_header(name, some, column_names)
    columns = _column_names(name, some[0], has_header)

    def rows(reading: Reading) -> Iterator[LocatedRow]:
        records = islice(split(read(reading), name, reading), int(has_header), None)
        for number, fields in _without_blank_end(records, columns):
            where = f"{name}:{number}"
            if len(fields) == len(columns):
                yield LocatedRow(where, dict(zip(columns, fields, strict=True)))
            else:
                error = _wrong_number(where, fields, columns, has_header, format)
                reading.skip("wrong number of fields", error)

    first_rows = sample_of(partial(rows, glance))
    return Rows(name, columns, has_header, first_rows, partial(rows, reading))


def _skip_first(read: Callable[[Reading], Lines], reading: Reading) -> Lines:
    return islice(read(reading), 1, None)


def split_tsv(lines: Lines, name: str, _reading: Reading) -> Iterator[Record]:
    """Split lines at tabs. A quote is a character like any other; there is no escaping.

    The first field that is quoted as in CSV, as pandas and spreadsheet programs write them, is
    reported.
    """
    is_reported = False
    for number, line in lines:
        fields = _without_end(line).split("\t")
        if not is_reported and '""' in line and any(map(_is_quoted_as_in_csv, fields)):
            is_reported = True
            what = f"{name}:{number}: a field is quoted as in CSV, and its quotes are read as text"
            # From this line for each pass over the file, so that Python shows it once.
            warnings.warn(f"{what}. {_QUOTES_FIX}", BertworksWarning, stacklevel=1)
        yield number, fields


def _is_quoted_as_in_csv(field: str) -> bool:
    """Whether a field is in quotes and has quotes, all of which are doubled."""
    content = field[1:-1]
    is_quoted = len(field) > 1 and field[0] == field[-1] == '"' and '""' in content
    return is_quoted and '"' not in content.replace('""', "")


def split_csv(lines: Lines, name: str, reading: Reading, separator: str = ",") -> Iterator[Record]:
    """Split lines at commas, or at another separator, by the rules of RFC 4180.

    A field that begins with a quote ends at the next single quote and may contain commas and line
    ends; two quotes in it stand for one. In other fields a quote is a character like any other, as
    in spreadsheet programs.

    Raises:
        DataError: a quote is not closed, or there is text between a closing quote and the next
            comma; or a record has more characters than `max_line_bytes`, where each line counts as
            at least 64.
    """
    stream, limit = iter(lines), reading.max_line_bytes
    for number, line in stream:
        text = _without_end(line)
        if '"' not in text:
            yield number, text.split(separator)
            continue
        try:
            fields = list(_quoted_fields(number, line, stream, name, limit, separator))
        except DataError as error:  # where the next record begins is unknown
            reading.skip("broken quotes", error)
            return
        yield number, fields


def _quoted_fields(
    number: int,
    line: str,
    stream: Iterator[tuple[int, str]],
    name: str,
    limit: int,
    separator: str,
) -> Iterator[str]:
    """Yield the fields of a record with quotes; reads more lines from the stream if needed."""
    start, first, total = 0, number, len(line)
    text = _without_end(line)
    while True:
        if not text.startswith('"', start):
            end = text.find(separator, start)
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
                text = _without_end(line)
                total += max(len(line), LINE_SIZE)
                if total > limit:
                    raise too_long("record", limit, f"{name}:{first}")
            parts.append(line[end:close])
            yield "".join(parts).replace('""', '"')
            end = close + 1
            if end >= len(text):
                return
            if text[end] != separator:
                mark = "comma" if separator == "," else repr(separator)
                raise DataError(
                    f"the quote that is opened here ends in line {number} before "
                    f"{text[end : end + 10]!r}, which is no {mark}",
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
    if one and suffix_of(path) == ".txt":  # one text a line, as in `text_inputs.read_texts`
        is_header, is_certain = False, not is_header
    if not is_certain:
        verb, name = ("is", "a column name") if one else ("are", "column names")
        read = f"{verb} read as {name if is_header else 'data'}"
        meaning = f"{'it is' if one else 'they are'} {'data' if is_header else name}"
        fix = f"If {meaning}, {_NO_HEADER if is_header else _HEADER}"
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


def _are_separated_by_tabs(lines: Sequence[str]) -> bool:
    """Whether the lines of a file that should have commas have tabs instead."""
    tabs = {line.count("\t") for line in lines if line}
    commas = {line.count(",") for line in lines if line}
    return len(lines) > 1 and len(tabs) == 1 and tabs != {0} and (len(commas) > 1 or commas == {0})


def _wrong_number(
    where: str, fields: Sequence[str], columns: Sequence[str], has_header: bool, format: str
) -> DataError:
    place = "header" if has_header else "first line"
    fix = None
    if format == "tsv" and fields[-1].startswith('"') and fields[-1].count('"') % 2:
        fix = f"Does a quoted field continue on the next line? {_QUOTES_FIX}."
    elif format == "tsv" and fields == [""]:
        fix = (
            'The line is blank. If such lines end sentences, give --format conll (format="conll").'
        )
    elif len(columns) == 1 or len(fields) == 1:
        fix = f"Are the fields separated by {'commas' if format == 'csv' else 'tabs'}?"
    return DataError(
        f"{len(fields)} field(s), where the {place} has {len(columns)}", where=where, fix=fix
    )
