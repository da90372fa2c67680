"""Under what conditions a run computes: determinism, memory, whether batches may be split."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..errors import SettingsError
from ..model.encoder import Encoder
from ..tasks.task import Task
from .distributed import Team
from .settings import FitSettings


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
