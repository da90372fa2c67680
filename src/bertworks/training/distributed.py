"""One process or many: the little that the training loop needs to know about its team.

`torchrun --nproc-per-node N` starts N processes and tells each its rank by environment variables.
Each takes its share of every global batch; gradients are averaged by PyTorch's
`DistributedDataParallel`. Without `torchrun` the team is one process, and everything here is a
plain function call.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..model.device import pick_device

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """The processes that train one network together.

    Attributes:
        rank: which of them this is; rank 0 writes the run directory.
        world: how many there are.
        device: where this one computes.
    """

    rank: int
    world: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network as the loop calls it: gradients are averaged over the team on backward."""
        if self.world == 1:
            return network
        # A task may leave parameters unused (the pooler, without next-sentence prediction), which
        # has to be looked for; that there is none is no news for the user.
        warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
        return DistributedDataParallel(network, find_unused_parameters=True)

    def backward_context(
        self, network: nn.Module, *, is_last: bool
    ) -> AbstractContextManager[object]:
        """Gradients are exchanged in the backward pass of the last micro-batch alone."""
        if is_last or not isinstance(network, DistributedDataParallel):
            return nullcontext()
        return network.no_sync()

    def sum_tensor(self, values: Tensor) -> Tensor:
        """The sum of a tensor over the team, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def sum_counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        """The sum of named counts over the team; every rank gives the same names."""
        if self.world == 1:
            return dict(counts)
        names = sorted(counts)
        values = torch.tensor([counts[name] for name in names], device=self.device)
        return dict(zip(names, self.sum_tensor(values).tolist(), strict=True))

    def gather(self, value: T) -> list[T]:
        """Everyone's value, in the order of ranks, on every rank."""
        if self.world == 1:
            return [value]
        values: list[T | None] = [None] * self.world
        dist.all_gather_object(values, value)
        return [value for value in values if value is not None]


@contextmanager
def team(device: torch.device | str = "cpu") -> Iterator[Team]:
    """The team that `torchrun` started, or a team of one.

    A process group that exists already is used and left alone; else one is made (NCCL for CUDA,
    Gloo otherwise) and taken down at the end.
    """
    device = pick_device(device)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 and not dist.is_initialized():
        yield Team(0, 1, device)
        return
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    ours = not dist.is_initialized()
    if ours:
        # The others wait while the first measures on dev. That a process has died, torchrun tells.
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(hours=12))
    try:
        yield Team(dist.get_rank(), dist.get_world_size(), device)
    finally:
        if ours:
            # Gloo's threads let go of the last tensors a moment after they have said that they are
            # done, and need the interpreter for it: one that ends meanwhile takes the process down.
            time.sleep(0.1)
            dist.destroy_process_group()
