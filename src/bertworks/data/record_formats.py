"""The formats whose records name their columns: how lines become rows with their places.

CoNLL: one word per line; a sentence becomes a row of lists. Columns of CoNLL are named by their
numbers, because the file does not name them; those of CoNLL-U as in its specification. One more
column, `document`, holds the number of the sentence's document; a file without marks of documents
is one document.

    EU      B-ORG           a blank line ends a sentence; `-DOCSTART-` begins a document
    rejects O

    1  EU  EU  PROPN …      CoNLL-U: ten columns, separated by tabs; lines with # are comments;
                            `# newdoc` begins a document

One JSON document: an array of objects, possibly inside {"data": …}; or articles or paragraphs with
questions, as in SQuAD and RACE (see `nested_rows.py`):

    [{"text": …, "label": …}, …]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ..errors import DataError, truncate_repr
from ..utils.json_files import RepeatedKeys, parse_json
from .lines import LINE_SIZE, Lines, too_long
from .nested_rows import holds_choices, rows_in_record
from .questions import holds_questions, questions_of
from .reading import Reading
from .rows import LocatedRow, WholeLabel

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


def read_conll(lines: Lines, name: str, reading: Reading) -> Iterator[LocatedRow]:
    """Read the sentences of a CoNLL file, whose fields are separated by tabs, otherwise by spaces.

    A sentence with a line of another number of fields than the first is bad.

    Raises:
        DataError: a sentence is longer than `max_line_bytes`; each line counts as at least 64.
    """
    width: int | None = None
    document = 0
    for start, sentence in _sentences(lines, name, reading.max_line_bytes):
        first, columns = start, list[list[str]]()
        for number, line in sentence:
            fields = conll_fields(line)
            if fields[0] == DOCUMENT_START:
                if columns:  # there is no blank line before it
                    yield _conll_row(name, first, columns, document)
                    columns = []
                document += 1
                first = number + 1
                if reading.document_starts and len(fields) > 1:
                    values = {str(at): [field] for at, field in enumerate(fields, 1)}
                    yield LocatedRow(f"{name}:{number}", {**values, DOCUMENT: document})
                continue
            if width is None:
                width = len(fields)
            if len(fields) != width:
                what = f"{len(fields)} field(s), where the first line has {width}"
                reading.bad("wrong number of fields", what, where=f"{name}:{number}")
                columns = []
                break
            columns = columns or [[] for _ in fields]
            for column, field in zip(columns, fields, strict=True):
                column.append(field)
        if columns:
            yield _conll_row(name, first, columns, document)


def _conll_row(name: str, line: int, columns: list[list[str]], document: int) -> LocatedRow:
    values = {str(at): column for at, column in enumerate(columns, 1)}
    return LocatedRow(f"{name}:{line}", {**values, DOCUMENT: document})


def conll_fields(line: str) -> list[str]:
    """Split a word's line. Blanks other than spaces and tabs (no-break space) are part of words."""
    return line.split("\t") if "\t" in line else [*filter(None, line.split(" "))]


def read_conllu(lines: Lines, name: str, reading: Reading) -> Iterator[LocatedRow]:
    """Read the sentences of a CoNLL-U file: syntactic words, not multi-word tokens or empty nodes.

    A sentence is bad if a line does not have ten fields, or has an id that is not valid in CoNLL-U.

    Raises:
        DataError: a sentence is too long (see `read_conll`).
    """
    document = 0
    for first, sentence in _sentences(lines, name, reading.max_line_bytes):
        words = []
        for number, line in sentence:
            if line.startswith("#"):
                document += bool(_NEW_DOCUMENT.match(line))
                continue
            fields = line.split("\t")
            if len(fields) != len(CONLLU_COLUMNS):
                what = f"{len(fields)} field(s), where CoNLL-U has {len(CONLLU_COLUMNS)}"
            elif fields[0].isdecimal():
                words.append(fields)
                continue
            elif _NO_WORD.fullmatch(fields[0]):
                continue
            else:
                what = f"the id {truncate_repr(fields[0])} is not the id of a word"
            reading.bad("not CoNLL-U", what, where=f"{name}:{number}")
            words = []
            break
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


