"""Evaluate a network on labelled rows; `evaluate_held_out.py` has held-out documents."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

from ..data.rows import chunks
from ..errors import NOT_FINITE_FIX, CheckpointError, DataError, row_name
from ..tasks.breakdown import Breakdown
from ..tasks.evaluation import Evaluation
from ..tasks.task import Evaluator, Example, Task
from .engine import DEFAULTS, AnyNetwork, outputs_of, resolve_precision
from .settings import EngineSettings

_NOTES = {
    "int8": "computed with 8-bit weights",
    "bf16": "computed in bfloat16",
    "fp16": "computed in float16",
    "tf32": "computed with TF32 products",
}


class ProcessGroup(Protocol):
    """Processes that evaluate one network together; see `training.distributed`."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def gather(self, value: Any) -> list[Any]: ...


def evaluate(
    network: AnyNetwork,
    task: Task[Any],
    examples: Iterable[Example],
    settings: EngineSettings = DEFAULTS,
    *,
    breakdown: bool = True,
    group: ProcessGroup | None = None,
    is_tuning: bool = False,
) -> Evaluation:
    """Evaluate a network by its task's metrics.

    Args:
        network: of the task; it is not changed.
        examples: with targets (see `Task.labelled_examples`); any number.
        group: processes that share the batches, if the task's evaluator can add up their
            results; each of them calls this function, and gets the result of all batches.
        is_tuning: whether settings of the task were tuned on the examples.

    Raises:
        DataError: there are no examples.
        BertworksError: the metrics need a package that is not installed.
        CheckpointError: the output for a row, or the total loss, is not finite.
    """
    return _evaluate(network, task, examples, settings, group, is_tuning, breakdown)[0]


def evaluate_and_tune(
    network: AnyNetwork,
    task: Task[Any],
    examples: Iterable[Example],
    settings: EngineSettings,
    group: ProcessGroup,
) -> tuple[Evaluation, dict[str, Any]]:
    """Return an evaluation, and the settings of the task that are best for its rows.

    Args and errors: see `evaluate`.
    """
    evaluation, evaluator = _evaluate(network, task, examples, settings, group, is_tuning=True)
    return evaluation, evaluator.tuned_settings(evaluation.metrics)


def _evaluate(
    network: AnyNetwork,
    task: Task[Any],
    examples: Iterable[Example],
    settings: EngineSettings,
    group: ProcessGroup | None,
    is_tuning: bool,
    breakdown: bool = True,
) -> tuple[Evaluation, Evaluator]:
    """Return an evaluation, and the evaluator that has the outputs of all rows."""
    evaluator = task.evaluator()
    evaluator.is_tuning = is_tuning
    if group is not None and not (group.world > 1 and evaluator.state_fields):
        group = None
    share = (0, 1) if group is None else (group.rank, group.world)
    rows = 0
    for window in chunks(examples, settings.window_rows):
        names = [row_name(index) for index in range(rows, rows + len(window))]
        for outputs, batch in outputs_of(network, task, window, settings, names.__getitem__, share):
            evaluator.add(outputs, batch)
        rows += len(window)
    if not rows:
        raise DataError("there is nothing to evaluate")
    if group is not None:
        parts = group.gather(evaluator.state())
        evaluator = task.evaluator()
        evaluator.is_tuning = is_tuning
        for part in parts:  # in the order of ranks, so that all processes get the same bits
            evaluator.merge(part)
    metrics = evaluator.result()
    if not math.isfinite(metrics.get("loss", 0.0)):
        raise CheckpointError(f"the loss of the {rows:,} rows is not finite", fix=NOT_FINITE_FIX)
    notes = evaluator.notes()
    precision = resolve_precision(settings.precision, network)
    if precision in _NOTES:
        notes = [*notes, _NOTES[precision]]
    details = evaluator.breakdown() if breakdown else Breakdown()
    return Evaluation(metrics, rows, notes, details), evaluator
