"""The memory that pre-training takes, measured in a process of its own."""

from __future__ import annotations

import ctypes
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import bertworks as bw
from bertworks.analysis import estimate
from bertworks.training import pretrain
from bertworks.training.optimizer import build_optimizer
from bertworks.training.sharding import local_tensor, shard

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = (-1, 0), (-3, 1 << 16)
"""Parameters of glibc's `mallopt`, and their values."""


def bytes_of(name: str) -> int:
    """A size in Linux's status of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(name + ":")[1].split()[0]) * 1024


def measure_run(folder: Path, words: Sequence[str]) -> None:
    """Pre-train; write the number of parameters, and the bytes beyond those before the run.

    The weights are counted: they are there before.
    """
    warnings.simplefilter("ignore")  # of a run that is too short
    torch.set_num_threads(1)
    fit = pretrain.fit

    def measure_fit(network: torch.nn.Module, *rest: Any, **options: Any) -> Any:
        parameters = sum(p.numel() for p in network.parameters())
        # Memory that was freed but kept would hide what the run takes.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        baseline = bytes_of("VmRSS") - 4 * parameters
        options["evaluate"] = lambda network: {"mlm_loss": 0.0}
        result = fit(network, *rest, **options)
        sizes = {"parameters": parameters, "bytes": bytes_of("VmHWM") - baseline}
        (folder / "sizes.json").write_text(json.dumps(sizes))
        return result

    few = ["batch_size=2" if word.startswith("batch_size") else word for word in words]
    bw.pretrain("tiny", few, out=folder / "few")  # loads what PyTorch loads: not what is measured
    pretrain.fit = measure_fit  # type: ignore[assignment]
    bw.pretrain("tiny", words, out=folder / "run")


def measure_sharded(folder: Path, words: Sequence[str]) -> None:
    """Compute two updates as the first of eight processes; write the bytes that they take.

    The other seven are made up: what they would send is not sent, but has its memory.
    """
    warnings.simplefilter("ignore")  # of a run that is too short
    torch.set_num_threads(1)
    # Freed memory goes back at once, or else its gaps would be counted.
    for threshold in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
        assert ctypes.CDLL(None).mallopt(*threshold) == 1
    device = torch.device("cpu")
    settings = estimate._settings("tiny", words)
    objective = estimate._objective(settings, on_meta=False)

    def update(
        network: torch.nn.Module, count: int, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        batch = estimate._batch(objective, settings, settings.phases[0], count).to(device)
        torch.stack(list(network(batch).values())).sum().backward()
        if optimizer is not None:
            optimizer.step()
        network.zero_grad(set_to_none=True)

    network = objective.network.train()
    update(network, 1)  # loads what PyTorch loads: not what is measured
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    sharded = shard(network, device, 8).train()
    parts = [local_tensor(parameter) for parameter in sharded.parameters()]
    for part in parts:
        torch.nn.init.normal_(part, std=0.02)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    baseline = bytes_of("VmRSS") - sum(part.nbytes for part in parts)
    optimizer = build_optimizer(sharded, settings)
    for _ in range(2):
        update(sharded, settings.batch_size // 8, optimizer)
    (folder / "sizes.json").write_text(json.dumps({"bytes": bytes_of("VmHWM") - baseline}))
