"""Which columns of a table hold lists of words and of tags: named by the user, or guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import DataError, brief
from ...settings import Settings
from ..columns import listing, resolve
from ..conll import DOCUMENT
from ..placed import Rows, missing_column, unpacked
from ..schema import Role, Schema

if TYPE_CHECKING:
    from ..task import Row

WORD_NAMES = ("words", "tokens", "form")
DOCUMENT_NAMES = (DOCUMENT, "document_id", "doc_id")
TAG_NAMES = ("tags", "ner_tags", "labels", "label", "upos", "pos_tags", "pos", "upos_tags")


class WordColumns(Settings):
    """The columns that tagging reads; each row's hold a list.

    Attributes:
        word: the words.
        tag: their tags; none where they are unknown.
        document: the same in all rows of a document, which follow one another; none where rows
            are read without their document.
    """

    word: str
    tag: str | None = None
    document: str | None = None

    def __str__(self) -> str:
        parts = {"words": self.word, "tags": self.tag, "document": self.document}
        return ", ".join(f"{role} = {name!r}" for role, name in parts.items() if name is not None)


def _numbered(rows: Rows) -> list[str]:
    """The columns of a table without names (CoNLL): numbers; none of another table."""
    names = [column for column in rows.columns if column != DOCUMENT]
    return names if names == [str(at + 1) for at in range(len(names))] else []


SCHEMA = Schema(
    # A table without names has the words in its first column and the tags in its last.
    Role("word", WORD_NAMES, "words", guess=lambda rows, _: next(iter(_numbered(rows)), None)),
    Role(
        "tag",
        TAG_NAMES,
        "tags",
        of_label=True,
        guess=lambda rows, _: next(reversed(_numbered(rows)[1:]), None),
        fix="; of a file with a word a line, say --format conll (format=conll)",
    ),
)


def find_document_column(rows: Rows, named: str | None, *, required: bool) -> str | None:
    """Settle which column tells documents apart.

    Args:
        rows: the table.
        named: what a user calls it.
        required: whether a table without one is an error.

    Raises:
        DataError: the column is not there.
    """
    if named is not None:
        return resolve(rows.columns, named, rows.name)
    found = next((column for column in rows.columns if column.lower() in DOCUMENT_NAMES), None)
    if required and found is None:
        raise DataError(
            f"cannot tell which rows are of one document; {listing(rows.columns)}",
            where=rows.name,
            fix="Name the column that says it with document_column=NAME, or call it document.",
        )
    return found


def strings_of(row: Row, column: str, where: str | None) -> list[str]:
    """A row's list of texts in a column.

    Raises:
        DataError: there is no such column, or something else in it.
    """
    if column not in row:
        raise missing_column(column, row, where)
    value: Any = unpacked(row[column], list)
    if not isinstance(value, (list, tuple)):
        found = "nothing" if value is None else brief(value)
        raise DataError(
            f"the column {column!r} holds {found}, not a list",
            where=where,
            fix="Of a file with a word a line, say --format conll (format=conll).",
        )
    for part in value:
        if not isinstance(part, str):
            raise DataError(
                f"the column {column!r} holds {brief(part)}, which is no text", where=where
            )
    return list(value)
