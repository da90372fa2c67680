"""Parquet files: a record for each row. Of the formats of files, only this one needs Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, check_path_name, first_line
from ..utils.lazy_module import LazyModule
from ..utils.memory import is_memory_short
from ..utils.remote import is_remote, open_raw, size_of
from .class_labels import name_classes, names_in_metadata
from .document_formats import Document, choose_column, documents_of, report_missing_column
from .reading import ALLOW_MORE, Reading
from .rows import LocatedRow, Rows, check_distinct, sample_of
from .spans import COLUMN as SPANS

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:
    pa = LazyModule("pyarrow", "parquet", "Parquet")
    pc = LazyModule("pyarrow.compute", "parquet", "Parquet")
    pq = LazyModule("pyarrow.parquet", "parquet", "Parquet")

_ROWS = 256
_BATCH_BYTES = 1 << 24


def open_parquet_table(path: str, reading: Reading) -> Rows:
    """Open a Parquet file as a table; numbers of classes become their names.

    Raises:
        DataError: it cannot be read, or two columns have the same name.
    """
    schema = _schema(path)
    check_distinct(schema.names, path)
    class_names = names_in_metadata(schema.metadata, path)

    def rows() -> Iterator[LocatedRow]:
        for where, values in read_parquet(path, reading):
            yield LocatedRow(where, name_classes(values, class_names, where))

    return Rows(path, tuple(schema.names), None, sample_of(rows), rows)


def read_parquet_documents(path: str, reading: Reading) -> Iterator[Document]:
    """Read a document from each row of a Parquet file; only the columns of texts and spans."""
    schema = _schema(path)
    column = _choose_column(path, schema, reading)
    if column is not None:
        columns = [column, SPANS] if reading.spans and SPANS in schema.names else [column]
        records = read_parquet(path, reading, columns)
        yield from documents_of(records, replace(reading, column=column))


def read_parquet(
    path: str, reading: Reading, columns: Sequence[str] | None = None
) -> Iterator[LocatedRow]:
    """Read the rows of a Parquet file; positions are `file, row 12`, from 1.

    Raises:
        DataError: the file cannot be read.
    """
    row = bytes_counted = 0
    try:
        size = size_of(path)
        with open_parquet(path) as file:
            for batch in read_batches(file, path, reading.max_line_bytes, columns):
                for record in _records(batch, path, row, reading):
                    row += 1
                    if record is not None:
                        yield LocatedRow(f"{path}, row {row}", record)
                bytes_read = size * row // file.metadata.num_rows
                reading.counts.bytes_read += bytes_read - bytes_counted
                bytes_counted = bytes_read
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise _damage_error(error, f"{path}, row {row + 1}" if row else path) from None


def _records(
    batch: pa.RecordBatch, path: str, row: int, reading: Reading
) -> list[dict[str, Any] | None]:
    """The values of the rows that follow a number of others; None for a row that is skipped."""
    try:
        records: list[dict[str, Any] | None] = batch.to_pylist()
    except UnicodeDecodeError:
        places = (f"{path}, row {row + at}" for at in range(1, len(batch) + 1))
        records = [_decode(batch, index, where, reading) for index, where in enumerate(places)]
    return records


def _decode(
    batch: pa.RecordBatch, index: int, where: str, reading: Reading
) -> dict[str, Any] | None:
    """The row of a batch at an index; None if it is skipped."""
    record = {}
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        try:
            record[name] = values[index].as_py()
        except UnicodeDecodeError:
            reading.bad("broken UTF-8", f"the value of {name!r} is not UTF-8", where=where)
            return None
    return record


def _schema(path: str) -> pa.Schema:
    check_path_name(path)
    try:
        with open_parquet(path) as file:
            return file.schema_arrow
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise _damage_error(error, path) from None


def open_parquet(path: str) -> pq.ParquetFile:
    """Open a Parquet file; texts stay dictionary-encoded, since one entry may serve many rows.

    Raises:
        OSError, pyarrow.ArrowException, UnicodeDecodeError: it is not a Parquet file.
    """
    source = open_raw(path) if is_remote(path) else path
    with pq.ParquetFile(source) as file:
        names = [field.name for field in file.schema_arrow if _is_string(field.type)]
    return pq.ParquetFile(source, memory_map=True, read_dictionary=names)


def _damage_error(error: Exception, where: str) -> Exception:
    """Return the error for a damaged file; lack of memory, which is not its fault, stays itself."""
    if is_memory_short(error):
        return error
    problem = "a name is not UTF-8" if isinstance(error, UnicodeDecodeError) else first_line(error)
    return DataError(f"cannot be read as Parquet ({problem})", where=where)


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
