"""The states of all random generators that training uses: seeded, saved and restored."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int, rank: int = 0) -> None:
    """Seed PyTorch, Python and NumPy, each rank differently."""
    seed = (seed + 1_000_003 * rank) % 2**32  # the CPU's generator ignores higher bits
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def get_random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of all random generators that training on `device` may use."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached_gauss = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": _to_text(torch.get_rng_state()),
        "python": [version, list(words), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, cached_gauss],
    }
    if device.type == "cuda":
        state["cuda"] = _to_text(torch.cuda.get_rng_state(device))
    if device.type == "mps":
        state["mps"] = _to_text(torch.mps.get_rng_state())
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Restore a state of `get_random_state`."""
    torch.set_rng_state(_to_tensor(state["torch"]))
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), position, has_gauss, cached))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(_to_tensor(state["cuda"]), device)
    if device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(_to_tensor(state["mps"]))


@contextmanager
def unchanged_random_state(device: torch.device) -> Iterator[None]:
    """Restore the random states at the end of the block."""
    state = get_random_state(device)
    try:
        yield
    finally:
        set_random_state(state, device)


def _to_text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _to_tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
