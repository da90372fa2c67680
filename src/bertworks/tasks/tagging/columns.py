"""Which columns of a table hold lists of words and of tags: named by the user, or guessed."""

from __future__ import annotations

from typing import Any

from ...errors import DataError
from ...settings import Settings
from ..columns import listing, resolve
from ..placed import Rows, missing_column
from ..task import Row

WORD_NAMES = ("words", "tokens", "form")
TAG_NAMES = ("tags", "ner_tags", "labels", "label", "upos", "pos_tags", "pos", "upos_tags")


class WordColumns(Settings):
    """The columns that tagging reads; each row's hold a list.

    Attributes:
        word: the words.
        tag: their tags; none where they are unknown.
    """

    word: str
    tag: str | None = None

    def __str__(self) -> str:
        tags = "" if self.tag is None else f", tags = {self.tag!r}"
        return f"words = {self.word!r}{tags}"


def find_word_columns(
    rows: Rows, *, word: str | None = None, tag: str | None = None, labelled: bool
) -> WordColumns:
    """Settle which columns hold the words and the tags.

    A table without names (CoNLL) has the words in its first column and the tags in its last.

    Raises:
        DataError: a named column is not there, or a column cannot be guessed.
    """
    by_name = {column.strip().lower(): column for column in rows.columns}
    numbered = list(rows.columns) == [str(at + 1) for at in range(len(rows.columns))]

    def find(named: str | None, known: tuple[str, ...], place: int) -> str | None:
        if named is not None:
            return resolve(rows.columns, named, rows.name)
        if numbered:
            return rows.columns[place]
        return next((by_name[name] for name in known if name in by_name), None)

    found = find(word, WORD_NAMES, 0)
    if found is None:
        raise DataError(
            f"cannot tell which column holds the words; {listing(rows.columns)}",
            where=rows.name,
            fix="Name it with word_column=NAME.",
        )
    tags = find(tag, TAG_NAMES, -1)
    if tags == found:
        tags = None
    if labelled and tags is None:
        raise DataError(
            f"cannot tell which column holds the tags; {listing(rows.columns)}",
            where=rows.name,
            fix="Name it with tag_column=NAME.",
        )
    return WordColumns(word=found, tag=tags)


def strings_of(row: Row, column: str, where: str | None) -> list[str]:
    """A row's list of texts in a column.

    Raises:
        DataError: there is no such column, or something else in it.
    """
    if column not in row:
        raise missing_column(column, row, where)
    value: Any = row[column]
    if not isinstance(value, (list, tuple)):
        found = "nothing" if value is None else f"{value!r}"
        raise DataError(f"the column {column!r} holds {found}, not a list", where=where)
    for part in value:
        if not isinstance(part, str):
            raise DataError(f"the column {column!r} holds {part!r}, which is no text", where=where)
    return list(value)
