"""Under what conditions a run computes: determinism, memory, whether batches may be split."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import SettingsError
from ..literals import Precision
from ..model.encoder import Encoder
from ..model.precision import dtype_of
from ..tasks.task import Task
from .distributed import Team
from .journal import RunDirectory
from .settings import FitSettings


def settled_precision(
    asked: Precision, out: str | Path, device: torch.device, *within: str
) -> Precision:
    """The precision of a run: `auto` is that of the run as it was begun, or what suits the device.

    Args:
        asked: in the settings.
        out: the run's directory, there or not.
        device: where the run computes.
        within: the group of settings that holds the precision, if one does.
    """
    if asked != "auto":
        return asked
    run = RunDirectory(out)
    if not run.settings_file.is_file():
        return "fp32" if dtype_of(asked, device) is None else "bf16"
    begun: Any = run.settings()
    for name in within:
        begun = begun.get(name) or {}
    found: Precision = begun.get("precision", asked)
    return found


@contextmanager
def determinism(wanted: bool) -> Iterator[None]:
    """Kernels that give the same bits each time, or an error where there is none."""
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def recomputing(network: nn.Module, wanted: bool) -> Iterator[None]:
    """Have the layers of every encoder keep nothing for the backward pass until the block ends."""
    encoders = [module for module in network.modules() if isinstance(module, Encoder)]
    for encoder in encoders:
        encoder.gradient_checkpointing = wanted
    try:
        yield
    finally:
        for encoder in encoders:
            encoder.gradient_checkpointing = False


def check_can_split(task: Task[Any], settings: FitSettings, team: Team) -> None:
    """Refuse to split the batches of a task whose losses do not add up.

    Raises:
        SettingsError: micro-batches or several processes would split them.
    """
    if task.additive:
        return
    for key in ("micro_batch_size", "micro_batch_tokens"):
        if getattr(settings, key) is not None:
            raise SettingsError(
                f"{key}={getattr(settings, key)}: the losses of {task.name!r} do not add up over "
                "the parts of a batch",
                fix=f"Leave {key} out.",
            )
    if team.world > 1:
        raise SettingsError(
            f"the losses of {task.name!r} do not add up over the parts of a batch, and "
            f"{team.world} processes would share it",
            fix="Train it in one process.",
        )
