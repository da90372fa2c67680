"""Detect the format of a table's file, from its suffix and its first lines."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import get_args

from ..errors import DataError, truncate_repr
from ..settings.literals import TableFormat
from .headers import names_word_columns
from .lines import Lines
from .schema import LABEL_TEXT_FIX, are_labelled_texts
from .streams import COMPRESSION_SUFFIXES
from .table_formats import CONLLU_COLUMNS, DOCUMENT_START, FASTTEXT_PREFIX, conll_fields

SUFFIXES: dict[str, TableFormat] = {
    ".tsv": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".conll": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".conllu": "conllu",
}
"""The formats that suffixes stand for."""
# Suffixes that do not settle the format: CoNLL files, among others, have them too.
_BY_CONTENT = (".tsv", ".txt", ".jsonl", ".ndjson", "")
_LINES = 400
_CHARACTERS = 1 << 20
_TAG = re.compile(r"O|[BIESLUM]-\S+")


def suffix_of(path: str) -> str:
    """Return the last suffix of a file's name that is not one of compression."""
    return [part for part in ["", *Path(path).suffixes] if part not in COMPRESSION_SUFFIXES][-1]


def format_of_content(
    path: str, lines: Sequence[str], suffix_format: TableFormat | None
) -> TableFormat:
    """Detect the format of a file from its first lines, if its suffix does not settle it."""
    suffix = suffix_of(path)
    format = (
        _format_of_lines(lines) if suffix_format is None or suffix in _BY_CONTENT else suffix_format
    )
    if suffix_format == "jsonl":  # the suffix is also used for a single JSON document
        format = format if format == "json" else suffix_format
    if format is not None or suffix_format is not None or not suffix:
        return format or suffix_format or "tsv"
    nonblank = [line for line in lines if line.strip()]
    if are_labelled_texts(nonblank):
        fix = LABEL_TEXT_FIX
    else:
        formats = ", ".join(name for name in get_args(TableFormat) if name != "auto")
        fix = f"Give --format F (format=F), F one of {formats}."
    line = f"; its first line is {truncate_repr(nonblank[0])}" if nonblank else ""
    raise DataError(
        f"neither its suffix {suffix!r} nor its content shows its format{line}",
        where=path,
        fix=fix,
    )


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


def _format_of_lines(lines: Sequence[str]) -> TableFormat | None:
    """Detect the format from a file's first lines; None if it is not certain."""
    nonblank = [line for line in lines if line.strip()]
    if not nonblank:
        return None
    if json_format := _json_format(nonblank):
        return json_format
    if _is_conllu(nonblank):
        return "conllu"
    if _is_conll(lines):
        return "conll"
    if all(line.startswith(FASTTEXT_PREFIX) for line in nonblank):
        return "label-text"
    widths = {line.count("\t") for line in nonblank}
    return "tsv" if len(widths) == 1 and widths != {0} else None


def _is_conll(lines: Sequence[str]) -> bool:
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
