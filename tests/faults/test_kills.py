"""A command that is killed, whenever, and run again leaves what an undisturbed one leaves."""

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
from .processes import Command, Ended, Fault, run

pytestmark = pytest.mark.slow


@cache
def undisturbed(world: World, name: str, folder: Path) -> tuple[dict[str, Any], int, float]:
    """What a command leaves, its steps and its seconds."""
    output, words = COMMANDS[name]
    command = words(world, folder / "out" / output)
    (folder / "out").mkdir(parents=True)
    begun = time.monotonic()
    ended = run(command, folder, Fault(0, signal.SIGKILL, folder / "out"))
    assert ended.status == 0, ended.said
    return left(folder / "out"), ended.steps, time.monotonic() - begun


def is_refused(ended: Ended) -> bool:
    """Whether a command says that its output is finished: it was killed after its last renaming."""
    says = ("already exists", "is not empty", "already has a vocab.txt")
    return ended.is_one_line() and any(words in ended.said for words in says)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("name", COMMANDS)
def test_killed(
    world: World,
    tmp_path: Path,
    draw: random.Random,
    tally: Callable[..., None],
    name: str,
    number: signal.Signals,
) -> None:
    expected, steps, seconds = undisturbed(world, name, world.vocab.with_name(f"whole {name}"))
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
            ended = child.wait()
            if is_refused(ended):
                break
            assert ended.status in (-number, 128 + number, 0), ended.said
            assert ended.status >= 0 or "error" not in ended.said, ended.said
            assert ended.status <= 0 or ended.is_one_line(), ended.said
            tally(killed=int(ended.status != 0), too_late=int(ended.status == 0))
        ended = run(command, folder)
        assert ended.status == 0 or is_refused(ended), ended.said
        assert left(folder / "out") == expected, f"try {trial}"
        tally(same_bytes=1)
