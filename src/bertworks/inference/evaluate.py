"""How well a network does on rows whose answers are known."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from ..errors import CheckpointError, DataError
from ..model.precision import dtype_of
from ..tasks.breakdown import Breakdown
from ..tasks.evaluation import Evaluation
from ..tasks.task import Example, Network, Task
from .engine import DEFAULTS, NOT_FINITE, chunks, outputs_of, row_number
from .settings import EngineSettings

__all__ = ["Evaluation", "evaluate"]


def evaluate(
    network: Network,
    task: Task[Any],
    examples: Iterable[Example],
    settings: EngineSettings = DEFAULTS,
    *,
    breakdown: bool = True,
) -> Evaluation:
    """Measure a network by its task's metrics.

    Args:
        network: the task's; nothing of it changes.
        task: what collates the examples and measures the outputs.
        examples: with targets (see `engine.labelled_examples`); any number.
        settings: batching and precision.
        breakdown: whether to say what the metrics are made of.

    Raises:
        DataError: there are no examples.
        BertworksError: the metrics need a package that is not installed.
        CheckpointError: what the network puts out for a row, or the loss of all, is not finite.
    """
    evaluator = task.evaluator()
    rows = 0
    for window in chunks(examples, settings.window_rows):
        names = [row_number(at) for at in range(rows, rows + len(window))]
        for outputs, batch in outputs_of(network, task, window, settings, names.__getitem__):
            evaluator.add(outputs, batch)
        rows += len(window)
    if not rows:
        raise DataError("there is nothing to evaluate")
    metrics = evaluator.result()
    if not math.isfinite(metrics.get("loss", 0.0)):
        raise CheckpointError(f"the loss of the {rows:,} rows is not finite", fix=NOT_FINITE)
    made_of = evaluator.breakdown() if breakdown else Breakdown()
    remarks = evaluator.remarks()
    if settings.precision == "int8":
        remarks = [*remarks, "computed with 8-bit weights"]
    elif dtype_of(settings.precision, next(network.parameters()).device) is torch.bfloat16:
        remarks = [*remarks, "computed in bfloat16"]
    return Evaluation(metrics, rows, remarks, made_of)
