"""What a run directory says, read for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ...errors import BertworksError, DataError
from ...tasks import task_class
from ...tasks.breakdown import Breakdown
from ..best import Best
from ..journal import RunDirectory
from ..run_files import EVALUATION, SAMPLES, read_data, read_json


@dataclass(frozen=True)
class RunFacts:
    """A run directory's content.

    Attributes:
        name: of the directory.
        settings: as they stand in `settings.yaml`.
        train: the journal's lines about training.
        evaluations: the journal's lines about evaluations.
        sessions: the lines of `sessions.jsonl`.
        data: the data's counts, from `data.json`; empty if there are none.
        samples: sample fill-ins, from `samples.json`; empty if there are none.
        measured: what `evaluation.json` is of; "" if there is none.
        metrics: those in it, of the kept weights; empty if there is none.
        breakdown: what these are made of.
        chosen_by: what chose the kept weights; None if they are the last.
        early_end: why the run ended before its last step; "" if it did not.
        is_finished: whether the trained model was saved.
    """

    name: str
    settings: str
    train: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    sessions: Sequence[Mapping[str, Any]]
    data: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]]
    measured: str
    metrics: Mapping[str, float | None]
    breakdown: Breakdown
    chosen_by: Best | None
    early_end: str
    is_finished: bool

    @classmethod
    def read(cls, run: RunDirectory) -> Self:
        """Read a run directory; what a run has not come to yet is empty.

        Raises:
            DataError: a file of the run is damaged, or another version's.
        """
        chosen_by = _chosen_by(run)
        lines = list(run.lines())
        evaluation = read_json(run.evaluation, EVALUATION) if run.evaluation.is_file() else {}
        data, samples = run.path / "data.json", run.path / "samples.json"
        return cls(
            name=run.path.resolve().name,
            settings=run.settings_file.read_text(encoding="utf-8"),
            train=[line for line in lines if line["kind"] == "train"],
            evaluations=[line for line in lines if line["kind"] == "eval"],
            sessions=list(run.sessions()),
            data=read_data(data) if data.is_file() else {},
            samples=read_json(samples, SAMPLES) if samples.is_file() else [],
            measured=f"{evaluation['data']}, {evaluation['rows']:,} rows" if evaluation else "",
            metrics=evaluation.get("metrics", {}),
            breakdown=Breakdown.parse(evaluation.get("breakdown", {}), where=str(run.evaluation)),
            chosen_by=chosen_by,
            early_end="".join(line["why"] for line in lines if line["kind"] == "stop"),
            is_finished=run.model.is_dir(),
        )

    @property
    def last_step(self) -> int:
        return max((line["step"] for line in (*self.train, *self.evaluations)), default=0)

    @property
    def kept(self) -> Mapping[str, Any] | None:
        """The journal's evaluation of the weights that were kept: the best one, or the last."""
        if not self.evaluations:
            return None
        if self.chosen_by is None:
            return self.evaluations[-1]
        name = self.chosen_by.metric
        sign = -1 if self.chosen_by.lower_is_better else 1
        measured = [line for line in self.evaluations if line["metrics"].get(name) is not None]
        # The first of equals, as in training.
        return max(measured, key=lambda line: sign * line["metrics"][name], default=None)

    @property
    def metric_names(self) -> list[str]:
        """The metrics of the evaluations, in the order in which they are first met."""
        return list(dict.fromkeys(key for line in self.evaluations for key in line["metrics"]))

    @property
    def loss_names(self) -> list[str]:
        """The losses that training adds up."""
        return list(dict.fromkeys(key for line in self.train for key in line["losses"]))


def _chosen_by(run: RunDirectory) -> Best | None:
    settings = run.settings()
    if "best_metric" not in settings:
        return None
    try:
        task = task_class(str(settings.get("task")))
    except BertworksError as error:
        raise DataError(error.what, where=str(run.settings_file), fix=error.fix) from None
    metric = settings["best_metric"] or task.best_metric
    return Best(metric, metric in task.lower_is_better)
