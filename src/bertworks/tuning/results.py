"""The results of a grid: the mean and spread of each point over its seeds, and the best run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..runs.run_directory import RunDirectory, read_run
from ..runs.run_files import GRID, read_valid_json
from ..tasks.best_metric import BestMetric
from ..utils.atomic_writes import write_file
from ..utils.directories import replace_link
from ..utils.formatting import format_metrics, html_facts, markdown_table
from ..utils.json_files import write_json
from .space import Point, format_value, name_of


@dataclass(frozen=True)
class GridRun:
    """One fine-tuning run of a grid.

    Attributes:
        point: its values of the varied settings.
        seed: its seed.
        directory: its run directory.
        metrics: of the model on dev; empty if the run failed.
        error: why it failed; None if it did not.
        notes: the notes of its evaluation.
    """

    point: Point
    seed: int
    directory: Path
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PointResult:
    """The runs of a point, one for each seed, evaluated by one metric.

    Attributes:
        point: the values of the varied settings.
        runs: one for each seed.
        values: the metric of each run that did not fail.
    """

    point: Point
    runs: tuple[GridRun, ...]
    values: tuple[float, ...]

    @classmethod
    def from_runs(cls, runs: Sequence[GridRun], metric: str | None) -> Self:
        """Collect the runs of a point; `metric` is None as long as no run has succeeded."""
        done = [run for run in runs if run.error is None]
        values = () if metric is None else tuple(run.metrics[metric] for run in done)
        return cls(runs[0].point, tuple(runs), values)

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None if all runs failed."""
        return float(np.mean(self.values)) if self.values else None

    @property
    def spread(self) -> float | None:
        """The sample standard deviation over the seeds; None for fewer than two values."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def num_failed(self) -> int:
        """The number of failed runs."""
        return len(self.runs) - len(self.values)


@dataclass(frozen=True)
class GridResult:
    """The result of a grid or a search.

    Attributes:
        run: its directory; `run.model` is the model of the best run.
        measure: the metric that ranks the points, and whether a lower value is better.
        points: the points in the order in which they were tried.
    """

    run: RunDirectory
    measure: BestMetric
    points: tuple[PointResult, ...]

    def __repr__(self) -> str:
        metrics = {self.measure.metric: self.best.metrics[self.measure.metric]}
        best = f"best {self.best.directory.name}: {format_metrics(metrics)}"
        return f"<GridResult {self.run.path}: {len(self.points)} points, {best}>"

    def _repr_html_(self) -> str:
        points = {
            str(one.point): "failed" if one.mean is None else one.mean for one in self.ranked_points
        }
        notes = [] if len(self.points[0].runs) < 2 else ["Means over the seeds."]
        return html_facts(f"{self.measure.metric}, the best of {len(points)} first", points, notes)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Load a result that `save` wrote to a grid's directory.

        Raises:
            DataError: `grid.json` cannot be read or is damaged, or the grid is in another format.
        """
        run = read_run(path)
        tree = read_valid_json(path / "grid.json", GRID)
        points = []
        for point in tree["points"]:
            runs = [
                GridRun(
                    point["settings"],
                    run["seed"],
                    path / run["run"],
                    run["metrics"],
                    run["error"],
                    tuple(run["notes"]),
                )
                for run in point["runs"]
            ]
            points.append(PointResult.from_runs(runs, tree["metric"]))
        measure = BestMetric(tree["metric"], tree["lower_is_better"])
        return cls(run, measure, tuple(points))

    @cached_property
    def ranked_points(self) -> tuple[PointResult, ...]:
        """The points, best mean first; points with a failed run come last."""
        sign = 1 if self.measure.lower_is_better else -1

        def key(result: PointResult) -> tuple[bool, float]:
            return result.num_failed > 0, np.inf if result.mean is None else sign * result.mean

        return tuple(sorted(self.points, key=key))

    @property
    def best(self) -> GridRun:
        """The run of the best point with the best metric on dev."""
        first, value = self.ranked_points[0], None
        for run in first.runs:
            result = run.metrics.get(self.measure.metric)
            if result is not None and self.measure.is_better(result, value):
                best, value = run, result
        return best

    @property
    def failed_runs(self) -> list[GridRun]:
        """The runs that failed."""
        return [run for result in self.points for run in result.runs if run.error is not None]

    @property
    def columns(self) -> tuple[str, ...]:
        """The column names of `rows`."""
        return (*self.points[0].point, self.measure.metric, "spread", "runs")

    def rows(self) -> list[tuple[str, ...]]:
        """The rows of a table of the points, best first."""
        return [
            (
                *map(format_value, result.point.values()),
                "failed" if result.mean is None else f"{result.mean:.4f}",
                "" if result.spread is None else f"± {result.spread:.4f}",
                f"{len(result.values)} of {len(result.runs)}"
                if result.num_failed
                else str(len(result.runs)),
            )
            for result in self.ranked_points
        ]

    def save(self) -> None:
        """Write `grid.json` and `grid.md`, and link `model` to the model of the best run."""
        tree = {
            "metric": self.measure.metric,
            "lower_is_better": self.measure.lower_is_better,
            "best": _tree(self.best),
            "points": [
                {
                    "settings": result.point,
                    "mean": result.mean,
                    "spread": result.spread,
                    "runs": [_tree(run) for run in result.runs],
                }
                for result in self.ranked_points
            ],
        }
        path = self.run.path
        write_json(path / "grid.json", tree, indent=1)
        lines = [
            *markdown_table(self.columns, self.rows()),
            "",
            f"Best: `{self.best.directory.name}`.",
        ]
        lines += [f"Failed: `{run.directory.name}`: {run.error}" for run in self.failed_runs]
        write_file(path / "grid.md", "\n".join(lines) + "\n")
        replace_link(self.run.model, Path(self.best.directory.name) / "model")


def run_name(point: Point, seed: int) -> str:
    """The name of a run's directory in the grid's directory."""
    return name_of({**point, "seed": seed})


def _tree(run: GridRun) -> dict[str, Any]:
    return {
        "run": run.directory.name,
        "seed": run.seed,
        "metrics": dict(run.metrics),
        "error": run.error,
        "notes": list(run.notes),
    }
