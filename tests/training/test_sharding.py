"""A sharded network learns the same as one that every process holds whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.fsdp import FSDPModule

from bertworks.errors import CheckpointError, SettingsError
from bertworks.runs.run_directory import RunDirectory
from bertworks.training.checkpoint import ResumeWarning, load_newest
from bertworks.training.optimizer import build_optimizer, set_step
from bertworks.training.settings import FinetuneSettings, FitSettings, OptimizerSettings
from bertworks.training.sharding import (
    check_can_shard,
    full_tensor,
    gather_full_weights,
    is_sharded,
    local_tensor,
    shard,
    shard_like,
)

from ..forking import launch
from .letters import letters_network
from .shard_run import main, shard_run

CLOSE = {"rtol": 0, "atol": 1e-6}


def assert_equal(out: Path, steps: int) -> None:
    """The journals, the final weights, and the last checkpoints of the two runs."""
    runs = [RunDirectory(out / name) for name in ("none", "full")]
    for one, other in zip(*(list(run.lines()) for run in runs), strict=True):
        assert one.keys() == other.keys()
        for key in ("losses", "metrics"):
            assert one.pop(key, {}) == pytest.approx(other.pop(key, {}), rel=1e-6)
        for key in one.keys() - {"time"}:
            is_close = isinstance(one[key], float)
            assert one[key] == (pytest.approx(other[key], rel=1e-6) if is_close else other[key])
    files = [run.path / f"after-{steps}.safetensors" for run in runs]
    torch.testing.assert_close(load_file(files[0]), load_file(files[1]), **CLOSE)
    checkpoints = [load_newest(run.checkpoints) for run in runs]
    assert checkpoints[0] is not None and checkpoints[1] is not None
    torch.testing.assert_close(checkpoints[0].weights, checkpoints[1].weights, **CLOSE)
    torch.testing.assert_close(checkpoints[0].optimizer, checkpoints[1].optimizer, **CLOSE)


def test_a_process_alone_has_a_part_that_is_the_whole() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        network = letters_network()
        sharded = shard(network, torch.device("cpu"), 1)
        assert is_sharded(sharded)
        assert not is_sharded(network)
        parts = dict(sharded.named_parameters())
        wholes = dict(network.named_parameters())
        assert parts.keys() == wholes.keys()
        assert all(isinstance(layer, FSDPModule) for layer in sharded.encoder.layers)
        for name, part in parts.items():
            assert torch.equal(full_tensor(part), wholes[name])
            again = shard_like(part, wholes[name].detach() + 1)
            assert again.placements == part.placements
            assert torch.equal(local_tensor(again), wholes[name] + 1)
            count = torch.tensor(3.0)  # an optimizer's state that is one number stays as it is
            assert torch.equal(shard_like(part, count), count)
            with torch.no_grad():
                local_tensor(part).add_(1)
        gather_full_weights(sharded, network)
        for name, part in parts.items():
            assert torch.equal(full_tensor(part), wholes[name])
    finally:
        dist.destroy_process_group()


@pytest.mark.long
def test_lamb_scales_a_sharded_parameter_as_a_whole_one() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        network = letters_network()
        sharded = shard(network, torch.device("cpu"), 1)
        settings = OptimizerSettings.parse({"optimizer": "lamb", "warmup": 0})
        for one in (network, sharded):
            optimizer = build_optimizer(one, settings)
            set_step(optimizer, settings, 0, 10)
            torch.manual_seed(0)
            for parameter in one.parameters():
                parameter.grad = shard_like(parameter, torch.randn(parameter.shape))
            optimizer.step()
        wholes = dict(network.named_parameters())
        for name, part in sharded.named_parameters():
            torch.testing.assert_close(full_tensor(part), wholes[name], **CLOSE)
    finally:
        dist.destroy_process_group()


@pytest.mark.long
def test_one_process_resumes_the_checkpoint_of_two(tmp_path: Path) -> None:
    launch(main, tmp_path, "adamw", 6, processes=2, logs=tmp_path / "logs")
    assert_equal(tmp_path, 6)
    (last,) = (tmp_path / "full" / "checkpoints").iterdir()
    shards = sorted((last / "weights").iterdir())
    assert len(shards) == 2
    end = tmp_path / "full" / "after-6.safetensors"
    whole, *parts = (sum(map(torch.numel, load_file(file).values())) for file in (end, *shards))
    assert sum(parts) == whole, "each number once"
    assert max(parts) < 0.6 * whole

    for name in ("none", "full"):
        with pytest.warns(ResumeWarning, match="processes 2 → 1"):
            shard_run(tmp_path / name, "adamw", 10, sharding=name)
    assert_equal(tmp_path, 10)

    shutil.rmtree(tmp_path / "full" / "checkpoints" / "step-00000010")
    content = bytearray(shards[1].read_bytes())
    content[-1] ^= 1
    shards[1].write_bytes(content)
    with (
        pytest.warns(ResumeWarning, match=r"weights/.* is damaged"),
        pytest.raises(CheckpointError, match="every checkpoint is damaged"),
    ):
        load_newest(tmp_path / "full" / "checkpoints")


@pytest.mark.slow  # half a minute for each start
@pytest.mark.parametrize("case", ["adamw", "lamb", "lamb-layers"])
def test_training_resumes_with_more_processes(case: str, tmp_path: Path) -> None:
    launch(main, tmp_path, case, 50, processes=2, logs=tmp_path / "logs")
    assert_equal(tmp_path, 50)
    evaluations = [
        line["metrics"]["loss"]
        for line in RunDirectory(tmp_path / "full").lines()
        if line["kind"] == "eval"
    ]
    assert evaluations[-1] < evaluations[0] - 0.02, "it learns"
    launch(main, tmp_path, case, 55, processes=3, logs=tmp_path / "logs")
    assert_equal(tmp_path, 55)


def test_settings_that_exclude_sharding_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"sharding=full.*unfreeze_every"):
        check_can_shard(FitSettings(batch_size=2, unfreeze_every=3, sharding="full"))
    with pytest.raises(SettingsError, match=r"sharding=full.*lora_rank"):
        FinetuneSettings.parse({"sharding": "full", "lora_rank": 4})
