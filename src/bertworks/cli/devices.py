"""Where a verb computes: its device, threads and processes, and the model on the device."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..settings import literals
from .option_groups import OptionGroup

if TYPE_CHECKING:
    from ..model import Model

Device = Annotated[literals.Device, typer.Option(help="Device to run on.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=1024, metavar="N", help="CPU threads; all cores if omitted."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, max=100_000, metavar="N", help="Processes; all cores (of the cluster) if omitted."
    ),
]
ModelWorkers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        max=100_000,
        metavar="N",
        help="Processes, each with the model; 1 if omitted (on Ray: one per core).",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option("--on", metavar="PLACE", help="Run on Ray instead: ray or ray://HOST:PORT."),
]


def set_threads(threads: int | None) -> None:
    """Limit the threads of torch and the tokenizer, if `threads` is given."""
    if threads is not None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        import torch

        torch.set_num_threads(threads)


def _device_option(device: Device = "auto", threads: Threads = None) -> literals.Device:
    set_threads(threads)
    return device


DeviceOption = Annotated[literals.Device, OptionGroup(_device_option)]
"""The device of the network; sets the number of CPU threads, if given."""


def _worker_options(workers: ModelWorkers = None, cluster: Cluster = None) -> dict[str, Any]:
    if workers is None and cluster is None:
        return {}
    return {"workers": workers or (None if cluster else 1), "on": cluster}


WorkerOptions = Annotated[dict[str, Any], OptionGroup(_worker_options)]
"""The number of processes, each with the model, and where they run; empty if not given."""


def load_model(model: str, device: literals.Device, **options: Any) -> Model:
    """Load a model on a device.

    Args:
        options: more arguments of `load`.
    """
    # Imported objects stay: garbage collection of them would take a third of a short command.
    gc.disable()
    from ..loading import load

    gc.freeze()
    gc.enable()
    return load(model, device=device, **options)


def is_main_process() -> bool:
    """Whether this process prints: the first of those that `torchrun` starts, or the only one."""
    return os.environ.get("RANK", "0") == "0"
