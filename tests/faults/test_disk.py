"""Disks that are full or read-only, files that vanish: one line, and the next run is whole."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ..cli.conftest import World
from .commands import COMMANDS, left
from .conftest import tries
from .processes import Fault, Outcome, run
from .test_kills import is_refused, reference_run

pytestmark = pytest.mark.slow


def check(outcome: Outcome, folder: Path, says: str) -> None:
    """See that a command ended well, or with one line that names a file and says why."""
    if outcome.status == 0:  # what failed was not needed, such as a line about the session
        return
    assert outcome.is_one_line(), outcome.stderr
    assert says in outcome.stderr, outcome.stderr
    assert str(folder) in outcome.stderr, outcome.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_step_may_fail(
    world: World,
    tmp_path: Path,
    draw: random.Random,
    tally: Callable[..., None],
    name: str,
    number: int,
) -> None:
    expected, steps, _ = reference_run(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    tried = draw.sample(range(1, steps + 1), min(tries(3, 10**6), steps))
    for step in tried:
        folder = tmp_path / str(step)
        (folder / "out").mkdir(parents=True)
        command = words(world, folder / "out" / output)
        outcome = run(command, folder, Fault(step, number, folder / "out"))
        check(outcome, folder, os.strerror(number))
        tally(failed=int(outcome.status != 0), ended_well=int(outcome.status == 0))
        outcome = run(command, folder)
        assert outcome.status == 0 or is_refused(outcome), f"step {step}: {outcome.stderr}"
        assert left(folder / "out") == expected, f"step {step}"
        tally(same_bytes=1)
        shutil.rmtree(folder)


def limit(size: int) -> None:
    """Let no file grow beyond a size: a write then fails half-way, whoever writes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_size_may_be_too_large(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    whole = world.vocab.with_name(f"whole {name}")
    expected, _, _ = reference_run(world, name, whole)
    sizes = [path.stat().st_size for path in (whole / "out").rglob("*") if path.is_file()]
    output, words = COMMANDS[name]
    for trial in range(tries(3, 60)):
        folder = tmp_path / str(trial)
        (folder / "out").mkdir(parents=True)
        command = words(world, folder / "out" / output)
        most = draw.randrange(max(1, draw.choice(sizes)))
        outcome = run(command, folder, None, partial(limit, most))
        check(outcome, folder, os.strerror(errno.EFBIG))
        tally(failed=int(outcome.status != 0), ended_well=int(outcome.status == 0))
        outcome = run(command, folder)
        assert outcome.status == 0 or is_refused(outcome), f"{most} bytes: {outcome.stderr}"
        assert left(folder / "out") == expected, f"{most} bytes"
        tally(same_bytes=1)
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_input_may_be_missing(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    """A file that vanishes before it is opened is named, or is not needed."""
    expected, _, _ = reference_run(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    inputs = inputs_of(world, name)
    for file in draw.sample(inputs, min(tries(4, 10**6), len(inputs))):
        folder = tmp_path / "try"
        (folder / "out").mkdir(parents=True)
        hidden_path = tmp_path / "away"
        file.rename(hidden_path)
        try:
            outcome = run(words(world, folder / "out" / output), folder)
        finally:
            hidden_path.rename(file)
        if outcome.status == 0:
            assert left(folder / "out").keys() == expected.keys(), file
        else:
            assert outcome.is_one_line(), (file, outcome.stderr)
            assert str(file.parent) in outcome.stderr or file.name in outcome.stderr, (
                file,
                outcome.stderr,
            )
        tally(refused=int(outcome.status != 0), not_needed=int(outcome.status == 0))
        shutil.rmtree(folder)


def inputs_of(world: World, name: str) -> list[Path]:
    """The files that a command is given."""
    _, words = COMMANDS[name]
    files = []
    for word in words(world, world.vocab.with_name("out")):
        path = Path(str(word).removeprefix("data="))
        if path.is_absolute() and path.exists():
            files += [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sorted(files)
