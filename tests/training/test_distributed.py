"""Two processes that share each global batch compute the same as one process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from bertworks.errors import SettingsError
from bertworks.runs.run_directory import RunDirectory
from bertworks.training.checkpoint import load_newest, network_tensors
from bertworks.training.distributed import ProcessGroup, check_can_split, process_group
from bertworks.training.settings import FitSettings

from ..forking import launch, read_output
from . import elastic_run
from .distributed_run import distributed_run, main, unfreezing_run
from .toy import ToyNegatives, ToyTask

ROOT = Path(__file__).parents[2]


def start_agents(out: Path, kind: str) -> tuple[str, list[int]]:
    """Two agents of one process each, the second started again if it is killed.

    Returns:
        What they print, and the exit status of each that ended.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    command += ["--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", endpoint, "--rdzv-id", "job", "--monitor-interval", "0.1"]
    command += ["--local-addr", "127.0.0.1"]
    program = ["-m", "tests.training.elastic_run", str(out), kind]
    # Else PyTorch 2.13 gives those that are started again the addresses of those before.
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    statuses = []
    with (out.parent / f"{kind}.log").open("w+") as log:

        def start(is_host: bool) -> subprocess.Popen[bytes]:
            host = ["--rdzv-conf", f"is_host={is_host:d}"]
            return subprocess.Popen(
                [*command, *host, *program], cwd=ROOT, stdout=log, stderr=log, env=environment
            )

        running = [start(True), start(False)]
        try:
            while running:
                agent = running.pop()
                statuses.append(agent.wait(timeout=300))
                if statuses[-1] == -signal.SIGKILL:
                    running.append(start(False))
        finally:
            for agent in running:
                agent.terminate()
                agent.wait()
        log.seek(0)
        return log.read(), statuses


TIMEOUT_MESSAGE = r"error: .*\(rank_timeout=3 s\): rank 1 of 2 at the data of step \d+\. Run"


@pytest.mark.slow  # each start of two agents takes seconds
@pytest.mark.parametrize("kind", ["worker", "agent", "hang"])
def test_a_process_that_is_lost_is_replaced_and_the_bits_are_the_same(
    kind: str, tmp_path: Path
) -> None:
    for name in ("none", kind):
        output, statuses = start_agents(tmp_path / name, name)
        assert statuses == ([-signal.SIGKILL, 0, 0] if name == "agent" else [0, 0]), output
        assert "ended at 20" in output
        assert ("resumed from None" in output) == (name == "none"), output
        assert bool(re.search(TIMEOUT_MESSAGE, output)) == (name == "hang"), output
    runs = [RunDirectory(tmp_path / name) for name in ("none", kind)]
    none, other = (load_newest(run.checkpoints) for run in runs)
    assert none is not None and other is not None
    for ours, theirs in ((none.weights, other.weights), (none.optimizer, other.optimizer)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert none.state["random"] == other.state["random"]
    lines = [[line | {"time": 0} for line in run.lines()] for run in runs]
    assert lines[0] == lines[1]


@pytest.mark.long
def test_a_process_that_hangs_is_named(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with pytest.raises(ChildFailedError, match="exitcode  : 1 "):
        launch(elastic_run.run, tmp_path / "hang", "hang", processes=2, logs=logs)
    assert re.search(TIMEOUT_MESSAGE, read_output(logs))


@pytest.mark.long
def test_two_interrupted_processes_equal_one_process(tmp_path: Path) -> None:
    output = launch(main, tmp_path / "two", processes=2, logs=tmp_path / "logs")
    stop_steps = re.findall(r"143 stopped after step (\d+) of 20", output)
    went_on = re.findall(r"went on from (\d+)", output)
    assert len(stop_steps) == 2
    assert len({*stop_steps, *went_on}) == 1, "both ranks stop after the same step and go on there"
    assert 3 <= int(stop_steps[0]) <= 8

    single_network, _ = distributed_run(tmp_path / "one")
    checkpoint = load_newest(tmp_path / "two" / "checkpoints")
    assert checkpoint is not None
    for name, tensor in network_tensors(single_network).items():
        torch.testing.assert_close(checkpoint.weights[name], tensor, rtol=1e-4, atol=1e-6)
    assert len(checkpoint.state["random"]) == 2
    assert checkpoint.state["random"][0]["torch"] != checkpoint.state["random"][1]["torch"]
    lines = [list(RunDirectory(tmp_path / name).lines()) for name in ("one", "two")]
    assert len(lines[0]) == len(lines[1])
    for one, two in zip(*lines, strict=True):
        if one["kind"] == "train":
            for key in ("step", "tokens", "examples", "epoch", "lr"):
                assert one[key] == two[key]
            assert one["loss"] == pytest.approx(two["loss"], rel=1e-4)
            assert one["grad_norm"] == pytest.approx(two["grad_norm"], rel=1e-3)
        else:
            assert one["metrics"] == pytest.approx(two["metrics"], rel=1e-4)

    # Unfreezing, averaging, checkpointing and early stopping are the same on both ranks.
    result = unfreezing_run(tmp_path / "unfreezing")
    assert result.state.step == 9
    assert re.findall(r"unfroze until (\d+)", output) == ["9", "9"]
    checkpoint = load_newest(tmp_path / "two" / "unfreezing" / "checkpoints")
    single_checkpoint = load_newest(tmp_path / "unfreezing" / "checkpoints")
    assert checkpoint is not None and single_checkpoint is not None
    assert checkpoint.optimizer.keys() == single_checkpoint.optimizer.keys()
    assert "average/encoder.layers.0.attention.output.weight" in checkpoint.optimizer
    for ours, theirs in (
        (checkpoint.weights, single_checkpoint.weights),
        (checkpoint.optimizer, single_checkpoint.optimizer),
    ):
        for name, tensor in theirs.items():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-6)


def test_a_single_process_needs_no_process_group() -> None:
    with process_group("cpu") as group:
        assert (group.rank, group.world, group.is_main) == (0, 1, True)
        assert group.sum_counts({"a": 3}) == {"a": 3}
        assert group.gather("x") == ["x"]
        assert not torch.distributed.is_initialized()


def test_losses_that_do_not_add_up_are_not_shared_out() -> None:
    two = ProcessGroup(0, 2, torch.device("cpu"))
    with pytest.raises(SettingsError, match="2 processes would share it"):
        check_can_split(ToyNegatives(), FitSettings(batch_size=4), two)
    check_can_split(ToyTask(), FitSettings(batch_size=4), two)
