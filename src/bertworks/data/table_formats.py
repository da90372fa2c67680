"""The formats whose rows name their columns: how lines become rows with their places.

CoNLL: one word per line; a sentence becomes a row of lists. Columns of CoNLL are named by their
numbers, because the file does not name them; those of CoNLL-U as in its specification. One more
column, `document`, holds the number of the sentence's document; a file without marks of documents
is one document.

    EU      B-ORG           a blank line ends a sentence; `-DOCSTART-` begins a document
    rejects O

    1  EU  EU  PROPN …      CoNLL-U: ten columns, separated by tabs; lines with # are comments;
                            `# newdoc` begins a document

One JSON document: an array of objects, possibly inside {"data": …}; or articles or paragraphs with
questions, as in SQuAD (see `questions_of`):

    [{"text": …, "label": …}, …]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from ..errors import DataError, truncate_repr
from ..utils.json_files import parse_json
from .lines import LINE_SIZE, Lines, too_long
from .questions import holds_questions, questions_of
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


FASTTEXT_PREFIX = "__label__"
"""The prefix of labels in fastText's files."""
_BLANKS = re.compile(r"[ \t]+")
_ONE_A_LINE = 'Each line must hold one object, like {"text": …, "label": …}.'


def read_json_lines(lines: Lines, name: str, _limit: int) -> Iterator[LocatedRow]:
    """Read a JSON object from each line that is not blank, or questions as in SQuAD.

    Raises:
        DataError: a line holds something else.
    """
    for number, line in lines:
        if line.strip():
            where = f"{name}:{number}"
            value = _json_object(line, where)
            if holds_questions(value):
                yield from questions_of(value, name, number)
            else:
                yield LocatedRow(where, value)


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        what = f"not valid JSON: {error.msg} (column {error.colno})"
        raise DataError(what, where=where, fix=_ONE_A_LINE) from None
    except RecursionError:
        raise DataError("JSON that cannot be read: nested too deeply", where=where) from None
    except ValueError:  # Python's limit of digits in an integer
        raise DataError("JSON that cannot be read: a number is too long", where=where) from None
    if not isinstance(value, dict):
        raise DataError(
            f"a JSON {type(value).__name__}, not an object",
            where=where,
            fix=_ONE_A_LINE,
        )
    return value


def read_label_text(lines: Lines, name: str, _limit: int) -> Iterator[LocatedRow]:
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
            where = f"{name}:{number}"
            raise DataError(f"there is no text after the label {truncate_repr(label)}", where=where)
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


def read_text(lines: Lines, name: str, _limit: int) -> Iterator[LocatedRow]:
    """Read a text from each line."""
    for number, line in lines:
        yield LocatedRow(f"{name}:{number}", {"text": line.rstrip("\r\n")})


Readers: TypeAlias = Mapping[str | None, Callable[[Lines, str, int], Iterator[LocatedRow]]]
"""For each format whose rows name their columns: the function that reads its lines."""

READERS: Readers = {
    "jsonl": read_json_lines,
    "json": read_document,
    "conll": read_conll,
    "conllu": read_conllu,
    "label-text": read_label_text,
    "text": read_text,
}
