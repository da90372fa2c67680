"""A command that is killed at any time and repeated leaves the same files as one that was not."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ..cli.conftest import World
from .commands import COMMANDS, left
from .conftest import tries
from .processes import Command, Fault, Outcome, run

pytestmark = pytest.mark.slow


@cache
def reference_run(world: World, name: str, folder: Path) -> tuple[dict[str, Any], int, float]:
    """What a command leaves, its steps and its seconds."""
    output, words = COMMANDS[name]
    command = words(world, folder / "out" / output)
    (folder / "out").mkdir(parents=True)
    start = time.monotonic()
    outcome = run(command, folder, Fault(0, signal.SIGKILL, folder / "out"))
    assert outcome.status == 0, outcome.stderr
    return left(folder / "out"), outcome.steps, time.monotonic() - start


def is_refused(outcome: Outcome) -> bool:
    """Whether a command says that its output is finished: it was killed after its last renaming."""
    says = ("already exists", "is not empty", "already has a vocab.txt")
    return outcome.is_one_line() and any(words in outcome.stderr for words in says)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_command_gives_the_same_bytes_when_repeated(
    world: World,
    tmp_path: Path,
    draw: random.Random,
    tally: Callable[..., None],
    name: str,
    number: signal.Signals,
) -> None:
    expected, steps, seconds = reference_run(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    for trial in range(tries(6, 100)):
        folder = tmp_path / str(trial)
        command = words(world, folder / "out" / output)
        (folder / "out").mkdir(parents=True)
        for _ in range(draw.choice([1, 1, 2])):
            # Half of the moments are steps on files, half are any.
            at = draw.randint(1, steps) if draw.random() < 0.5 else 0
            child = Command(command, folder, Fault(at, number, folder / "out"))
            if not at:
                child.process.join(draw.uniform(0, seconds))
                child.kill(number)
            outcome = child.wait()
            if is_refused(outcome):
                break
            assert outcome.status in (-number, 128 + number, 0), outcome.stderr
            assert outcome.status >= 0 or "error" not in outcome.stderr, outcome.stderr
            assert outcome.status <= 0 or outcome.is_one_line(), outcome.stderr
            tally(killed=int(outcome.status != 0), too_late=int(outcome.status == 0))
        outcome = run(command, folder)
        assert outcome.status == 0 or is_refused(outcome), outcome.stderr
        assert left(folder / "out") == expected, f"try {trial}"
        tally(same_bytes=1)
