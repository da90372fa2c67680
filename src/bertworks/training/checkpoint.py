"""Checkpoints of a run: written wholly or not at all, checksummed, the last few kept.

    checkpoints/step-00001234/
      weights.safetensors     parameters and buffers by name
      optimizer.safetensors   `exp_avg/NAME`, `exp_avg_sq/NAME`, … for each parameter
      state.json              what else the loop needs to go on exactly
      manifest.json           the SHA-256 of each of these

A checkpoint is written under a hidden name and renamed when all of it is safely on the disk, so a
directory `step-…` is whole, whenever the process was killed. Nothing in it is a pickle.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from .. import files
from ..checkpoints.weights import write_weights
from ..errors import BertworksWarning, CheckpointError, OutputError

_FILES = ("weights.safetensors", "optimizer.safetensors", "state.json")


class ResumeWarning(BertworksWarning):
    """A run goes on, but not quite as it might."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        weights: parameters and buffers by name.
        optimizer: the optimizer's tensors, `exp_avg/NAME` and the like.
        state: the rest, as JSON can hold it.
        path: where it was read from.
    """

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]
    path: Path


def save_checkpoint(
    directory: Path,
    step: int,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    *,
    keep: int,
    keep_step: int | None = None,
) -> Path:
    """Write the checkpoint of a step, then delete all but the newest `keep` and one more.

    Args:
        directory: that of the checkpoints.
        step: the updates done.
        network: its parameters and buffers are saved,
        optimizer: and its state.
        state: the rest, as JSON can hold it.
        keep: how many of the newest are kept.
        keep_step: the step whose checkpoint is kept however old it is.

    Raises:
        OutputError: the disk is full or not writable; earlier checkpoints are untouched.
    """
    assert keep >= 1, "the newest is always kept"
    target = directory / f"step-{step:08d}"
    try:
        with files.writing(directory):
            files.make_directory(directory)
            for left in directory.glob(".step-*"):  # by a process that was killed
                shutil.rmtree(left)
        # One that is there is damaged, or the run would have resumed from it.
        with files.new_directory(target, replace=True) as new:
            write_weights(new / "weights.safetensors", network_tensors(network))
            write_weights(new / "optimizer.safetensors", optimizer_tensors(network, optimizer))
            files.write(new / "state.json", json.dumps(state))
            sums = {name: _sha256(new / name) for name in _FILES}
            files.write(new / "manifest.json", json.dumps(sums, indent=1))
    except OutputError as error:
        fix = "Make room, and run the same command again: it resumes from the last checkpoint."
        what = f"the checkpoint of step {step} {error.what}"
        raise OutputError(what, where=error.where, fix=fix) from None
    for old in list_checkpoints(directory)[:-keep]:
        if step_of(old) != keep_step:
            files.remove_directory(old)
    return target


def list_checkpoints(directory: Path) -> list[Path]:
    """A run's checkpoints, oldest first."""
    return sorted(path for path in directory.glob("step-*") if path.is_dir())


def step_of(checkpoint: Path) -> int:
    """The step of a checkpoint's directory."""
    return int(checkpoint.name.removeprefix("step-"))


