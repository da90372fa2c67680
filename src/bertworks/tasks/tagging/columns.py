"""Columns of words, tags and documents, named or guessed; and the context from a row's document."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import Any

from ...data.missing_columns import MissingColumnError
from ...data.record_formats import DOCUMENT
from ...data.rows import (
    LocatedRow,
    Row,
    Rows,
    is_missing,
    listing,
    parse_json_cell,
    value_of,
)
from ...data.schema import (
    TEXT_NAMES,
    Column,
    Role,
    RoleColumns,
    Schema,
    columns_by_name,
    text_by_content,
)
from ...errors import DataError, truncate_repr
from ...utils.formatting import format_count
from ..texts import is_prose
from .entities import TEXT, TaggedWords, holds_entities, read_tagged_text

WORD_NAMES = ("words", "tokens", "form")
DOCUMENT_NAMES = (DOCUMENT, "document_id", "doc_id")
_PYTHON_LISTS = ("['", '["')  # as Python prints lists
TAG_NAMES = (
    *("tags", "ner_tags", "labels", "label", "upos", "pos_tags", "pos", "upos_tags"),
    *("entities", "spans"),
)


def find_numbered_columns(rows: Rows) -> list[str]:
    """The numbered columns of a table without column names (CoNLL); empty for other tables."""
    names = [column for column in rows.columns if column != DOCUMENT]
    return names if names == [str(at + 1) for at in range(len(names))] else []


def _guess_words(rows: Rows, _: RoleColumns) -> str | None:
    """Texts in which entities are marked, or the first column of a table without column names."""
    number_columns = find_numbered_columns(rows)
    names = [column for column in rows.columns if column.lower() in TAG_NAMES]
    if any(holds_entities(row, column) for row in rows.sample for column in names):
        return TEXT
    return number_columns[0] if number_columns else None


SCHEMA = Schema(
    # In a table without column names, words are in the first column and tags in the last.
    Role("word", WORD_NAMES, "words", guess=_guess_words),
    Role(
        "tag",
        TAG_NAMES,
        "tags",
        of_label=True,
        guess=lambda rows, _: next(reversed(find_numbered_columns(rows)[1:]), None),
        fix="; for a file with one word per line, give --format conll (format=conll)",
    ),
)


def find_columns(
    rows: Rows, training_columns: RoleColumns, *, labelled: bool, document_context: bool
) -> RoleColumns:
    """Return the columns that are read from a table: of words, tags and documents.

    The value of the column of documents is equal in all rows of a document, which must be
    consecutive; it is None if rows are read without context.

    Args:
        training_columns: those of the training table, which are used where the table has them.
        labelled: whether columns of tags, and of documents if they are read, are required.
        document_context: whether the document of each row is read.

    Raises:
        DataError: a required column cannot be found.
    """
    columns = dict(training_columns)
    if not labelled and columns["word"] not in rows.columns and "text" in rows.columns:
        return columns  # plain texts
    document = columns["document"]
    if not SCHEMA.has_required_columns(rows, columns, labelled=labelled):
        table_columns = {
            role: columns[role] for role in ("word", "tag") if columns[role] in rows.columns
        }
        columns = SCHEMA.find(rows, table_columns, labelled=labelled)
    if document_context:
        name = document if isinstance(document, str) and document in rows.columns else None
        document = find_document_column(rows, name, required=labelled)
    return {**columns, "document": document}


def find_text_column(rows: Rows, word_column: Column) -> str | None:
    """Return the column of plain texts in a table that has neither lists of words nor `text`.

    It has a usual name; or it is the only one of texts, and some have several words.

    Args:
        word_column: of the training table.
    """
    present = word_column if word_column in rows.columns else None
    if present is None and TEXT in rows.columns:
        return None
    word_role = SCHEMA.roles[0]
    words = word_role.find(rows, present, {})
    if isinstance(words, str) and not _are_plain_texts(rows, words):
        return None
    by_name = columns_by_name(rows.columns)
    by_usual_name = next((by_name[name] for name in TEXT_NAMES if name in by_name), None)
    if by_usual_name is not None:
        return by_usual_name if _are_plain_texts(rows, by_usual_name) else None
    (only,) = rows.columns if len(rows.columns) == 1 else (None,)
    column = only or text_by_content(rows.columns, rows.sample)
    if column is None or not _are_plain_texts(rows, column):
        return None
    texts = [row.get(column) for row in rows.sample]
    return column if any(isinstance(text, str) and is_prose(text) for text in texts) else None


def _are_plain_texts(rows: Rows, column: str) -> bool:
    """Whether no cell of a column is a list of words, or should be one."""
    return all(
        is_missing(cell) or (isinstance(cell, str) and not _is_printed_list(cell))
        for cell in (row.get(column) for row in rows.sample)
    )


def _is_printed_list(cell: str) -> bool:
    """Whether a cell is a list as JSON or Python writes it."""
    is_list = isinstance(parse_json_cell(cell, list, object), list)
    return is_list or cell.startswith(_PYTHON_LISTS)


def find_document_column(rows: Rows, name: str | None, *, required: bool) -> str | None:
    """Find the column that identifies the documents.

    Args:
        name: the column's name or number; guessed if None.
        required: whether a table without such a column is an error; otherwise None is returned.

    Raises:
        DataError: the column does not exist.
    """
    if name is not None:
        return rows.column(name)
    match = next((column for column in rows.columns if column.lower() in DOCUMENT_NAMES), None)
    if required and match is None:
        raise MissingColumnError(
            f"cannot tell which rows are of one document; {listing(rows.columns)}",
            where=rows.name,
            fix="Name the column with document_column=NAME, or call it document.",
            rename="Call the column document.",
        )
    return match


def read_strings(row: Row, column: str, where: str | None) -> list[str]:
    """The list of strings in a column of a row.

    Raises:
        DataError: the column does not exist, or holds something else.
    """
    value: Any = parse_json_cell(value_of(row, column, where), list)
    if not isinstance(value, (list, tuple)):
        content = "nothing" if value is None else truncate_repr(value)
        is_printed = isinstance(value, str) and value.startswith(_PYTHON_LISTS)
        raise DataError(
            f"the column {column!r} holds {content}, not a list",
            where=where,
            fix='Write lists as JSON: ["a", "b"].'  # not as Python prints them
            if is_printed
            else "For a file with one word per line, give --format conll (format=conll).",
        )
    for part in value:
        if not isinstance(part, str):
            raise DataError(
                f"the column {column!r} holds {truncate_repr(part)}, which is not a text",
                where=where,
                fix="Write the names of tags, not their numbers."
                if isinstance(part, int)
                else None,
            )
    return list(value)


def read_tags(row: Row, column: str, where: str | None) -> list[str]:
    """The list of tags in a column of a row, without blanks around them.

    Raises:
        DataError: as of `read_strings`; or a tag is empty.
    """
    tags = [tag.strip() for tag in read_strings(row, column, where)]
    if "" in tags:
        what = f"the tag of word {tags.index('') + 1} (column {column!r}) is empty"
        raise DataError(what, where=where, fix="Of a word outside all spans, it is O.")
    return tags


def read_tagged_words(row: Row, word_column: str, tag_column: str, where: str) -> TaggedWords:
    """The words of a labelled row and their tags; those of a text with entities are made of these.

    Raises:
        DataError: a column does not exist, holds something else, or they differ in length.
    """
    has_words = word_column != TEXT and _are_texts(row.get(word_column))
    if holds_entities(row, tag_column) and (row.get(tag_column) or not has_words):
        return read_tagged_text(row, tag_column, where)
    words, tags = read_strings(row, word_column, where), read_tags(row, tag_column, where)
    if len(tags) != len(words):
        what = f"{format_count(len(words), 'word')}, but {format_count(len(tags), 'tag')}"
        raise DataError(what, where=where)
    return TaggedWords(words, tags)


def _are_texts(value: Any) -> bool:
    words = parse_json_cell(value, list, object)
    return isinstance(words, (list, tuple)) and all(isinstance(word, str) for word in words)


def tags_in(rows: Sequence[Row], column: str, where: str) -> set[str]:
    """The tags in some rows, in which errors are not looked for."""
    return {
        tag
        for row in rows
        for tag in (
            read_tagged_text(row, column, where).tags
            if holds_entities(row, column)
            else read_tags(row, column, where)
        )
    }


CONTEXT_BEFORE, CONTEXT_AFTER = "context_before", "context_after"
"""The columns of a row that hold the document's words before and after the row's words."""


def add_context(
    rows: Iterable[LocatedRow], words: str, document: str | None, limit: int
) -> Iterator[tuple[LocatedRow, Row]]:
    """Yield each row together with its values plus the words around it in its document.

    These words are context only: they get no tags. Source: paper §5.3: "we include the maximal
    document context provided by the data".

    Rows are read ahead by about `limit` words, at most to the end of the document. A row without a
    document or a column of words is not changed; context that a row already has is kept.

    Args:
        words, document: the columns of words and of documents.
        limit: maximum words on each side.

    Raises:
        DataError: a row of a document has no list of words.
    """

    def document_of(row: LocatedRow) -> object:
        if document is None or words not in row.values:  # or a plain text
            return None
        return row.values.get(document)

    for name, members in groupby(rows, document_of):
        if name is None:
            yield from ((row, row.values) for row in members)
        else:
            yield from _add_context_of_document(members, words, limit)


def _add_context_of_document(
    rows: Iterable[LocatedRow], column: str, limit: int
) -> Iterator[tuple[LocatedRow, Row]]:
    words_before: deque[str] = deque(maxlen=limit)
    pending: deque[tuple[LocatedRow, list[str]]] = deque()
    num_words_after = 0  # of the pending rows but the first

    def pop_first() -> tuple[LocatedRow, Row]:
        nonlocal num_words_after
        row, words = pending.popleft()
        num_words_after -= len(pending[0][1]) if pending else 0
        words_after = islice(
            chain.from_iterable(following_words for _, following_words in pending), limit
        )
        values = {
            CONTEXT_BEFORE: list(words_before),
            CONTEXT_AFTER: list(words_after),
            **row.values,
        }
        words_before.extend(words)
        return row, values

    for row in rows:
        words = read_strings(row.values, column, row.where)
        num_words_after += len(words) if pending else 0
        pending.append((row, words))
        while num_words_after >= limit:
            yield pop_first()
    while pending:
        yield pop_first()
