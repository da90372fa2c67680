"""Readers of documents in tables (Parquet files, Hugging Face data sets), one document per row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, check_path_name, import_optional
from ..utils.lazy_module import LazyModule
from ..utils.memory import is_memory_short
from ..utils.remote import is_remote, open_raw, size_of
from .document_formats import (
    Document,
    choose_column,
    document_of,
    documents_of,
    report_missing_column,
)
from .reading import ALLOW_MORE, Reading
from .sources import CorpusSource, is_saved_dataset
from .spans import COLUMN as SPANS
from .streams import reason

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")
    pq = LazyModule("pyarrow.parquet")

_ROWS = 256
_BATCH_BYTES = 1 << 24


def read_parquet(path: str, reading: Reading) -> Iterator[Document]:
    """A Parquet file with one document per row; line feeds in the text separate paragraphs.

    Positions are `file, row 12`, from 1.
    """
    check_path_name(path)
    counts, row = reading.counts, 0
    size, bytes_counted = size_of(path), 0
    try:
        with open_parquet(path) as file:
            column = _choose_column(path, file.schema_arrow, reading)
            if column is None:
                return
            has_spans = reading.spans and SPANS in file.schema_arrow.names
            columns = [column, SPANS] if has_spans else [column]
            for batch in read_batches(file, path, reading.max_line_bytes, columns):
                for index, value in enumerate(batch.column(column)):
                    row += 1
                    where = f"{path}, row {row}"
                    text = _value(value, column, where, reading)
                    if text is None:
                        continue
                    spans = batch.column(SPANS)[index].as_py() if has_spans else None
                    if document := document_of(text, spans, where, reading):
                        yield document
                read = size * row // file.metadata.num_rows
                counts.bytes_read += read - bytes_counted
                bytes_counted = read
    except (OSError, pa.ArrowException) as error:
        if is_memory_short(error):  # not the file's fault: do not skip it
            raise
        what = f"cannot be read as Parquet ({reason(error)})"
        reading.bad("damaged file", what, where=f"{path}, row {row + 1}" if row else path)


def open_parquet(path: str) -> pq.ParquetFile:
    """Open a Parquet file; texts stay dictionary-encoded, since one entry may serve many rows.

    Raises:
        OSError, pyarrow.ArrowException: it is not a Parquet file.
    """
    source = open_raw(path) if is_remote(path) else path
    with _names_are_utf_8(), pq.ParquetFile(source) as file:
        names = [field.name for field in file.schema_arrow if _is_string(field.type)]
    return pq.ParquetFile(source, memory_map=True, read_dictionary=names)


@contextmanager
def _names_are_utf_8() -> Iterator[None]:
    """Raise Arrow's error, instead of UnicodeDecodeError, for a damaged column name."""
    try:
        yield
    except UnicodeDecodeError:
        raise pa.ArrowInvalid("a column's name is not UTF-8") from None


def read_batches(
    file: pq.ParquetFile, path: str, limit: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in batches, smaller ones for large rows.

    Args:
        file: from `open_parquet`.
        limit: the maximum number of bytes of a text.

    Raises:
        DataError: a text is longer.
        pyarrow.ArrowException: the file is damaged.
    """
    row_bytes = 1
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for at in range(group.num_columns):
            chunk = group.column(at)
            with _names_are_utf_8():
                name = chunk.path_in_schema
            if columns is not None and name.split(".")[0] not in columns:
                continue
            mean = chunk.total_uncompressed_size // max(1, chunk.num_values)
            if mean > limit:  # checked before reading a value of that size
                raise _too_long(name, limit, path)
            row_bytes = max(row_bytes, mean)
    size = max(1, min(_ROWS, _BATCH_BYTES // row_bytes))
    row = 0
    for batch in file.iter_batches(size, columns=columns):
        longest = 1
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            if not _is_string(values.type):
                continue
            lengths = _lengths(values)
            if lengths.max() > limit:
                raise _too_long(name, limit, f"{path}, row {row + int(lengths.argmax()) + 1}")
            longest = max(longest, int(lengths.max()))
        # As Python values, rows do not share texts: memory grows with the length.
        step = max(1, _BATCH_BYTES // longest)
        yield from (batch.slice(at, step) for at in range(0, len(batch), step))
        row += len(batch)


def _lengths(values: pa.Array) -> NDArray[np.int64]:
    """The length of each text of a column in bytes, `[rows]` (rows ≥ 1); 0 for null."""
    if pa.types.is_dictionary(values.type):
        lengths = pc.take(pc.binary_length(values.dictionary), values.indices)
    else:
        lengths = pc.binary_length(values)
    found: NDArray[np.int64] = lengths.fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _too_long(column: str, limit: int, where: str) -> DataError:
    what = f"a value of {column!r} is longer than {limit:,} bytes"
    return DataError(what, where=where, fix=ALLOW_MORE)


def read_dataset(source: CorpusSource, reading: Reading) -> Iterator[Document]:
    """Stream the documents of a Hugging Face data set; see `open_dataset`."""
    row = 0

    def records() -> Iterator[tuple[str, Mapping[str, Any]]]:
        nonlocal row
        for row, record in enumerate(open_dataset(source), 1):
            yield f"{source.path}, row {row}", record

    yield from documents_of(records(), reading)
    if not row:
        reading.bad("empty file", "the data set holds no rows", where=source.path)


def open_dataset(source: CorpusSource) -> Any:
    """Open a split of a Hugging Face data set: the given one, else `train`, else the only one.

    Raises:
        BertworksError: the package `datasets` is not installed.
        DataError: there is no such data set or split.
    """
    datasets: Any = import_optional("datasets", "data", "Reading a Hugging Face data set")
    name, config, split = source.dataset
    try:
        if is_saved_dataset(Path(name)):
            data = datasets.load_from_disk(name)
        else:
            data = datasets.load_dataset(name, config, streaming=True)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be loaded ({reason(error)})", where=source.path) from None
    if isinstance(data, dict):
        data = data[_choose_split(source, list(data), split)]
    return data


def _choose_split(source: CorpusSource, splits: list[str], split: str | None) -> str:
    if split is None:
        split = "train" if "train" in splits else splits[0] if len(splits) == 1 else None
    if split not in splits:
        raise DataError(
            f"no split {split!r}" if split else "several splits, and none is chosen",
            where=source.path,
            fix=f"The splits are: {', '.join(splits)}. Add #SPLIT to the name.",
        )
    return split


def _choose_column(path: str, schema: pa.Schema, reading: Reading) -> str | None:
    column = reading.column
    if column is None:
        strings = [field.name for field in schema if _is_string(field.type)]
        column = choose_column(schema.names, strings)
    if column is None or column not in schema.names:
        report_missing_column(column, schema.names, path, reading)
        return None
    if schema.names.count(column) > 1:
        raise DataError(
            f"several columns are called {column!r}",
            where=path,
            fix="Rename them, or name another with --column.",
        )
    kind = schema.field(column).type
    if not _is_string(kind):
        what = f"the column {column!r} holds {kind}, not strings"
        reading.bad("value is not a string", what, where=path)
        return None
    return column


def _is_string(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _value(scalar: Any, column: str, where: str, reading: Reading) -> str | None:
    try:
        text = scalar.as_py()
    except UnicodeDecodeError:
        reading.bad("broken UTF-8", f"the value of {column!r} is not UTF-8", where=where)
        return None
    if text is None:
        reading.bad("value is not a string", f"the value of {column!r} is missing", where=where)
        return None
    return str(text)