def load_newest(
    directory: Path, accepts: Callable[[Mapping[str, Any]], bool] | None = None
) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where there is none at all.

    Args:
        directory: that of the checkpoints.
        accepts: whether a checkpoint with this state is wanted; all are, if left out.

    Raises:
        CheckpointError: there are checkpoints, and all are damaged or not accepted.
    """
    paths = list_checkpoints(directory)
    is_damaged = True
    for path in reversed(paths):
        try:
            found = _load(path)
            if accepts is None or accepts(found.state):
                return found
            is_damaged = False
        except CheckpointError as error:
            warnings.warn(f"{error} Falling back to the one before.", ResumeWarning, stacklevel=2)
    if not is_damaged:
        raise CheckpointError(
            "no checkpoint fits the number of steps",
            where=str(directory),
            fix="Resume with the number of steps that the run was begun with.",
        )
    if paths:
        raise CheckpointError(
            "every checkpoint is damaged",
            where=str(directory),
            fix="Restore one from a backup, or begin a new run.",
        )
    return None


def checkpoint_states(directory: Path) -> Iterator[Mapping[str, Any]]:
    """The states of all checkpoints, the newest first, without looking at their tensors."""
    for path in reversed(list_checkpoints(directory)):
        with suppress(CheckpointError):
            yield _load_state(path)


def remove_after(directory: Path, step: int) -> None:
    """Delete the checkpoints of later steps, which the run will do again."""
    for path in list_checkpoints(directory):
        if step_of(path) > step:
            files.remove_directory(path)


def network_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers by name, a shared one under its first name alone."""
    saved = network.state_dict(keep_vars=True).keys()
    named = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {name: tensor.detach().contiguous() for name, tensor in named.items() if name in saved}


def optimizer_tensors(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as `KIND/PARAMETER` tensors."""
    return {
        f"{kind}/{name}": value.contiguous()
        for name, parameter in network.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


@torch.no_grad()
def restore(
    checkpoint: Checkpoint, network: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Put a checkpoint's tensors into a network and its optimizer.

    Raises:
        CheckpointError: a tensor is missing, unknown, or of another shape.
    """
    restore_weights(checkpoint.weights, network, where=str(checkpoint.path))
    if optimizer is None:
        return
    parameters = dict(network.named_parameters())
    for key, value in checkpoint.optimizer.items():
        kind, name = key.split("/", 1)
        if name not in parameters:
            raise CheckpointError(f"unknown parameter {name!r}", where=str(checkpoint.path))
        parameter = parameters[name]
        optimizer.state[parameter][kind] = value.to(parameter.device, copy=True)


@torch.no_grad()
def restore_weights(weights: Mapping[str, Tensor], network: nn.Module, *, where: str) -> None:
    """Put tensors of `network_tensors` back into a network, strictly.

    Raises:
        CheckpointError: a tensor is missing, unknown, or of another shape.
    """
    named = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    wanted = network_tensors(network).keys()
    for name in sorted(wanted ^ weights.keys()):
        problem = "is missing" if name in wanted else "is unknown to this network"
        raise CheckpointError(f"the tensor {name!r} {problem}", where=where)
    for name, value in weights.items():
        if named[name].shape != value.shape:
            raise CheckpointError(
                f"the tensor {name!r} is {list(value.shape)}, not {list(named[name].shape)}",
                where=where,
            )
        named[name].copy_(value)


def save_weights(file: Path, network: nn.Module) -> None:
    """Write a network's tensors to a safetensors file, wholly or not at all.

    Raises:
        OutputError: the disk is full or not writable.
    """
    with files.writing(file):
        files.make_directory(file.parent)
    with files.atomic(file) as new:
        write_weights(new, network_tensors(network))


def load_weights(file: Path, network: nn.Module) -> None:
    """Read a file of `save_weights` into the network.

    Raises:
        CheckpointError: the file is missing or damaged, or of another network.
    """
    restore_weights(_read_tensors(file), network, where=str(file))


def _load(path: Path) -> Checkpoint:
    state = _load_state(path, _FILES)
    weights, optimizer = (_read_tensors(path / name) for name in _FILES[:2])
    return Checkpoint(weights, optimizer, state, path)


def _load_state(path: Path, checked: Sequence[str] = ("state.json",)) -> dict[str, Any]:
    """A checkpoint's state, after files of it were compared with their checksums."""
    try:
        sums = json.loads((path / "manifest.json").read_text())
        for name in checked:
            if _sha256(path / name) != sums[name]:
                raise CheckpointError(f"{name} is damaged", where=str(path))
        state: dict[str, Any] = json.loads((path / "state.json").read_text())
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"damaged ({error})", where=str(path)) from None
    return state


def _read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot be read ({error})", where=str(file)) from None


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
