"""Doing a grid's runs, round by round, and reading those that were done before."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import SettingsError, TrainingError
from ...wording import duration
from ..best import Best
from ..finetune import FinetuneResult
from ..journal import RunDirectory
from ..progress import Progress, say
from .results import GridResult, GridRun, PointResult, run_name
from .runs import Job, Slot, do_here, do_in_processes
from .search import STARTUP, propose
from .space import Point, Space, name_of


class GridLoop:
    """The runs of a grid, done or read from where they were done before.

    Args:
        run: the grid's directory.
        finetune: does a run, told its point, seed and directory.
        space: the points.
        seeds: those of each point.
        options: the names of the task's options, which decide how tables are read.
        places: where runs can go on side by side.
        progress: shows how it goes.
    """

    def __init__(
        self,
        run: RunDirectory,
        finetune: Callable[..., FinetuneResult],
        space: Space,
        seeds: Sequence[int],
        options: Collection[str],
        places: Sequence[Slot],
        progress: Progress | None,
    ) -> None:
        self._options = options
        self._run, self._finetune, self._space, self._seeds = run, finetune, space, seeds
        self._places, self._progress = places, progress
        self._done: dict[str, GridRun] = {}
        self._measure: Best | None = None
        self._total = (space.trials or len(space.points())) * len(seeds)
        self._begun, self._ended_here = time.monotonic(), 0

    def all(self) -> GridResult:
        """Do what is not done yet.

        Raises:
            TrainingError: all of them failed.
            SettingsError: they are not measured by one metric.
        """
        say(self._progress, f"{self._total} runs, {len(self._places)} at a time")
        points: list[Point] = []
        for wanted in self._rounds():
            self._do(wanted)
            points += wanted
        if self._measure is None:
            raise TrainingError(
                f"every run failed; the last: {list(self._done.values())[-1].error}",
                where=str(self._run.path),
            )
        distinct = {run_name(point, 0): point for point in points}  # a search may come back to one
        return GridResult(
            self._run, self._measure, tuple(self._result(point) for point in distinct.values())
        )

    def _rounds(self) -> Iterator[list[Point]]:
        """The points: all of a grid; of a search, those that may be tried side by side.

        What a search has asked for stands in the journal, so that it goes on in the same way
        whatever has come in between.
        """
        space = self._space
        if space.trials is None:
            yield space.points()
            return
        asked: list[Point] = []
        for line in list(self._run.lines()):
            if line["kind"] == "asked":
                yield line["points"][: max(0, space.trials - len(asked))]
                asked += line["points"]
        while len(asked) < space.trials:
            size = STARTUP if not asked else max(1, len(self._places) // len(self._seeds))
            measure = self._measure
            points = propose(
                space,
                min(size, space.trials - len(asked)),
                [(point, self._result(point).mean) for point in asked],
                seed=self._seeds[0],
                lower_is_better=measure is not None and measure.lower_is_better,
            )
            self._run.write({"kind": "asked", "points": points})
            yield points
            asked += points

    def _do(self, points: Sequence[Point]) -> None:
        """Do each run of the points that is not done."""
        runs = {
            run_name(point, seed): GridRun(point, seed, self._run.path / run_name(point, seed))
            for point in points
            for seed in self._seeds
        }
        jobs = []
        for name, run in runs.items():
            if name not in self._done and not self._read(run):
                do = partial(self._finetune, **run.point, seed=run.seed, out=run.directory)
                jobs.append(Job(run.directory, do, self._reading(run.point)))
        with closing(self._outcomes(jobs)) as outcomes:
            for job, error in outcomes:
                run = runs[job.directory.name]
                if error is not None or not self._read(run):
                    why = error or "its metric on dev is not finite"
                    self._done[job.directory.name] = replace(run, error=why)
                self._ended_here += 1
                self._tell(job.directory.name)

    def _reading(self, point: Point) -> str:
        """The settings of a point that decide how the tables are read."""
        return name_of({key: value for key, value in point.items() if key in self._options})

    def _outcomes(self, jobs: Sequence[Job]) -> Generator[tuple[Job, str | None]]:
        if len(self._places) > 1:
            yield from do_in_processes(jobs, self._places)
            return
        for job in jobs:
            title = f"run {len(self._done) + 1}/{self._total}"
            is_first = self._ended_here == 0
            shown = self._progress and _RunProgress(self._progress, title, is_first=is_first)
            yield job, do_here(job, shown)

    def _read(self, run: GridRun) -> bool:
        """Take note of a finished run, if it is one; what it needed to go on is removed."""
        directory = RunDirectory(run.directory)
        outcome = directory.outcome()
        if outcome is None or "metrics" not in outcome:
            return False
        if outcome["metrics"][outcome["best_metric"]] is None:
            return False
        measure = Best(outcome["best_metric"], outcome["lower_is_better"])
        if self._measure not in (None, measure):
            raise SettingsError(
                f"{run.directory.name} is measured by {measure.metric}, and others by "
                f"{self._measure.metric}",
                where=str(self._run.path),
                fix="Give best_metric=…, and another directory.",
            )
        self._measure = measure
        for folder in (directory.checkpoints, directory.best):
            shutil.rmtree(folder, ignore_errors=True)
        self._done[run.directory.name] = replace(
            run, metrics=outcome["metrics"], remarks=tuple(outcome["remarks"])
        )
        return True

    def _result(self, point: Point) -> PointResult:
        runs = [self._done[run_name(point, seed)] for seed in self._seeds]
        return PointResult.of(runs, None if self._measure is None else self._measure.metric)

    def _tell(self, name: str) -> None:
        """A line of the journal, and one for people: how far it is, and what came of a run."""
        run = self._done[name]
        self._run.write({"kind": "run", "run": name, "metrics": run.metrics, "error": run.error})
        if self._progress is None:
            return
        done = len(self._done)
        what = f"failed: {run.error}"
        if run.error is None and self._measure is not None:
            metric = self._measure.metric
            what = f"{metric} {run.metrics[metric]:.4f}"
        took = time.monotonic() - self._begun
        left = took / self._ended_here * (self._total - done)
        if self._ended_here < len(self._places):  # those that run beside it end about now too
            left = 0.0
        parts = [f"{done}/{self._total} · {what}", name.replace(",", " ")]
        remarks = run.remarks[:1]  # the rest is said of the best run alone
        self._progress.parts([*parts, *remarks, *([f"{duration(left)} left"] if left else [])])


class _RunProgress(Progress):
    """The live line of one run among many; what stays of it is one line, told by the grid.

    Args:
        shown: where people look.
        title: which run it is.
        is_first: of the first, what is said of the data stays too.
    """

    def __init__(self, shown: Progress, title: str, *, is_first: bool) -> None:
        super().__init__()
        self._shown, self._title, self._is_first = shown, title, is_first

    def train(self, step: int, total: int, **facts: Any) -> None:
        self._is_first = False
        self._shown.train(step, total, **{**facts, "phase": self._title})

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        pass

    def note(self, text: str) -> None:
        if self._is_first:
            self._shown.note(text)

    def close(self) -> None:
        self._shown.close()
