"""Texts as input of a model, one per row: lines of a file, a table's column, or a list."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack

from ..errors import BertworksWarning, DataError, truncate_repr
from .missing_columns import columns_cannot_be_named, missing_column_error
from .reading import TableOptions
from .rows import (
    LocatedRow,
    Rows,
    check_table_options,
    is_missing,
    rows_of_dataframe,
    text_of,
)
from .schema import columns_by_name, find_text_columns

if TYPE_CHECKING:
    from ..settings.keywords import TableKeywords
    from .tables import Table

_NOTHING = object()
_WORD_COLUMNS = ("word", "words", "token", "tokens", "term", "terms")


@dataclass(frozen=True)
class Texts:
    """Texts, read anew at each iteration (standard input and iterators: once)."""

    rows: Rows  # the table that they are read from
    column: str  # the column of the texts
    is_repeatable: bool  # whether they can be read more than once

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield each text's place, and the text."""
        for row in self.rows:
            yield row.where, text_of(row.values, self.column, row.where)

    def without_blank(self) -> Texts:
        """Return the texts without blank ones, which are useless in a search."""

        def rows() -> Iterator[LocatedRow]:
            for row in self.rows:
                if not is_missing(row.values.get(self.column)):
                    yield row

        return replace(self, rows=replace(self.rows, read=rows))


def read_texts(
    data: Table | Texts | Iterable[str],
    *,
    column: str | None = None,
    name: str = "text",
    **options: Unpack[TableKeywords],
) -> Texts:
    """Open texts; they are read when they are iterated over.

    Args:
        data: a `.txt` file, in which each line is a text, even an empty line; a table that
            `read_rows` accepts; texts or rows in memory; or `Texts`, returned unchanged.
        column: the texts' column in a table, by name or number; detected if omitted.
        name: the name of texts in memory, in errors; their number follows it.

    Raises:
        DataError: there is no such file or column, the column cannot be detected, or the table has
            no rows.
        SettingsError: an option is unknown or invalid.
    """
    settings = TableOptions.parse(options)
    if isinstance(data, Texts):
        return data
    check_table_options(options, data)
    data = rows_of_dataframe(data)
    if isinstance(data, str | os.PathLike):
        path = os.fspath(data)
        return _in_table(_open_file(path, column, settings), column, path != "-")
    is_repeatable = not isinstance(data, Iterator)
    items: Iterator[Any] = iter(data)
    first = next(items, _NOTHING)
    if first is _NOTHING:
        raise DataError("there are no texts")
    whole: Iterable[Any] = data if is_repeatable else chain([first], items)
    if isinstance(first, Mapping):
        from .tables import read_rows

        return _in_table(read_rows(whole), column, is_repeatable)
    _check_no_table("the texts given", column, settings.header)
    warn_of_file(first)
    return Texts(_in_memory(whole, name), "text", is_repeatable)


def read_words(
    file: str, *, column: str | None = None, **options: Unpack[TableKeywords]
) -> dict[str, str]:
    """Read a file of words: `.txt` with one per line, or a table.

    Args:
        column: the words' column in a table; if omitted, one named `word`, `token` or `term`, or
            the only column. Of several others, none is chosen: it may have texts.

    Returns:
        The words by their places, without blank ones.

    Raises:
        DataError: there is no such file or column, no column is named, a word of a `.txt`
            file has a tab, or there are no words.
        SettingsError: an option is unknown or invalid.
    """
    table = _open_file(file, column, TableOptions.parse(options))
    if column is None and len(table.columns) > 1:
        by_name = columns_by_name(table.columns)
        column = next((by_name[name] for name in _WORD_COLUMNS if name in by_name), None)
        if column is None:
            raise missing_column_error(table, "words", "Name it: column=NAME (--column NAME).")
    words: dict[str, str] = {}
    if not table.sample:
        raise DataError("the file is empty", where=file)
    for place, word in _in_table(table, column, True).without_blank():
        if "\t" in word.strip():
            fix = "Read it as a table: --format tsv." if file.endswith(".txt") else None
            raise DataError(f"{word!r} has a tab", where=place, fix=fix)
        words[place] = word.strip()
    if not words:
        raise DataError("the file is empty", where=file)
    return words


