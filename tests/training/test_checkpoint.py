"""Checkpoints are whole or absent, checked, and fall back to the one before."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from bertworks.errors import CheckpointError, DamagedError, OutputError
from bertworks.training.checkpoint import (
    ResumeWarning,
    list_checkpoints,
    load_newest,
    load_weights,
    network_tensors,
    restore,
    save_checkpoint,
    save_weights,
)
from bertworks.training.optimizer import build_optimizer
from bertworks.training.settings import OptimizerSettings
from bertworks.utils import atomic_writes

from ..crashes import crashing, needs_proc
from .toy import ToyNetwork, toy_network


def trained_network(seed: int = 0, name: str = "adamw") -> tuple[ToyNetwork, torch.optim.Optimizer]:
    """A network after an update, so that the optimizer has a state."""
    network = toy_network(seed)
    optimizer = build_optimizer(network, OptimizerSettings.parse({"optimizer": name}))
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    network.unused.weight.grad = None
    optimizer.step()
    return network, optimizer


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_a_checkpoint_restores_weights_optimizer_and_state(tmp_path: Path, name: str) -> None:
    network, optimizer = trained_network(0, name)
    save_checkpoint(tmp_path, 7, network, optimizer, {"step": 7, "x": 0.1}, keep=2)
    other = toy_network(1)
    other_optimizer = build_optimizer(other, OptimizerSettings.parse({"optimizer": name}))
    checkpoint = load_newest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.state == {"step": 7, "x": 0.1}
    restore(checkpoint, other, other_optimizer)
    for (key, old), new in zip(network.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(old, new), key
        old_state, new_state = optimizer.state.get(old, {}), other_optimizer.state.get(new, {})
        assert old_state.keys() == new_state.keys()
        for kind in old_state:
            assert torch.equal(old_state[kind], new_state[kind]), (key, kind)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    network, optimizer = trained_network()
    for step in (3, 10, 200):
        save_checkpoint(tmp_path, step, network, optimizer, {}, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000010", "step-00000200"]
    assert len(list(tmp_path.iterdir())) == 2, "nothing else is left behind"


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "absent") is None
    (tmp_path / ".step-00000001.new").mkdir()
    assert load_newest(tmp_path) is None


FILES = ("weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_one_falls_back_to_the_one_before(tmp_path: Path, file: str, damage: str) -> None:
    network, optimizer = trained_network()
    save_checkpoint(tmp_path, 1, network, optimizer, {"step": 1}, keep=2)
    newest = save_checkpoint(tmp_path, 2, network, optimizer, {"step": 2}, keep=2) / file
    content = bytearray(newest.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        newest.write_bytes(content)
    elif damage == "cut":
        newest.write_bytes(content[:-5])
    else:
        newest.unlink()
    with pytest.warns(ResumeWarning, match=r"step-00000002.*Trying the one before"):
        found = load_newest(tmp_path)
    assert found is not None
    assert found.state == {"step": 1}
    save_checkpoint(tmp_path, 2, network, optimizer, {"step": 2}, keep=2)
    again = load_newest(tmp_path)
    assert again is not None
    assert again.state == {"step": 2}


def test_all_damaged_is_an_error(tmp_path: Path) -> None:
    network, optimizer = trained_network()
    (save_checkpoint(tmp_path, 1, network, optimizer, {}, keep=2) / "state.json").unlink()
    with (
        pytest.warns(ResumeWarning),
        pytest.raises(CheckpointError, match=r"every checkpoint is damaged\. Restore"),
    ):
        load_newest(tmp_path)


@pytest.mark.parametrize("limit", [100, 2000, 6000])
def test_a_full_disk_leaves_the_last_good_one(tmp_path: Path, limit: int) -> None:
    """A limit on the size of files stands for the full disk: a real write fails half-way."""
    network, optimizer = trained_network()
    save_checkpoint(tmp_path, 1, network, optimizer, {"step": 1}, keep=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"step 2 cannot be written \(.*too large.*Make"):
            save_checkpoint(tmp_path, 2, network, optimizer, {"x": "y" * 9000}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    found = load_newest(tmp_path)
    assert found is not None
    assert found.state == {"step": 1}


def test_a_full_disk_is_an_output_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_writes, "fsync", fail)
    network, optimizer = trained_network()
    with pytest.raises(OutputError, match=r"cannot be written \(No space left on device\)"):
        save_checkpoint(tmp_path, 2, network, optimizer, {}, keep=1)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    network, optimizer = trained_network()
    save_checkpoint(tmp_path, 1, network, optimizer, {}, keep=1)
    checkpoint = load_newest(tmp_path)
    assert checkpoint is not None
    other = toy_network()
    other.row_head = torch.nn.Linear(8, 3)
    with pytest.raises(CheckpointError, match=r"'row_head\.(bias|weight)' is \[2.*not \[3"):
        restore(checkpoint, other)
    del other.row_head
    with pytest.raises(CheckpointError, match=r"'row_head\.bias' is unknown"):
        restore(checkpoint, other)


def test_weights_are_saved_and_loaded_with_a_checksum(tmp_path: Path) -> None:
    network, file = toy_network(0), tmp_path / "best" / "weights.safetensors"
    checksum = save_weights(file, network)
    other = toy_network(1)
    load_weights(file, other, checksum)
    for name, tensor in network_tensors(network).items():
        assert torch.equal(tensor, network_tensors(other)[name])
    file.write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_weights(file, other)
    # A grid starts a run with a damaged file again, however damaged it is.
    with pytest.raises(DamagedError, match="checksum is wrong"):
        load_weights(file, other, checksum)


@needs_proc
@pytest.mark.filterwarnings("error")
def test_a_checkpoint_survives_any_crash_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, optimizer = trained_network()
    root = tmp_path / "root"
    save_checkpoint(root, 1, network, optimizer, {"step": 1}, keep=1)

    def has_one(left: Path) -> bool:
        found = load_newest(left)
        return found is not None and found.state["step"] in (1, 2)

    with crashing(monkeypatch, root, has_one) as disk:
        save_checkpoint(root, 2, network, optimizer, {"step": 2}, keep=1)
        assert not disk.num_damaged
        assert disk.is_new()
