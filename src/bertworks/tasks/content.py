"""What a table's file is, by its first lines: where its name does not say it, and for hints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import islice

from ..literals import TableFormat
from .conll import CONLLU_COLUMNS, conll_fields

_LINES = 400
_CHARACTERS = 1 << 20
_TAG = re.compile(r"O|[BIESLUM]-\S+")
_PREFIX = "__label__"
"""What fastText writes before a label."""


def first_lines(lines: Iterable[tuple[int, str]]) -> list[str]:
    """Some lines, without their ends; few where they are long."""
    found: list[str] = []
    size = 0
    for _, line in islice(lines, _LINES):
        found.append(line.rstrip("\r\n"))
        size += len(line)
        if size > _CHARACTERS:
            break
    return found


def format_of_lines(lines: Sequence[str]) -> TableFormat | None:
    """The format that a file's first lines show; None if they show none for certain."""
    filled = [line for line in lines if line.strip()]
    if not filled:
        return None
    if found := _json_format(filled):
        return found
    if _is_conllu(filled):
        return "conllu"
    if is_conll(lines):
        return "conll"
    if all(line.startswith(_PREFIX) for line in filled):
        return "label-text"
    widths = {line.count("\t") for line in filled}
    return "tsv" if len(widths) == 1 and widths != {0} else None


def is_conll(lines: Sequence[str]) -> bool:
    """Whether lines are words with their tags: as many fields in each, sentences between blanks."""
    starts = sum(line.startswith("-DOCSTART-") for line in lines)
    words = [
        conll_fields(line)
        for line in lines
        if line.strip(" \t") and not line.startswith("-DOCSTART-")
    ]
    if len(words) < 2 or len(words[0]) < 2 or any(len(word) != len(words[0]) for word in words):
        return False
    if any(" " in field for word in words for field in word):
        return False  # of a table, whose fields are texts
    columns = [set(column) for column in zip(*words, strict=True)]
    if starts or any("O" in tags and all(map(_TAG.fullmatch, tags)) for tags in columns):
        return True
    # Without tags of spans: sentences of some length, which no table has.
    ends = sum(not line.strip() for line in lines[1:-1])
    return 0 < 3 * ends <= len(words) and len(words) >= 10


def are_separated_by_tabs(lines: Sequence[str]) -> bool:
    """Whether the lines of a file that should have commas have tabs instead."""
    tabs = {line.count("\t") for line in lines if line}
    commas = {line.count(",") for line in lines if line}
    return len(lines) > 1 and len(tabs) == 1 and tabs != {0} and (len(commas) > 1 or commas == {0})


def _json_format(filled: Sequence[str]) -> TableFormat | None:
    """JSON Lines if the first line is an object; a document if it begins one."""
    first = filled[0].strip()
    if first in ("[", "{") or first.startswith("[{"):
        return "json"
    try:
        is_object = first.startswith("{") and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return None
    return ("jsonl" if len(filled) > 1 else "json") if is_object else None


def _is_conllu(filled: Sequence[str]) -> bool:
    words = [line.split("\t") for line in filled if not line.startswith("#")]
    return bool(words) and all(
        len(fields) == len(CONLLU_COLUMNS) and re.fullmatch(r"\d+([-.]\d+)?", fields[0])
        for fields in words
    )
