"""Fully sharded training: each process holds its part of weights, gradients and averages alone.

PyTorch's FSDP2 does it (`fully_shard`): a layer's weights are put together for as long as it
computes, in each process. What is wrapped are the layers of every encoder, one by one, and the
network with all the rest: the embeddings and an output layer that is tied to them are used in
several places, and so belong together.

What is trained is a copy. The network itself, whole, waits in the host's memory: it takes the
weights when it is measured, saved as the best, or done.

Source: Zhao et al. (2023), "PyTorch FSDP", §3. The modules of PyTorch that do this are imported
where they are needed: they take a second.
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
from ..model.encoder import Encoder
from ..tasks.task import Network
from .settings import FitSettings


def check_can_shard(settings: FitSettings) -> None:
    """Refuse what a sharded network cannot do."""
    if settings.unfreeze_every is not None:
        raise SettingsError(
            "sharding=full: layers cannot begin to learn one after the other",
            fix="Leave out unfreeze_every (unfreeze_epochs), or sharding.",
        )


def shard(network: Network, device: torch.device, world: int) -> Network:
    """A copy of a network on a device, of whose parameters each process has a part."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded = copy.deepcopy(network).to(device)
    mesh = init_device_mesh(device.type, (world,))
    for module in list(sharded.modules()):
        if isinstance(module, Encoder):
            for layer in module.layers:
                fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    return sharded


def is_sharded(network: nn.Module) -> bool:
    """Whether a network is one of `shard`."""
    return any(_is_part(parameter) for parameter in network.parameters())


def _is_part(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor


@torch.no_grad()
def put_together(sharded: nn.Module, network: nn.Module) -> None:
    """Give a whole network the weights of its sharded copy; every process calls it."""
    whole = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for name, part in (*sharded.named_parameters(), *sharded.named_buffers()):
        whole[name].copy_(full(part))


def full(tensor: Any) -> Tensor:
    """The whole of a tensor of which each process may have a part; every process calls it."""
    whole: Tensor = tensor.full_tensor() if _is_part(tensor) else tensor
    return whole


def local(tensor: Any) -> Tensor:
    """This process's part of a tensor."""
    part: Tensor = tensor.to_local() if _is_part(tensor) else tensor
    return part


def spread_like(parameter: Any, value: Tensor) -> Tensor:
    """A copy of a whole tensor on a parameter's device; sharded like it, if of its shape."""
    value = value.to(parameter.device, copy=True)
    if not _is_part(parameter) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    placed: Tensor = distribute_tensor(
        value, parameter.device_mesh, parameter.placements, src_data_rank=None
    )
    return placed


def write_shards(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of which each process has a part: a safetensors file each; all call it.

    Raises:
        OSError: it cannot be written, by one of them.
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
    """The whole tensors of a directory of `write_shards`, however many processes wrote it.

    Raises:
        CheckpointError: a file is damaged, or missing.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader: Any = HuggingFaceStorageReader(str(directory))
    try:
        tensors: dict[str, Tensor] = {
            name: torch.empty(kept.size, dtype=kept.properties.dtype)
            for name, kept in reader.read_metadata().state_dict_metadata.items()
        }
        with warnings.catch_warnings():  # that each process reads alone is meant
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(tensors, storage_reader=reader, no_dist=True)
    except (OSError, SafetensorError, CheckpointException) as error:
        raise CheckpointError(f"cannot be read ({error})", where=str(directory)) from None
    return tensors
