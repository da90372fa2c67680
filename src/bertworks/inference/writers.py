"""Predictions beside the rows they are for, as TSV, CSV or JSON Lines."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias

from .. import files
from ..errors import DataError, brief, some_of
from ..locks import claim
from ..tasks.columns import PREDICTION
from ..tasks.task import Prediction, Row
from ..wording import as_json

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
) -> int:
    """Write rows with their predictions as they come, one line each.

    A file appears under its name when all of it is written.

    Args:
        out: a path, or `-` or an open stream, which is written to directly.
        predictions: each row and what is predicted for it.
        format: by the path's suffix if "auto": JSON Lines for `.jsonl`, CSV for `.csv`, TSV for
            `.tsv` and where there is none; TSV and CSV have a header.

    Returns:
        The number of rows written.

    Raises:
        DataError: the rows have a column of the name that would be added; or a value that TSV has
            no way to write; or the path's suffix is another format's.
        OutputError: the file cannot be written, or is being written by another process.
    """
    if format == "auto":
        name = os.fspath(out) if isinstance(out, str | os.PathLike) else ""
        suffix = Path(name).suffix.lower()
        if suffix not in _SUFFIXES:
            raise DataError(
                f"predictions are not written as {suffix}",
                where=name,
                fix="Name it .tsv, .csv or .jsonl.",
            )
        format = _SUFFIXES[suffix]
    if format == "jsonl":
        lines = _json_lines(predictions)
    else:
        lines = _table_lines(predictions, _csv_line if format == "csv" else _tsv_line)
    count = 0 if format == "jsonl" else -1  # the header is no row
    with _opened(out) as stream:
        for line in lines:
            stream.write(line)
            count += 1
    return max(count, 0)


def _json_lines(predictions: Iterable[tuple[Row, Prediction]]) -> Iterator[str]:
    for row, prediction in predictions:
        _check_free(row, [PREDICTION])
        line = as_json({**row, PREDICTION: prediction})
        # Half of a character cannot be written but as JSON's \uXXXX.
        yield line.encode("utf-8", "backslashreplace").decode("utf-8") + "\n"


def _table_lines(
    predictions: Iterable[tuple[Row, Prediction]], line_of: Callable[[Sequence[str], int], str]
) -> Iterator[str]:
    header: list[str] | None = None
    for number, (row, prediction) in enumerate(predictions, 1):
        flat = {name: _rounded(value) for name, value in flatten(prediction, PREDICTION)}
        _check_free(row, flat)
        values = {**row, **flat}
        if header is None:
            header = list(values)
            yield _encodable(line_of(header, 1), 1)
        if values.keys() - set(header):
            extra = some_of(sorted(values.keys() - set(header)))
            raise DataError(
                f"row {number} has columns that the first row has not: {extra}", fix=_USE_JSON
            )
        cells = [_text(values.get(name)) for name in header]
        yield _encodable(line_of(cells, number + 1), number + 1)


def flatten(prediction: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """The parts of a prediction, each under its path joined with dots."""
    for key, value in prediction.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}.{key}")
        else:
            yield f"{prefix}.{key}", value


def _rounded(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | list | tuple | dict):
        return as_json(value)
    return str(value)


_USE_JSON = "Write JSON Lines instead: a name that ends in .jsonl, or --json."


def _tsv_line(values: Sequence[str], line: int) -> str:
    for value in values:
        if "\t" in value or "\n" in value or "\r" in value:
            raise DataError(
                f"output line {line}: TSV cannot hold the tab or line end in {brief(value)}",
                fix="Write CSV or JSON Lines instead: a name that ends in .csv or .jsonl.",
            )
    return "\t".join(values) + "\n"


def _csv_line(values: Sequence[str], _line: int) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def _encodable(text: str, line: int) -> str:
    """A line that UTF-8 can hold.

    Raises:
        DataError: half of a character is in it.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        what = f"output line {line}: no UTF-8 can hold the {error.object[error.start]!r}"
        raise DataError(what, fix=_USE_JSON) from None
    return text


def _check_free(row: Row, added: Iterable[str]) -> None:
    for name in added:
        if name in row:
            raise DataError(
                f"the rows have a column {name!r} already", fix="Rename it, or leave it out."
            )


@contextmanager
def _opened(out: str | os.PathLike[str] | TextIO) -> Iterator[TextIO]:
    if not isinstance(out, str | os.PathLike):
        yield out
        return
    if os.fspath(out) == "-":
        yield sys.stdout
        return
    with (
        claim(out),
        files.atomic(out) as new,
        new.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        yield stream
