"""Texts with ids, and tables that name texts by their ids, as MS MARCO's do.

    corpus.jsonl, queries.jsonl        {"_id": "d1", "title": "…", "text": "…"}
    collection.tsv, queries.dev.tsv    id, text, without a header
    qidpidtriples.train.tsv            ids of a query, its passage, and another passage

Sources: Thakur et al. (2021), "BEIR"; Bajaj et al. (2016), "MS MARCO".
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ..errors import DataError
from .rows import LocatedRow, Rows, id_of, is_missing, listing, sample_of
from .tables import read_rows

if TYPE_CHECKING:
    from ..settings.keywords import TableKeywords

ID, TITLE, TEXT = "_id", "title", "text"

CORPUS_FILES = ("corpus.jsonl", "collection.tsv", "collection.tsv.gz")
"""A folder with one of these is a judged corpus."""


def corpus_file(folder: str | os.PathLike[str]) -> Path | None:
    """Return the file of a judged corpus's texts; None if a path is no such folder."""
    files = (Path(folder) / name for name in CORPUS_FILES)
    return next((file for file in files if file.is_file()), None)


def read_texts_with_ids(path: str | os.PathLike[str], **options: Unpack[TableKeywords]) -> Rows:
    """Open a file of texts: its rows have `_id`, `text` and perhaps `title`.

    Raises:
        DataError: the file cannot be read, or is in neither layout.
    """
    rows = read_rows(path, columns=(ID,), **options)
    if ID in rows.columns or rows.has_header is None:  # a format with names
        return rows
    has_header = options.get("header")
    if not has_header:
        options["header"] = False
        rows = read_rows(path, **options)
    if has_header or len(rows.columns) != 2:
        what = f"has no column {ID!r}; {listing(rows.columns)}"
        fix = "A table without a header has an id and a text in each line."
        raise DataError(what, where=rows.name, fix=fix)
    id_column, text_column = rows.columns

    def read() -> Iterator[LocatedRow]:
        for row in rows:
            values = {ID: row.values[id_column], TEXT: row.values[text_column]}
            yield LocatedRow(row.where, values)

    return replace(rows, columns=(ID, TEXT), sample=sample_of(read), read=read)


def with_titles(rows: Rows) -> Rows:
    """Return a table whose texts begin with their titles; `text_with_title` raises errors.

    A row keeps its title, although it is no column.
    """

    def read() -> Iterator[LocatedRow]:
        for row in rows:
            yield LocatedRow(row.where, {**row.values, TEXT: text_with_title(row)})

    columns = tuple(name for name in rows.columns if name != TITLE)
    return replace(rows, columns=columns, sample=sample_of(read), read=read)


def text_with_title(row: LocatedRow) -> str:
    """A document's title and text, joined by a space; empty if both are missing.

    Raises:
        DataError: one of them is not a text.
    """
    values = (row.values.get(TITLE), row.values.get(TEXT))
    parts = [part for part in values if part is not None and not is_missing(part)]
    if not all(isinstance(part, str) for part in parts):
        raise DataError("its title or text is not a text", where=row.where)
    return " ".join(map(str, parts))


def with_texts(
    rows: Rows,
    files: Mapping[str, str | os.PathLike[str]],
    *,
    optional_columns: Collection[str] = (),
) -> Rows:
    """Return a table with texts in place of their ids; only the texts that it names are in memory.

    Args:
        files: the file of the texts of a column, by the column's name; see `read_texts_with_ids`.
        optional_columns: those that may be empty in a row.

    Raises:
        DataError: a file is not valid, lacks an id of the table, or has two texts for it.
    """

    def ids_in(row: LocatedRow, column: str) -> list[str]:
        is_empty = column in optional_columns and is_missing(row.values.get(column))
        return [] if is_empty else _ids_in(row, column)

    ids: dict[str, set[str]] = {}
    for row in rows:
        for column, path in files.items():
            ids.setdefault(os.fspath(path), set()).update(ids_in(row, column))
    texts = {path: _read_chosen(path, chosen) for path, chosen in ids.items()}

    def text(row: LocatedRow, identifier: str, path: str) -> str:
        if identifier not in texts[path]:
            raise DataError(f"the id {identifier!r} is not in {path}", where=row.where)
        return texts[path][identifier]

    def read() -> Iterator[LocatedRow]:
        for row in rows:
            values = copy(row.values)  # of the same class
            for column, path in files.items():
                own = [text(row, one, os.fspath(path)) for one in ids_in(row, column)]
                if own:
                    values[column] = own if isinstance(row.values[column], list) else own[0]
            yield LocatedRow(row.where, values)

    return replace(rows, sample=sample_of(read), read=read)


def _ids_in(row: LocatedRow, column: str) -> list[str]:
    """The id in a column, or the ids of a list."""
    value = row.values.get(column)
    ids = [id_of(one) for one in (value if isinstance(value, list) else [value])]
    if not all(ids):
        raise DataError(f"the column {column!r} has no id", where=row.where)
    return [one for one in ids if one is not None]


def _read_chosen(path: str, ids: Collection[str]) -> dict[str, str]:
    """The texts of some ids in a file."""
    texts: dict[str, str] = {}
    for row in read_texts_with_ids(path):
        identifier = id_of(row.values.get(ID))
        if identifier is not None and identifier in ids:
            add_text(texts, identifier, text_with_title(row), row.where)
    return texts


def add_text(texts: dict[str, str], identifier: str, text: str, where: str) -> None:
    """Add the text of an id.

    Raises:
        DataError: the id has another text already.
    """
    if texts.setdefault(identifier, text).split() != text.split():
        fix = "Remove one of its lines."
        raise DataError(f"the id {identifier!r} has another text before", where=where, fix=fix)
