"""Which columns hold the prompts, the choices and the number of the right one."""

from __future__ import annotations

from typing import Any

from ...errors import DataError
from ..columns import listing, resolve
from ..labels import label_name
from ..placed import Rows
from ..task import Row
from .settings import ChoiceOptions

PROMPT_NAMES = ("prompt", "startphrase", "context", "question", "sent1")
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
        choices = [name for name in CHOICE_NAMES if name in columns][:1] or [
            name
            for prefix in CHOICE_PREFIXES
            for name in columns
            if name.startswith(prefix) and name.removeprefix(prefix).lstrip("_").isdecimal()
        ]
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


def choice_number(row: Row, column: str | None, where: str, first: int = 0) -> int:
    """The right choice, from 0: a table's numbers count from `first`, its letters from A."""
    assert column is not None, "labels were asked for"
    name = label_name(row, column, where)
    if len(name) == 1 and name.isascii() and name.isalpha():
        return ord(name.upper()) - ord("A")
    if not name.isdecimal():
        raise DataError(f"the label {name!r} (column {column!r}) is no number", where=where)
    return int(name) - first
