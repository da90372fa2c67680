"""What a run directory says, read for the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from ...tasks import task_class
from ...tasks.breakdown import Breakdown
from ..journal import RunDirectory


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
    early_end: str
    is_finished: bool

    @classmethod
    def read(cls, run: RunDirectory) -> Self:
        """Read a run directory; what a run has not come to yet is empty.

        Raises:
            DataError: `evaluation.json` is another version's.
        """
        lines = list(run.lines())
        evaluation = _read_json(run.evaluation) or {}
        return cls(
            name=run.path.resolve().name,
            settings=run.settings_file.read_text(encoding="utf-8"),
            train=[line for line in lines if line["kind"] == "train"],
            evaluations=[line for line in lines if line["kind"] == "eval"],
            sessions=list(run.sessions()),
            data=_read_json(run.path / "data.json") or {},
            samples=_read_json(run.path / "samples.json") or [],
            measured=f"{evaluation['data']}, {evaluation['rows']:,} rows" if evaluation else "",
            metrics=evaluation.get("metrics", {}),
            breakdown=Breakdown.parse(evaluation.get("breakdown", {}), where=str(run.evaluation)),
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
        settings = yaml.safe_load(self.settings) or {}
        if "best_metric" not in settings:
            return self.evaluations[-1]
        task = task_class(settings["task"])
        name = settings["best_metric"] or task.best_metric
        sign = -1 if name in task.lower_is_better else 1
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


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
