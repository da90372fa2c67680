"""Write predictions next to their rows, as TSV, CSV or JSON Lines."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

from ..data.rows import LocatedRow, Row
from ..data.schema import PREDICTION
from ..errors import DataError, import_optional, shorten_list, truncate_repr
from ..jobs.parts import Part
from ..tasks.task import Prediction
from ..utils.atomic_writes import atomic_write, is_device
from ..utils.json_files import to_json
from ..utils.outputs import locked_output
from .manifests import (
    OutputManifest,
    checksum_of_file,
    extend_digest,
    manifest_of_part,
    manifest_path,
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
        return _write(stream, predictions, format)


def write_part(
    out: str | os.PathLike[str],
    predict: Callable[..., Iterator[tuple[Row, Prediction]]],
    rows: Iterable[LocatedRow],
    *,
    part: str,
    window_rows: int,
    provenance: Mapping[str, Any],
    format: OutputFormat = "auto",
    overwrite: bool = False,
    **options: Any,
) -> int:
    """Write one of several parts of predictions and its manifest; see `write_predictions`.

    Every part has the header of the whole table; to get it, each part also predicts the first row.

    Args:
        predict: yields rows with their predictions, from number `first` up to, but not including,
            `end`; also takes `options`.
        rows: all rows, which are read to count them.
        part: `I/N`; each part gets consecutive windows of `window_rows` rows.
        provenance: everything that the predictions depend on, as JSON values.
        overwrite: replace an existing file.

    Raises:
        DataError, OutputError: as in `write_predictions`; or the output is not a file.
        SettingsError: `part` is invalid.
    """
    format = _format_of(out, format)
    path = Path(out)
    if os.fspath(out) == "-" or is_device(path):
        raise DataError("a part is a file with a manifest next to it", fix="Name a file.")
    texts = ((row.where, to_json(row.values)) for row in rows)
    manifest, end = manifest_of_part(
        texts, OutputManifest(provenance), Part.parse(part), window_rows
    )
    header = None
    if format != "jsonl" and manifest.total:  # without rows there is no header
        header = list(_flatten_row(*next(predict(end=1))))
    digest = manifest.previous_digest

    def predict_part() -> Iterator[tuple[Row, Prediction]]:
        nonlocal digest
        for row, prediction in predict(first=manifest.first, end=end, **options):
            digest = extend_digest(digest, to_json(row))
            yield row, prediction

    with locked_output(path, overwrite=overwrite), atomic_write(path) as new:
        with _open_new(new) as stream:
            count = _write(stream, predict_part(), format, header)
        head = "" if header is None else _LINES[format](header, 1)
        manifest = replace(
            manifest,
            provenance={**provenance, "format": format, "header": head},
            rows=count,
            size=new.stat().st_size,
            digest=digest,
            complete=True,
            checksum=checksum_of_file(new),
        )
        # Written before the file gets its name: a manifest without its file is ignored.
        manifest.write(manifest_path(path))
    return count


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


def _write(
    stream: TextIO,
    predictions: Iterable[tuple[Row, Prediction]],
    format: OutputFormat,
    header: Sequence[str] | None = None,
) -> int:
    """Write rows with their predictions; return the number of rows."""
    if format == "jsonl":
        lines = _json_lines(predictions)
    else:
        lines = _table_lines(predictions, _LINES[format], header)
    count = 0 if format == "jsonl" else -1  # the header is not a row
    for line in lines:
        stream.write(line)
        count += 1
    return max(count, 0)


def _json_lines(predictions: Iterable[tuple[Row, Prediction]]) -> Iterator[str]:
    for row, prediction in predictions:
        _check_free(row, [PREDICTION])
        line = to_json({**row, PREDICTION: prediction})
        # A lone surrogate can only be written as JSON's \uXXXX.
        yield line.encode("utf-8", "backslashreplace").decode("utf-8") + "\n"


def _table_lines(
    predictions: Iterable[tuple[Row, Prediction]],
    line_of: Callable[[Sequence[str], int], str],
    header: Sequence[str] | None,
) -> Iterator[str]:
    if header is not None:
        yield _check_encodable(line_of(header, 1), 1)
    for number, (row, prediction) in enumerate(predictions, 1):
        values = _flatten_row(row, prediction)
        values |= {name: _round(values[name]) for name in values.keys() - row.keys()}
        if header is None:
            header = list(values)
            yield _check_encodable(line_of(header, 1), 1)
        if values.keys() - set(header):
            extra = shorten_list(sorted(values.keys() - set(header)))
            raise DataError(
                f"row {number} has columns that the first row does not have: {extra}", fix=_USE_JSON
            )
        cells = [_text(values.get(name)) for name in header]
        yield _check_encodable(line_of(cells, number + 1), number + 1)


def to_frame(predictions: Iterable[tuple[Row, Prediction]], *, index: Any = None) -> pd.DataFrame:
    """Return rows with their predictions as a pandas `DataFrame`, its columns named as in a table.

    Args:
        index: the index of the frame; numbers if it is no index of a pandas object.

    Raises:
        DataError: the rows already have a column that would be added.
        BertworksError: pandas is not installed.
    """
    pandas = import_optional("pandas", "data", "as_frame=True")
    lines = [_flatten_row(row, prediction) for row, prediction in predictions]
    return pandas.DataFrame(lines, index=index if isinstance(index, pandas.Index) else None)


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
    if value is None:
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
        _open_new(new) as stream,
    ):
        yield stream


def _open_new(new: Path) -> TextIO:
    return new.open("w", encoding="utf-8", newline="\n")
