"""Read labelled tables: TSV, CSV, JSON, Parquet, CoNLL, SQuAD, Hugging Face data sets.

Each row has its place (`file:line`, or `file, row 12` in files without lines), so that later errors
can name it. `tables.formats` has the formats; `tables.headers` distinguishes a header from a row.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import Field, field_validator

from ..errors import BertworksWarning, DataError, check_path_name, shorten_list, truncate_repr
from ..settings.base import Settings
from ..settings.literals import TableFormat
from ..utils.lazy_module import LazyModule
from ..utils.remote import is_remote, remote_files
from .class_labels import ClassNames, name_classes, names_in_metadata, names_of_features
from .document_tables import open_dataset, open_parquet, read_batches
from .headers import check_separator, classify_first_line, names_word_columns
from .lines import (
    MAX_LINE_BYTES,
    Reading,
    decode_lines,
    read_head,
    read_lines,
    reason,
    text_encoding,
)
from .questions import holds_questions, questions_of
from .rows import (
    NAME,
    BufferedIterator,
    LocatedRow,
    Rows,
    WholeLabel,
    check_distinct,
    row_of,
    rows_of_dataframe,
    sample,
    sample_of,
    zip_inputs_and_labels,
)
from .schema import LABEL_TEXT_FIX, are_labelled_texts
from .sources import CorpusSource
from .table_formats import (
    FASTTEXT_PREFIX,
    Lines,
    Record,
    are_separated_by_tabs,
    conll_fields,
    first_lines,
    format_of_lines,
    holds_one_document,
    read_conll,
    read_conllu,
    read_document,
    split_csv,
    split_tsv,
)

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")


class TableOptions(Settings):
    """Table format, detected if omitted."""

    header: bool | None = Field(
        None, description="whether the first line has column names; detected if omitted"
    )
    format: TableFormat = Field("auto", description="format of files whose name does not show it")
    encoding: str = Field("utf-8", description="text encoding, such as latin-1")
    max_line_bytes: int = Field(
        MAX_LINE_BYTES, ge=1, description="maximum bytes of a line; a longer one is an error"
    )

    @field_validator("encoding")
    @classmethod
    def _is_known(cls, value: str) -> str:
        try:
            return text_encoding(value)
        except DataError as error:
            raise ValueError(f"{error.what}. {error.fix}") from None

    @classmethod
    def split(cls, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split settings into those of this class, and the others."""
        options = {name: value for name, value in settings.items() if name in cls.model_fields}
        return options, {name: value for name, value in settings.items() if name not in options}

    def table_options(self) -> dict[str, Any]:
        """Return only the options of this class, without those of a subclass."""
        return {name: getattr(self, name) for name in TableOptions.model_fields}


Table: TypeAlias = str | os.PathLike[str] | Iterable[Any]
"""A table as users pass it: a path, `hf:NAME[:CONFIG][#SPLIT]`, `-` for standard input, or rows
in memory: a list of mappings or of `(text, label)`, a tuple `(texts, labels)`, a
`datasets.Dataset`, or a table of pandas, Arrow or polars (see `tables.rows`)."""

_SUFFIXES: dict[str, TableFormat] = {
    ".tsv": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".conll": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".conllu": "conllu",
}
_COMPRESSION_SUFFIXES = (".gz", ".zst", ".zstd")
_BLANKS = re.compile(r"[ \t]+")
# Suffixes that do not settle the format: CoNLL files, among others, have them too.
_BY_CONTENT = (".tsv", ".txt", ".jsonl", ".ndjson", "")


def read_rows(
    table: Table | Rows,
    *,
    columns: Sequence[str] = (),
    document_starts: bool = False,
    **options: Any,
) -> Rows:
    """Open a table; its rows are read when they are iterated over.

    Args:
        columns: expected column names: a first line that contains one of them is a header.
        document_starts: for CoNLL: whether `-DOCSTART-` lines are rows (see `read_conll`).
        options: those of `TableOptions`: `header`, `format`, `encoding`, `max_line_bytes`.

    Raises:
        DataError: there is no such file, or it is empty or not in its format. Invalid rows raise it
            when they are reached: a wrong number of fields, an unclosed quote, a line that is too
            long or not in the encoding, invalid JSON.
        SettingsError: an option is unknown or invalid.
    """
    settings = TableOptions.parse(options)
    if isinstance(table, Rows):
        return table
    if isinstance(table, Mapping) and isinstance(table.get("data"), list):  # SQuAD's JSON, parsed
        table = table["data"]
    if not isinstance(table, str | os.PathLike):
        metadata = getattr(getattr(table, "schema", None), "metadata", None)  # of Arrow
        names = names_in_metadata(metadata, NAME) if isinstance(metadata, Mapping) else {}
        return rows_in_memory(zip_inputs_and_labels(rows_of_dataframe(table)), class_names=names)
    path = os.fspath(table)
    streams = dict(_STREAMS)
    if document_starts:
        streams["conll"] = partial(read_conll, document_starts=True)
    if path == "-":
        return _open_stdin(columns, settings, streams)
    source = CorpusSource(path)
    if source.is_dataset:
        return rows_in_memory(open_dataset(source), path)
    return _open_file(path, columns, settings, streams)


