"""How well a network does on rows whose answers are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..errors import DataError
from ..tasks.task import Example, Network, Task
from .engine import DEFAULTS, EngineSettings, chunks, outputs_of


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation.

    Attributes:
        metrics: by name.
        rows: how many examples were measured.
        remarks: what people should know beside the metrics.
    """

    metrics: dict[str, float]
    rows: int
    remarks: list[str] = field(default_factory=list)


def evaluate(
    network: Network,
    task: Task[Any],
    examples: Iterable[Example],
    settings: EngineSettings = DEFAULTS,
) -> Evaluation:
    """Measure a network by its task's metrics.

    Args:
        network: the task's; its mode and precision are as before when it is done.
        task: what collates the examples and measures the outputs.
        examples: with targets (see `engine.labelled_examples`); any number.
        settings: batching and precision.

    Raises:
        DataError: there are no examples.
        BertworksError: the metrics need a package that is not installed.
    """
    evaluator = task.evaluator()
    rows = 0
    for window in chunks(examples, settings.window_rows):
        for outputs, batch in outputs_of(network, task, window, settings):
            evaluator.add(outputs, batch)
        rows += len(window)
    if not rows:
        raise DataError("there is nothing to evaluate")
    return Evaluation(evaluator.result(), rows, evaluator.remarks())
