"""A description of the machine on which a run computes."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch

from ..utils.processor import cpu_name


def describe(device: torch.device | str) -> dict[str, Any]:
    """Return what a run's bits may depend on, in addition to its seed, settings and data."""
    device = torch.device(device)
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "cpu": cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
