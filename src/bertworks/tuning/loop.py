"""The runs of a grid, in rounds: in this process, or several in parallel, each in its own process.

The results of finished runs are read. A process does one run and exits, so that a failure (a GPU is
out of memory, the kernel kills the process) ends only that run.
"""

from __future__ import annotations

import os
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from ..errors import (
    CheckpointError,
    DamagedError,
    DataError,
    OtherRunError,
    OutputError,
    SettingsError,
    TrainingError,
)
from ..jobs.parallel import end_with_parent, start
from ..runs.run_directory import RunDirectory
from ..tasks.best_metric import BestMetric
from ..training.checkpoint import ResumeWarning
from ..training.finetune import FinetuneResult
from ..training.signals import RunInterrupted, stop_request
from ..utils.formatting import format_count, format_duration
from ..utils.json_files import parse_json, to_json
from ..utils.memory import is_memory_short, start_thread
from ..utils.progress import Progress, say
from .results import GridResult, GridRun, PointResult, run_name
from .space import STARTUP, Point, Space, name_of, propose


@dataclass(eq=False)
class GridLoop:
    """Does the runs of a grid, or reads their results if they are finished."""

    run: RunDirectory
    finetune: Callable[..., FinetuneResult]  # takes a point's settings, a seed and a directory
    space: Space
    seeds: Sequence[int]
    options: Collection[str]  # names of the task's settings, which decide how rows are read
    places: Sequence[Slot]  # slots for parallel runs
    progress: Progress | None
    runs_done: dict[str, GridRun] = field(default_factory=dict)
    measure: BestMetric | None = None
    num_ended: int = 0

    def __post_init__(self) -> None:
        self.journal_entries = {
            line["run"]: line for line in self.run.lines() if line["kind"] == "run"
        }
        self.total = (self.space.trials or len(self.space.points())) * len(self.seeds)
        self.start = time.monotonic()

    def all(self) -> GridResult:
        """Do all runs that are not finished, and return the results of all.

        Raises:
            TrainingError: every run failed.
            SettingsError: the runs are evaluated by different metrics.
        """
        say(self.progress, f"{format_count(self.total, 'run')}, {len(self.places)} at a time")
        points: list[Point] = []
        for together in self._rounds():
            self._do(together)
            points += together
        if self.measure is None:
            raise TrainingError(
                f"every run failed; the last: {list(self.runs_done.values())[-1].error}",
                where=str(self.run.path),
            )
        distinct = {run_name(point, 0): point for point in points}  # a search may repeat one
        return GridResult(
            self.run, self.measure, tuple(self._result(point) for point in distinct.values())
        )

    def _rounds(self) -> Iterator[list[Point]]:
        """Yield points in rounds: all of a grid at once; of a search, those to try in parallel.

        The points of a search are written to the journal before they are tried, so that an
        interrupted search resumes with the same points.
        """
        space = self.space
        if space.trials is None:
            yield space.points()
            return
        proposed_points: list[Point] = []
        for line in list(self.run.lines()):
            if line["kind"] == "proposal":
                yield line["points"][: max(0, space.trials - len(proposed_points))]
                proposed_points += line["points"]
        while len(proposed_points) < space.trials:
            size = STARTUP if not proposed_points else max(1, len(self.places) // len(self.seeds))
            measure = self.measure
            points = propose(
                space,
                min(size, space.trials - len(proposed_points)),
                [(point, self._result(point).mean) for point in proposed_points],
                seed=self.seeds[0],
                lower_is_better=measure is not None and measure.lower_is_better,
            )
            self.run.write({"kind": "proposal", "points": points})
            yield points
            proposed_points += points

    def _do(self, points: Sequence[Point]) -> None:
        """Do each run of the points that is not finished."""
        runs = {
            run_name(point, seed): GridRun(point, seed, self.run.path / run_name(point, seed))
            for point in points
            for seed in self.seeds
        }
        jobs = []
        for name, run in runs.items():
            if name in self.runs_done:
                continue
            if self._read(run):
                self._report_late(name)
            else:
                do = partial(self.finetune, **run.point, seed=run.seed, out=run.directory)
                jobs.append(GridJob(run.directory, do, self._reading(run.point)))
        with closing(self._outcomes(jobs)) as outcomes:
            for job, error in outcomes:
                run = runs[job.directory.name]
                if error is not None or not self._read(run):
                    why = error or "its metric on dev is not finite"
                    self.runs_done[job.directory.name] = replace(run, error=why)
                self.num_ended += 1
                self._report(job.directory.name)

    def _reading(self, point: Point) -> str:
        """The settings of a point that decide how the tables are read, in words."""
        return name_of({key: value for key, value in point.items() if key in self.options})

    def _outcomes(self, jobs: Sequence[GridJob]) -> Generator[tuple[GridJob, str | None]]:
        if len(self.places) > 1:
            yield from do_in_processes(jobs, self.places)
            return
        for job in jobs:
            title = f"run {len(self.runs_done) + 1}/{self.total}"
            is_first = self.num_ended == 0
            shown = self.progress and _RunProgress(self.progress, title, is_first=is_first)
            yield job, do_here(job, shown)

    def _read(self, run: GridRun) -> bool:
        """Read a run's result and delete its checkpoints; return False if it has no result.

        A run has no result if it is not finished, or if its metric is not finite.

        Raises:
            SettingsError: it is evaluated by another metric than the runs before.
        """
        directory = RunDirectory(run.directory)
        outcome = directory.outcome()
        if outcome is None or "metrics" not in outcome:
            return False
        if outcome["metrics"][outcome["best_metric"]] is None:
            return False
        measure = BestMetric(outcome["best_metric"], outcome["lower_is_better"])
        if self.measure not in (None, measure):
            raise SettingsError(
                f"{run.directory.name} is measured by {measure.metric}, and others by "
                f"{self.measure.metric}",
                where=str(self.run.path),
                fix="Give best_metric=…, and another directory.",
            )
        self.measure = measure
        directory.remove_checkpoints()
        self.runs_done[run.directory.name] = replace(
            run, metrics=outcome["metrics"], notes=tuple(outcome["notes"])
        )
        return True

    def _result(self, point: Point) -> PointResult:
        runs = [self.runs_done[run_name(point, seed)] for seed in self.seeds]
        return PointResult.from_runs(runs, None if self.measure is None else self.measure.metric)

    def _line(self, name: str) -> dict[str, Any]:
        """The journal line about a run."""
        run = self.runs_done[name]
        return {"kind": "run", "run": name, "metrics": run.metrics, "error": run.error}

    def _report_late(self, name: str) -> None:
        """Write the journal line of a finished run if a kill prevented it; otherwise check it.

        Raises:
            DataError: the line differs from the run's evaluation.
        """
        line, entry = self._line(name), self.journal_entries.get(name)
        if entry is None or entry["error"] is not None:
            self.run.write(line)
        elif entry != parse_json(to_json(line)):
            raise DataError(
                f"the entry for {name} differs from its {self.run.evaluation.name}",
                where=str(self.run.journal_file),
                fix="If the run was trained again, delete its line; otherwise restore one of "
                "the two.",
            )

    def _report(self, name: str) -> None:
        """Write a run's journal line, and show its result and the progress of the grid."""
        run = self.runs_done[name]
        self.run.write(self._line(name))
        if self.progress is None:
            return
        num_done = len(self.runs_done)
        what = f"failed: {run.error}"
        if run.error is None and self.measure is not None:
            metric = self.measure.metric
            what = f"{metric} {run.metrics[metric]:.4f}"
        took = time.monotonic() - self.start
        left = took / self.num_ended * (self.total - num_done)
        if self.num_ended < len(self.places):  # the parallel runs end at about the same time
            left = 0.0
        parts = [f"{num_done}/{self.total} · {what}", name.replace(",", " ")]
        notes = run.notes[:1]  # all notes are shown only for the best run
        self.progress.parts([*parts, *notes, *([f"{format_duration(left)} left"] if left else [])])


class _RunProgress(Progress):
    """The live line of one run of a grid; the grid itself shows a permanent line for the run.

    Args:
        grid_progress: the progress of the grid.
        title: shown in place of the phase.
        is_first: whether to show notes before the first step too, such as those about the data.
    """

    def __init__(self, grid_progress: Progress, title: str, *, is_first: bool) -> None:
        super().__init__()
        self._grid_progress, self._title, self._is_first = grid_progress, title, is_first

    def train(self, step: int, total: int, **facts: Any) -> None:
        self._is_first = False
        self._grid_progress.train(step, total, **{**facts, "phase": self._title})

    def show_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        pass

    def note(self, text: str) -> None:
        if self._is_first:
            self._grid_progress.note(text)

    def close(self) -> None:
        self._grid_progress.close()


@dataclass(frozen=True)
class GridJob:
    """A run to do."""

    directory: Path  # the run directory
    # does the run; takes the progress; must be picklable
    finetune: Callable[..., FinetuneResult]
    # the settings of its point that decide how the tables are read, in words; "" if there are none
    reading: str = ""


@dataclass(frozen=True)
class Slot:
    """A slot for one run at a time."""

    environment: Mapping[str, str]  # environment variables to add to the parent's
    threads: int  # threads per process


def slots(device: torch.device, jobs: int | None) -> list[Slot]:
    """Return the slots for parallel runs.

    Args:
        device: the device of the runs; CUDA without a number: all CUDA devices.
        jobs: number of parallel runs; if None, one for each device.
    """
    environments: list[dict[str, str]] = [{}]
    if device.type == "cuda":
        names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if names == [""]:
            names = [str(number) for number in range(torch.cuda.device_count())]
        if device.index is not None:
            names = [names[device.index]]
        environments = [{"CUDA_VISIBLE_DEVICES": name} for name in names]
    count = jobs or len(environments)
    threads = max(1, torch.get_num_threads() // count)
    return [Slot(environments[number % len(environments)], threads) for number in range(count)]


def do_here(job: GridJob, progress: Progress | None) -> str | None:
    """Do a run in this process; if its checkpoints are damaged, restart it from the beginning.

    Returns:
        Why the run failed; None if it did not.

    Raises:
        RunInterrupted: it was asked to stop, and can be resumed.
        OtherRunError: its directory contains another run.
        DataError, BertworksError: a table is wrong, or a package is missing. Every other run would
            fail too, except runs with another `reading`, which the error therefore names.
    """
    try:
        try:
            job.finetune(progress=progress)
        except DamagedError as error:
            # Restarted, it gives identical results: only time is lost.
            warnings.warn(f"{error} The run is restarted.", ResumeWarning, stacklevel=2)
            RunDirectory(job.directory).remove_checkpoints()
            job.finetune(progress=progress)
    except (RunInterrupted, OtherRunError):
        raise
    except TrainingError as error:
        return error.what
    except (SettingsError, CheckpointError, OutputError) as error:
        return str(error)
    except DataError as error:
        what = f"{error.what}, with {job.reading}" if job.reading else error.what
        raise DataError(what, where=error.where, fix=error.fix) from None
    except BaseException as error:  # a panic of a Rust library is not an Exception
        if not is_memory_short(error):
            raise
        return _lack(error)
    return None


def _lack(error: BaseException) -> str:
    """The reason of a failure for lack of memory, in words."""
    what = str(error).partition("\n")[0]
    return what if "memory" in what else f"out of memory ({what or type(error).__name__})"


def do_in_processes(
    jobs: Sequence[GridJob], places: Sequence[Slot]
) -> Iterator[tuple[GridJob, str | None]]:
    """Do each run in its own process; yield it with why it failed, or None, when it ends.

    Raises:
        RunInterrupted: SIGTERM or Ctrl-C was received; the running runs are saved.
        DataError, BertworksError: as in `do_here`; the other runs are stopped.
    """
    waiting, free = list(reversed(jobs)), list(places)
    running: dict[Connection[Any, Any], tuple[GridJob, Slot, SpawnProcess]] = {}
    with stop_request() as request:
        try:
            while waiting or running:
                while waiting and free:
                    job, slot = waiting.pop(), free.pop()
                    connection, process = start(_work, (job, slot), daemon=False)
                    running[connection] = job, slot, process
                for ready in wait(list(running), timeout=0.2):
                    assert isinstance(ready, Connection)
                    job, slot, process = running.pop(ready)
                    free.append(slot)
                    yield job, _end(ready, process)
                if request.signal_number:
                    raise RunInterrupted(
                        "stopped (all runs are saved; the same command resumes)",
                        signal_number=request.signal_number,
                    )
        finally:
            for _, _, process in running.values():
                process.terminate()
            for _, _, process in running.values():
                process.join()


def _work(connection: Connection[Any, Any]) -> None:
    """The main function of a process: do one run and send the result to the parent."""
    if hasattr(os, "setpgrp"):  # not on Windows
        os.setpgrp()  # only the parent handles Ctrl-C: it sends SIGTERM
    where = "a run"
    answer: str | Exception | None
    try:
        start_thread(end_with_parent)
        job, slot = connection.recv()
        where = str(job.directory)
        os.environ.update(slot.environment)  # before the first use of CUDA
        os.environ["RAYON_NUM_THREADS"] = str(slot.threads)
        torch.set_num_threads(slot.threads)
        answer = do_here(job, None)
    except BaseException as error:  # not lost: the parent raises it
        if is_memory_short(error):
            answer = _lack(error)
        elif isinstance(error, Exception):
            if not isinstance(error, TrainingError):
                error.add_note(f"In the process of {where}:\n{traceback.format_exc()}")
            answer = error
        else:
            raise
    connection.send(answer)


def _end(connection: Connection[Any, Any], process: SpawnProcess) -> str | None:
    """Return the result that a finished process sent; raise it if it is an exception."""
    try:
        answer = connection.recv()
    except (EOFError, OSError):
        process.join()
        code = process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return f"its process died ({how})"
    process.join()
    connection.close()
    if isinstance(answer, Exception):
        raise answer
    return None if answer is None else str(answer)
