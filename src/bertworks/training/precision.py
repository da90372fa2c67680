"""How a run computes: precision, deterministic kernels, activation checkpointing, CUDA graphs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import SettingsError
from ..nn.device import check_precision, resolve_auto
from ..nn.encoder import Encoder
from ..nn.encoder_graphs import TrainingGraphs
from ..runs.run_directory import RunDirectory
from ..settings.literals import Precision

_CUBLAS_SETTING, _CUBLAS_WORKSPACES = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


def resolve_precision(
    precision: Precision, out: str | Path | None, device: torch.device, *keys: str
) -> Precision:
    """Return a run's precision; `auto` is that of the run to resume, else it fits the device.

    Args:
        out: the run directory, which may not exist yet; None: no run is resumed.
        keys: of the nested group of settings that contains the precision, if any.

    Raises:
        SettingsError: the device cannot compute in this precision.
    """
    run = None if out is None else RunDirectory(out)
    if precision == "auto" and (run is None or not run.settings_file.is_file()):
        return resolve_auto(device, training=True)
    if precision == "auto" and run is not None:
        settings: Any = run.settings()
        for name in keys:
            settings = settings.get(name) or {}
        precision = settings.get("precision", precision)
    check_precision(precision, device)
    return precision


@contextmanager
def determinism(is_on: bool) -> Iterator[None]:
    """Use only deterministic kernels in the block; operations without one raise an error.

    Raises:
        SettingsError: CUDA was used before without the setting that makes its products so.
    """
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    if is_on:
        was_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # PyTorch's
        if was_used and _CUBLAS_SETTING not in os.environ:
            raise SettingsError(
                "deterministic=true: this process used CUDA before, and cuBLAS reads its setting "
                "once",
                fix=f"Set {_CUBLAS_SETTING}={_CUBLAS_WORKSPACES} before Python starts.",
            )
        os.environ.setdefault(_CUBLAS_SETTING, _CUBLAS_WORKSPACES)
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


@contextmanager
def cuda_graphs(network: nn.Module, is_on: bool) -> Iterator[None]:
    """If `is_on`, compute training steps of small batches by CUDA graphs until the block ends."""
    encoders = [module for module in network.modules() if isinstance(module, Encoder)]
    for encoder in encoders:
        if is_on and encoder.can_be_recorded:
            encoder.graphs = TrainingGraphs(encoder.config.max_seqlen)
    try:
        yield
    finally:
        for encoder in encoders:
            encoder.graphs = None
