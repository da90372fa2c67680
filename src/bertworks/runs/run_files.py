"""Schemas of the files of a run directory, which are validated when they are read.

Disks fail, and people edit files by hand. A file that does not fit its schema is an error that
names the file, the line and the key. Callers need not check the content again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from ..errors import DataError
from ..settings.base import without_format_version
from ..settings.yaml_values import load_yaml
from ..utils.formatting import escape_surrogates
from ..utils.json_files import first_problem, verify_checksum
from ..utils.regular_files import read_bytes

_FIX = "Restore it from a copy, or start a new run."

Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Metrics = dict[str, Number | None]
Fact = Number | bool | str | None | list[Number | bool | str | None]


class _Part(BaseModel):
    """An object of a file; it may have more keys."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Clock(_Part):
    seconds: Number


class _TrainClock(_Clock):
    tokens_per_second: Number
    peak_share: Number = 0.0


class _TrainLine(_Part):
    kind: Literal["train"]
    step: Count
    phase: str
    epoch: Count
    loss: Number | None
    grad_norm: Number | None
    losses: Metrics
    lr: Number
    tokens: Count
    examples: Count
    time: _TrainClock


class _EvalLine(_Part):
    kind: Literal["eval"]
    step: Count
    tokens: Count
    metrics: Metrics
    time: _Clock


class _StopLine(_Part):
    kind: Literal["stop"]
    step: Count
    why: str


class _ProposalLine(_Part):
    kind: Literal["proposal"]
    points: list[dict[str, JsonValue]]


class _RunLine(_Part):
    kind: Literal["run"]
    run: str
    metrics: Metrics
    error: str | None


class _Session(_Part):
    event: str
    time: str
    step: Count = 0
    text: str = ""


class _Evaluation(_Part):
    data: str
    rows: Count
    metrics: Metrics
    notes: list[str]
    breakdown: dict[str, JsonValue] = {}


class _Outcome(_Part):
    best_metric: str
    lower_is_better: bool
    best_step: Count | None


class _Guess(_Part):
    token: str
    probability: Number


class _Sample(_Part):
    text: str
    answers: list[str]
    guesses: list[list[_Guess]]


class _GridRun(_Part):
    run: str
    seed: int
    metrics: Metrics
    error: str | None
    notes: list[str]


class _GridPoint(_Part):
    settings: dict[str, JsonValue]
    runs: Annotated[list[_GridRun], Field(min_length=1)]


class _Grid(_Part):
    metric: str
    lower_is_better: bool
    points: Annotated[list[_GridPoint], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        runs = [run for point in self.points for run in point.runs if run.error is None]
        if any(self.metric not in run.metrics for run in runs):
            raise ValueError(f"a run has no {self.metric!r}")
        return self


class _Lengths(_Part):
    min: Count
    p50: Count
    p90: Count
    p95: Count
    p99: Count
    max: Count


class _Table(_Part):
    """A `SplitSummary`."""

    rows: Count
    labels: dict[str, Count]
    lengths: _Lengths
    num_truncated_rows: Count
    num_truncated_tokens: Count
    tokens: Count
    bin_width: Annotated[int, Field(ge=1, lt=2**53)]
    length_histogram: list[Count]
    truncated_length_histogram: list[Count]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.length_histogram) != len(self.truncated_length_histogram):
            raise ValueError(
                "length_histogram and truncated_length_histogram must have the same length"
            )
        return self


class _LabelledData(_Part):
    """A `DataSummary`, and the checksums of the tables."""

    train: _Table
    dev: _Table | None = None
    checksums: dict[str, str] = {}


JOURNAL_LINE: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        _TrainLine | _EvalLine | _StopLine | _ProposalLine | _RunLine, Field(discriminator="kind")
    ]
)
SESSION: TypeAdapter[Any] = TypeAdapter(_Session)
EVALUATION: TypeAdapter[Any] = TypeAdapter(_Evaluation)
OUTCOME: TypeAdapter[Any] = TypeAdapter(_Outcome)
SAMPLES: TypeAdapter[Any] = TypeAdapter(list[_Sample])
GRID: TypeAdapter[Any] = TypeAdapter(_Grid)
DATA: TypeAdapter[Any] = TypeAdapter(dict[str, Fact | dict[str, Fact]])
LABELLED_DATA: TypeAdapter[Any] = TypeAdapter(_LabelledData)
_SETTINGS: TypeAdapter[Any] = TypeAdapter(dict[str, JsonValue])


