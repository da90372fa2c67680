"""Runs that were killed half-way resume by the command line of then, and end as they did there."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bertworks.cli import app

from . import accepted, look
from .commands import RUNS

pytestmark = pytest.mark.long

STUDENT = "student"

# Sums in float32 are made in another order than at `db463f6`: on another processor, and on its own
# too since the losses and the forms that evaluate were made faster. A dozen steps widen that.
TOLERANCE = 1e-5
# Adam divides by the size of gradients. A parameter whose true gradient is 0, such as the bias of a
# score that a softmax compares with others, therefore follows their rounding.
ROUNDING = 1e-7
# A sum over a tensor adds the differences of its numbers up.
OF_SUMS = 2e-5


@pytest.mark.parametrize("name", sorted(RUNS.keys() - {STUDENT}))
def test_resumes_and_ends_as_it_did(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # LAMB had one ratio for query, key and value together then: by that rule a run ends as it did.
    monkeypatch.setattr("bertworks.training.optimizer._stacks", lambda network: {})
    command = json.loads((root / "commands.json").read_bytes())[name]
    expected = json.loads((root / "expected/runs" / f"{name}.json").read_bytes())
    directory = root / "runs" / name
    with look.recorded_batches() as batches:
        accepted.invoke(each_once(command), machine_of(directory))

    # The same examples in the same order: these are whole numbers, the same everywhere.
    assert len(batches) == expected["resumed"]
    assert batches == expected["batches"][-len(batches) :]

    was, now = without_details(expected["files"]), without_details(look.outcome(directory))
    if name == "several-labels":
        # Its accuracy is of a row's labels together, at which the commonest label was no guess.
        assert was["data.json"].pop("guessable") and not now["data.json"].pop("guessable")
    look.check_same(was, now, rel=TOLERANCE)
    check_state(expected["state"], look.last_state(directory))
    assert look.models(directory).keys() == expected["models"].keys()


def test_a_student_resumes_with_the_same_labels_only(root: Path) -> None:
    """A teacher's answers are the labels: where their last bits are others, a line says so."""
    command = json.loads((root / "commands.json").read_bytes())[STUDENT]
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, each_once(command))
    if result.exit_code:
        assert "the run was started with other rows for train" in " ".join(result.stderr.split())
    else:
        expected = json.loads((root / "expected/runs" / f"{STUDENT}.json").read_bytes())
        check_state(expected["state"], look.last_state(root / "runs" / STUDENT))


def each_once(command: list[str]) -> list[str]:
    """A command line without settings that a later word replaces: that is refused since."""
    keys = {word.partition("=")[0]: at for at, word in enumerate(command) if "=" in word}
    return [w for at, w in enumerate(command) if keys.get(w.partition("=")[0], at) == at]


def machine_of(directory: Path) -> Any:
    """The facts about the machine where a run was begun."""
    sessions = next(iter(sorted(directory.rglob("sessions.jsonl"))))
    lines = [json.loads(line) for line in sessions.read_text(encoding="utf-8").splitlines()]
    return next(line for line in lines if line["event"] == "start")


def without_details(files: dict[str, Any]) -> dict[str, Any]:
    """The files of a run without lists that are sorted or cut by what may be nearly equal."""
    found = copy.deepcopy(files)
    for name, content in found.items():
        if name.endswith("evaluation.json"):
            del content["breakdown"]
    return found


def check_state(was: dict[str, Any], now: dict[str, Any]) -> None:
    """Compare the tensors of the last checkpoints by their sums and norms."""
    assert was.keys() == now.keys()
    for file, tensors in was.items():
        assert tensors.keys() == now[file].keys(), file
        squares = was[file.replace("weights.safetensors", "optimizer.safetensors")]
        for name, tensor in tensors.items():
            parameter = name.split("/")[-1]
            square = squares.get(f"exp_avg_sq/{parameter}")
            if square is not None and math.sqrt(square["sum_norm"][1]) < ROUNDING:
                continue
            found, wanted = now[file][name]["sum_norm"], tensor["sum_norm"]
            close = np.allclose(found, wanted, rtol=TOLERANCE, atol=OF_SUMS)
            assert close, f"{file}: {name}: {found}, and was {wanted}"