def as_texts(texts: Any) -> Any:
    """Return a user's texts as an iterable: one text or row as a list, a data frame as its rows.

    Raises:
        DataError: the argument is a path, or not iterable.
    """
    if isinstance(texts, os.PathLike):
        raise DataError(
            "a path, where texts are expected", where=os.fspath(texts), fix="Read it with data=."
        )
    rows = [texts] if isinstance(texts, str | Mapping) else rows_of_dataframe(texts)
    if not isinstance(rows, Iterable):  # an Arrow table itself is not
        raise DataError(f"expected a text, or several, got {type(texts).__name__}")
    return rows


def not_empty(items: Iterable[Any]) -> Iterable[Any] | None:
    """Return the items, none of them consumed; None if there are none."""
    first = next(iter(items), _NOTHING)
    if first is _NOTHING:
        return None
    return chain([first], items) if isinstance(items, Iterator) else items


def warn_of_file(text: Any) -> None:
    """Warn if the text is the name of a file, and name the option that reads files."""
    if isinstance(text, str) and os.path.isfile(text):
        what = f"{text!r} is read as a text; to read the file of that name, give it as data"
        warnings.warn(f"{what} (--data)", BertworksWarning, stacklevel=3)


def warn_of_files(inputs: Iterable[Any]) -> Iterator[Any]:
    """Yield inputs; warn if the text of the first one is the name of a file."""
    for number, item in enumerate(inputs):
        if not number:
            warn_of_file(item[0] if isinstance(item, list | tuple) and item else item)
        yield item


def texts_or_data(texts: Any, data: Any) -> Any:
    """Return texts or `data`, whichever is not None.

    Raises:
        DataError: both or neither are given.
    """
    if (texts is None) == (data is None):
        raise DataError(
            "give either texts or data=",
            fix='For example predict("a text"), predict(data="f.tsv").',
        )
    return texts if data is None else data


def _open_file(path: str, column: str | None, settings: TableOptions) -> Rows:
    """Open a file as a table; of a `.txt` file, each line is a row."""
    from .streams import suffix_of
    from .tables import read_rows

    is_guess = settings.format == "auto" and suffix_of(path) == ".txt"
    if is_guess:
        settings = settings.with_values(format="text")
    if settings.format == "text":
        _check_no_table(path, column, settings.header)
    table = read_rows(path, columns=(column,) if column else (), **settings.model_dump())
    if is_guess:
        _warn_of_header(table)
    return table


def _in_table(rows: Rows, column: str | None, is_repeatable: bool) -> Texts:
    if not rows.sample:
        raise DataError("there are no texts", where=rows.name)
    fix = "Name it with column=NAME (--column NAME)."
    with columns_cannot_be_named(fix):
        columns = find_text_columns(rows, text=column, labelled=False)
    if columns["pair"] is not None:
        raise missing_column_error(rows, "text", fix)
    return Texts(rows, str(columns["text"]), is_repeatable)


def _warn_of_header(table: Rows) -> None:
    """Warn if the first line of a file of texts could be a column's name."""
    from .headers import classify_first_line

    first, *rest = ([row["text"]] for row in table.sample)
    if classify_first_line(first, rest).is_header:
        line = truncate_repr(first[0])
        what = f"{table.name}:1: {line} is read as a text, as any line of a .txt file"
        fix = "If it is a column name, give --format tsv (format=tsv)"
        warnings.warn(f"{what}. {fix}", BertworksWarning, stacklevel=3)


def _check_no_table(where: str, column: str | None, header: bool | None) -> None:
    """Raise a DataError if options of tables are given for lines of text."""
    if column is not None:
        raise DataError("lines of text have no columns", where=where, fix="Leave the column out.")
    if header:
        raise DataError("lines of text have no header", where=where, fix="Leave header out.")


def _in_memory(texts: Iterable[Any], name: str) -> Rows:
    def rows() -> Iterator[LocatedRow]:
        for number, text in enumerate(texts, 1):
            yield LocatedRow(f"{name} {number}", {"text": text})

    return Rows("the texts given", ("text",), None, (), rows)
