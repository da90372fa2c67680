"""Which columns hold the prompts, the choices and the number of the right one."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import DataError
from ..labels import label_name
from ..placed import Rows, text_of, unpacked
from ..schema import Column, Role, RoleColumns, Schema
from ..task import Row

CHOICE_PREFIXES = ("ending", "choice", "option", "answer")


def _numbered(rows: Rows, found: RoleColumns) -> Column:  # noqa: ARG001
    """The columns that are called choice1, choice2 and the like, in the order of their numbers."""
    for prefix in CHOICE_PREFIXES:
        numbers = {name: name.removeprefix(prefix).lstrip("_") for name in rows.columns}
        own = [
            name for name in rows.columns if name.startswith(prefix) and numbers[name].isdecimal()
        ]
        if own:
            return tuple(sorted(own, key=lambda name: int(numbers[name])))
    return None


SCHEMA = Schema(
    Role("choices", ("choices", "endings", "options"), many=True, guess=_numbered),
    Role("prompt", ("prompt", "startphrase", "context", "premise", "question", "sent1")),
    Role("label", ("label", "answer", "gold", "correct"), of_label=True),
)


def choice_number(row: Row, column: str, where: str, first: int = 0) -> int:
    """The right choice, from 0: a table's numbers count from `first`, its letters from A."""
    name = label_name(row, column, where)
    if len(name) == 1 and name.isascii() and name.isalpha():
        return ord(name.upper()) - ord("A")
    if not name.isdecimal():
        raise DataError(f"the label {name!r} (column {column!r}) is no number", where=where)
    return int(name) - first


def choices_of(row: Row, columns: Sequence[str], where: str) -> list[str]:
    """A row's choices.

    Raises:
        DataError: there are none, or one is no text.
    """
    if len(columns) > 1:
        return [text_of(row, name, where) for name in columns]
    value = unpacked(row.get(columns[0]), list)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise DataError(f"the column {columns[0]!r} holds no list of texts", where=where)
    if not value:
        raise DataError("there are no choices", where=where)
    return value


def first_number(rows: Rows, label: str, choices: Sequence[str]) -> int:
    """What a table's numbers count from: 0 if one is 0, 1 if one is too high to count from 0.

    Raises:
        DataError: no number tells; or a row has no label, or no choices.
    """
    counted = False
    for where, row in rows:
        name = label_name(row, label, where)
        if not name.isdecimal():  # letters count from A
            continue
        counted = True
        if int(name) == 0:
            return 0
        if int(name) >= len(choices_of(row, choices, where)):
            return 1
    if counted:
        raise DataError(
            f"cannot tell whether the numbers of choices (column {label!r}) count from 0 or from 1",
            where=rows.name,
            fix="Say first_number=0 or first_number=1.",
        )
    return 0
