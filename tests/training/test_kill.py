"""A run that is killed with SIGKILL at any time ends with the bits of one that was not."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.runs.run_directory import RunDirectory
from bertworks.training.checkpoint import list_checkpoints

from ..forking import start
from .tiny_run import run_slowly, tiny_run

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def unbroken(prepared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("unbroken") / "run"
    tiny_run(prepared_data, out)
    return out


def run_and_kill(data: Path, out: Path, is_time: Callable[[], bool], slowness: float = 0.0) -> bool:
    """Start the run, and kill it when it is time; False if it was done before that."""
    process = start(run_slowly, data, out, slowness)
    while not is_time():
        if process.exitcode is not None:
            assert process.exitcode == 0
            return False
        time.sleep(0.01)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def has_logged(out: Path, step: int) -> Callable[[], bool]:
    return lambda: any(line["step"] >= step for line in RunDirectory(out).lines())


def is_writing(out: Path) -> Callable[[], bool]:
    """Whether a checkpoint is being written, and there is one before it."""
    folder = out / "checkpoints"
    return lambda: any(folder.glob(".step-*.new")) and any(folder.glob("step-*"))


def after_start(out: Path, delay: float) -> Callable[[], bool]:
    """So many seconds after the session has begun that is begun next."""
    run = RunDirectory(out)

    def starts() -> int:
        return sum(line["event"] == "start" for line in run.sessions())

    existing_starts = starts()
    start_times: list[float] = []

    def is_time() -> bool:
        if not start_times and starts() > existing_starts:
            start_times.append(time.monotonic())
        return bool(start_times) and time.monotonic() > start_times[0] + delay

    return is_time


def assert_same(one: Path, other: Path) -> None:
    """The same bits in model and last checkpoint, and the same journal but for the clock."""
    for name in ("weights.safetensors", "optimizer.safetensors"):
        files = [list_checkpoints(out / "checkpoints")[-1] / name for out in (one, other)]
        assert files[0].parent.name == files[1].parent.name
        assert files[0].read_bytes() == files[1].read_bytes(), name
    name = "model.safetensors"
    assert (one / "model" / name).read_bytes() == (other / "model" / name).read_bytes()
    assert journal(one) == journal(other)


def journal(out: Path) -> list[dict[str, Any]]:
    lines = list(RunDirectory(out).lines())
    for line in lines:
        del line["time"]
    return lines


def test_a_run_killed_in_training_and_in_a_checkpoint_is_resumed(
    prepared_data: Path, unbroken: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert run_and_kill(prepared_data, out, is_writing(out), slowness=0.2)
    assert any((out / "checkpoints").glob(".step-*.new")), "the kill came too late"
    before = list_checkpoints(out / "checkpoints")[-1].name
    assert run_and_kill(prepared_data, out, has_logged(out, 27), slowness=0.01)
    assert list_checkpoints(out / "checkpoints")[-1].name > before
    result = tiny_run(prepared_data, out)
    assert result.resumed_step is not None
    assert result.resumed_step >= 20
    assert_same(unbroken, out)


@pytest.mark.slow
def test_a_run_killed_at_any_moment_is_resumed(
    prepared_data: Path, unbroken: Path, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    seconds = list(RunDirectory(unbroken).sessions())[-1]["seconds"]
    kills = writing = trial = 0

    def enough() -> bool:
        return kills >= 20 and (writing > 0 or kills >= 60)

    while not enough():
        trial += 1
        out = tmp_path / f"run-{trial}"
        while not enough():
            slowness = rng.choice([0.0, 0.03])
            delay = rng.uniform(0, seconds + 8 * 6 * slowness)
            if not run_and_kill(prepared_data, out, after_start(out, delay), slowness):
                break
            kills += 1
            writing += any((out / "checkpoints").glob(".step-*.new"))
        tiny_run(prepared_data, out)
        assert_same(unbroken, out)
    assert writing, f"no kill of {kills} came while a checkpoint was written (seed {seed})"
