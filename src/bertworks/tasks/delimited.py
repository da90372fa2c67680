"""Lines of TSV and CSV files taken apart into fields, each record with its line's number.

Python's own `csv` module cannot say where a quote that is never closed was opened, and reads on to
the end of the file in search of its partner; here a quote that ends in the wrong place is an error
at once, and names the line in which it opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..corpus.lines import MAX_LINE_BYTES
from ..errors import DataError

LINE_SIZE = 64
"""What a line of a record counts for at least: in memory a short one takes more than its text."""
_LONGEST_FIELD = 1 << 24  # characters of a quoted field, beyond which a quote was left open

Record = tuple[int, list[str]]
"""The number of the line a record begins in, and its fields."""


def split_tsv(lines: Iterable[tuple[int, str]]) -> Iterator[Record]:
    """Fields parted by tabs. A quote is a character like any other; there is no escaping."""
    for number, line in lines:
        yield number, _without_end(line).split("\t")


def split_csv(
    lines: Iterable[tuple[int, str]], name: str, limit: int = MAX_LINE_BYTES
) -> Iterator[Record]:
    """Fields parted by commas, by the rules of RFC 4180.

    A field that begins with a quote ends at the next single quote and may hold commas and line
    ends; two quotes in it stand for one. In other fields a quote is a character like any other, as
    spreadsheet programs have it.

    Args:
        lines: the file's lines with their numbers, their line ends still on.
        name: the file, for errors.
        limit: the most characters of a record, a line counting as 64 at least.

    Raises:
        DataError: a quote is not closed, or something stands between it and the next comma; or a
            record is too long.
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
    """The fields of a record that has quotes; takes further lines from the stream as needed."""
    start, first, total = 0, number, len(line)
    while True:
        text = _without_end(line)
        if not text.startswith('"', start):
            end = text.find(",", start)
            yield text[start:] if end < 0 else text[start:end]
        else:
            opened, parts, end = number, [], start + 1
            size = 0
            while (close := _closing_quote(line, end)) < 0:
                parts.append(line[end:])
                size += len(line) - end
                following = next(stream, None) if size < _LONGEST_FIELD else None
                if following is None:
                    raise DataError(
                        "a quote is opened here and never closed", where=f"{name}:{opened}"
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
                    where=f"{name}:{opened}",
                    fix='A quote inside a quoted field is written "".',
                )
        if end < 0:
            return
        start = end + 1


def _closing_quote(line: str, start: int) -> int:
    """Where the quoted field that runs on from `start` ends; -1 if not in this line."""
    while (at := line.find('"', start)) >= 0:
        if not line.startswith('"', at + 1):
            return at
        start = at + 2
    return -1


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def too_long(what: str, limit: int, where: str) -> DataError:
    """The error of something that takes several lines, and would take all memory."""
    return DataError(
        f"the {what} that begins here is longer than {limit:,} characters",
        where=where,
        fix="If it has to be, allow more: --max-line-bytes N (max_line_bytes=N).",
    )
