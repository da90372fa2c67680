"""Questions with their passages and answers, nested as in SQuAD: each question becomes a row.

    {"title": …, "paragraphs": [PARAGRAPH, …]}                 an article of SQuAD
    {"context": …, "qas": [                                    a paragraph
        {"id": …, "question": …, "answers": [{"text": …, "answer_start": …}], "is_impossible": …}
    ]}

The files of simpletransformers are lists of paragraphs. Such objects
are found in JSON documents, in JSON Lines and in rows in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ..errors import DataError, truncate_repr
from .rows import LocatedRow

_Kind = TypeVar("_Kind", str, list[Any])

TITLE = "title"
"""The column with the title of a question's article."""


def holds_questions(value: Mapping[str, Any]) -> bool:
    """Whether an object is an article or a paragraph with questions, and not a row."""
    paragraphs = value.get("paragraphs")
    if isinstance(paragraphs, list):
        return all(isinstance(part, Mapping) for part in paragraphs)
    return "context" in value and isinstance(value.get("qas"), list)


def questions_of(value: Any, name: str, number: int) -> Iterator[LocatedRow]:
    """Yield the questions of an article or a paragraph.

    Each row has `id`, `title`, `context`, `question`, `is_impossible` (None if the file does not
    say it) and `answers`, a mapping of the lists `text` and `answer_start`; both are empty if the
    question has no answer. `answers` is None if the file does not give any. A paragraph that is not
    in an article has no `title`.

    Args:
        name: of the file, for messages.
        number: of the article or the paragraph, from 1.

    Raises:
        DataError: a part is missing or of another type.
    """
    if isinstance(value, Mapping) and "qas" in value:
        yield from _questions(value, {}, name, f"{name}, paragraph {number}")
        return
    place = f"{name}, article {number}"
    for at, paragraph in enumerate(_part(value, "paragraphs", list, place), 1):
        title = {TITLE: value.get("title")}
        yield from _questions(paragraph, title, name, f"{place}, paragraph {at}")


def _questions(
    paragraph: Any, title: Mapping[str, Any], name: str, where: str
) -> Iterator[LocatedRow]:
    context = _part(paragraph, "context", str, where)
    for question in _part(paragraph, "qas", list, where):
        identity = str(question.get("id", "")) if isinstance(question, Mapping) else ""
        place = f"{name}, question {truncate_repr(identity)}" if identity else where
        values = {
            "id": identity,
            **title,
            "context": context,
            "question": _part(question, "question", str, place),
            "answers": _answers(question, place),
            "is_impossible": question.get("is_impossible"),
        }
        yield LocatedRow(place, values)


def _answers(question: Mapping[str, Any], where: str) -> Any:
    """Return a question's answers; None if the file does not give any, as for test questions."""
    is_impossible = question.get("is_impossible")
    if is_impossible not in (True, False, None):
        raise DataError(
            f"is_impossible={truncate_repr(is_impossible)} is neither true nor false", where=where
        )
    answers = question.get("answers")
    if isinstance(answers, Mapping):  # lists of texts and starts, as rows have them
        return answers
    if is_impossible:  # its answers are only counted, so that they need not be valid
        answers = [
            answer
            for answer in (answers if isinstance(answers, list) else ())
            if isinstance(answer, Mapping) and isinstance(answer.get("text"), str)
        ]
    elif "answers" not in question:
        return None
    else:
        answers = _part(question, "answers", list, where)
    return {
        "text": [_part(answer, "text", str, where) for answer in answers],
        "answer_start": [answer.get("answer_start") for answer in answers],
    }


def _part(parent: Any, key: str, kind: type[_Kind], where: str) -> _Kind:
    part = parent.get(key) if isinstance(parent, Mapping) else None
    if not isinstance(part, kind):
        name = "list" if kind is list else "text"
        raise DataError(f"there is no {name} {key!r}, as in SQuAD's files", where=where)
    return part