def reiterable(table: Table) -> Table:
    """Return a table that can be read repeatedly: an iterator is read into a list."""
    return list(table) if isinstance(table, Iterator) else table


def _open_file(path: str, columns: Sequence[str], options: TableOptions, streams: _Streams) -> Rows:
    if not (remote_files(path) == [path] if is_remote(path) else Path(path).is_file()):
        problem = "a folder, not a table" if Path(path).is_dir() else "no such file"
        if Path(path).is_fifo():
            problem = "a pipe, but tables are read more than once: write it to a file"
        raise DataError(problem, where=path)
    format = options.format if options.format != "auto" else _SUFFIXES.get(_suffix_of(path))
    if format == "parquet" or (format is None and read_head(path).startswith(b"PAR1")):
        _check_no_header(path, options, "parquet")
        return _open_parquet(path, options.max_line_bytes)
    lines = partial(read_lines, path, _reading(options))
    return _open_lines(path, lines, columns, options, format, streams)


def _check_no_header(path: str, options: TableOptions, format: str | None) -> None:
    """Raise a DataError if `header` is set although the format has no header."""
    if options.header is not None:
        given = f"header={str(options.header).lower()}"
        raise DataError(
            f"{given} is for tsv, csv and conll; {format} has no header line",
            where=path,
            fix="Leave it out.",
        )


def _reading(options: TableOptions) -> Reading:
    return Reading(encoding=options.encoding, max_line_bytes=options.max_line_bytes)


def _suffix_of(path: str) -> str:
    return [part for part in ["", *Path(path).suffixes] if part not in _COMPRESSION_SUFFIXES][-1]


def _format_of_content(
    path: str, lines: Sequence[str], suffix_format: TableFormat | None
) -> TableFormat:
    """Detect the format of a file from its first lines, if its suffix does not settle it."""
    suffix = _suffix_of(path)
    format = (
        format_of_lines(lines) if suffix_format is None or suffix in _BY_CONTENT else suffix_format
    )
    if suffix_format == "jsonl":  # the suffix is also used for a single JSON document
        format = format if format == "json" else suffix_format
    if format is not None or suffix_format is not None or not suffix:
        return format or suffix_format or "tsv"
    nonblank = [line for line in lines if line.strip()]
    if are_labelled_texts(nonblank):
        fix = LABEL_TEXT_FIX
    else:
        formats = ", ".join(dict.fromkeys(_SUFFIXES.values()))
        fix = f"Give --format F (format=F), F one of {formats}, label-text, text."
    seen = f"; its first line is {truncate_repr(nonblank[0])}" if nonblank else ""
    raise DataError(
        f"neither its suffix {suffix!r} nor its content shows its format{seen}", where=path, fix=fix
    )


def _open_lines(
    path: str,
    read: Callable[[], Lines],
    column_names: Sequence[str],
    options: TableOptions,
    format: TableFormat | None,
    streams: _Streams,
) -> Rows:
    assert format != "parquet", "Parquet has no lines"
    header, limit = options.header, options.max_line_bytes
    if options.format == "auto" and (header is None or format is None):
        format = _format_of_content(path, first_lines(read()), format)
    if format == "json" and not holds_one_document(read()):
        format = "jsonl"
    if format in streams:
        num_headers = 0
        if format == "conll":
            num_headers = int(_has_word_header(path, read) if header is None else header)
        else:
            _check_no_header(path, options, format)

        def stream() -> Iterator[LocatedRow]:
            return streams[format](islice(read(), num_headers, None), path, limit)

        return _of_rows(path, stream, "the file is empty")
    if format == "csv" and are_separated_by_tabs(first_lines(read())):
        raise DataError(
            "its fields are separated by tabs, not by commas",
            where=path,
            fix='--format tsv (format="tsv") reads them.',
        )

    def records() -> Iterator[Record]:
        return split_csv(read(), path, limit) if format == "csv" else split_tsv(read())

    first_records = sample(records(), lambda record: record[1])
    some = [fields for _, fields in first_records]
    if not some:
        raise DataError("the file is empty", where=path)
    check_separator(path, some, column_names, format or "tsv")
    has_header = _has_header(path, some, column_names) if header is None else header
    columns = _column_names(path, some[0], has_header)

    def rows() -> Iterator[LocatedRow]:
        for number, fields in _without_blank_end(islice(records(), int(has_header), None), columns):
            if len(fields) != len(columns):
                raise _wrong_number(
                    f"{path}:{number}", fields, columns, has_header, format or "tsv"
                )
            yield LocatedRow(f"{path}:{number}", dict(zip(columns, fields, strict=True)))

    return Rows(path, columns, has_header, sample_of(rows), rows)


