"""Rows from files that are one JSON document: an array of objects, or SQuAD's questions.

    [{"text": …, "label": …}, …]        or the array as {"data": …}

Of SQuAD a row is one question, its passage and its answers:

{"data": [{"title": …, "paragraphs": [{"context": …, "qas": [
    {"id": …, "question": …, "answers": [{"text": …, "answer_start": …}], "is_impossible": …}
]}]}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from ..errors import DataError, brief
from ..json_text import parse_json
from .delimited import too_long
from .placed import PlacedRow

TITLE = "title"
"""The column of a question's article."""


def holds_one_document(lines: Iterable[tuple[int, str]]) -> bool:
    """Whether a JSON file is one document over all of its lines, rather than one a line."""
    first = list(islice((line for _, line in lines if line.strip()), 2))
    if len(first) == 1:
        head = first[0].lstrip()[:1000]
        return head.startswith("[") or '"data"' in head or '"paragraphs"' in head
    try:
        return bool(first) and not isinstance(json.loads(first[0]), dict)
    except (ValueError, RecursionError):
        return True


def read_document(lines: Iterable[tuple[int, str]], name: str, limit: int) -> Iterator[PlacedRow]:
    """The rows of a file that is one JSON document.

    Args:
        lines: with their numbers.
        name: of the file, for errors.
        limit: the most characters of the document, which is held in memory.

    Raises:
        DataError: the file is no JSON, or not of one of the two forms; or it is too long.
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
        raise DataError(f"no JSON: {error.msg}", where=f"{name}:{error.lineno}") from None
    except ValueError as error:
        raise DataError(f"no JSON that can be read: {error}", where=name) from None
    rows = document.get("data") if isinstance(document, dict) else document
    if isinstance(rows, list) and not _is_squad(rows):
        for number, row in enumerate(rows, 1):
            where = f"{name}, row {number}"
            if not isinstance(row, dict):
                raise DataError(f"a JSON {type(row).__name__}, not an object", where=where)
            yield PlacedRow(where, row)
        return
    yield from _questions(document, name)


def _is_squad(articles: list[Any]) -> bool:
    return any(isinstance(article, dict) and "paragraphs" in article for article in articles[:1])


def _questions(document: Any, name: str) -> Iterator[PlacedRow]:
    """The questions of a file of SQuAD, version 1.1 or 2.0.

    Each row has `id`, `title`, `context`, `question` and `answers`, a mapping of the lists `text`
    and `answer_start`; without an answer, these are empty.
    """
    for number, article in enumerate(_list(document, "data", name), 1):
        place = f"{name}, article {number}"
        for at, paragraph in enumerate(_list(article, "paragraphs", place), 1):
            where = f"{place}, paragraph {at}"
            context = _text(paragraph, "context", where)
            for question in _list(paragraph, "qas", where):
                identity = str(question.get("id", "")) if isinstance(question, dict) else ""
                own = f"{name}, question {brief(identity)}" if identity else where
                yield PlacedRow(
                    own,
                    {
                        "id": identity,
                        TITLE: article.get("title"),
                        "context": context,
                        "question": _text(question, "question", own),
                        "answers": _answers(question, own),
                    },
                )


def _answers(question: Mapping[str, Any], where: str) -> dict[str, list[Any]] | None:
    """A question's answers; None where nothing is said of any, as in a file of test questions."""
    is_impossible = question.get("is_impossible")
    if is_impossible not in (True, False, None):
        raise DataError(
            f"is_impossible={brief(is_impossible)} is neither true nor false", where=where
        )
    if is_impossible:
        return {"text": [], "answer_start": []}
    if "answers" not in question:
        return None
    answers = _list(question, "answers", where)
    return {
        "text": [_text(answer, "text", where) for answer in answers],
        "answer_start": [answer.get("answer_start") for answer in answers],
    }


def _list(of: Any, key: str, where: str) -> list[Any]:
    found = of.get(key) if isinstance(of, dict) else None
    if not isinstance(found, list):
        raise DataError(f"there is no list {key!r}, as SQuAD's files have", where=where)
    return found


def _text(of: Any, key: str, where: str) -> str:
    found = of.get(key) if isinstance(of, dict) else None
    if not isinstance(found, str):
        raise DataError(f"there is no text {key!r}, as SQuAD's files have", where=where)
    return found
