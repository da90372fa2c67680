"""Fully sharded training: each process keeps only its part of weights, gradients and averages.

It uses PyTorch's FSDP2 (`fully_shard`): each process gathers the full weights of a layer only while
that layer computes. Each layer of each encoder is wrapped separately. The network is wrapped with
everything else, because the embeddings and an output layer tied to them are used in several places
and must be in one group.

Training changes a sharded copy. The original, unsharded network stays in the host's memory; the
weights are copied back to it for an evaluation, to save the best weights, and at the end.

Source: Zhao et al. (2023), "PyTorch FSDP", §3. PyTorch's modules for this are imported inside the
functions, since importing them takes a second.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..errors import CheckpointError, SettingsError
from ..nn.encoder import Encoder
from ..tasks.network import Network
from .settings import FitSettings


def check_can_shard(settings: FitSettings) -> None:
    """Raise for settings that are not possible with a sharded network.

    Raises:
        SettingsError: `unfreeze_every` is set.
    """
    if settings.unfreeze_every is not None:
        raise SettingsError(
            "sharding=full: layers cannot begin to learn one after the other",
            fix="Leave out unfreeze_every (unfreeze_epochs), or sharding.",
        )


def shard(network: Network, device: torch.device, world: int) -> Network:
    """Return a copy of a network on a device, its parameters sharded over `world` processes.

    The network is on the CPU: each layer is moved to the device and sharded before the next, so the
    device never holds the whole.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded = copy.deepcopy(network)
    mesh = init_device_mesh(device.type, (world,))
    for module in list(sharded.modules()):
        if isinstance(module, Encoder):
            for layer in module.layers:
                fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    return sharded


def is_sharded(network: nn.Module) -> bool:
    """Whether a network was returned by `shard`."""
    return any(_is_part(parameter) for parameter in network.parameters())


def _is_part(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor


@torch.no_grad()
def gather_full_weights(sharded: nn.Module, network: nn.Module) -> None:
    """Copy the weights of a sharded copy to the whole network; every process must call it."""
    full_weights = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for name, part in (*sharded.named_parameters(), *sharded.named_buffers()):
        full_weights[name].copy_(full_tensor(part))


def full_tensor(tensor: Any) -> Tensor:
    """Return the whole of a tensor that may be sharded; every process must call it."""
    whole: Tensor = tensor.full_tensor() if _is_part(tensor) else tensor
    return whole


def local_tensor(tensor: Any) -> Tensor:
    """Return this process's part of a tensor that may be sharded."""
    part: Tensor = tensor.to_local() if _is_part(tensor) else tensor
    return part


def shard_like(parameter: Any, value: Tensor) -> Tensor:
    """Copy a whole tensor to a parameter's device; shard it like the parameter if shapes match."""
    value = value.to(parameter.device, copy=True)
    if not _is_part(parameter) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    sharded: Tensor = distribute_tensor(
        value, parameter.device_mesh, parameter.placements, src_data_rank=None
    )
    return sharded


def write_shards(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write sharded tensors: one safetensors file per process; every process must call it.

    Raises:
        OSError: at least one process could not write its file.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(directory), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer)
    except CheckpointException as error:
        reasons = (reason for reason, _ in error.failures.values())
        raise next((one for one in reasons if isinstance(one, OSError)), error) from None


def read_shards(directory: Path) -> dict[str, Tensor]:
    """Read whole tensors from a directory of `write_shards`, for any number of processes.

    Raises:
        CheckpointError: a file is damaged or missing.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader: Any = HuggingFaceStorageReader(str(directory))
    try:
        tensors: dict[str, Tensor] = {
            name: torch.empty(metadata.size, dtype=metadata.properties.dtype)
            for name, metadata in reader.read_metadata().state_dict_metadata.items()
        }
        with warnings.catch_warnings():  # each process reads independently, on purpose
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(tensors, storage_reader=reader, no_dist=True)
    except (OSError, SafetensorError, CheckpointException) as error:
        raise CheckpointError(f"cannot be read ({error})", where=str(directory)) from None
    return tensors
