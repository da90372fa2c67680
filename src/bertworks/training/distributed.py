"""The process group that trains a network: one process, or several.

`torchrun --nproc-per-node N` starts N processes and passes each its rank in environment variables.
Each process computes its share of every global batch; PyTorch's `DistributedDataParallel` averages
the gradients. Without `torchrun`, the group is one process, and nothing here communicates.

Each process records its current activity in a shared store. If a process hangs or has ended, those
that wait for it read its rank and activity there, for the error message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import SettingsError, TrainingError, first_line
from ..nn.device import pick_device
from ..tasks.task import Task
from .settings import FitSettings, TrainingSettings
from .sharding import is_sharded

T = TypeVar("T")

_GRACE = 5.0  # seconds for every process whose wait timed out to report it


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train one network together."""

    rank: int  # of this process; rank 0 writes the run directory
    world: int  # number of processes
    device: torch.device  # of this process

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wrap(self, network: nn.Module) -> nn.Module:
        """Wrap the network so that its backward pass averages gradients over the group."""
        if self.world == 1 or is_sharded(network):
            return network
        # A task may leave parameters unused (the pooler, without next-sentence prediction). If it
        # leaves none, PyTorch writes a warning, which is not one of Python's, on standard error.
        return DistributedDataParallel(network, find_unused_parameters=True)

    def backward_context(
        self, network: nn.Module, *, is_last: bool
    ) -> AbstractContextManager[object]:
        """A context in which only the last micro-batch's backward pass exchanges gradients."""
        if is_last or not isinstance(network, DistributedDataParallel):
            return nullcontext()
        return network.no_sync()

    def report_activity(self, activity: str) -> None:
        """Record what this process is doing, for the error message of others that wait for it."""
        if self.world > 1:
            _store().set(f"activity/{self.rank}", activity)

    def sum_tensor(self, values: Tensor) -> Tensor:
        """Sum a tensor over the group, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def sum_counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Sum named counts over the group; every rank must pass the same names."""
        if self.world == 1:
            return dict(counts)
        names = sorted(counts)
        values = torch.tensor([counts[name] for name in names])
        return dict(zip(names, self.sum_tensor(values).tolist(), strict=True))

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, in the order of ranks, on every rank."""
        if self.world == 1:
            return [value]
        values = [value] * self.world
        dist.all_gather_object(values, value)
        return values

    def timeout_error(self, timeout: float) -> TrainingError:
        """Return the error for a wait that timed out; it names the ranks that did not respond."""
        store = _store()
        store.set(f"timed_out/{self.rank}", "")
        silent_ranks = [rank for rank in range(self.world) if rank != self.rank]
        deadline = time.monotonic() + _GRACE
        while silent_ranks and time.monotonic() < deadline:
            time.sleep(0.05)
            silent_ranks = [rank for rank in silent_ranks if not store.check([f"timed_out/{rank}"])]
        fix = "Run the same command again: it resumes from the last checkpoint."
        if not silent_ranks:
            return TrainingError(
                f"all {self.world} processes waited for each other; check the network",
                fix=fix,
            )
        keys = {rank: f"activity/{rank}" for rank in silent_ranks}
        activities = ", ".join(
            f"rank {rank} of {self.world} at "
            + (store.get(key).decode() if store.check([key]) else "the start")
            for rank, key in keys.items()
        )
        return TrainingError(
            f"no response; it ended or hangs (rank_timeout={timeout:g} s): {activities}", fix=fix
        )


def _store() -> Any:
    world = dist.group.WORLD
    assert world is not None, "there is a process group"
    return world.get_group_store()


@contextmanager
def process_group(
    device: torch.device | str = "auto", timeout: float = TrainingSettings().rank_timeout
) -> Iterator[ProcessGroup]:
    """Provide the process group that `torchrun` started, or a group of one process.

    An existing process group is used and not destroyed. Otherwise one is created (Gloo for CPU
    tensors, NCCL for CUDA tensors) and destroyed at the end.

    Args:
        timeout: maximum time in seconds that processes wait for each other.

    Raises:
        TrainingError: another process has ended, or has not responded for `timeout` seconds.
    """
    device = pick_device(device)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 and not dist.is_initialized():
        yield ProcessGroup(0, 1, device)
        return
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    is_new = not dist.is_initialized()
    if is_new:
        # On CUDA too, Gloo exchanges the counts: if a rank hangs, an exception is raised here.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        except RuntimeError as error:
            raise TrainingError(
                f"the {world} processes do not find each other ({first_line(error)})",
                fix="If torchrun restarted them, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in "
                "its environment.",
            ) from error
    group = ProcessGroup(dist.get_rank(), dist.get_world_size(), device)
    try:
        yield group
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise group.timeout_error(timeout) from error
        raise
    finally:
        if is_new:
            # Gloo's threads release the last tensors shortly after they report completion, and
            # need the interpreter for it. If it exits meanwhile, the process crashes.
            time.sleep(0.1)
            dist.destroy_process_group()


def check_can_split(task: Task[Any], settings: FitSettings, group: ProcessGroup) -> None:
    """Raise `SettingsError` if batches would be split, but losses of parts do not add up."""
    if task.additive:
        return
    for key in ("micro_batch_size", "micro_batch_tokens"):
        if getattr(settings, key) is not None:
            raise SettingsError(
                f"{key}={getattr(settings, key)}: the losses of {task.name!r} do not add up over "
                "the parts of a batch",
                fix=f"Leave {key} out.",
            )
    if group.world > 1:
        raise SettingsError(
            f"the losses of {task.name!r} do not add up over the parts of a batch, and "
            f"{group.world} processes would share it",
            fix="Train it in one process.",
        )
