"""What the machine can do, and what a step asks of it.

Speed is told as a share of the machine's matrix-multiply peak, measured here and now: a number that
means the same on a laptop and on a GPU.
"""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..model.config import EncoderConfig
from ..model.encoder import Encoder
from ..model.heads import MLMHead
from ..packed import Batch, Packed


def matmul_peak(dtype: torch.dtype, device: torch.device | str, seconds: float = 0.3) -> float:
    """The best rate of a large matrix product in floating-point operations a second.

    Nothing random is drawn, so that a run's random state is left alone.
    """
    size = 8192 if torch.device(device).type == "cuda" else 1024
    left = torch.full((size, size), 0.5, dtype=dtype, device=device)
    right = torch.full((size, size), 0.25, dtype=dtype, device=device)
    best = 0.0
    deadline = time.perf_counter() + seconds
    with torch.no_grad():
        while time.perf_counter() < deadline or not best:
            _wait_for(device)
            start = time.perf_counter()
            torch.mm(left, right)
            _wait_for(device)
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def flops_of_batch(network: nn.Module, batch: Batch) -> float:
    """Floating-point operations of a batch's matrix products, forward and backward.

    A product of `[m, k]` and `[k, n]` takes 2mkn operations, and its backward pass twice as many
    again. Counted are those of each encoder's layers, of attention (with each sequence's own
    length), and of a masked-language-model head at its masked positions; what else heads do is too
    little to matter.
    """
    total = 0.0
    for module in network.modules():
        if isinstance(module, Encoder):
            total += encoder_flops(module.config, batch.packed)
        elif isinstance(module, MLMHead):
            matrices = sum(part.numel() for part in module.parameters() if part.ndim == 2)
            total += 2 * (batch.counts.get("mlm", 0) + batch.counts.get("lm", 0)) * matrices
    return 3 * total


def encoder_flops(config: EncoderConfig, packed: Packed) -> float:
    """Operations of one forward pass through an encoder's layers."""
    h, i = config.hidden_size, config.intermediate_size
    linear = 2 * packed.num_tokens * (4 * h * h + (3 if config.gated else 2) * h * i)
    attention = sum(4 * count * length**2 * h for _start, count, length in packed.groups)
    return float(config.num_hidden_layers * (linear + attention))


def describe(device: torch.device | str) -> dict[str, Any]:
    """What a run's bits may depend on besides its seed, settings and data."""
    device = torch.device(device)
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "cpu": _cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _wait_for(device: torch.device | str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
