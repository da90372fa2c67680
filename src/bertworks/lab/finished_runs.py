"""Runs of an experiment that are made only once: their results are read from their directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..runs.run_directory import RunDirectory
from ..utils.directories import make_directory
from ..utils.json_files import read_json, write_json

RESULT = "result.json"
"""The file of a run's results, which marks the run as finished."""


def finish_run(directory: Path, make: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of a run; call `make`, which resumes a run, if it is not finished.

    The checkpoints of a finished run are removed.

    Raises:
        DataError: the file of the results is damaged.
    """
    file = directory / RESULT
    if not file.exists():
        result = make(directory)
        make_directory(directory)
        write_json(file, result, indent=1)
    RunDirectory(directory).remove_checkpoints()
    return read_json(file, DataError)
