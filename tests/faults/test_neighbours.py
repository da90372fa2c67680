"""Two commands with one output, clocks that go back, workers that die, memory that is short."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ..cli.conftest import World
from .commands import COMMANDS, left
from .conftest import tries
from .processes import Command, Outcome, run
from .test_kills import is_refused, reference_run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", COMMANDS)
def test_two_commands_at_a_time_give_one_output(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    expected, _, seconds = reference_run(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    for trial in range(tries(2, 20)):
        folder = tmp_path / str(trial)
        command = words(world, folder / "out" / output)
        (folder / "out").mkdir(parents=True)
        first = Command(command, folder / "1")
        first.process.join(draw.uniform(0, seconds / 2))
        ends = [Command(command, folder / "2").wait(), first.wait()]
        for outcome in ends:
            second = outcome.is_one_line() and "is being written by" in outcome.stderr
            assert outcome.status == 0 or second or is_refused(outcome), outcome.stderr
            tally(done=int(outcome.status == 0), refused=int(outcome.status != 0))
        assert any(ended.status == 0 for ended in ends)
        assert left(folder / "out") == expected


def turn_back() -> None:
    """Have the wall clock go backwards by a day at every other look, and time pass by leaps."""
    now, monotonic, looks = time.time, time.monotonic, [0]

    def odd_time() -> float:
        looks[0] += 1
        return now() - 86400 * (looks[0] % 2)

    def leaping() -> float:
        looks[0] += 1
        return monotonic() + 3600 * looks[0]

    time.time, time.monotonic = odd_time, leaping


@pytest.mark.parametrize("name", COMMANDS)
def test_the_clock_may_say_anything(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    expected, _, seconds = reference_run(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    command = words(world, tmp_path / "out" / output)
    (tmp_path / "out").mkdir(parents=True)
    child = Command(command, tmp_path, None, turn_back)
    child.process.join(draw.uniform(0, seconds))
    child.kill()
    child.wait()
    ended = run(command, tmp_path, None, turn_back)
    assert ended.status == 0 or is_refused(ended), ended.stderr
    assert left(tmp_path / "out") == expected
    tally(same_bytes=1)


def bound_memory(more: int) -> None:
    """Let this process have so much more memory, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def ends_natively(outcome: Outcome) -> bool:
    """Whether a library has ended the process in its own code, or the system's loader has."""
    if outcome.status == 127:
        return "cannot allocate memory for thread-local data: ABORT" in outcome.stderr
    return outcome.status in (-signal.SIGABRT, -signal.SIGSEGV)


def endings(outcome: Outcome) -> dict[str, int]:
    """How a command below a limit of memory has ended, for the table."""
    is_native = ends_natively(outcome)
    return {
        "done": int(outcome.status == 0),
        "one_line": int(outcome.status > 0 and not is_native),
        "aborted": int(is_native),
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_memory_may_be_short(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    expected, _, _ = reference_run(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    for trial in range(tries(4, 40)):
        folder = tmp_path / str(trial)
        command = words(world, folder / "out" / output)
        (folder / "out").mkdir(parents=True)
        more = int(2 ** draw.uniform(17, 27))
        outcome = run(command, folder, None, partial(bound_memory, more))
        is_native = ends_natively(outcome)
        if is_native:  # nothing of ours runs then: what can be said was said before
            assert (
                "warning: less than 256 MB of memory is available to this process" in outcome.stderr
            ), more
        else:
            assert outcome.status == 0 or outcome.is_one_line(), (more, outcome.stderr)
        tally(**endings(outcome))
        outcome = run(command, folder)
        assert outcome.status == 0 or is_refused(outcome), (more, outcome.stderr)
        assert left(folder / "out") == expected, more


WORKERS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("prepare", "embed", "embed to Parquet", "predict"), ("--workers", 2)),
    "pretrain": ("loader_workers=2",),
    "grid": ("--jobs", 2),
}


def in_workers(name: str, command: Sequence[object]) -> list[object]:
    """A command with two workers, whether it has a number of them or not."""
    words = list(command)
    if WORKERS[name][0] in words:
        start = words.index(WORKERS[name][0])
        del words[start : start + 2]
    return [*words, *WORKERS[name]]


@pytest.mark.parametrize("name", WORKERS)
def test_workers_may_have_little_memory(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    """They import for themselves what the command has already, below the same limit."""
    expected, _, _ = reference_run(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    for trial in range(tries(1, 20)):
        folder = tmp_path / str(trial)
        command = in_workers(name, words(world, folder / "out" / output))
        (folder / "out").mkdir(parents=True)
        more = int(2 ** draw.uniform(24, 29))
        outcome = run(command, folder, None, partial(bound_memory, more))
        is_native = ends_natively(outcome)
        assert outcome.status == 0 or is_native or outcome.is_one_line(), (more, outcome.stderr)
        tally(**endings(outcome))
        outcome = run(command, folder)
        assert outcome.status == 0 or is_refused(outcome), (more, outcome.stderr)
        assert sort_journals(left(folder / "out")) == sort_journals(expected), more


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_may_be_killed(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    expected, _, _ = reference_run(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    for trial in range(tries(1, 20)):
        folder = tmp_path / str(trial)
        command = in_workers(name, words(world, folder / "out" / output))
        (folder / "out").mkdir(parents=True)
        child = Command(command, folder)
        assert child.process.pid is not None
        workers: list[int] = []
        while child.process.is_alive() and not (workers := children(child.process.pid)):
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 3))
        for worker in workers[:1]:
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:  # it was done before
                tally(too_late=1)
        outcome = child.wait()
        if outcome.status:
            assert outcome.is_one_line(), outcome.stderr
            died = "a worker process died (signal 9)", "a loader worker ended before its time"
            assert any(words in outcome.stderr for words in died), outcome.stderr
        tally(ended=int(outcome.status != 0), went_on=int(outcome.status == 0))
        outcome = run(command, folder)
        assert outcome.status == 0 or is_refused(outcome), outcome.stderr
        assert sort_journals(left(folder / "out")) == sort_journals(expected)
        tally(same_bytes=1)


def sort_journals(files: dict[str, Any]) -> dict[str, Any]:
    """What was left, with the lines of journals in any order: runs side by side end in any.

    Without the settings of a run, which say how many workers there are.
    """
    return {
        name: sorted(content) if isinstance(content, list) else content
        for name, content in files.items()
        if not name.endswith("settings.yaml")
    }


def children(process: int) -> list[int]:
    """The worker processes that a process has started."""
    workers = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(stat[1]) == process and b"spawn_main" in command:
            workers.append(int(folder.name))
    return sorted(workers)
