"""What a user can do wrong, in words.

A `BertworksError` is for people: one or two lines that say what is wrong, where, and what to do.
The command line prints it without a traceback and exits with status 1. Faults of our own are
`assert`s and ordinary exceptions, and keep their traceback.
"""

from __future__ import annotations

import difflib
import importlib
import reprlib
from collections.abc import Iterable, Sequence
from functools import partial
from types import ModuleType
from typing import Any


class BertworksError(Exception):
    """Something a user can mend.

    Args:
        what: what is wrong, as a sentence without a final stop.
        where: the place: file, file and line (`data.tsv:12`), row, or settings key.
        fix: what to do about it, as a sentence of its own.
    """

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what, where, fix)
        self.what, self.where, self.fix = what, where, fix

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), where=self.where, fix=self.fix), (self.what,)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}. {self.fix}" if self.fix else text


class SettingsError(BertworksError):
    """A setting is unknown, of the wrong type, or impossible together with another."""


class DataError(BertworksError):
    """A file or row of data cannot be read as what it should be."""


class CheckpointError(BertworksError):
    """A model or checkpoint is missing, damaged, or of another shape than expected."""


class TrainingError(BertworksError):
    """Training cannot go on; what was saved before is untouched."""


class BertworksWarning(UserWarning):
    """Something people should know, for which nothing stops; the command line says it in a line."""


MOST_NAMES = 12
"""How many names an error lists."""

_MOST_CHARACTERS = 60
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 30
_SHORT.maxlist = _SHORT.maxdict = _SHORT.maxlevel = 2


def brief(value: object) -> str:
    """A value as Python writes it, cut where it is long: data may hold anything."""
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        return f"{value[:_MOST_CHARACTERS]!r}…"
    return repr(value) if isinstance(value, str) else _SHORT.repr(value)


def some_of(names: Sequence[str]) -> str:
    """The first dozen of some names, and how many more there are."""
    shown = ", ".join(map(brief, names[:MOST_NAMES])) or "none"
    more = len(names) - MOST_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown


def closest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most like `name`, if one is."""
    candidates = [other for other in valid if len(other) <= 2 * _MOST_CHARACTERS]
    close = difflib.get_close_matches(name[: 2 * _MOST_CHARACTERS], candidates, n=1, cutoff=0.5)
    return close[0] if close else None


def nearest(name: str, valid: Iterable[str]) -> str:
    """A phrase that suggests the valid name most like `name`, or lists some of the valid ones."""
    valid = list(valid)
    close = closest(name, valid)
    if close is not None:
        return f"The nearest valid name is {close!r}"
    more = len(valid) - MOST_NAMES
    return "Valid: " + ", ".join(valid[:MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def need(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional `module`, or say which extra of the package brings it.

    Args:
        module: the module's name, as in an `import` statement.
        extra: the extra in `pip install "bertworks[extra]"`.
        what: what needs it, as the start of a sentence.

    Raises:
        BertworksError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise BertworksError(
            f"{what} needs the package {module.split('.')[0]!r}, which is not installed",
            fix=f'Run: pip install "bertworks[{extra}]"',
        ) from None