def _has_header(path: str, sample: Sequence[Sequence[str]], column_names: Sequence[str]) -> bool:
    """Return whether the first line is a header; warn if it could be either."""
    one = len(sample[0]) == 1
    is_header, is_certain = classify_first_line(sample[0], sample[1:], column_names)
    if one and _suffix_of(path) == ".txt":  # one text a line, as in `texts.read_texts`
        is_header, is_certain = False, not is_header
    if not is_certain:
        verb, name = ("is", "a column name") if one else ("are", "column names")
        read = f"{verb} read as {name if is_header else 'data'}"
        fix = (
            f"If {'it is' if one else 'they are'} data, give --no-header (header=false)"
            if is_header
            else f"If {'it is' if one else 'they are'} {name}, give --header (header=true)"
        )
        warnings.warn(
            f"{path}:1: {shorten_list(sample[0])} {read}. {fix}", BertworksWarning, stacklevel=3
        )
    return is_header


def _has_word_header(path: str, read: Callable[[], Lines]) -> bool:
    """Return whether the first line of a CoNLL file names the columns; warn if it does."""
    _, first = next(iter(read()), (1, ""))
    fields = conll_fields(first.rstrip("\r\n"))
    if not names_word_columns(fields):
        return False
    what = f"{path}:1: {shorten_list(fields)} are read as column names"
    fix = "If they are a word and its tags, give --no-header (header=false)"
    warnings.warn(f"{what}. {fix}", BertworksWarning, stacklevel=4)
    return True


def _column_names(path: str, first: Sequence[str], has_header: bool) -> tuple[str, ...]:
    numbers = [str(at) for at in range(1, len(first) + 1)]
    if not has_header:
        return tuple(numbers)
    filled = {name.strip() for name in first}
    names = [
        name.strip() or (f"column {number}" if number in filled else number)
        for name, number in zip(first, numbers, strict=True)
    ]
    check_distinct(names, f"{path}:1")
    return tuple(names)


def _without_blank_end(records: Iterable[Record], columns: Sequence[str]) -> Iterator[Record]:
    """Drop blank lines at the end of a table of several columns; in one column, they are rows."""
    blank: list[Record] = []
    for record in records:
        if record[1] == [""] and len(columns) > 1:
            blank.append(record)
            continue
        yield from blank
        blank.clear()
        yield record


def _wrong_number(
    where: str, fields: Sequence[str], columns: Sequence[str], has_header: bool, format: str
) -> DataError:
    place = "header" if has_header else "first line"
    fix = None
    if len(columns) == 1 or len(fields) == 1:
        fix = f"Are the fields separated by {'commas' if format == 'csv' else 'tabs'}?"
    return DataError(
        f"{len(fields)} field(s), where the {place} has {len(columns)}", where=where, fix=fix
    )


def _of_rows(
    name: str, rows: Callable[[], Iterator[LocatedRow]], empty: str, columns: Iterable[str] = ()
) -> Rows:
    """Create a table whose rows name their columns, in addition to `columns`."""
    sample = sample_of(rows)
    if not sample:
        raise DataError(empty, where=name)
    return Rows(name, tuple(dict.fromkeys(chain(columns, *sample))), None, sample, rows)


def _read_json_lines(lines: Lines, name: str, _limit: int) -> Iterator[LocatedRow]:
    for number, line in lines:
        if line.strip():
            where = f"{name}:{number}"
            value = _json_object(line, where)
            if holds_questions(value):
                yield from questions_of(value, name, number)
            else:
                yield LocatedRow(where, value)


