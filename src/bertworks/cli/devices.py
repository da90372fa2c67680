"""Where a verb computes: its device, threads and processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..settings import literals
from .option_groups import OptionGroup

ProcessCount = Annotated[int | None, typer.Option(min=1, max=100_000)]

Device = Annotated[literals.Device, typer.Option(help="Device to run on.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=1024, metavar="N", help="CPU threads; all cores if omitted."),
]
Cluster = Annotated[
    str | None,
    typer.Option("--on", metavar="PLACE", help="Run on Ray instead: ray or ray://HOST:PORT."),
]


def set_threads(threads: int | None) -> None:
    """Limit the threads of native code, torch and the tokenizer, if `threads` is given."""
    if threads is not None:
        from ..utils.threads import set_num_threads

        set_num_threads(threads)


def _device(*, device: Device = "auto", threads: Threads = None) -> literals.Device:
    set_threads(threads)
    return device


DeviceOption = Annotated[literals.Device, OptionGroup(_device)]
"""The device of the network; sets the number of CPU threads, if given."""


@dataclass(frozen=True)
class Engine:
    """What computes a model that is only used."""

    device: literals.Device
    backend: literals.Backend


def _engine(*, device: DeviceOption = "auto", backend: literals.Backend = "auto") -> Engine:
    """The device and the backend.

    Args:
        backend: native: without PyTorch, on the CPU; auto: native where it can compute the model
            and the settings, unless there is a GPU.
    """
    return Engine(device, backend)


EngineOption = Annotated[Engine, OptionGroup(_engine)]
"""What computes a model that is only used; sets the number of CPU threads, if given."""


def _workers(*, workers: ProcessCount = None, cluster: Cluster = None) -> dict[str, Any]:
    """The number of processes, and where they run.

    Args:
        workers (N): Processes; all cores (of the cluster) if omitted.
    """
    return {"workers": workers, "on": cluster}


WorkerOptions = Annotated[dict[str, Any], OptionGroup(_workers)]
"""The number of processes, and where they run: arguments of `Workers`."""


def _model_workers(*, workers: ProcessCount = None, cluster: Cluster = None) -> dict[str, Any]:
    """The number of processes with the model, and where they run.

    Args:
        workers (N): Processes, each with the model; 1 if omitted (on Ray: one per core).
    """
    if workers is None and cluster is None:
        return {}
    return {"workers": workers or (None if cluster else 1), "on": cluster}


ModelWorkers = Annotated[dict[str, Any], OptionGroup(_model_workers)]
"""The same, of processes that each have the model; empty if not given."""


def is_main_process() -> bool:
    """Whether this process prints: the first of those that `torchrun` starts, or the only one."""
    return os.environ.get("RANK", "0") == "0"
