"""Two commands with one output, clocks that go back, workers that die, memory that is short."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ..cli.conftest import World
from .commands import COMMANDS, left
from .conftest import tries
from .processes import Command, Ended, run
from .test_kills import is_refused, undisturbed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", COMMANDS)
def test_two_at_a_time(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    expected, _, seconds = undisturbed(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    for trial in range(tries(2, 20)):
        folder = tmp_path / str(trial)
        command = words(world, folder / "out" / output)
        (folder / "out").mkdir(parents=True)
        first = Command(command, folder / "1")
        first.process.join(draw.uniform(0, seconds / 2))
        ends = [Command(command, folder / "2").wait(), first.wait()]
        for ended in ends:
            second = ended.is_one_line() and "is being written by process" in ended.said
            assert ended.status == 0 or second or is_refused(ended), ended.said
            tally(done=int(ended.status == 0), refused=int(ended.status != 0))
        assert any(ended.status == 0 for ended in ends)
        assert left(folder / "out") == expected


def turn_back() -> None:
    """Have the wall clock go backwards by a day at every other look, and time pass by leaps."""
    now, passed, looks = time.time, time.monotonic, [0]

    def odd_time() -> float:
        looks[0] += 1
        return now() - 86400 * (looks[0] % 2)

    def leaping() -> float:
        looks[0] += 1
        return passed() + 3600 * looks[0]

    time.time, time.monotonic = odd_time, leaping


@pytest.mark.parametrize("name", COMMANDS)
def test_the_clock_may_say_anything(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    expected, _, seconds = undisturbed(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    command = words(world, tmp_path / "out" / output)
    (tmp_path / "out").mkdir(parents=True)
    child = Command(command, tmp_path, None, turn_back)
    child.process.join(draw.uniform(0, seconds))
    child.kill()
    child.wait()
    ended = run(command, tmp_path, None, turn_back)
    assert ended.status == 0 or is_refused(ended), ended.said
    assert left(tmp_path / "out") == expected
    tally(same_bytes=1)


def bound_memory(more: int) -> None:
    """Let this process have so much more memory, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def ends_natively(ended: Ended) -> bool:
    """Whether a library has ended the process in its own code, or the system's loader has."""
    if ended.status == 127:
        return "cannot allocate memory for thread-local data: ABORT" in ended.said
    return ended.status in (-signal.SIGABRT, -signal.SIGSEGV)


def endings(ended: Ended) -> dict[str, int]:
    """How a command below a limit of memory has ended, for the table."""
    is_native = ends_natively(ended)
    return {
        "done": int(ended.status == 0),
        "one_line": int(ended.status > 0 and not is_native),
        "aborted": int(is_native),
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_memory_may_be_short(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    expected, _, _ = undisturbed(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    for trial in range(tries(4, 40)):
        folder = tmp_path / str(trial)
        command = words(world, folder / "out" / output)
        (folder / "out").mkdir(parents=True)
        more = int(2 ** draw.uniform(17, 27))
        ended = run(command, folder, None, partial(bound_memory, more))
        is_native = ends_natively(ended)
        if is_native:  # nothing of ours runs then: what can be said was said before
            assert (
                "warning: less than 256 MB of memory is available to this process" in ended.said
            ), more
        else:
            assert ended.status == 0 or ended.is_one_line(), (more, ended.said)
        tally(**endings(ended))
        ended = run(command, folder)
        assert ended.status == 0 or is_refused(ended), (more, ended.said)
        assert left(folder / "out") == expected, more


WORKERS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("prepare", "embed", "embed to Parquet", "predict"), ("--workers", 2)),
    "pretrain": ("loader_workers=2",),
    "grid": ("--jobs", 2),
}


@pytest.mark.parametrize("name", WORKERS)
def test_workers_may_have_little_memory(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    """They import for themselves what the command has already, below the same limit."""
    expected, _, _ = undisturbed(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    for trial in range(tries(1, 20)):
        folder = tmp_path / str(trial)
        command = [*words(world, folder / "out" / output), *WORKERS[name]]
        (folder / "out").mkdir(parents=True)
        more = int(2 ** draw.uniform(24, 29))
        ended = run(command, folder, None, partial(bound_memory, more))
        is_native = ends_natively(ended)
        assert ended.status == 0 or is_native or ended.is_one_line(), (more, ended.said)
        tally(**endings(ended))
        ended = run(command, folder)
        assert ended.status == 0 or is_refused(ended), (more, ended.said)
        assert unordered(left(folder / "out")) == unordered(expected), more


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_may_be_killed(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    expected, _, _ = undisturbed(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    for trial in range(tries(1, 20)):
        folder = tmp_path / str(trial)
        command = [*words(world, folder / "out" / output), *WORKERS[name]]
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
        ended = child.wait()
        if ended.status:
            assert ended.is_one_line(), ended.said
            died = "a worker process died (signal 9)", "a loader worker ended before its time"
            assert any(words in ended.said for words in died), ended.said
        tally(ended=int(ended.status != 0), went_on=int(ended.status == 0))
        ended = run(command, folder)
        assert ended.status == 0 or is_refused(ended), ended.said
        assert unordered(left(folder / "out")) == unordered(expected)
        tally(same_bytes=1)


def unordered(found: dict[str, Any]) -> dict[str, Any]:
    """What was left, with the lines of journals in any order: runs side by side end in any.

    Without the settings of a run, which say how many workers there are.
    """
    return {
        name: sorted(content) if isinstance(content, list) else content
        for name, content in found.items()
        if not name.endswith("settings.yaml")
    }


def children(process: int) -> list[int]:
    """The worker processes that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(stat[1]) == process and b"spawn_main" in command:
            found.append(int(folder.name))
    return sorted(found)
