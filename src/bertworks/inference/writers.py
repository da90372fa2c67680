"""Predictions beside the rows they are for, as TSV or JSON Lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias

from .. import files
from ..errors import DataError
from ..locks import claim
from ..tasks.columns import PREDICTION
from ..tasks.task import Prediction, Row

OutputFormat: TypeAlias = Literal["auto", "tsv", "jsonl"]

_OTHERS = (".csv", ".json", ".parquet", ".gz", ".zst", ".zstd")
"""Suffixes under which nobody would look for TSV."""


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
        format: by the path's suffix if "auto": JSON Lines for `.jsonl`, else TSV with a header.

    Returns:
        The number of rows written.

    Raises:
        DataError: the rows have a column of the name that would be added; or a value that TSV has
            no way to write; or the path's suffix is another format's.
        OutputError: the file cannot be written, or is being written by another process.
    """
    if format == "auto":
        name = os.fspath(out) if isinstance(out, str | os.PathLike) else ""
        suffix = Path(name).suffix
        if suffix in _OTHERS:
            raise DataError(
                f"predictions are not written as {suffix}",
                where=name,
                fix="Name it .jsonl or .tsv.",
            )
        format = "jsonl" if suffix in (".jsonl", ".ndjson") else "tsv"
    lines = _json_lines(predictions) if format == "jsonl" else _tsv_lines(predictions)
    count = 0 if format == "jsonl" else -1  # the header is no row
    with _opened(out) as stream:
        for line in lines:
            stream.write(line)
            count += 1
    return max(count, 0)


def _json_lines(predictions: Iterable[tuple[Row, Prediction]]) -> Iterator[str]:
    for row, prediction in predictions:
        _check_free(row, [PREDICTION])
        line = json.dumps({**row, PREDICTION: prediction}, ensure_ascii=False, default=str)
        # Half of a character cannot be written but as JSON's \uXXXX.
        yield line.encode("utf-8", "backslashreplace").decode("utf-8") + "\n"


def _tsv_lines(predictions: Iterable[tuple[Row, Prediction]]) -> Iterator[str]:
    header: list[str] | None = None
    for number, (row, prediction) in enumerate(predictions, 1):
        flat = {name: _rounded(value) for name, value in flatten(prediction, PREDICTION)}
        _check_free(row, flat)
        values = {**row, **flat}
        if header is None:
            header = list(values)
            yield _tsv_line(header, 1)
        if values.keys() - set(header):
            extra = ", ".join(sorted(values.keys() - set(header)))
            raise DataError(
                f"row {number} has columns that the first row has not: {extra}", fix=_USE_JSON
            )
        yield _tsv_line([_text(values.get(name)) for name in header], number + 1)


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
    if isinstance(value, bool | int | float | list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


_USE_JSON = "Write JSON Lines instead: a name that ends in .jsonl, or --json."


def _tsv_line(values: Sequence[str], line: int) -> str:
    for value in values:
        if "\t" in value or "\n" in value or "\r" in value:
            shown = value if len(value) < 40 else value[:40] + "…"
            raise DataError(
                f"output line {line}: TSV cannot hold the tab or line end in {shown!r}",
                fix=_USE_JSON,
            )
    text = "\t".join(values) + "\n"
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
