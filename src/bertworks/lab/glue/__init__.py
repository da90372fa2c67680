"""The GLUE benchmark: fine-tune and evaluate each task, and predict its test file.

    out/
      MRPC/            the task's grid (see `tuning`); one point if no grid is given
      submission/      the predictions of the test files, in the format of the benchmark's server
      glue.md, .json   a table of all tasks, with the paper's results

Source: paper §4.1 and table 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

import torch

from ...checkpoints.locate import local_directory
from ...data.lines import read_lines
from ...data.reading import Reading
from ...data.separated_tables import split_tsv
from ...errors import DataError, SettingsError, TrainingError
from ...loading import load
from ...model import Model
from ...runs.run_directory import RunDirectory
from ...settings.keywords import TaskKeywords
from ...tasks import find_labelled_task
from ...training.settings import settings_of
from ...tuning.grid import Grid, GridResult, PointResult, describe_model, finetune_grid
from ...tuning.space import Space
from ...utils.atomic_writes import write_file
from ...utils.directories import make_directory
from ...utils.formatting import markdown_table
from ...utils.json_files import write_json
from ...utils.outputs import locked_output
from ...utils.progress import Progress, say
from .tasks import TASKS, Figure, GlueTask, folder_of, select_tasks

NOTE = "In percent. Ours on dev, of the best run there; the paper's on the test set."


@dataclass(frozen=True)
class Score:
    """A row of the table.

    Attributes:
        figure: the metric, and the paper's results.
        dev: the metric of the best run on dev, in percent.
        mean, spread: over the seeds of the best run's point, in percent. With one seed there is no
            spread; if only the best run was evaluated, both are None.
    """

    figure: Figure
    dev: float
    mean: float | None = None
    spread: float | None = None


@dataclass(frozen=True)
class GlueResult:
    """The result of the benchmark.

    Attributes:
        out: the output directory.
        scores: the rows of the table, for all tasks trained in `out`, now or earlier.
        best: for each task, the directory name of its best run.
        missing: the tasks without data, and why.
        answers: the files for the server, of the tasks of this call.
    """

    out: Path
    scores: tuple[Score, ...]
    best: Mapping[str, str]
    missing: Mapping[str, str]
    answers: tuple[Path, ...]

    columns = ("task", "metric", "dev", "mean", "Base", "Large")

    def rows(self) -> list[tuple[str, ...]]:
        """The table; if no task except WNLI is missing, with the average, as in the paper."""
        rows: list[tuple[str, ...]] = [
            (
                score.figure.name,
                score.figure.metric.removesuffix("_correlation"),
                _percent(score.dev),
                ""
                if score.spread is None
                else f"{_percent(score.mean)} ± {_percent(score.spread)}",
                _percent(score.figure.base),
                _percent(score.figure.large),
            )
            for score in self.scores
        ]
        compared = [score for score in self.scores if score.figure.base is not None]
        if len(compared) == sum(figure.base is not None for t in TASKS for figure in t.figures):
            average = sum(score.dev for score in compared) / len(compared)
            rows.append(("average", "", _percent(average), "", "79.6", "82.1"))
        return rows

    def save(self) -> None:
        """Write `glue.md` and `glue.json`."""
        lines = [NOTE, "", *markdown_table(self.columns, self.rows())]
        lines += ["", *(f"Missing: {name} ({why})." for name, why in self.missing.items())]
        write_file(self.out / "glue.md", "\n".join(lines).rstrip("\n") + "\n")
        tree = {
            "scores": [
                asdict(score.figure)
                | {"dev": score.dev, "mean": score.mean, "spread": score.spread}
                for score in self.scores
            ],
            "best": self.best,
            "missing": self.missing,
        }
        write_json(self.out / "glue.json", tree, indent=1)


def glue(
    model: str | Path | Model,
    data: str | Path,
    *,
    out: str | Path,
    tasks: Sequence[str] | None = None,
    grid: Grid = (),
    seeds: int | Sequence[int] = 1,
    jobs: int | None = None,
    device: torch.device | str = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
    **settings: Unpack[TaskKeywords],
) -> GlueResult:
    """Fine-tune a model for the tasks of GLUE; called again, it resumes.

    Args:
        model: as in `finetune`.
        data: the folder of the official files, with one folder per task.
        out: output directory.
        tasks: names such as `["mrpc", "rte"]`; all available tasks if omitted. Tasks already
            trained in `out` stay in the table.
        grid, seeds, jobs, device, progress: as in `finetune_grid`; for each task, the best run by
            the paper's metric is evaluated and predicts the test file.
        overwrite: delete the existing output, of all tasks, and start again.
        settings: settings of `finetune`, for all tasks.

    Raises:
        DataError: there is no such folder or task, or files of a named task are missing.
        SettingsError, TrainingError, OutputError, RunInterrupted: as in `finetune_grid`; settings
            that do not fit a task are an error before anything is trained.
    """
    data, out = Path(data), Path(out)
    folders, missing = _find_folders(tasks, data)
    _check([task for task, _ in folders.values()], grid, settings)
    tables = [
        folder / name
        for task, folder in folders.values()
        for name in (*task.files, *task.test_files.values())
    ]
    source = None if isinstance(model, Model) else local_directory(model)
    inputs = [*tables, source]
    marks = ("*/settings.yaml", "data/QQP-*", "glue.json")
    with locked_output(out, inputs, kind="directory", overwrite=overwrite, marks=marks):
        finished_grids = _read_finished_grids(out, model, except_for=folders.keys())
        answers: list[Path] = []
        for number, (task, folder) in enumerate(folders.values(), 1):
            say(progress, f"{task.name}, task {number} of {len(folders)}")
            read = [_whole(task, folder / name, out, progress) for name in task.files[:2]]
            finished_grids[task.name] = finetune_grid(
                model,
                task.kind,
                train=str(read[0]),
                dev=str(read[1]),
                out=out / task.name,
                grid=grid,
                seeds=seeds,
                jobs=jobs,
                device=device,
                progress=progress,
                **task.settings,
                **settings,
            )
            made = load(out / task.name, device=device)
            answers += _answers(task, folder, made, out / "submission", progress)
        trained_tasks = [task for task in TASKS if task.name in finished_grids]
        result = GlueResult(
            out,
            tuple(
                score
                for t in trained_tasks
                for score in _scores(t, data, finished_grids[t.name], device)
            ),
            {task.name: finished_grids[task.name].best.directory.name for task in trained_tasks},
            {name: why for name, why in missing.items() if name not in finished_grids},
            tuple(answers),
        )
        result.save()
        return result


def _find_folders(
    tasks: Sequence[str] | None, data: Path
) -> tuple[dict[str, tuple[GlueTask, Path]], dict[str, str]]:
    """The tasks that have data, with their folders; and why the others have none.

    Raises:
        DataError: there is no task with data, or a named one has none.
    """
    if not data.is_dir():
        raise DataError("no such folder", where=str(data))
    folders, missing = {}, {}
    for task in select_tasks(tasks):
        folder, lacks = folder_of(task, data)
        if lacks is None:
            folders[task.name] = (task, folder)
        elif tasks is not None:
            raise DataError(f"{task.name} cannot be learned: {lacks}", where=str(folder))
        else:
            missing[task.name] = lacks
    if not folders:
        raise DataError("no GLUE task found", where=str(data))
    return folders, missing


def _check(tasks: Sequence[GlueTask], grid: Grid, settings: Mapping[str, Any]) -> None:
    """Raise for settings that do not fit one of the tasks, before any task is trained."""
    reserved_names = {"seed", "teacher", *(name for task in TASKS for name in task.settings)}
    for task in tasks:
        schema = settings_of(find_labelled_task(task.kind))
        given = {**task.settings, **settings}
        schema.parse(given, where=task.name)
        varied_names = Space.parse(grid, schema, given).axes.keys()
        if clash := sorted(reserved_names & (settings.keys() | varied_names)):
            raise SettingsError(f"{clash[0]} is set by each of GLUE's tasks")
        is_turned = settings.get("both_orders") or "both_orders" in varied_names
        if is_turned and "pair_column" not in task.columns:
            raise SettingsError(
                "both_orders is for pairs of texts", where=task.name, fix="Name tasks of pairs."
            )


def _read_finished_grids(
    out: Path, model: str | Path | Model, *, except_for: Iterable[str]
) -> dict[str, GridResult]:
    """The finished grids of other tasks in `out`.

    Raises:
        TrainingError: one is of another model.
    """
    names = {task.name for task in TASKS if (out / task.name / "grid.json").is_file()}
    grids = {name: GridResult.read(out / name) for name in sorted(names - set(except_for))}
    now = describe_model(model)["fingerprint"] if grids else None
    for name in grids:
        if RunDirectory(out / name).settings()["model"]["fingerprint"] != now:
            raise TrainingError(
                "was trained from another model",
                where=str(out / name),
                fix="Give another directory: the table is of one model.",
            )
    return grids


def _whole(task: GlueTask, file: Path, out: Path, progress: Progress | None) -> Path:
    """A file without incomplete rows, which only QQP has: rows with fewer fields than the header.

    A few questions of the official QQP contain a line end, so that their rows are split over
    several lines. It is usual to leave them out.
    """
    if task.name != "QQP":
        return file
    reading = Reading()
    numbered = read_lines(str(file), reading)
    rows = [fields for _, fields in split_tsv(numbered, str(file), reading)]
    lines = ["\t".join(fields) for fields in rows if len(fields) == len(rows[0])]
    if len(lines) == len(rows):
        return file
    whole = out / "data" / f"{task.name}-{file.name}"
    _write_lines(whole, lines)
    broken = len(rows) - len(lines)
    say(progress, f"{file}: {broken} incomplete lines are left out in {whole}")
    return whole


def _scores(
    task: GlueTask, data: Path, result: GridResult, device: torch.device | str
) -> Iterator[Score]:
    """A task's rows of the table: from the grid, or evaluated now for another dev file."""
    for figure in task.figures:
        file = folder_of(task, data)[0] / figure.file
        if figure.file == task.files[1]:
            seeds = PointResult.from_runs(result.ranked_points[0].runs, figure.metric)
            mean, spread = seeds.mean, seeds.spread
            dev = 100 * result.best.metrics[figure.metric]
            yield Score(figure, dev, mean and 100 * mean, spread and 100 * spread)
        elif file.is_file():
            measured = load(result.best.directory, device=device).evaluate(file)
            yield Score(figure, 100 * measured.metrics[figure.metric])


def _answers(
    task: GlueTask, folder: Path, model: Model, submission: Path, progress: Progress | None
) -> list[Path]:
    """Predict the available test files with the best run, in the format of the benchmark's server.

    Two columns, `index` and `prediction`: names of labels; numbers of STS-B clipped to 0–5.
    """
    files = []
    for name, test in task.test_files.items():
        if not (folder / test).is_file():
            say(progress, f"{name}: no {test}, so nothing for the server")
            continue
        lines = ["index\tprediction"]
        for number, (row, answer) in enumerate(model.stream(data=folder / test)):
            index = row.get("index", row.get("id", number))
            is_label = "label" in answer
            said = answer["label"] if is_label else f"{min(5.0, max(0.0, answer['value'])):.3f}"
            lines.append(f"{index}\t{said}")
        files.append(submission / f"{name}.tsv")
        _write_lines(files[-1], lines)
    return files


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    make_directory(file.parent)
    write_file(file, "".join(f"{line}\n" for line in lines))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
