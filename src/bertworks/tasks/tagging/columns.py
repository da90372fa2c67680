"""Columns of words, tags and documents, named or guessed; and the context from a row's document."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice
from typing import Any

from ...data.rows import LocatedRow, Row, Rows, listing, parse_json_cell, value_of
from ...data.schema import Role, RoleColumns, Schema
from ...data.table_formats import DOCUMENT
from ...errors import DataError, truncate_repr
from ...settings.base import Settings

WORD_NAMES = ("words", "tokens", "form")
DOCUMENT_NAMES = (DOCUMENT, "document_id", "doc_id")
TAG_NAMES = ("tags", "ner_tags", "labels", "label", "upos", "pos_tags", "pos", "upos_tags")


class WordColumns(Settings):
    """The columns that tagging reads; those of words and tags hold a list in each row."""

    word: str  # the words
    tag: str | None = None  # their tags; None if unknown
    # its value is equal in all rows of a document, which must be consecutive; None if rows are read
    # without context
    document: str | None = None

    def __str__(self) -> str:
        parts = {"words": self.word, "tags": self.tag, "document": self.document}
        return ", ".join(f"{role} = {name!r}" for role, name in parts.items() if name is not None)


def numbered(rows: Rows) -> list[str]:
    """The numbered columns of a table without column names (CoNLL); empty for other tables."""
    names = [column for column in rows.columns if column != DOCUMENT]
    return names if names == [str(at + 1) for at in range(len(names))] else []


SCHEMA = Schema(
    # In a table without column names, words are in the first column and tags in the last.
    Role("word", WORD_NAMES, "words", guess=lambda rows, _: next(iter(numbered(rows)), None)),
    Role(
        "tag",
        TAG_NAMES,
        "tags",
        of_label=True,
        guess=lambda rows, _: next(reversed(numbered(rows)[1:]), None),
        fix="; for a file with one word per line, give --format conll (format=conll)",
    ),
)


def columns_of_table(
    rows: Rows, saved: WordColumns, *, labelled: bool, document_context: bool
) -> WordColumns:
    """Return the columns that are read from a table.

    Args:
        saved: the columns of the training table, which are used where the table has them.
        labelled: whether columns of tags, and of documents if they are read, are required.
        document_context: whether the document of each row is read.

    Raises:
        DataError: a required column cannot be found.
    """
    if not labelled and saved.word not in rows.columns and "text" in rows.columns:
        return saved  # plain texts
    columns: RoleColumns = {"word": saved.word, "tag": saved.tag}
    if not SCHEMA.has_required_columns(rows, columns, labelled=labelled):
        known = {role: column for role, column in columns.items() if column in rows.columns}
        columns = SCHEMA.find(rows, known, labelled=labelled)
    document = saved.document
    if document_context:
        named = document if document in rows.columns else None
        document = find_document_column(rows, named, required=labelled)
    return WordColumns.parse({**columns, "document": document})


def find_document_column(rows: Rows, named: str | None, *, required: bool) -> str | None:
    """Find the column that identifies the documents.

    Args:
        named: the column's name or number; guessed if None.
        required: whether a table without such a column is an error; otherwise None is returned.

    Raises:
        DataError: the column does not exist.
    """
    if named is not None:
        return rows.column(named)
    found = next((column for column in rows.columns if column.lower() in DOCUMENT_NAMES), None)
    if required and found is None:
        raise DataError(
            f"cannot tell which rows are of one document; {listing(rows.columns)}",
            where=rows.name,
            fix="Name the column with document_column=NAME, or call it document.",
        )
    return found


def strings_of(row: Row, column: str, where: str | None) -> list[str]:
    """The list of strings in a column of a row.

    Raises:
        DataError: the column does not exist, or holds something else.
    """
    value: Any = parse_json_cell(value_of(row, column, where), list)
    if not isinstance(value, (list, tuple)):
        found = "nothing" if value is None else truncate_repr(value)
        raise DataError(
            f"the column {column!r} holds {found}, not a list",
            where=where,
            fix="For a file with one word per line, give --format conll (format=conll).",
        )
    for part in value:
        if not isinstance(part, str):
            raise DataError(
                f"the column {column!r} holds {truncate_repr(part)}, which is not a text",
                where=where,
            )
    return list(value)


BEFORE, BEHIND = "context_before", "context_behind"
"""The columns of a row that hold the document's words before and after the row's words."""


def add_context(
    rows: Iterable[LocatedRow], columns: WordColumns, limit: int
) -> Iterator[tuple[LocatedRow, Row]]:
    """Yield each row together with its values plus the words around it in its document.

    These words are context only: they get no tags. Source: paper §5.3: "we include the maximal
    document context provided by the data".

    Rows are read ahead by about `limit` words, at most to the end of the document. A row without a
    document or a column of words is not changed; context that a row already has is kept.

    Args:
        limit: maximum words on each side.

    Raises:
        DataError: a row of a document has no list of words.
    """

    def document(row: LocatedRow) -> object:
        if columns.document is None or columns.word not in row.values:  # or a plain text
            return None
        return row.values.get(columns.document)

    for name, members in groupby(rows, document):
        if name is None:
            yield from ((row, row.values) for row in members)
        else:
            yield from _of_document(members, columns.word, limit)


def _of_document(
    rows: Iterable[LocatedRow], column: str, limit: int
) -> Iterator[tuple[LocatedRow, Row]]:
    before: deque[str] = deque(maxlen=limit)
    waiting: deque[tuple[LocatedRow, list[str]]] = deque()
    behind = 0  # number of waiting words after those of the first waiting row

    def first() -> tuple[LocatedRow, Row]:
        nonlocal behind
        row, words = waiting.popleft()
        behind -= len(waiting[0][1]) if waiting else 0
        after = islice(chain.from_iterable(others for _, others in waiting), limit)
        seen = {BEFORE: list(before), BEHIND: list(after), **row.values}
        before.extend(words)
        return row, seen

    for row in rows:
        words = strings_of(row.values, column, row.where)
        behind += len(words) if waiting else 0
        waiting.append((row, words))
        while behind >= limit:
            yield first()
    while waiting:
        yield first()
