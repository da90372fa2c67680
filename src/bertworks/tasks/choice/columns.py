"""Which columns hold the prompts, the choices and the number of the right one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import DataError
from ..columns import listing, resolve
from ..labels import label_name
from ..placed import Rows, text_of, unpacked
from ..task import Row
from .settings import ChoiceOptions

PROMPT_NAMES = ("prompt", "startphrase", "context", "premise", "question", "sent1")
CHOICE_NAMES = ("choices", "endings", "options")
CHOICE_PREFIXES = ("ending", "choice", "option", "answer")
LABEL_NAMES = ("label", "answer", "gold", "correct")


def find_choice_columns(rows: Rows, options: ChoiceOptions, *, labelled: bool) -> dict[str, Any]:
    """The columns of prompts, choices and labels, named by the user or guessed.

    Raises:
        DataError: one is not there.
    """
    columns = rows.columns

    def lacking(role: str, fix: str) -> DataError:
        what = f"cannot tell which column holds the {role}; {listing(columns)}"
        return DataError(what, where=rows.name, fix=f"Name it with {fix}.")

    if options.choice_columns is not None:
        names = [name.strip() for name in options.choice_columns.split(",")]
        choices = [resolve(columns, name, rows.name) for name in names if name]
    else:
        choices = [name for name in CHOICE_NAMES if name in columns][:1] or _numbered(columns)
    if not choices:
        raise lacking("choices", "choice_columns=NAME,NAME,…")
    if options.prompt_column is not None:
        prompt = resolve(columns, options.prompt_column, rows.name)
    else:
        prompt = next((name for name in PROMPT_NAMES if name in columns), "")
        if not prompt:
            raise lacking("prompt", "prompt_column=NAME")
    if options.label_column is not None:
        label: str | None = resolve(columns, options.label_column, rows.name)
    else:
        label = next((name for name in LABEL_NAMES if name in columns), None)
    if labelled and label is None:
        raise lacking("label", "label_column=NAME")
    return {"prompt": prompt, "choices": tuple(choices), "label": label}


def _numbered(columns: Sequence[str]) -> list[str]:
    """The columns that are called choice1, choice2 and the like, in the order of their numbers."""
    for prefix in CHOICE_PREFIXES:
        numbers = {name: name.removeprefix(prefix).lstrip("_") for name in columns}
        found = [name for name in columns if name.startswith(prefix) and numbers[name].isdecimal()]
        if found:
            return sorted(found, key=lambda name: int(numbers[name]))
    return []


def choice_number(row: Row, column: str | None, where: str, first: int = 0) -> int:
    """The right choice, from 0: a table's numbers count from `first`, its letters from A."""
    assert column is not None, "labels were asked for"
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
