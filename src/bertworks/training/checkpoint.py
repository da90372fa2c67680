"""Checkpoints of a run: written atomically, with checksums; the last few are kept.

    checkpoints/step-00001234/
      weights.safetensors     parameters and buffers by name
      optimizer.safetensors   `exp_avg/NAME`, `exp_avg_sq/NAME`, … for each parameter
      state.json              everything else that the loop needs to resume exactly
      manifest.json           the SHA-256 of each of these files

For a sharded network (`sharding.py`), `weights` and `optimizer` are directories with one file per
process. Any number of processes can read them, sharded or not.

A checkpoint is written under a hidden name and renamed when all of it is on the disk. A directory
`step-…` is therefore complete, even if the process was killed. Checkpoints contain no pickles.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..checkpoints.network_weights import unique_tensors
from ..checkpoints.weights import write_weights
from ..errors import BertworksWarning, CheckpointError, DamagedError, OutputError
from ..utils.atomic_writes import atomic_write, write_file, writing
from ..utils.directories import make_directory, new_directory, remove_directory
from ..utils.memory import is_memory_short
from ..utils.regular_files import read_bytes, sha256_of
from .sharding import is_sharded, read_shards, shard_like, write_shards

_WEIGHTS, _OPTIMIZER, _STATE = "weights", "optimizer", "state.json"
_ONE_FILE = ".safetensors"


class ResumeWarning(BertworksWarning):
    """A run resumes, but not exactly as expected."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint."""

    weights: Mapping[str, Tensor]  # parameters and buffers by name
    optimizer: Mapping[str, Tensor]  # the optimizer's tensors: `exp_avg/NAME`, …
    state: Mapping[str, Any]  # everything else, as JSON values
    path: Path  # the directory that it was loaded from


def save_checkpoint(
    directory: Path,
    step: int,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    *,
    keep: int,
    keep_step: int | None = None,
    announce: Callable[[Path], object] = lambda _: None,
) -> Path:
    """Save the checkpoint of a step, then delete all but the newest `keep` and that of `keep_step`.

    Only rank 0 calls it; the other ranks of a sharded network call `write_tensors`.

    Args:
        announce: called with the directory before the tensors are written to it.
        keep_step: the step whose checkpoint is kept even if it is old.

    Raises:
        OutputError: the disk is full or not writable; earlier checkpoints are unchanged.
    """
    assert keep >= 1, "the newest is always kept"
    target = directory / f"step-{step:08d}"
    try:
        with writing(directory):
            make_directory(directory)
        # An existing checkpoint of this step is damaged, or the run would have resumed from it.
        with new_directory(target, replace=True) as new:
            announce(new)
            write_tensors(new, network, optimizer)
            write_file(new / _STATE, json.dumps(state))
            sums = {name: sha256_of(new / name) for name in (*_tensor_files(new), _STATE)}
            write_file(new / "manifest.json", json.dumps(sums, indent=1))
    except OutputError as error:
        fix = "Make room, and run the same command again: it resumes from the last checkpoint."
        what = f"the checkpoint of step {step} {error.what}"
        raise OutputError(what, where=error.where, fix=fix) from None
    remove_old(directory, keep=keep, keep_step=keep_step)
    return target


def remove_old(directory: Path, *, keep: int, keep_step: int | None = None) -> None:
    """Delete all checkpoints but the newest `keep` and that of `keep_step`.

    Incomplete checkpoints of killed processes are deleted too.
    """
    with writing(directory):
        for left in directory.glob(".step-*"):
            shutil.rmtree(left)
    for old in list_checkpoints(directory)[:-keep]:
        if step_of(old) != keep_step:
            remove_directory(old)