def read_valid_json(file: Path, schema: TypeAdapter[Any]) -> Any:
    """Read and validate a JSON file.

    Raises:
        DataError: the file cannot be read, is damaged, or does not fit the schema.
    """
    return _validate(_parse(_content(file), str(file)), schema, str(file))


def read_sealed_json(file: Path, schema: TypeAdapter[Any]) -> Any:
    """Read and validate a JSON file that has a checksum (`with_checksum`).

    Raises:
        DataError: as in `read_valid_json`; or its checksum is missing or wrong.
    """
    tree = _parse(_content(file), str(file))
    try:
        tree = verify_checksum(tree) if isinstance(tree, dict) else tree
    except ValueError as error:
        raise _damage_error(str(file), error) from None
    return _validate(tree, schema, str(file))


def read_lines(file: Path, schema: TypeAdapter[Any]) -> Iterator[dict[str, Any]]:
    """Yield the validated lines of a JSON Lines file; nothing if the file does not exist.

    A last line without a line end is left out: the process was killed while writing it.

    Raises:
        DataError: the file cannot be read, or a line is damaged or does not fit the schema.
    """
    if not file.exists():
        return
    for number, line in enumerate(_content(file).splitlines(keepends=True), start=1):
        if line.endswith(b"\n"):
            where = f"{file}:{number}"
            yield _validate(_parse(line, where), schema, where)


def read_data(file: Path) -> dict[str, Any]:
    """Read `data.json`: a `DataSummary` of labelled tables, or counts of a corpus.

    Raises:
        DataError: the file cannot be read, or contains neither.
    """
    tree: dict[str, Any] = _parse(_content(file), str(file))
    summary: dict[str, Any] = _validate(
        tree, LABELLED_DATA if is_labelled(tree) else DATA, str(file)
    )
    return summary


def is_labelled(tree: Any) -> bool:
    """Whether the content of a `data.json` is a `DataSummary` of labelled tables."""
    return isinstance(tree, Mapping) and isinstance(tree.get("train"), Mapping)


def read_settings(file: Path) -> dict[str, Any]:
    """Read `settings.yaml`, without the format version.

    Raises:
        DataError: the file cannot be read, contains no settings, or is of another format.
    """
    try:
        tree = load_yaml(_content(file).decode())
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise _damage_error(str(file), error) from None
    return without_format_version(_validate(tree, _SETTINGS, str(file)), file)


def _content(file: Path) -> bytes:
    try:
        return read_bytes(file, limit=1 << 32)
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", where=str(file)) from None


def _parse(text: bytes, where: str) -> Any:
    try:
        tree = json.loads(text.decode(), parse_int=_int, parse_float=_float, parse_constant=_float)
        return _printable(tree) if b"\\ud" in text.lower() else tree
    except (ValueError, RecursionError) as error:
        raise _damage_error(where, error) from None


def _printable(value: Any) -> Any:
    """Replace lone surrogates in all texts, so that UTF-8 can encode them.

    They come from names of files that are not UTF-8.
    """
    if isinstance(value, str):
        return escape_surrogates(value)
    if isinstance(value, dict):
        return {escape_surrogates(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value


def _int(text: str) -> int:
    if not -(2**63) <= (number := int(text)) < 2**63:
        raise ValueError(f"the number {text[:20]}… is too large")
    return number


def _float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def _validate(tree: Any, schema: TypeAdapter[Any], where: str) -> Any:
    """Validate a tree and return it unchanged, without the conversions of the schema."""
    try:
        schema.validate_python(tree, strict=True)
    except ValidationError as error:
        what = f"the file is damaged ({first_problem(error)})"
        raise DataError(what, where=where, fix=_FIX) from None
    return tree


def _damage_error(where: str, error: Exception) -> DataError:
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return DataError(f"the file is damaged ({' '.join(reason.split())})", where=where, fix=_FIX)
