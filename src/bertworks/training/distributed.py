"""One process or many: the little that the training loop needs to know about its team.

`torchrun --nproc-per-node N` starts N processes and gives each its rank by environment variables.
Each takes its share of every global batch; gradients are averaged by PyTorch's
`DistributedDataParallel`. Without `torchrun` the team is one process, and everything here is a
plain function call.

Each process notes where it is. One that waits for another without an answer, since
that hangs or has ended, reads there which it is and what it was doing.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import TrainingError
from ..model.device import pick_device
from .settings import TrainingSettings
from .sharding import is_sharded

T = TypeVar("T")

_GRACE = 5.0  # seconds in which all that have waited without an answer say so


@dataclass(frozen=True)
class Team:
    """The processes that train one network together."""

    rank: int  # which of them this is; rank 0 writes the run directory
    world: int  # how many there are
    device: torch.device  # where this one computes

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network as the loop calls it: gradients are averaged over the team on backward."""
        if self.world == 1 or is_sharded(network):
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

    def at(self, place: str) -> None:
        """Note where this process is, for others that wait for it."""
        if self.world > 1:
            _store().set(f"at/{self.rank}", place)

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
        values = torch.tensor([counts[name] for name in names])
        return dict(zip(names, self.sum_tensor(values).tolist(), strict=True))

    def gather(self, value: T) -> list[T]:
        """Everyone's value, in the order of ranks, on every rank."""
        if self.world == 1:
            return [value]
        values = [value] * self.world
        dist.all_gather_object(values, value)
        return values

    def lost(self, timeout: float) -> TrainingError:
        """The error of a process without an answer, which names those it waited for."""
        store = _store()
        store.set(f"waited/{self.rank}", "")
        silent = [rank for rank in range(self.world) if rank != self.rank]
        deadline = time.monotonic() + _GRACE
        while silent and time.monotonic() < deadline:
            time.sleep(0.05)
            silent = [rank for rank in silent if not store.check([f"waited/{rank}"])]
        fix = "Run the same command again: it resumes from the last checkpoint."
        if not silent:
            return TrainingError(
                f"all {self.world} processes waited for each other; check the network",
                fix=fix,
            )
        places = (
            store.get(f"at/{rank}").decode() if store.check([f"at/{rank}"]) else "the start"
            for rank in silent
        )
        named = ", ".join(
            f"rank {rank} of {self.world} at {place}"
            for rank, place in zip(silent, places, strict=True)
        )
        return TrainingError(
            f"no response; it ended or hangs (rank_timeout={timeout:g} s): {named}", fix=fix
        )


def _store() -> Any:
    world = dist.group.WORLD
    assert world is not None, "there is a process group"
    return world.get_group_store()


@contextmanager
def team(
    device: torch.device | str = "cpu", timeout: float = TrainingSettings().rank_timeout
) -> Iterator[Team]:
    """The team that `torchrun` started, or a team of one.

    A process group that exists already is used and left alone; else one is made (Gloo for the
    CPU's tensors, NCCL for those of CUDA) and taken down at the end.

    Args:
        timeout: seconds for which processes wait for each other, at most.

    Raises:
        TrainingError: another process has ended, or has not answered for so long.
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
        # Counts go by Gloo on CUDA too: a rank that hangs is then an exception here.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        except RuntimeError as error:
            raise TrainingError(
                f"the {world} processes do not find each other ({str(error).splitlines()[0]})",
                fix="If torchrun restarted them, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in "
                "its environment.",
            ) from error
    members = Team(dist.get_rank(), dist.get_world_size(), device)
    try:
        yield members
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise members.lost(timeout) from error
        raise
    finally:
        if ours:
            # Gloo's threads release the last tensors a moment after they have said that they are
            # done, and need the interpreter for it: one that ends meanwhile takes the process down.
            time.sleep(0.1)
            dist.destroy_process_group()