def write_tensors(directory: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint's tensors; for a sharded network, each process writes its part."""
    weights, averages = network_tensors(network), optimizer_tensors(network, optimizer)
    for name, tensors in ((_WEIGHTS, weights), (_OPTIMIZER, averages)):
        if is_sharded(network):
            with writing(directory):
                write_shards(directory / name, tensors)
        else:
            write_weights(directory / f"{name}{_ONE_FILE}", tensors)


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the directories of a run's checkpoints, oldest first."""
    return sorted(path for path in directory.glob("step-*") if path.is_dir())


def step_of(checkpoint: Path) -> int:
    """Return the step in the name of a checkpoint's directory."""
    return int(checkpoint.name.removeprefix("step-"))


def load_newest(
    directory: Path, accepts: Callable[[Mapping[str, Any]], bool] | None = None
) -> Checkpoint | None:
    """Load the newest undamaged checkpoint; return None if there are no checkpoints.

    Args:
        accepts: whether to accept a checkpoint with this state; by default, all are accepted.

    Raises:
        DamagedError: all checkpoints are damaged.
        CheckpointError: some checkpoints are undamaged, but none of these is accepted.
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
            warnings.warn(f"{error} Trying the one before.", ResumeWarning, stacklevel=2)
    if not is_damaged:
        raise CheckpointError(
            "no checkpoint fits the number of steps",
            where=str(directory),
            fix="Resume with the number of steps that the run was started with.",
        )
    if paths:
        raise DamagedError(
            "every checkpoint is damaged",
            where=str(directory),
            fix="Restore one from a backup, or start a new run.",
        )
    return None


def checkpoint_states(directory: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the states of the checkpoints, the newest first, without reading their tensors.

    Checkpoints with a damaged state are skipped.
    """
    for path in reversed(list_checkpoints(directory)):
        with suppress(CheckpointError):
            yield _load_state(path)


def remove_after(directory: Path, step: int) -> None:
    """Delete the checkpoints of later steps, which the run will repeat."""
    for path in list_checkpoints(directory):
        if step_of(path) > step:
            remove_directory(path)


def network_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return parameters and saved buffers by name, a shared tensor only under its first name."""
    return {name: tensor.contiguous() for name, tensor in unique_tensors(network).items()}


def optimizer_tensors(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as tensors named `KIND/PARAMETER`."""
    return {
        f"{kind}/{name}": value.contiguous()
        for name, parameter in network.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


@torch.no_grad()
def restore(
    checkpoint: Checkpoint, network: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Copy a checkpoint's tensors into a network and its optimizer.

    Raises:
        CheckpointError: a tensor does not fit the network.
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
        optimizer.state[parameter][kind] = shard_like(parameter, value)


@torch.no_grad()
def restore_weights(weights: Mapping[str, Tensor], network: nn.Module, *, where: str) -> None:
    """Copy the tensors of `network_tensors` back into a network.

    Raises:
        CheckpointError: a tensor is missing, unknown, or of another shape.
    """
    own = unique_tensors(network)
    for name in sorted(own.keys() ^ weights.keys()):
        problem = "is missing" if name in own else "is unknown to this network"
        raise CheckpointError(f"the tensor {name!r} {problem}", where=where)
    for name, value in weights.items():
        if own[name].shape != value.shape:
            raise CheckpointError(
                f"the tensor {name!r} is {list(value.shape)}, not {list(own[name].shape)}",
                where=where,
            )
        own[name].copy_(shard_like(own[name], value))


def save_weights(file: Path, network: nn.Module) -> str:
    """Write a network's tensors atomically to a safetensors file, and return its SHA-256."""
    with writing(file):
        make_directory(file.parent)
    with atomic_write(file) as new:
        write_weights(new, network_tensors(network))
        return sha256_of(new)


def load_weights(file: Path, network: nn.Module, sha256: str | None = None) -> None:
    """Load a file of `save_weights`, or the weights of a checkpoint, into the network.

    Args:
        sha256: the checksum that `save_weights` returned for the file, if known.

    Raises:
        DamagedError: the file's checksum is not `sha256`.
        CheckpointError: the file is missing or unreadable, or belongs to another network.
    """
    if sha256 is not None and file.exists() and sha256_of(file) != sha256:
        raise DamagedError(
            "is damaged: its checksum is wrong",
            where=str(file),
            fix="Restore it from a backup, or start a new run.",
        )
    restore_weights(_read_either(file.with_suffix("")), network, where=str(file))


def _load(path: Path) -> Checkpoint:
    state = _load_state(path, all_files=True)
    weights, optimizer = (_read_either(path / name) for name in (_WEIGHTS, _OPTIMIZER))
    return Checkpoint(weights, optimizer, state, path)


def _tensor_files(path: Path) -> list[str]:
    """Return the paths of a checkpoint's tensor files, relative to its directory."""
    return sorted(file.relative_to(path).as_posix() for file in path.rglob(f"*{_ONE_FILE}"))


def _load_state(path: Path, *, all_files: bool = False) -> dict[str, Any]:
    """Load a checkpoint's state, after verifying its checksum, or those of all files."""
    try:
        sums = json.loads(read_bytes(path / "manifest.json"))
        for name in {*sums, *_tensor_files(path), _STATE} if all_files else (_STATE,):
            if sha256_of(path / name) != sums[name]:
                raise CheckpointError(f"{name} is damaged", where=str(path))
        state: dict[str, Any] = json.loads(read_bytes(path / _STATE))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if is_memory_short(error):
            raise
        raise CheckpointError(f"damaged ({error})", where=str(path)) from None
    return state


def _read_either(path: Path) -> dict[str, Tensor]:
    """Load tensors from a directory of shards if there is one, else from one file."""
    return read_shards(path) if path.is_dir() else _read_tensors(path.with_suffix(_ONE_FILE))


def _read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        if is_memory_short(error):
            raise
        raise CheckpointError(f"cannot be read ({error})", where=str(file)) from None
