"""A description of the machine on which a run computes."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch


def describe(device: torch.device | str) -> dict[str, Any]:
    """Return what a run's bits may depend on, in addition to its seed, settings and data."""
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