def _read_label_text(lines: Lines, name: str, _limit: int) -> Iterator[LocatedRow]:
    """Read lines of a label, blanks and a text; labels may have fastText's prefix."""
    for number, line in lines:
        label, text = _first_word(line.strip())
        if not label:
            continue
        labels = [label]
        while label.startswith(FASTTEXT_PREFIX) and text.startswith(FASTTEXT_PREFIX):
            label, text = _first_word(text)
            labels.append(label)
        if not text.strip():
            where = f"{name}:{number}"
            raise DataError(f"there is no text after the label {truncate_repr(label)}", where=where)
        names = [
            WholeLabel(one.removeprefix(FASTTEXT_PREFIX))
            if one.startswith(FASTTEXT_PREFIX)
            else one
            for one in labels
        ]
        values = {"label": names[0] if len(names) == 1 else names, "text": text.strip()}
        yield LocatedRow(f"{name}:{number}", values)


def _first_word(text: str) -> tuple[str, str]:
    """Split a text at its first spaces or tabs, as fastText does."""
    word, *rest = _BLANKS.split(text, maxsplit=1)
    return word, "".join(rest)


def _read_text(lines: Lines, name: str, _limit: int) -> Iterator[LocatedRow]:
    for number, line in lines:
        yield LocatedRow(f"{name}:{number}", {"text": line.rstrip("\r\n")})


_Streams: TypeAlias = Mapping[str | None, Callable[[Lines, str, int], Iterator[LocatedRow]]]
"""For each format whose rows name their columns: the function that reads its lines."""

_STREAMS: _Streams = {
    "jsonl": _read_json_lines,
    "json": read_document,
    "conll": read_conll,
    "conllu": read_conllu,
    "label-text": _read_label_text,
    "text": _read_text,
}


_ONE_A_LINE = 'Each line must hold one object, like {"text": …, "label": …}.'


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        what = f"not valid JSON: {error.msg} (column {error.colno})"
        raise DataError(what, where=where, fix=_ONE_A_LINE) from None
    except RecursionError:
        raise DataError("JSON that cannot be read: nested too deeply", where=where) from None
    except ValueError:  # Python's limit of digits in an integer
        raise DataError("JSON that cannot be read: a number is too long", where=where) from None
    if not isinstance(value, dict):
        raise DataError(
            f"a JSON {type(value).__name__}, not an object",
            where=where,
            fix=_ONE_A_LINE,
        )
    return value


def _open_parquet(path: str, limit: int) -> Rows:
    check_path_name(path)
    try:
        with open_parquet(path) as file:
            columns = tuple(file.schema_arrow.names)
            metadata = file.schema_arrow.metadata
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot be read as Parquet ({reason(error)})", where=path) from None
    check_distinct(columns, path)
    names = names_in_metadata(metadata, path)

    def rows() -> Iterator[LocatedRow]:
        number = 0
        try:
            with open_parquet(path) as file:
                for batch in read_batches(file, path, limit):
                    for values in batch.to_pylist():
                        number += 1
                        where = f"{path}, row {number}"
                        yield LocatedRow(where, name_classes(values, names, where))
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            what = f"cannot be read further ({reason(error)})"
            raise DataError(what, where=f"{path}, row {number + 1}") from None

    return Rows(path, columns, None, sample_of(rows), rows)


def rows_in_memory(
    table: Iterable[Any],
    name: str = NAME,
    *,
    place: Callable[[int], str] | None = None,
    class_names: ClassNames | None = None,
) -> Rows:
    """Open rows in memory; numbers of classes become their names, where these are known.

    Args:
        table: rows in a form that `row_of` accepts; an iterator can be read once.
        name: what errors call the table.
        place: returns what errors call the row at an index; by default its number, from 1.
        class_names: names of classes by column; by default those of a Hugging Face data set.

    Raises:
        DataError: there are no rows, or a row has another form.
    """
    features: Mapping[str, Any] = getattr(table, "features", None) or {}
    names = class_names or names_of_features(features)
    passes = BufferedIterator(table, name) if isinstance(table, Iterator) else table

    def rows() -> Iterator[LocatedRow]:
        for number, row in enumerate(passes, 1):
            where = f"{name}, row {number}" if place is None else place(number - 1)
            values = name_classes(row_of(row, where), names, where)
            if holds_questions(values):
                yield from questions_of(values, name, number)
            else:
                yield LocatedRow(where, values)

    table_rows = _of_rows(name, rows, "there are no rows", features)
    if isinstance(passes, BufferedIterator):
        passes.close()
    return table_rows


def _open_stdin(column_names: Sequence[str], options: TableOptions, streams: _Streams) -> Rows:
    name = "standard input"
    if options.format == "parquet":
        raise DataError("Parquet cannot be read from standard input", fix="Give a file.")
    lines = BufferedIterator(decode_lines(sys.stdin.buffer, name, _reading(options)), name)
    format = None if options.format == "auto" else options.format
    rows = _open_lines(name, lines.__iter__, column_names, options, format, streams)
    lines.close()
    return rows
