"""The memory that a pre-training run takes, in a process of its own."""

from __future__ import annotations

import ctypes
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import bertworks as bw
from bertworks.training import pretrain


def bytes_of(name: str) -> int:
    """A size in Linux's status of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(name + ":")[1].split()[0]) * 1024


def measure_run(folder: Path, words: Sequence[str]) -> None:
    """Pre-train; write the number of parameters, and the bytes beyond those before the run.

    The weights are counted: they are there before.
    """
    warnings.simplefilter("ignore")
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
