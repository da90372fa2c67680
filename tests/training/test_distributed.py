"""Two processes that share each global batch do what one does with the whole of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bertworks.errors import SettingsError
from bertworks.training.checkpoint import load_newest, network_tensors
from bertworks.training.conditions import check_can_split
from bertworks.training.distributed import Team, team
from bertworks.training.fit import FitSettings
from bertworks.training.journal import RunDirectory

from .team_run import team_run, thawing_run
from .toy import ToyNegatives, ToyTask

ROOT = Path(__file__).parents[2]


def start_two(out: Path) -> str:
    """`torchrun` with two processes; what they print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "tests.training.team_run", str(out)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        told, _ = process.communicate(timeout=600)
    finally:
        process.terminate()  # which it hands on to the two; a kill would orphan them
        process.wait()
    assert process.returncode == 0
    return told


@pytest.mark.long
def test_two_processes_stopped_and_gone_on_with_do_what_one_does(tmp_path: Path) -> None:
    told = start_two(tmp_path / "two")
    stopped = re.findall(r"143 stopped after step (\d+) of 20", told)
    went_on = re.findall(r"went on from (\d+)", told)
    assert len(stopped) == 2
    assert len({*stopped, *went_on}) == 1, "both ranks stop after the same step and go on there"
    assert 3 <= int(stopped[0]) <= 8

    alone, _ = team_run(tmp_path / "one")
    found = load_newest(tmp_path / "two" / "checkpoints")
    assert found is not None
    for name, tensor in network_tensors(alone).items():
        torch.testing.assert_close(found.weights[name], tensor, rtol=1e-4, atol=1e-6)
    assert len(found.state["random"]) == 2
    assert found.state["random"][0]["torch"] != found.state["random"][1]["torch"]
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

    # What thaws, is averaged, is computed again and ends early does so on both alike.
    result = thawing_run(tmp_path / "thawing")
    assert result.state.step == 9
    assert re.findall(r"thawed until (\d+)", told) == ["9", "9"]
    found = load_newest(tmp_path / "two" / "thawing" / "checkpoints")
    alone_found = load_newest(tmp_path / "thawing" / "checkpoints")
    assert found is not None and alone_found is not None
    assert found.optimizer.keys() == alone_found.optimizer.keys()
    assert "average/encoder.layers.0.attention.output.weight" in found.optimizer
    for ours, theirs in (
        (found.weights, alone_found.weights),
        (found.optimizer, alone_found.optimizer),
    ):
        for name, tensor in theirs.items():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-6)


def test_a_team_of_one_needs_no_process_group() -> None:
    with team("cpu") as members:
        assert (members.rank, members.world, members.is_main) == (0, 1, True)
        assert members.sum_counts({"a": 3}) == {"a": 3}
        assert members.gather("x") == ["x"]
        assert not torch.distributed.is_initialized()


def test_losses_that_do_not_add_up_are_not_shared_out() -> None:
    two = Team(0, 2, torch.device("cpu"))
    with pytest.raises(SettingsError, match="2 processes would share it"):
        check_can_split(ToyNegatives(), FitSettings(batch_size=4), two)
    check_can_split(ToyTask(), FitSettings(batch_size=4), two)
