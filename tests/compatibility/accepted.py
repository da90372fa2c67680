"""What a command or a call of an earlier version may say: that a word is deprecated, in a line.

Nothing else: no other warning, and no error.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from typer.testing import CliRunner, Result

from bertworks.cli import app
from bertworks.training.machine import describe


def invoke(command: Sequence[str], begun: Mapping[str, Any] | None = None) -> Result:
    """Run a command line that has to be accepted.

    Args:
        command: its words.
        begun: the facts about the machine where the run that it resumes was begun; of a change of
            them a user is warned.
    """
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, list(command))
    assert result.exit_code == 0, f"{' '.join(command)}\n{result.output}\n{result.exception!r}"
    for line in result.stderr.splitlines():
        if line.startswith("warning:"):
            is_of_machine = begun is not None and _tells_changes(line, begun)
            assert is_of_machine or "deprecated" in line, line
    return result


@contextmanager
def deprecations() -> Iterator[None]:
    """Inside, warnings that something is deprecated are accepted, each of one line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        text = str(warning.message)
        assert "deprecated" in text and "\n" not in text, text


def _tells_changes(line: str, begun: Mapping[str, Any]) -> bool:
    """Whether a warning names what has changed since the run was begun, if anything has."""
    changed = [str(value) for key, value in describe("cpu").items() if begun[key] != value]
    return bool(changed) and all(value in line for value in changed)
