"""The memory of a training step, measured on a network that has only shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from ..nn.device import autocast_to
from ..nn.encoder import Encoder
from ..packed import Batch
from ..training.objective import Objective
from ..training.precision import activation_checkpointing
from ..training.recipe import PretrainSettings


def activation_bytes(
    objective: Objective,
    settings: PretrainSettings,
    batch: Batch,
    dtype: torch.dtype | None,
) -> tuple[float, float]:
    """Return the bytes that autograd keeps of a micro-batch for the backward pass, and of a layer.

    With gradient checkpointing, autograd keeps the inputs of all layers, and all tensors of one.
    """
    saved_bytes: float = _saved_bytes(objective.network, batch, dtype, recompute=False)
    layer = saved_bytes / max(1, objective.models["model"].encoder.config.num_hidden_layers)
    if settings.gradient_checkpointing:
        saved_bytes = layer + _saved_bytes(objective.network, batch, dtype, recompute=True)
    return saved_bytes, layer


def _saved_bytes(
    network: nn.Module, batch: Batch, dtype: torch.dtype | None, *, recompute: bool
) -> int:
    weights = {p.untyped_storage()._cdata for p in network.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}  # kept alive: no address is reused

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            storages[storage._cdata] = storage
        return tensor

    network.train()
    with (
        autocast_to(network, dtype),
        activation_checkpointing(network, recompute),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        network(batch.to(torch.device("meta")))
    return sum(storage.nbytes() for storage in storages.values())


@dataclass(frozen=True)
class ShardedMemory:
    """Bytes of the groups of parameters that processes gather together (see `sharding.shard`)."""

    all: int  # of all parameters
    rest: int  # of those outside the layers, whole during a forward and backward pass
    rest_trained: int  # of their gradients
    layer: int  # of the largest layer; two at most are whole at a time

    @classmethod
    def from_network(cls, network: nn.Module) -> Self:
        encoders = (module for module in network.modules() if isinstance(module, Encoder))
        layers = [set(layer.parameters()) for one in encoders for layer in one.layers]
        rest = set(network.parameters()).difference(*layers)
        trained = {parameter for parameter in rest if parameter.requires_grad}
        largest = max(map(_bytes, layers), default=0)
        return cls(_bytes(network.parameters()), _bytes(rest), _bytes(trained), largest)

    def of_process(
        self, memory: Mapping[str, int], devices: int, *, on_cpu: bool
    ) -> dict[str, int]:
        """Return the memory of a process of several, from that of an unsharded one.

        Args:
            on_cpu: whether the whole network, which waits in the host's memory, is in the same.
        """
        whole_weights = self.rest + 2 * self.layer
        whole_gradients = self.rest_trained + self.layer
        # Without activations there is room for the exchange of the rest's gradients, and in an
        # evaluation for the whole network.
        room = memory["activations"]
        evaluation_weights = 0 if on_cpu else self.all - whole_weights - whole_gradients
        return {
            **memory,
            "weights": -(-self.all // devices) + whole_weights + (self.all if on_cpu else 0),
            "gradients": -(-memory["gradients"] // (2 * devices)) + whole_gradients,
            "optimizer": -(-memory["optimizer"] // devices),
            "workspace": max(
                memory["workspace"], self.rest_trained - room, evaluation_weights - room
            ),
        }


def _bytes(parameters: Iterable[nn.Parameter]) -> int:
    return 4 * sum(parameter.numel() for parameter in parameters)
