"""The columns of questions and answers, and the answers of a row in all forms that files have.

    question, context, answer, answer_start                    a text and its start: CSV
    answers: {"text": [...], "answer_start": [...]}            SQuAD in `datasets` and `predict`
    answers: [{"text": …, "answer_start": …}, …]               SQuAD's own JSON
    answers.text, answers.answer_start                         the same, flattened by pandas
    answers: ["…", "…"]                                        texts; starts in another column

A start counts characters of the passage from 0. It may be a number or its text ("49"). In CSV and
TSV, lists and mappings are JSON. With `is_impossible`, a row has no answer; those that it has
nevertheless are ignored, and counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ...data.rows import Row, Rows, is_missing
from ...data.schema import Column, Role, RoleColumns, Schema, columns_by_name
from ...errors import DataError, truncate_repr

_START_NAMES = (
    *("answer_start", "answer_starts", "answers.answer_start", "answer.answer_start"),
    *("answers_start", "answer_start_index", "answer_start_char", "answer_offset"),
)
# Columns of these names may hold something else, such as a time: their values decide.
_AMBIGUOUS_START_NAMES = (
    "start",
    "starts",
    "start_index",
    "start_char",
    "char_start",
    "answer_begin",
)
_TEXT_KEYS = ("text", "texts", "answer", "answer_text")
_START_KEYS = ("answer_start", "answer_starts", "start", "answer_start_index")
_START_TYPES = (int, float, str, type(None))
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_PYTHON_MAPPINGS = ("{'text'", "{'answer_start'", "[{'text'", "[{'answer_start'")


def _guess_starts(rows: Rows, columns: RoleColumns) -> Column:  # noqa: ARG001
    by_name = columns_by_name(rows.columns)
    for name in _AMBIGUOUS_START_NAMES:
        values = [row.get(by_name[name]) for row in rows.sample] if name in by_name else []
        if values and all(map(_are_starts, values)):
            return by_name[name]
    return None


SCHEMA = Schema(
    Role("question", ("question", "query")),
    Role("context", ("context", "passage"), title="passage"),
    Role(
        "answers",
        (
            *("answers", "answer", "answer_text", "answers.text", "answer.text", "answers_text"),
            *("answer_texts", "text"),
        ),
        of_label=True,
    ),
    Role(
        "start",
        _START_NAMES,
        title="answer's start",
        of_label=True,
        optional=True,
        guess=_guess_starts,
    ),
    Role("impossible", ("is_impossible", "impossible"), of_label=True, optional=True),
)

USUAL_COLUMNS = {
    "question_column": "question",
    "context_column": "context",
    "answers_column": "answers",
}
"""The columns of rows for a published model, which does not name them."""


def read_answers(
    row: Row, columns: Mapping[str, Column], where: str | None
) -> tuple[list[str], list[int | None]]:
    """Return a row's answers and their starts (None if not given); both empty without an answer.

    Blank answers are ignored.

    Args:
        columns: the column of each role of `SCHEMA`; those of optional roles may be missing.

    Raises:
        DataError: the column is missing, or holds no answers in any of the forms above; or a start
            is not a whole number, or their number is another than that of the answers.
    """
    column = str(columns["answers"])
    if _is_impossible(row, columns.get("impossible"), where):
        return [], []
    texts, starts = _texts_and_starts(
        _parse_json(row.get(column), (str, Mapping), column, where), column, where
    )
    start_column = columns.get("start")
    if starts is None and isinstance(start_column, str):
        starts = _parse_json(row.get(start_column), _START_TYPES, start_column, where)
    start_numbers = _parse_starts(starts, len(texts), where)
    pairs = [pair for pair in zip(texts, start_numbers, strict=True) if pair[0].strip()]
    return [text for text, _ in pairs], [start for _, start in pairs]


def has_ignored_answers(row: Row, columns: Mapping[str, Column], where: str | None) -> bool:
    """Whether a row has answers although it says that its question has none.

    They need not be valid: starts are not read, and a value in another form is no answer.
    """
    column = str(columns["answers"])
    if not _is_impossible(row, columns.get("impossible"), where):
        return False
    try:
        value = _parse_json(row.get(column), (str, Mapping), column, where)
        texts, _ = _texts_and_starts(value, column, where)
    except DataError:
        return False
    return any(text.strip() for text in texts)


def _texts_and_starts(value: Any, column: str, where: str | None) -> tuple[list[str], Any]:
    """Return the texts of a value, and the starts that it holds; None if it holds none."""
    if isinstance(value, Mapping):
        texts = next((value[key] for key in _TEXT_KEYS if key in value), None)
        starts = next((value[key] for key in _START_KEYS if key in value), None)
        texts = [texts] if isinstance(texts, str) else texts
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
            return texts, starts
    elif isinstance(value, str):
        return [value], None
    elif isinstance(value, list) and all(isinstance(part, str) for part in value):
        return value, None
    elif isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        parts = [_texts_and_starts(part, column, where) for part in value]
        if all(len(texts) == 1 and not isinstance(start, list) for texts, start in parts):
            return [texts[0] for texts, _ in parts], [start for _, start in parts]
    raise DataError(
        f"the column {column!r} holds no answers",
        where=where,
        fix='It must be a text, {"text": [...], "answer_start": [...]}, or a list of '
        '{"text": ..., "answer_start": ...}.',
    )


def _parse_json(value: Any, types: tuple[type, ...], column: str, where: str | None) -> Any:
    """Parse a list or a mapping from JSON, as tables without lists have it.

    Args:
        types: types of the list's parts; a list of others is a text in brackets.
    """
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        content = json.loads(value)
    except (ValueError, RecursionError):
        if value.lstrip().startswith(_PYTHON_MAPPINGS):  # as Python prints a mapping
            raise DataError(
                f"the answers {truncate_repr(value)} (column {column!r}) are not valid JSON",
                where=where,
                fix="Write them with json.dumps.",
            ) from None
        return value
    parts = content if isinstance(content, list) else [content]
    return content if all(isinstance(part, types) for part in parts) else value


def _parse_starts(starts: Any, count: int, where: str | None) -> list[int | None]:
    if not isinstance(starts, list):
        starts = [None] * count if is_missing(starts) else [starts]
    if len(starts) != count:
        raise DataError(f"{count} answer(s) and {len(starts)} start(s)", where=where)
    return [_parse_start(start, where) for start in starts]


def _parse_start(start: Any, where: str | None) -> int | None:
    """Return the start of an answer as a number; None if it is not given."""
    if is_missing(start):
        return None
    if isinstance(start, str) and _WHOLE.fullmatch(start.strip()):
        return int(start.strip().partition(".")[0])
    if isinstance(start, int | float) and not isinstance(start, bool) and start % 1 == 0:
        return int(start)
    raise DataError(
        f"the start {truncate_repr(start)} of an answer is not a whole number",
        where=where,
        fix="It is the index of the answer's first character in the passage, from 0.",
    )


def _are_starts(value: Any) -> bool:
    """Whether a value can only be the start of an answer, or the starts of several."""
    try:
        for part in value if isinstance(value, list) else [value]:
            _parse_start(part, None)
    except DataError:
        return False
    return True


_BOOLEANS: Mapping[str, bool] = {
    **dict.fromkeys(("true", "1", "1.0", "yes"), True),
    **dict.fromkeys(("false", "0", "0.0", "no"), False),
}


def _is_impossible(row: Row, column: Column, where: str | None) -> bool:
    """Whether a row says that its question has no answer."""
    value = row.get(column) if isinstance(column, str) else None
    if is_missing(value):
        return False
    is_impossible = _BOOLEANS.get(str(value).strip().lower())
    if is_impossible is None:
        raise DataError(f"{column}={truncate_repr(value)} is neither true nor false", where=where)
    return is_impossible
