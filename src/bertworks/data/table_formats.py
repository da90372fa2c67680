"""The formats of tables: how lines become rows with their places, and how a format is detected.

TSV and CSV. Python's `csv` module cannot report the line of a quote that is never closed, and reads
to the end of the file in search of the closing quote. Here a quote that ends in the wrong place is
an error at once, which names the line of the opening quote.

CoNLL: one word per line; a sentence becomes a row of lists. Columns of CoNLL are named by their
numbers, because the file does not name them; those of CoNLL-U as in its specification. One more
column, `document`, holds the number of the sentence's document; a file without marks of documents
is one document.

    EU      B-ORG           a blank line ends a sentence; `-DOCSTART-` begins a document
    rejects O

    1  EU  EU  PROPN …      CoNLL-U: ten columns, separated by tabs; lines with # are comments;
                            `# newdoc` begins a document

One JSON document: an array of objects, possibly inside {"data": …}; or articles or paragraphs with
questions, as in SQuAD (see `tables.questions`):

    [{"text": …, "label": …}, …]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from ..errors import DataError, truncate_repr
from ..settings.literals import TableFormat
from ..utils.json_files import parse_json
from .headers import names_word_columns
from .lines import ALLOW_MORE
from .questions import holds_questions, questions_of
from .rows import LocatedRow

LINE_SIZE = 64
"""The least that a line counts towards a limit: short lines take more memory than their text."""
_MAX_FIELD = 1 << 24  # characters; in a longer quoted field, the closing quote is missing

Lines: TypeAlias = Iterable[tuple[int, str]]
"""The lines of a file with their numbers, including their line ends."""

Record: TypeAlias = tuple[int, list[str]]
"""The number of the line in which a record begins, and its fields."""


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


def too_long(what: str, limit: int, where: str) -> DataError:
    """Return the error for an item of several lines that would need too much memory."""
    long = f"the {what} that begins here is longer than {limit:,} characters"
    return DataError(long, where=where, fix=ALLOW_MORE)


DOCUMENT_START = "-DOCSTART-"
"""The word of a line that begins a document in CoNLL files."""
DOCUMENT = "document"
"""The column with the number of a sentence's document."""

CONLLU_COLUMNS = (
    *("id", "form", "lemma", "upos", "xpos"),
    *("feats", "head", "deprel", "deps", "misc"),
)
_NO_WORD = re.compile(r"\d+[-.]\d+")  # a token of several words, or an empty node
_NEW_DOCUMENT = re.compile(r"#\s*newdoc\b")


def read_conll(
    lines: Lines, name: str, limit: int, *, document_starts: bool = False
) -> Iterator[LocatedRow]:
    """Read the sentences of a CoNLL file, whose fields are separated by tabs, otherwise by spaces.

    Args:
        limit: maximum characters of a sentence; each line counts as at least 64.
        document_starts: whether a line `-DOCSTART-` with as many fields as a word's is a row of
            one word, as scorers count it.

    Raises:
        DataError: a line has another number of fields than the first, or a sentence is too long.
    """
    width: int | None = None
    document = 0
    for first, sentence in _sentences(lines, name, limit):
        columns: list[list[str]] = []
        for number, line in sentence:
            fields = conll_fields(line)
            if fields[0] == DOCUMENT_START:
                document += 1
                if document_starts and len(fields) > 1:
                    values = {str(at): [field] for at, field in enumerate(fields, 1)}
                    yield LocatedRow(f"{name}:{number}", {**values, DOCUMENT: document})
                continue
            if width is None:
                width = len(fields)
            if len(fields) != width:
                raise DataError(
                    f"{len(fields)} field(s), where the first line has {width}",
                    where=f"{name}:{number}",
                )
            columns = columns or [[] for _ in fields]
            for column, field in zip(columns, fields, strict=True):
                column.append(field)
        if columns:
            values = {str(at): column for at, column in enumerate(columns, 1)}
            yield LocatedRow(f"{name}:{first}", {**values, DOCUMENT: document})


def conll_fields(line: str) -> list[str]:
    """Split a word's line. Blanks other than spaces and tabs (no-break space) are part of words."""
    return line.split("\t") if "\t" in line else [*filter(None, line.split(" "))]


def read_conllu(lines: Lines, name: str, limit: int) -> Iterator[LocatedRow]:
    """Read the sentences of a CoNLL-U file: syntactic words, not multi-word tokens or empty nodes.

    Raises:
        DataError: a line does not have ten fields, or has an id that is not valid in CoNLL-U; or a
            sentence is too long (see `read_conll`).
    """
    document = 0
    for first, sentence in _sentences(lines, name, limit):
        words = []
        for number, line in sentence:
            if line.startswith("#"):
                document += bool(_NEW_DOCUMENT.match(line))
                continue
            fields = line.split("\t")
            if len(fields) != len(CONLLU_COLUMNS):
                raise DataError(
                    f"{len(fields)} field(s), where CoNLL-U has {len(CONLLU_COLUMNS)}",
                    where=f"{name}:{number}",
                )
            if fields[0].isdecimal():
                words.append(fields)
            elif not _NO_WORD.fullmatch(fields[0]):
                raise DataError(
                    f"the id {truncate_repr(fields[0])} is not the id of a word",
                    where=f"{name}:{number}",
                )
        if words:
            columns = map(list, zip(*words, strict=True))
            values = dict(zip(CONLLU_COLUMNS, columns, strict=True))
            yield LocatedRow(f"{name}:{first}", {**values, DOCUMENT: document})