def read_json_document(lines: Lines, name: str, reading: Reading) -> Iterator[LocatedRow]:
    """Read the rows of a file that is one JSON document, which is loaded into memory.

    Raises:
        DataError: the file is not JSON, has neither of the two forms, or has more characters than
            `max_line_bytes`.
    """
    document = parse_document(lines, name, reading)
    rows = document.get("data", document) if isinstance(document, dict) else document
    if isinstance(rows, dict) and (holds_questions(rows) or holds_choices(rows)):
        rows = [rows]
    if not isinstance(rows, list):
        raise DataError("there is no list 'data', as in SQuAD's files", where=name)
    are_questions = bool(rows) and isinstance(rows[0], dict) and holds_questions(rows[0])
    for number, row in enumerate(rows, 1):
        if are_questions:
            yield from questions_of(row, name, number)
            continue
        where = f"{name}, row {number}"
        if isinstance(row, RepeatedKeys):
            reading.skip("bad JSON", row.error(where))
        elif isinstance(row, dict):
            yield from rows_in_record(row, name, number, where, reading.counts)
        else:
            reading.bad("bad JSON", f"a JSON {type(row).__name__}, not an object", where=where)


def parse_document(lines: Lines, name: str, reading: Reading) -> Any:
    """Return the value of a file that is one JSON document; see `read_json_document`."""
    parts, size, limit = [], 0, reading.max_line_bytes
    for _, line in lines:
        parts.append(line)
        size += len(line)
        if size > limit:
            raise too_long("document", limit, name)
    try:
        return parse_json("".join(parts), mark_repeated_keys=True)
    except json.JSONDecodeError as error:
        raise DataError(f"not valid JSON: {error.msg}", where=f"{name}:{error.lineno}") from None
    except ValueError as error:
        raise DataError(f"JSON that cannot be read: {error}", where=name) from None


FASTTEXT_PREFIX = "__label__"
"""The prefix of labels in fastText's files."""
_BLANKS = re.compile(r"[ \t]+")
_ONE_A_LINE = (
    'Each line must hold one object, like {"text": …, "label": …}; --format json (format="json") '
    "reads one document."
)


def read_json_lines(lines: Lines, name: str, reading: Reading) -> Iterator[LocatedRow]:
    """Read a JSON object from each line that is not blank, or questions as in SQuAD."""
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            value = _json_object(line, where)
        except DataError as error:
            reading.skip("bad JSON", error)
            continue
        yield from rows_in_record(value, name, number, where, reading.counts)


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        value = parse_json(line, mark_repeated_keys=True)
    except json.JSONDecodeError as error:
        what = f"not valid JSON: {error.msg} (column {error.colno})"
        raise DataError(what, where=where, fix=_ONE_A_LINE) from None
    except ValueError as error:
        raise DataError(f"JSON that cannot be read: {error}", where=where) from None
    if not isinstance(value, dict):
        raise DataError(
            f"a JSON {type(value).__name__}, not an object",
            where=where,
            fix=_ONE_A_LINE,
        )
    if isinstance(value, RepeatedKeys):
        raise value.error(where)
    return value


def read_label_text(lines: Lines, name: str, reading: Reading) -> Iterator[LocatedRow]:
    """Read lines of a label, blanks and a text; labels may have fastText's prefix."""
    for number, line in lines:
        label, text = _first_word(line.strip())
        if not label:
            continue
        labels = [label]
        while label.startswith(FASTTEXT_PREFIX) and text.startswith(FASTTEXT_PREFIX):
            label, text = _first_word(text)
            labels.append(label)
        if not text.strip():
            what = f"there is no text after the label {truncate_repr(label)}"
            reading.bad("no text", what, where=f"{name}:{number}")
            continue
        names = [
            WholeLabel(one.removeprefix(FASTTEXT_PREFIX))
            if one.startswith(FASTTEXT_PREFIX)
            else one
            for one in labels
        ]
        values = {"label": names[0] if len(names) == 1 else names, "text": text.strip()}
        yield LocatedRow(f"{name}:{number}", values)


def _first_word(text: str) -> tuple[str, str]:
    """Split a text at its first spaces or tabs, as fastText does."""
    word, *rest = _BLANKS.split(text, maxsplit=1)
    return word, "".join(rest)


def read_texts(lines: Lines, name: str, _reading: Reading) -> Iterator[LocatedRow]:
    """Read a text from each line."""
    for number, line in lines:
        yield LocatedRow(f"{name}:{number}", {"text": line.rstrip("\r\n")})
