"""Documents: of plain text and of WikiExtractor's files, and of the records of all other formats.

Each reader yields `Document`s: the position (`file:line`), the non-empty lines of text, stripped,
and the spans, if requested. Bad input raises DataError, or is skipped and counted (`Reading.bad`):
always the smallest unit, which is a line of text, a record, an unclosed `<doc>`, or the rest of a
damaged file.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DataError, closest_name, shorten_list
from .lines import Lines
from .reading import Reading
from .rows import has_lone_surrogate
from .spans import COLUMN as SPANS
from .spans import Spans, of_paragraphs, parse_spans


@dataclass(frozen=True, slots=True)
class Document:
    """A document."""

    paragraphs: tuple[str, ...]  # its lines of text, stripped, without empty ones
    where: str  # where it begins: `file:line`, or `file, row 12` in a table
    # 0; or 1, 2, … for the further copies of a weight above 1, which follow it directly
    copy: int = 0
    spans: Spans | None = None  # in `text`, in order, if it has spans and they were requested

    @property
    def text(self) -> str:
        return "\n".join(self.paragraphs)


WIKI_DOCUMENT = re.compile(r"<doc\s[^\n]*>\s*")
"""The line that begins a document of WikiExtractor."""
_TITLE = re.compile(r'\stitle="(.*?)"\s*>')


def read_text(lines: Lines, name: str, reading: Reading) -> Iterator[Document]:
    """Plain text: one sentence or paragraph per line, a blank line between documents."""
    paragraphs: list[str] = []
    start = characters = 0
    for number, line in lines:
        text = line.strip()
        if paragraphs and (not text or characters >= reading.max_document_characters):
            yield Document(tuple(paragraphs), f"{name}:{start}")
            reading.counts.num_splits += bool(text)
            paragraphs, characters = [], 0
        if text:
            start = start if paragraphs else number
            paragraphs.append(text)
            characters += len(text)
    if paragraphs:
        yield Document(tuple(paragraphs), f"{name}:{start}")


def read_wiki(lines: Lines, name: str, reading: Reading) -> Iterator[Document]:
    """WikiExtractor's output: `<doc id= url= title=>`, the title, paragraphs, `</doc>`.

    The title, which WikiExtractor repeats as the first line, is dropped (the paper's section 3.1
    uses text passages only, no headers).
    """
    paragraphs: list[str] | None = None
    start, characters, titles = 0, 0, set[str]()
    for number, line in lines:
        text = line.strip()
        if line.startswith("<doc ") and WIKI_DOCUMENT.fullmatch(line):
            if paragraphs is not None:
                _report_unclosed(name, start, f"another <doc> begins on line {number}", reading)
            paragraphs, start, titles = [], number, _titles(line)
            characters = 0
        elif not text:
            continue
        elif paragraphs is None:
            what = "</doc> without a <doc>" if text == "</doc>" else "text outside of any <doc>"
            reading.bad("text outside <doc>", what, where=f"{name}:{number}")
        elif text.endswith("</doc>"):
            if last := text.removesuffix("</doc>").rstrip():
                paragraphs.append(last)
            yield Document(tuple(paragraphs), f"{name}:{start}")
            paragraphs = None
        elif text in titles:
            titles = set()
        else:
            titles = set()
            if characters >= reading.max_document_characters:
                yield Document(tuple(paragraphs), f"{name}:{start}")
                reading.counts.num_splits += 1
                paragraphs, start, characters = [], number, 0
            paragraphs.append(text)
            characters += len(text)
    if paragraphs is not None:
        _report_unclosed(name, start, "the file ends", reading)


def documents_of(
    records: Iterable[tuple[str, Mapping[str, Any]]], reading: Reading
) -> Iterator[Document]:
    """Convert records, each with its position, to documents; line feeds separate paragraphs.

    If no text column is given, it is chosen by the first record from which it is clear.
    """
    column = reading.column
    for where, record in records:
        if column is None:
            strings = [name for name, value in record.items() if isinstance(value, str)]
            column = choose_column(record, strings)
        if column is None or column not in record:
            report_missing_column(column, list(record), where, reading)
            continue
        text = record[column]
        if not isinstance(text, str):
            kind = f"not a string but {type(text).__name__}"
            what = f"the value of {column!r} is {'missing' if text is None else kind}"
            reading.bad("value is not a string", what, where=where)
        elif has_lone_surrogate(text):
            what = f"half a character (lone surrogate) in {column!r}"
            reading.bad("lone surrogate", what, where=where)
        elif document := document_of(text, record.get(SPANS), where, reading):
            yield document


def document_of(text: str, spans: Any, where: str, reading: Reading) -> Document | None:
    """The document of a text and its optional spans; None if the spans are bad and skipped."""
    places = None
    if reading.spans and spans is not None:
        try:
            places = of_paragraphs(parse_spans(spans, text, where=where), text)
        except DataError as error:
            reading.bad("bad spans", error.what, where=where, fix=error.fix)
            return None
    return Document(split_paragraphs(text), where, spans=places)


def choose_column(names: Collection[str], strings: Sequence[str]) -> str | None:
    """The default text column: `text`, otherwise the only column with strings."""
    return "text" if "text" in names else strings[0] if len(strings) == 1 else None


def report_missing_column(
    column: str | None, names: list[str], where: str, reading: Reading
) -> None:
    """Report the missing column, or that one must be chosen, and list the existing ones."""
    close = None if column is None else closest_name(column, names)
    fix = f"The columns are: {shorten_list(names)}. Name the one with the text (--column NAME)."
    reading.bad(
        "missing column",
        f"no column {column!r}"
        if column is not None
        else "no column 'text', and no other candidate",
        where=where,
        fix=fix if close is None else f"The nearest is {close!r}.",
    )


def split_paragraphs(text: str) -> tuple[str, ...]:
    """A text's lines, stripped, without the blank ones."""
    return tuple(line for line in map(str.strip, text.split("\n")) if line)


def _titles(line: str) -> set[str]:
    found = _TITLE.search(line)
    return {found[1].strip(), html.unescape(found[1]).strip()} if found else set()


def _report_unclosed(name: str, start: int, what: str, reading: Reading) -> None:
    reading.bad("unclosed <doc>", f"this <doc> is not closed: {what}", where=f"{name}:{start}")
