"""The machine on which a run computes: its speed, precision, determinism and random states.

Speed is given as a share of the machine's peak rate of matrix products, which the run measures.
This number is comparable between a laptop and a GPU.
"""

from __future__ import annotations

import base64
import os
import platform
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import SettingsError
from ..nn.config import EncoderConfig
from ..nn.device import dtype_of
from ..nn.encoder import Encoder
from ..nn.heads import MLMHead
from ..packed import Batch, Packed
from ..runs.run_directory import RunDirectory
from ..settings.literals import Precision
from ..tasks.task import Task
from .distributed import ProcessGroup
from .settings import FitSettings

_peaks: dict[tuple[object, ...], float] = {}


def matmul_peak(dtype: torch.dtype, device: torch.device | str, seconds: float = 0.3) -> float:
    """Return the best rate of a large matrix product, in floating-point operations per second.

    A process measures it once for each number of threads. The matrices are constant, so a run's
    random state does not change.
    """
    key = (dtype, torch.device(device), seconds, torch.get_num_threads())
    if key not in _peaks:
        _peaks[key] = _measure_peak(dtype, device, seconds)
    return _peaks[key]


def _measure_peak(dtype: torch.dtype, device: torch.device | str, seconds: float) -> float:
    size = 8192 if torch.device(device).type == "cuda" else 1024
    left = torch.full((size, size), 0.5, dtype=dtype, device=device)
    right = torch.full((size, size), 0.25, dtype=dtype, device=device)
    best = 0.0
    deadline = time.perf_counter() + seconds
    with torch.no_grad():
        while time.perf_counter() < deadline or not best:
            synchronize(device)
            start = time.perf_counter()
            torch.mm(left, right)
            synchronize(device)
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def flops_of_batch(network: nn.Module, batch: Batch) -> float:
    """Return the floating-point operations of a batch's matrix products, forward and backward.

    A product of `[m, k]` and `[k, n]` takes 2mkn operations, and its backward pass twice as many.
    A part without trainable parameters, such as a teacher, has no backward pass. The count includes
    each encoder's layers, attention (with the length of each sequence), and a language-model head
    at the predicted positions. Other heads are negligible.
    """
    total = 0.0
    for module in network.modules():
        if isinstance(module, Encoder):
            forward = encoder_flops(module.config, batch.packed)
        elif isinstance(module, MLMHead):
            matrices = sum(part.numel() for part in module.parameters() if part.ndim == 2)
            forward = 2.0 * (batch.counts.get("mlm", 0) + batch.counts.get("lm", 0)) * matrices
        else:
            continue
        is_trained = any(parameter.requires_grad for parameter in module.parameters())
        total += (3 if is_trained else 1) * forward
    return total


def encoder_flops(config: EncoderConfig, packed: Packed) -> float:
    """Return the operations of one forward pass through an encoder's layers."""
    if config.attention == "two-way":
        return 2 * encoder_flops(config.per_direction_config, packed)
    h, i = config.hidden_size, config.intermediate_size
    mixer = 8 if config.mixer == "lstm" else 4  # matrices of h × h
    linear = 2 * packed.num_tokens * (mixer * h * h + (3 if config.gated else 2) * h * i)
    attention = sum(4 * count * length**2 * h for _start, count, length in packed.groups)
    return float(config.num_hidden_layers * (linear + attention * config.has_heads))


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


def synchronize(device: torch.device | str) -> None:
    """Wait until a device has finished its queued work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


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


def resolve_precision(
    precision: Precision, out: str | Path | None, device: torch.device, *keys: str
) -> Precision:
    """Return a run's precision; `auto` is that of the run to resume, else it fits the device.

    Args:
        out: the run directory, which may not exist yet; None: no run is resumed.
        within: keys of the nested group of settings that contains the precision, if any.
    """
    if precision != "auto":
        return precision
    run = None if out is None else RunDirectory(out)
    if run is None or not run.settings_file.is_file():
        return "fp32" if dtype_of(precision, device) is None else "bf16"
    settings: Any = run.settings()
    for name in keys:
        settings = settings.get(name) or {}
    found: Precision = settings.get("precision", precision)
    return found


@contextmanager
def determinism(is_on: bool) -> Iterator[None]:
    """Use only deterministic kernels in the block; operations without one raise an error."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    if is_on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_deterministic)


@contextmanager
def activation_checkpointing(network: nn.Module, is_on: bool) -> Iterator[None]:
    """If `is_on`, enable gradient checkpointing in every encoder until the block ends."""
    encoders = [module for module in network.modules() if isinstance(module, Encoder)]
    for encoder in encoders:
        encoder.gradient_checkpointing = is_on
    try:
        yield
    finally:
        for encoder in encoders:
            encoder.gradient_checkpointing = False


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
