"""Write predictions next to their rows, as TSV, CSV or JSON Lines.

Of a table, `write_windows` writes a file that resumes; `write_predictions` writes rows as they
arrive, to a stream or to a file.
"""

from __future__ import annotations

import csv
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

from ..data.rows import LocatedRow, Row
from ..data.schema import PREDICTION
from ..errors import BertworksWarning, DataError, import_optional, shorten_list, truncate_repr
from ..jobs.parallel import Workers
from ..tasks.task import Prediction
from ..utils.atomic_writes import atomic_write
from ..utils.json_files import to_json
from ..utils.outputs import locked_output
from .engine import RowPredictor, TruncationCounts
from .window_files import (
    AppendableFormat,
    FileJob,
    RowsRecord,
    RowWindow,
    remove_file,
    row_windows,
)

if TYPE_CHECKING:
    import pandas as pd

OutputFormat: TypeAlias = Literal["auto", "tsv", "csv", "jsonl"]

_SUFFIXES: Mapping[str, OutputFormat] = {
    **{"": "tsv", ".tsv": "tsv", ".txt": "tsv"},
    ".csv": "csv",
    **{".jsonl": "jsonl", ".ndjson": "jsonl"},
}


def write_predictions(
    out: str | os.PathLike[str] | TextIO,
    predictions: Iterable[tuple[Row, Prediction]],
    *,
    format: OutputFormat = "auto",
    overwrite: bool = False,
) -> int:
    """Write rows with their predictions as they arrive, one line each.

    A file gets its name when it is completely written.

    Args:
        out: a path; or `-` or an open stream, which is written to directly.
        predictions: each row with its prediction.
        format: if "auto", chosen by the path's suffix: JSON Lines for `.jsonl` and `.ndjson`, CSV
            for `.csv`, TSV for `.tsv`, `.txt` and no suffix. TSV and CSV have a header.
        overwrite: replace an existing file.

    Returns:
        The number of rows written.

    Raises:
        DataError: the rows already have a column that would be added, or columns that the first row
            lacks; or the format cannot hold a value; or the path's suffix is unknown.
        OutputError: the file already exists, cannot be written, or another process is writing it.
    """
    format = _format_of(out, format)
    with _open_output(out, overwrite=overwrite) as stream:
        count = 0 if format == "jsonl" else -1  # the header is not a row
        for line in _lines(predictions, format, None):
            stream.write(line)
            count += 1
        return max(count, 0)


class Lines(AppendableFormat):
    """Lines of predictions, which follow a header line or nothing."""

    def __init__(self, header: str) -> None:
        self.header = header

    def head(self, rows: int = 0) -> bytes:
        del rows
        return self.header.encode()


def write_windows(
    out: str | os.PathLike[str],
    predictor: RowPredictor,
    rows: Iterable[LocatedRow],
    *,
    part: str | None,
    provenance: Mapping[str, Any],
    inputs: Sequence[object] = (),
    format: OutputFormat = "auto",
    overwrite: bool = False,
    workers: Workers,
) -> int:
    """Write the predictions of rows to a file, and its manifest; an interrupted file resumes.

    The header of a table needs the columns of a prediction: the first row is predicted for it.

    Args:
        out: a file; see `write_predictions`.
        rows: all rows; read once, or twice for a part, to count them.
        part: `I/N`: only the I-th of N parts of the rows, consecutive windows, with the header of
            the whole table.
        provenance: everything that the predictions depend on except the rows, as JSON values.
        inputs: what the output must not be.
        overwrite: delete an existing file, finished or not.

    Returns:
        The number of rows in the file.

    Raises:
        DataError, OutputError: as in `write_predictions`; or the output was started with other
            settings or rows.
        SettingsError: `part` is invalid.
    """
    format = _format_of(out, format)
    path = Path(out)
    if overwrite:
        remove_file(path, inputs)
    chunks = predictor.chunks(rows)
    first_chunks = list(islice(chunks, 1))
    columns = None
    if format != "jsonl" and first_chunks:  # without rows there is no header
        ((first, values), *_) = first_chunks[0]
        (prediction,), _ = predictor((0, [(first, values)]))
        columns = list(_flatten_row(first.values, prediction))
    header = "" if columns is None else _check_encodable(_LINES[format](columns, 1), 1)
    counts = TruncationCounts()

    def windows() -> Iterator[RowWindow[tuple[LocatedRow, Row]]]:
        if part is None:
            return row_windows(chain(first_chunks, chunks), _content_of)
        return row_windows(predictor.chunks(rows), _content_of)

    def report(record: RowsRecord, is_new: bool) -> None:
        del is_new
        counts.num_rows += record.rows
        counts.num_truncated_rows += record.num_truncated
        counts.num_truncated_tokens += record.num_truncated_tokens

    manifest = FileJob(
        path,
        windows,
        _PredictLines(predictor, format, columns),
        Lines(header),
        {**provenance, "format": format, "header": header},
        part=part,
        inputs=inputs,
        workers=workers,
    ).run(report)
    for note in counts.notes():
        warnings.warn(note, BertworksWarning, stacklevel=2)
    return manifest.rows


def _content_of(row: tuple[LocatedRow, Row]) -> str:
    """Return everything of a row that its line depends on: its values, and its context if any."""
    located_row, row_with_context = row
    text = to_json(located_row.values)
    has_context = row_with_context is not located_row.values
    return f"{text}\n{to_json(row_with_context)}" if has_context else text


