"""The columns of questions, passages and answers, and what stands in the last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import DataError
from ..placed import unpacked
from ..schema import Role, Schema

if TYPE_CHECKING:
    from ..task import Row


def answers_of(row: Row, column: str, where: str | None) -> tuple[list[str], list[Any]]:
    """A row's answers and where they are said to begin; both empty where there is none.

    A text without a word is no answer.

    Raises:
        DataError: the column is missing, or does not hold answers as SQuAD writes them.
    """
    value = unpacked(row.get(column), dict)
    if isinstance(value, str):
        return ([value], [None]) if value.strip() else ([], [])
    if isinstance(value, Mapping):
        texts, starts = value.get("text"), value.get("answer_start")
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
            starts = starts if isinstance(starts, list) else [None] * len(texts)
            if len(starts) == len(texts):
                told = [pair for pair in zip(texts, starts, strict=True) if pair[0].strip()]
                return [text for text, _ in told], [start for _, start in told]
    raise DataError(
        f"the column {column!r} holds no answers",
        where=where,
        fix='It must be a text, or {"text": [...], "answer_start": [...]}.',
    )


SCHEMA = Schema(
    Role("question", ("question", "query")),
    Role("context", ("context", "passage"), title="passage"),
    Role("answers", ("answers", "answer"), of_label=True),
)
