"""The content of a run directory for the report, and the charts of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ..errors import BertworksError, DataError
from ..runs.run_directory import RunDirectory
from ..runs.run_files import EVALUATION, SAMPLES, read_data, read_sealed_json, read_valid_json
from ..tasks import find_task_class
from ..tasks.best_metric import BestMetric
from ..tasks.breakdown import Breakdown
from ..utils.formatting import format_count
from .charts import Curve
from .page import is_share, label, majority_of


@dataclass(frozen=True)
class RunFacts:
    """The content of a run directory."""

    name: str  # of the directory
    settings: str  # the text of `settings.yaml`
    train: Sequence[Mapping[str, Any]]  # journal lines about training
    evaluations: Sequence[Mapping[str, Any]]  # journal lines about evaluations
    sessions: Sequence[Mapping[str, Any]]  # the lines of `sessions.jsonl`
    data: Mapping[str, Any]  # counts of the data, from `data.json`; empty if there are none
    # sample fill-ins, from `samples.json`; empty if there are none
    samples: Sequence[Mapping[str, Any]]
    evaluated_data: str  # the data and rows of `evaluation.json`; "" if there is none
    metrics: Mapping[str, float | None]  # its metrics, of the kept weights; empty if there is none
    breakdown: Breakdown  # its breakdown
    best_metric: BestMetric | None  # selected the kept weights; None if the last weights are kept
    early_end: str  # why the run ended before its last step; "" if it did not
    is_finished: bool  # whether the trained model was saved

    @classmethod
    def read(cls, run: RunDirectory) -> Self:
        """Read a run directory; facts that the run does not have yet are empty.

        Raises:
            DataError: a file of the run is damaged, or the run is in another format.
        """
        best_metric = _find_best_metric(run)
        lines = list(run.lines())
        is_evaluated = run.evaluation.is_file()
        evaluation = read_sealed_json(run.evaluation, EVALUATION) if is_evaluated else {}
        data, samples = run.path / "data.json", run.path / "samples.json"
        return cls(
            name=run.path.resolve().name,
            settings=run.settings_file.read_text(encoding="utf-8"),
            train=[line for line in lines if line["kind"] == "train"],
            evaluations=[line for line in lines if line["kind"] == "eval"],
            sessions=list(run.sessions()),
            data=read_data(data) if data.is_file() else {},
            samples=read_valid_json(samples, SAMPLES) if samples.is_file() else [],
            evaluated_data=f"{evaluation['data']}, {format_count(evaluation['rows'], 'row')}"
            if evaluation
            else "",
            metrics=evaluation.get("metrics", {}),
            breakdown=Breakdown.parse(evaluation.get("breakdown", {}), where=str(run.evaluation)),
            best_metric=best_metric,
            early_end="; ".join(line["why"] for line in lines if line["kind"] == "stop"),
            is_finished=run.model.is_dir(),
        )

    @property
    def failures(self) -> list[str]:
        """Signs that the run has failed, such as that it learned nothing, and what to try.

        Those before the last start are of a run that was extended since.
        """
        events = [line["event"] for line in self.sessions]
        first = max((at for at, event in enumerate(events) if event == "start"), default=0)
        lines = (line for line in self.sessions[first:] if line["event"] == "failure")
        return list(dict.fromkeys(filter(None, (line.get("text") for line in lines))))

    @property
    def last_step(self) -> int:
        return max((line["step"] for line in (*self.train, *self.evaluations)), default=0)

    @property
    def kept_evaluation(self) -> Mapping[str, Any] | None:
        """The journal line of the evaluation of the kept weights: the best one, or the last."""
        if not self.evaluations:
            return None
        if self.best_metric is None:
            return self.evaluations[-1]
        name = self.best_metric.metric
        sign = -1 if self.best_metric.lower_is_better else 1
        measured = [line for line in self.evaluations if line["metrics"].get(name) is not None]
        # Of equal values, `max` returns the first, as in training.
        return max(measured, key=lambda line: sign * line["metrics"][name], default=None)

    @property
    def metric_names(self) -> list[str]:
        """The names of the evaluations' metrics, in order of first occurrence."""
        return list(dict.fromkeys(key for line in self.evaluations for key in line["metrics"]))

    @property
    def loss_names(self) -> list[str]:
        """The names of the training losses, in order of first occurrence."""
        return list(dict.fromkeys(key for line in self.train for key in line["losses"]))


def _find_best_metric(run: RunDirectory) -> BestMetric | None:
    settings = run.settings()
    if "best_metric" not in settings:
        return None
    try:
        task = find_task_class(str(settings.get("task")))
    except BertworksError as error:
        raise DataError(error.what, where=str(run.settings_file), fix=error.fix) from None
    metric = settings["best_metric"] or task.best_metric
    return BestMetric(metric, metric in task.lower_is_better)


SMOOTHING_WINDOW = 40
"""Smoothing averages over about one value in this many; curves with fewer values are not smoothed.
"""


@dataclass(frozen=True)
class RunChart:
    """A chart's title, caption (what its axes show) and curves."""

    title: str
    caption: str
    curves: Sequence[Curve]
    is_percent: bool = False
    from_zero: bool = False


def charts_of(facts: RunFacts) -> Iterator[RunChart]:
    """Yield the charts of a run: losses, metrics, learning rate, and speed.

    The run must have logged at least one step.
    """
    evaluation_steps = [line["step"] for line in facts.evaluations]
    metrics = {
        name: [line["metrics"].get(name) for line in facts.evaluations]
        for name in facts.metric_names
    }
    steps = [line["step"] for line in facts.train]
    for loss in facts.loss_names:
        values = [line["losses"].get(loss) for line in facts.train]
        is_only = len(facts.loss_names) == 1
        held_out = "loss" if is_only and f"{loss}_loss" not in metrics else f"{loss}_loss"
        curves = [Curve("training", steps, values)]
        if len(values) > SMOOTHING_WINDOW:
            curves = [
                Curve("training", steps, values, "faint"),
                Curve("smoothed", steps, smooth(values)),
            ]
        if held_out in metrics:
            curves.append(
                Curve("held out", evaluation_steps, metrics.pop(held_out), "second", dots=True)
            )
        yield RunChart("Loss" if is_only else f"{label(loss)} loss", "mean, by step", curves)
    for name, values in metrics.items():
        if name == "loss" or name.endswith(("perplexity", "majority")):
            continue  # sums or functions of charted losses; a majority is in its accuracy's chart
        curves = [Curve("held out", evaluation_steps, values, "second", dots=True)]
        majority = metrics.get(majority_of(name))
        if majority is not None:
            curves.append(Curve("majority", evaluation_steps, majority, "third", is_dashed=True))
        yield RunChart(label(name), "held-out rows, by step", curves, is_percent=is_share(name))
    rates = [line["lr"] for line in facts.train]
    yield RunChart("Learning rate", "by step", [Curve("", steps, rates)], from_zero=True)
    speeds = [line["time"]["tokens_per_second"] for line in facts.train]
    yield RunChart("Tokens per second", "by step", [Curve("", steps, speeds)], from_zero=True)


def smooth(values: Sequence[float | None]) -> list[float | None]:
    """An exponential moving average over about 1/40 of the values, without bias at the start."""
    weight = 1 - 1 / max(1.0, len(values) / SMOOTHING_WINDOW)
    out: list[float | None] = []
    total = norm = 0.0
    for value in values:
        if value is not None:
            total, norm = weight * total + (1 - weight) * value, weight * norm + 1 - weight
        out.append(total / norm if norm else None)
    return out
