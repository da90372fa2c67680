"""How well a network does on rows whose answers are known."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic_core import to_json

from ..errors import CheckpointError, DataError
from ..tasks.breakdown import Breakdown
from ..tasks.task import Example, Network, Task
from ..wording import printable
from .engine import DEFAULTS, NOT_FINITE, EngineSettings, chunks, outputs_of, row_number


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation.

    Attributes:
        metrics: by name.
        rows: how many examples were measured.
        remarks: what people should know beside the metrics.
        breakdown: what the metrics are made of.
    """

    metrics: dict[str, float]
    rows: int
    remarks: list[str] = field(default_factory=list)
    breakdown: Breakdown = field(default_factory=Breakdown)

    def to_json(self, data: str) -> str:
        """The evaluation as JSON; `data` names the table. What is not finite is null."""
        tree = {
            "data": printable(data),
            **{own.name: getattr(self, own.name) for own in fields(self)},
        }
        return to_json(tree, indent=1, inf_nan_mode="null").decode()


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
        network: the task's; its mode and precision are as before when it is done.
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
    return Evaluation(metrics, rows, evaluator.remarks(), made_of)