def _sentences(lines: Lines, name: str, limit: int) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Yield groups of lines that are not blank, each with the number of its first line."""
    sentence: list[tuple[int, str]] = []
    size = 0
    for number, raw in lines:
        line = raw.rstrip("\r\n")
        if line.strip(" \t"):
            sentence.append((number, line))
            size += max(len(line), LINE_SIZE)
            if size > limit:
                raise too_long("sentence", limit, f"{name}:{sentence[0][0]}")
        elif sentence:
            yield sentence[0][0], sentence
            sentence, size = [], 0
    if sentence:
        yield sentence[0][0], sentence


def holds_one_document(lines: Lines) -> bool:
    """Whether a JSON file is a single document rather than one document per line."""
    first = list(islice((line for _, line in lines if line.strip()), 2))
    if len(first) == 1:
        head = first[0].lstrip()[:1000]
        return head.startswith("[") or '"data"' in head or '"paragraphs"' in head
    try:
        return bool(first) and not isinstance(json.loads(first[0]), dict)
    except (ValueError, RecursionError):
        return True


def read_document(lines: Lines, name: str, limit: int) -> Iterator[LocatedRow]:
    """Read the rows of a file that is one JSON document.

    Args:
        limit: maximum characters of the document, which is loaded into memory.

    Raises:
        DataError: the file is not JSON, has neither of the two forms, or is too long.
    """
    parts, size = [], 0
    for _, line in lines:
        parts.append(line)
        size += len(line)
        if size > limit:
            raise too_long("document", limit, name)
    try:
        document = parse_json("".join(parts))
    except json.JSONDecodeError as error:
        raise DataError(f"not valid JSON: {error.msg}", where=f"{name}:{error.lineno}") from None
    except ValueError as error:
        raise DataError(f"JSON that cannot be read: {error}", where=name) from None
    rows = document.get("data", document) if isinstance(document, dict) else document
    if isinstance(rows, dict) and holds_questions(rows):
        rows = [rows]
    if not isinstance(rows, list):
        raise DataError("there is no list 'data', as in SQuAD's files", where=name)
    are_questions = bool(rows) and isinstance(rows[0], dict) and holds_questions(rows[0])
    for number, row in enumerate(rows, 1):
        if are_questions:
            yield from questions_of(row, name, number)
            continue
        where = f"{name}, row {number}"
        if not isinstance(row, dict):
            raise DataError(f"a JSON {type(row).__name__}, not an object", where=where)
        yield LocatedRow(where, row)


_LINES = 400
_CHARACTERS = 1 << 20
_TAG = re.compile(r"O|[BIESLUM]-\S+")
FASTTEXT_PREFIX = "__label__"
"""The prefix of labels in fastText's files."""


def first_lines(lines: Lines) -> list[str]:
    """Return the first lines without their line ends, fewer if they are long."""
    first: list[str] = []
    size = 0
    for _, line in islice(lines, _LINES):
        first.append(line.rstrip("\r\n"))
        size += len(line)
        if size > _CHARACTERS:
            break
    return first


def format_of_lines(lines: Sequence[str]) -> TableFormat | None:
    """Detect the format from a file's first lines; None if it is not certain."""
    nonblank = [line for line in lines if line.strip()]
    if not nonblank:
        return None
    if found := _json_format(nonblank):
        return found
    if _is_conllu(nonblank):
        return "conllu"
    if is_conll(lines):
        return "conll"
    if all(line.startswith(FASTTEXT_PREFIX) for line in nonblank):
        return "label-text"
    widths = {line.count("\t") for line in nonblank}
    return "tsv" if len(widths) == 1 and widths != {0} else None


def is_conll(lines: Sequence[str]) -> bool:
    """Whether lines are words with tags: equal numbers of fields, blank lines between sentences."""
    starts = sum(line.startswith(DOCUMENT_START) for line in lines)
    words = [
        conll_fields(line)
        for line in lines
        if line.strip(" \t") and not line.startswith(DOCUMENT_START)
    ]
    if words and names_word_columns(words[0]):
        words = words[1:]
    if len(words) < 2 or len(words[0]) < 2 or any(len(word) != len(words[0]) for word in words):
        return False
    if any(" " in field for word in words for field in word):
        return False  # a table whose fields are texts
    columns = [set(column) for column in zip(*words, strict=True)]
    if starts or any("O" in tags and all(map(_TAG.fullmatch, tags)) for tags in columns):
        return True
    # Without tags of spans, blank lines must separate sentences of three words or more on average:
    # tables have no such blank lines.
    ends = sum(not line.strip() for line in lines[1:-1])
    return 0 < 3 * ends <= len(words) and len(words) >= 10


def are_separated_by_tabs(lines: Sequence[str]) -> bool:
    """Whether the lines of a file that should have commas have tabs instead."""
    tabs = {line.count("\t") for line in lines if line}
    commas = {line.count(",") for line in lines if line}
    return len(lines) > 1 and len(tabs) == 1 and tabs != {0} and (len(commas) > 1 or commas == {0})


def _json_format(nonblank: Sequence[str]) -> TableFormat | None:
    """Return `jsonl` if the first of several lines is an object, `json` for one document."""
    first = nonblank[0].strip()
    if first in ("[", "{") or first.startswith("[{"):
        return "json"
    try:
        is_object = first.startswith("{") and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return None
    return ("jsonl" if len(nonblank) > 1 else "json") if is_object else None


def _is_conllu(nonblank: Sequence[str]) -> bool:
    words = [line.split("\t") for line in nonblank if not line.startswith("#")]
    return bool(words) and all(
        len(fields) == len(CONLLU_COLUMNS) and re.fullmatch(r"\d+([-.]\d+)?", fields[0])
        for fields in words
    )