@dataclass(frozen=True)
class _PredictLines:
    """Computes the lines of windows, in a worker."""

    predict: RowPredictor
    format: OutputFormat
    columns: Sequence[str] | None

    def __call__(self, window: RowWindow[tuple[LocatedRow, Row]]) -> tuple[RowsRecord, bytes]:
        predictions, counts = self.predict((window.start, window.rows))
        rows = [row.values for row, _ in window.rows]
        lines = _lines(zip(rows, predictions, strict=True), self.format, self.columns, window.start)
        content = "".join(lines).encode()
        record = RowsRecord.from_content(
            window,
            content,
            num_truncated=counts.num_truncated_rows,
            num_truncated_tokens=counts.num_truncated_tokens,
        )
        return record, content


def _format_of(out: str | os.PathLike[str] | TextIO, format: OutputFormat) -> OutputFormat:
    if format != "auto":
        return format
    name = os.fspath(out) if isinstance(out, str | os.PathLike) else ""
    suffix = Path(name).suffix.lower()
    if suffix not in _SUFFIXES:
        raise DataError(
            f"predictions cannot be written as {suffix}",
            where=name,
            fix="Name it .tsv, .csv or .jsonl.",
        )
    return _SUFFIXES[suffix]


def _lines(
    predictions: Iterable[tuple[Row, Prediction]],
    format: OutputFormat,
    columns: Sequence[str] | None,
    start: int = 0,
) -> Iterator[str]:
    """Yield a line for each row with its prediction.

    Args:
        columns: of a table whose header is written; if None, a table's header is the first line.
        start: the number of the first row.
    """
    if format == "jsonl":
        for row, prediction in predictions:
            _check_free(row, [PREDICTION])
            line = to_json({**row, PREDICTION: prediction})
            # A lone surrogate can only be written as JSON's \uXXXX.
            yield line.encode("utf-8", "backslashreplace").decode("utf-8") + "\n"
        return
    to_line = _LINES[format]
    for number, (row, prediction) in enumerate(predictions, start + 1):
        values = _flatten_row(row, prediction)
        values |= {name: _round(values[name]) for name in values.keys() - row.keys()}
        if columns is None:
            columns = list(values)
            yield _check_encodable(to_line(columns, 1), 1)
        if values.keys() - set(columns):
            extra = shorten_list(sorted(values.keys() - set(columns)))
            raise DataError(
                f"row {number} has columns that the first row does not have: {extra}", fix=_USE_JSON
            )
        cells = [_text(values.get(name)) for name in columns]
        yield _check_encodable(to_line(cells, number + 1), number + 1)


def to_frame(predictions: Iterable[tuple[Row, Prediction]], table: Any) -> pd.DataFrame:
    """Return rows with their predictions as a pandas `DataFrame`, its columns named as in a table.

    Args:
        table: the rows; an object of pandas keeps its index, and its columns if it has no rows.

    Raises:
        DataError: the rows already have a column that would be added.
        BertworksError: pandas is not installed.
    """
    pandas = import_optional("pandas", "data", "as_frame=True")
    lines = [_flatten_row(row, prediction) for row, prediction in predictions]
    index = getattr(table, "index", None)
    columns = None if lines else getattr(table, "columns", None)
    kept_index = index if isinstance(index, pandas.Index) else None
    return pandas.DataFrame(lines, index=kept_index, columns=columns)


def _flatten_row(row: Row, prediction: Prediction) -> dict[str, Any]:
    """The values of a line of a table, by column."""
    columns = dict(flatten(prediction, PREDICTION))
    _check_free(row, columns)
    return {**row, **columns}


def flatten(prediction: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a prediction, each with its path joined by dots."""
    for key, value in prediction.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}.{key}")
        else:
            yield f"{prefix}.{key}", value


def _round(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | list | tuple | dict):
        return to_json(value)
    return str(value)


_USE_JSON = "Write JSON Lines instead: a name that ends in .jsonl, or --json."


def _tsv_line(values: Sequence[str], line: int) -> str:
    for value in values:
        if "\t" in value or "\n" in value or "\r" in value:
            raise DataError(
                f"output line {line}: TSV cannot hold the tab or line end in "
                f"{truncate_repr(value)}",
                fix="Write CSV or JSON Lines instead: a name that ends in .csv or .jsonl.",
            )
    return "\t".join(values) + "\n"


def _csv_line(values: Sequence[str], _line: int) -> str:
    text = StringIO()
    csv.writer(text).writerow(values)  # quotes \r only if the line terminator has it
    return text.getvalue().removesuffix("\r\n") + "\n"


_LINES: Mapping[str, Callable[[Sequence[str], int], str]] = {"tsv": _tsv_line, "csv": _csv_line}


def _check_encodable(text: str, line: int) -> str:
    """Return the line; raise DataError if it cannot be encoded in UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        what = f"output line {line}: {error.object[error.start]!r} cannot be encoded in UTF-8"
        raise DataError(what, fix=_USE_JSON) from None
    return text


def _check_free(row: Row, names: Iterable[str]) -> None:
    for name in names:
        if name in row:
            raise DataError(
                f"the rows already have a column {name!r}", fix="Rename it, or leave it out."
            )


@contextmanager
def _open_output(out: str | os.PathLike[str] | TextIO, *, overwrite: bool) -> Iterator[TextIO]:
    if not isinstance(out, str | os.PathLike):
        yield out
        return
    if os.fspath(out) == "-":
        yield sys.stdout
        return
    with (
        locked_output(out, overwrite=overwrite),
        atomic_write(out) as new,
        new.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        yield stream
