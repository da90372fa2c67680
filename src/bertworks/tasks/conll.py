"""Sentences from CoNLL's files, a word a line, as rows of lists.

    EU      B-ORG           a blank line ends a sentence; `-DOCSTART-` begins a document
    rejects O

    1  EU  EU  PROPN …      CoNLL-U: ten columns, parted by tabs; lines with # are comments;
                            `# newdoc` begins a document

Columns of CoNLL are called by their numbers, since the file names none; those of CoNLL-U by the
names of its definition. Another, `document`, holds the number of the sentence's document; a file
that marks no documents is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ..errors import DataError, brief
from .delimited import LINE_SIZE, too_long
from .placed import PlacedRow

DOCUMENT = "document"
"""The column of a sentence's document."""

CONLLU_COLUMNS = (
    *("id", "form", "lemma", "upos", "xpos"),
    *("feats", "head", "deprel", "deps", "misc"),
)
_NO_WORD = re.compile(r"\d+[-.]\d+")  # a token of several words, or an empty node
_NEW_DOCUMENT = re.compile(r"#\s*newdoc\b")


def read_conll(lines: Iterable[tuple[int, str]], name: str, limit: int) -> Iterator[PlacedRow]:
    """The sentences of a CoNLL file, its fields separated by tabs, or else by spaces.

    Args:
        lines: with their numbers.
        name: of the file, for errors.
        limit: the most characters of a sentence, a word counting as 64 at least.

    Raises:
        DataError: a line has not as many fields as the first, or a sentence is too long.
    """
    width: int | None = None
    document = 0
    for first, sentence in _sentences(lines, name, limit):
        columns: list[list[str]] = []
        for number, line in sentence:
            fields = conll_fields(line)
            if fields[0] == "-DOCSTART-":
                document += 1
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
            yield PlacedRow(f"{name}:{first}", {**values, DOCUMENT: document})


def conll_fields(line: str) -> list[str]:
    """The fields of a word's line. Blanks such as a no-break space are characters of a word."""
    return line.split("\t") if "\t" in line else [*filter(None, line.split(" "))]


def read_conllu(lines: Iterable[tuple[int, str]], name: str, limit: int) -> Iterator[PlacedRow]:
    """The sentences of a CoNLL-U file: syntactic words only, no multi-word tokens or empty nodes.

    Args:
        lines, name, limit: as `read_conll` takes them.

    Raises:
        DataError: a line has not ten fields, or an id that CoNLL-U does not know; or a sentence is
            too long.
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
                raise DataError(f"the id {brief(fields[0])} is no word's", where=f"{name}:{number}")
        if words:
            columns = map(list, zip(*words, strict=True))
            values = dict(zip(CONLLU_COLUMNS, columns, strict=True))
            yield PlacedRow(f"{name}:{first}", {**values, DOCUMENT: document})


def _sentences(
    lines: Iterable[tuple[int, str]], name: str, limit: int
) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Runs of lines that are not blank, each with the number of its first."""
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
