"""The task of a model's files: this package's description, or the heads of a published model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checkpoints.heads import PublishedCheckpoint
from ..checkpoints.sentence import read_cross_encoder
from ..checkpoints.store import TaskFile
from ..checkpoints.weight_files import ENCODER_FIX
from ..errors import BertworksError, CheckpointError
from ..text.tokenizer import Tokenizer
from . import detect_task, find_task_class, is_registered
from .task import Task


def find_task(
    task: str | type[Task[Any]] | None,
    task_file: TaskFile | None,
    checkpoint: PublishedCheckpoint,
    directory: Path,
    whole_directory: Path,
    *,
    where: str,
) -> Task[Any] | None:
    """Return the task of a model; None for a bare encoder.

    Args:
        task: its class, if the user gives one; "encoder": none.
        task_file: the description in the model's directory, if there is one.
        checkpoint: the model as another tool saved it, if there is none.
        directory: of the encoder.
        whole_directory: of the model's modules.
        where: the model's name in errors.

    Raises:
        SettingsError: the class that the user gives cannot be loaded.
        CheckpointError: the class is that of another task, this package has no such task, or the
            task's settings are not valid.
        NeedsPyTorchError: the task cannot be used without PyTorch.
    """
    if task == "encoder":
        return None
    if task_file is not None:
        return _task_from_file(task_file, task, checkpoint.tokenizer, directory)
    if task is not None:
        raise CheckpointError("has no custom task", where=where, fix="Leave task out.")
    pairs = read_cross_encoder(whole_directory, checkpoint.raw)
    if pairs is not None:
        checkpoint = replace(checkpoint, takes_pairs=True, activation=pairs.activation)
    try:
        return detect_task(checkpoint)
    except BertworksError as error:
        raise CheckpointError(error.what, where=where, fix=error.fix or ENCODER_FIX) from None


def _task_from_file(
    task_file: TaskFile,
    task: str | type[Task[Any]] | None,
    tokenizer: Tokenizer,
    directory: Path,
) -> Task[Any]:
    """Return the task that a directory's `bertworks.json` describes; see `find_task`."""
    where = str(directory / "bertworks.json")
    if task is None and not is_registered(task_file.task):
        raise CheckpointError(
            f"the task {task_file.task!r} is not one of this package",
            where=where,
            fix="Name the file that defines it: --task FILE.py:CLASS (load(…, task=…)), or "
            'load only the encoder: --task encoder (load(…, task="encoder")).',
        )
    kind = find_task_class(task_file.task if task is None else task)
    if kind.name != task_file.task:
        raise CheckpointError(f"its task is {task_file.task!r}, not {kind.name!r}", where=where)
    try:
        return kind.from_dict(task_file.task_settings, tokenizer)
    except BertworksError as error:
        raise CheckpointError(error.what, where=where, fix=error.fix) from None
