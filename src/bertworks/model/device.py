"""Where to compute."""

from __future__ import annotations

import torch

from ..errors import BertworksError


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """The device that a name stands for; "auto" is CUDA if there is one, else the CPU.

    Raises:
        BertworksError: the name is none of auto, cpu, cuda and mps, or there is no such device.
    """
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind = name.partition(":")[0]
    if kind not in ("cpu", "cuda", "mps"):
        raise BertworksError(f"no device is called {name!r}", fix="Valid: auto, cpu, cuda, mps.")
    missing = (kind == "cuda" and not torch.cuda.is_available()) or (
        kind == "mps" and not torch.backends.mps.is_available()
    )
    if missing:
        raise BertworksError(f"there is no {kind} device on this machine", fix="Use auto or cpu.")
    return torch.device(name)
