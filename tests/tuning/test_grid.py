"""Grids and searches: the points, the repeated runs, and the best one."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertworks.errors import BertworksError, DataError, SettingsError, TrainingError
from bertworks.loading import load
from bertworks.model import Model
from bertworks.runs.run_directory import RunDirectory
from bertworks.tasks.best_metric import BestMetric
from bertworks.tasks.classification import ClassificationTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.checkpoint import ResumeWarning
from bertworks.training.finetune import finetune
from bertworks.training.settings import settings_of
from bertworks.training.signals import RunInterrupted
from bertworks.tuning.grid import GridResult, GridRun, PointResult, finetune_grid
from bertworks.tuning.loop import GridJob, do_here, do_in_processes, slots
from bertworks.tuning.space import Range, Space, name_of, propose
from bertworks.utils.progress import Progress
from tests.training.letters import CONFIG, PIECES, Lines, make_rows

SETTINGS = settings_of(ClassificationTask)
TRAIN, DEV = make_rows(32, 1), make_rows(20, 2)
LEARNS = {"batch_size": 8, "epochs": 1, "max_seq_length": 32}


@pytest.fixture
def model() -> Model:
    return Model.fresh(CONFIG, Tokenizer.from_vocabulary(PIECES))


Run = Callable[..., GridResult]


@pytest.fixture
def run(model: Model, tmp_path: Path) -> Run:
    def run(out: str = "grid", **options: Any) -> GridResult:
        return finetune_grid(
            **{
                "model": model,
                "train": TRAIN,
                "dev": DEV,
                "out": tmp_path / out,
                **LEARNS,
                **options,
            }
        )

    return run


class SwitchOffAfter(Progress):
    """The machine is switched off in the first step of a run."""

    def __init__(self, runs: int) -> None:
        super().__init__()
        self._runs = runs

    def train(self, step: int, total: int, **facts: Any) -> None:
        if facts["phase"].startswith(f"run {self._runs + 1}/"):
            raise RuntimeError("the machine was switched off")

    def note(self, text: str) -> None: ...


def test_papers_grid_has_18_points() -> None:
    points = Space.parse("paper", SETTINGS, {}).points()
    assert len(points) == 18
    assert {(p["batch_size"], p["learning_rate"], p["epochs"]) for p in points} == {
        (size, rate, epochs)
        for size in (16, 32)
        for rate in (5e-5, 3e-5, 2e-5)
        for epochs in (2, 3, 4)
    }
    assert name_of(points[0]) == "batch_size=16,learning_rate=5e-05,epochs=2"
    some = Space.parse(["paper", "epochs=1"], SETTINGS, {"batch_size": 8}).points()
    assert some == [{"learning_rate": rate, "epochs": 1} for rate in (5e-5, 3e-5, 2e-5)]
    assert Space.parse((), SETTINGS, {}).points() == [{}]


def test_words_and_values_say_the_same() -> None:
    words = Space.parse(["schedule=linear,constant", "batch_size=4,8,4"], SETTINGS, {})
    values = Space.parse({"schedule": ["linear", "constant"], "batch_size": [4, 8]}, SETTINGS, {})
    assert words == values
    texts = {"schedule": "linear,constant", "batch_size": "4,8"}
    assert Space.parse(texts, SETTINGS, {}) == values
    ranges = ["learning_rate=1e-4..1e-2", "epochs=1..3", "freeze_layers=0..6"]
    search = Space.parse(["optuna:7", *ranges], SETTINGS, {})
    assert search.trials == 7
    assert search.axes == {
        "batch_size": (16, 32),
        "learning_rate": Range(1e-4, 1e-2, is_whole=False),
        "epochs": Range(1, 3, is_whole=True),
        "freeze_layers": Range(0, 6, is_whole=True),
    }
    points = propose(search, 7, [], seed=0, lower_is_better=False)
    assert {point["freeze_layers"] for point in points} <= set(range(7))


@pytest.mark.parametrize(
    "values",
    [
        ("a b", "a-b", "a/b", "a%20b"),
        (1e-3, 1.00000001e-3),
        (["attention.output"], ["attention.output", "feed_forward.output"]),
        ("x" * 300, "x" * 301, "\N{SNOWMAN}" * 300),
    ],
)
def test_no_two_points_share_a_directory(values: tuple[Any, ...], tmp_path: Path) -> None:
    names = {name_of({"batch_size": 8, "setting": value}) for value in values}
    assert len(names) == len(values)
    for name in names:
        (tmp_path / f"{name},seed=0").mkdir()


def test_some_points_may_do_without_what_others_need() -> None:
    grid = {"lora_rank": [None, 2], "lora_alpha": [8.0, 16.0]}
    assert len(Space.parse(grid, SETTINGS, {}).points()) == 4


def test_a_point_is_the_same_after_the_journal() -> None:
    layers = [["attention.output"], ["feed_forward.output"]]
    space = Space.parse({"lora_targets": layers}, SETTINGS, {"lora_rank": 2})
    proposed_points = propose(space, 2, [], seed=0, lower_is_better=False)
    read = json.loads(json.dumps(proposed_points))
    assert [name_of(point) for point in read] == [name_of(point) for point in proposed_points]
    following = [
        propose(space, 1, [(point, 0.5) for point in points], seed=0, lower_is_better=False)
        for points in (proposed_points, read)
    ]
    assert following[0] == following[1]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("papper", "unknown grid 'papper'. The nearest valid name is 'paper'"),
        ("optuna:0", "unknown grid 'optuna:0'"),
        ("learning_rat=1", "unknown setting 'learning_rat'.*'learning_rate'"),
        ("batch_size=16,0", "batch_size=0"),
        ("batch_size=16,", "batch_size has an empty value"),
        ({"epochs": []}, "epochs has an empty value"),
        ("seed=1,2", "Give seeds"),
        (["epochs=1", "batch_size=8", "epochs=2"], "epochs is given twice in the grid"),
        ("warmup=0.1,0.2", "warmup is in the grid, and also given as warmup=0.3"),
        ("learning_rate=1e-5..1e-4", "is a range, which only a search can draw from"),
        (["optuna:3", "learning_rate=1e-4..1e-5"], "the lower first"),
        (["optuna:3", "weight_decay=0..0.1"], "both over 0, or whole"),
        (["optuna:3", "lora_rank=null..4"], "of two numbers"),
        (["optuna:3", "seed=1..3"], "Give seeds"),
        (["best_metric=loss,accuracy"], "best_metric cannot be set in a grid. It ranks the runs"),
        ({"learning_rate": 3e-5}, "learning_rate=3e-05 in the grid. Give a list of values"),
        ({"learning_rate": "1e-5..1e-4"}, "only a search can draw from"),
        (
            {"lora_rank": [2, 4], "reinitialize_layers": [0, 1]},
            "lora_rank=2,reinitialize_layers=1: with lora_rank, random layers",
        ),
        ("lora_alpha=8,16", r"lora_alpha=8\.0 does nothing without lora_rank"),
    ],
)
def test_grids_that_are_none(grid: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Space.parse(grid, SETTINGS, {"warmup": 0.3})


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"seeds": 0}, "one seed at least"),
        ({"seeds": [1, 1]}, "none twice"),
        ({"seeds": [0, -1]}, "none below 0"),
        ({"seed": 1}, "seeds, not a seed"),
        ({"dev": "-"}, "a grid cannot be read from standard input"),
        ({"jobs": 2}, "a model in memory cannot be shared"),
        ({"jobs": -1}, "jobs=-1 is not a number of runs. Give 1 or more"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
    ],
)
def test_mistakes_are_found_before_a_run_begins(
    run: Run, tmp_path: Path, given_settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BertworksError, match=message):
        run(**given_settings)
    assert not (tmp_path / "grid").exists()


def point_result(epochs: int, *values: float | None, metric: str) -> PointResult:
    """The runs of a point with these values of the metric; None: the run failed."""
    runs = [
        GridRun({"epochs": epochs}, seed, Path(f"{epochs}-{seed}"), error="it failed")
        if value is None
        else GridRun({"epochs": epochs}, seed, Path(f"{epochs}-{seed}"), {metric: value})
        for seed, value in enumerate(values)
    ]
    return PointResult.from_runs(runs, metric)


VALUES = st.floats(0, 1) | st.none()


@pytest.mark.long
@given(
    st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=5),
    st.booleans(),
)
def test_mean_spread_and_best_are_computed_over_seeds(
    table: list[list[float | None]], lower: bool
) -> None:
    points = [point_result(number, *values, metric="loss") for number, values in enumerate(table)]
    for point, values in zip(points, table, strict=True):
        array = np.array([value for value in values if value is not None])
        assert point.mean == (pytest.approx(array.mean()) if len(array) else None)
        spread = pytest.approx(array.std(ddof=1)) if len(array) > 1 else None
        assert point.spread == spread
    result = GridResult(RunDirectory("out"), BestMetric("loss", lower), tuple(points))
    rows = result.rows()
    assert len(rows) == len(table)
    assert len(result.failed_runs) == sum(value is None for values in table for value in values)
    whole = [values for values in table if None not in values]
    if whole:
        pick = min if lower else max
        best = pick(whole, key=np.mean)
        assert result.ranked_points[0].mean == pytest.approx(np.mean(best))
        assert result.best.metrics["loss"] == pick(result.ranked_points[0].values)


def test_a_notebook_shows_the_points() -> None:
    point = partial(point_result, metric="accuracy")
    points = point(1, 0.25, 0.5), point(2, 0.5, 0.75), point(3, None, None)
    result = GridResult(RunDirectory("out"), BestMetric("accuracy", False), points)
    assert repr(result) == "<GridResult out: 3 points, best 2-1: accuracy 0.75>"
    page = result._repr_html_()
    places = [page.index(f"{value}</td>") for value in ("0.625", "0.375", "failed")]
    assert places == sorted(places)
    assert "accuracy, the best of 3 first" in page
    assert "Means over the seeds." in page
    alone = GridResult(RunDirectory("out"), BestMetric("accuracy", False), (point(1, 0.25),))
    assert "Means" not in alone._repr_html_()


@pytest.mark.long
def test_a_grid_without_axes_has_one_point(run: Run) -> None:
    (point,) = run(seeds=2).points
    assert (point.point, len(point.values)) == ({}, 2)


@pytest.mark.long
def test_a_file_of_another_program_is_not_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("- no settings of a run\n")
    assert len(run().points) == 1


@pytest.mark.long
def test_a_finished_run_is_not_repeated(run: Run, tmp_path: Path) -> None:
    axes = {"learning_rate": [1e-2, 1e-6], "schedule": ["linear", "constant"]}
    with pytest.raises(RuntimeError, match="switched off"):
        run("broken", grid=axes, progress=SwitchOffAfter(runs=2))
    journals = sorted((tmp_path / "broken").glob("*/journal.jsonl"))
    assert len(journals) == 3
    times_before = {file: file.stat().st_mtime_ns for file in journals}
    lines = Lines()
    resumed_grid = run("broken", grid=axes, progress=lines)
    after = {file: file.stat().st_mtime_ns for file in journals}
    assert [after[file] == times_before[file] for file in journals] == [True, True, False]
    assert [line.partition(" ")[0] for line in lines.lines if "accuracy" in line] == ["3/4", "4/4"]

    whole = run("whole", grid=axes)
    for name in ("grid.json", "grid.md"):
        texts = [(out.run.path / name).read_text() for out in (whole, resumed_grid)]
        assert texts[0] == texts[1]
    names = [child.name for child in sorted((tmp_path / "whole").glob("*seed*"))]
    assert names[0] == "learning_rate=0.01,schedule=constant,seed=0"
    assert not (tmp_path / "whole" / names[0] / "checkpoints").exists()

    again = run("whole", grid=axes, seeds=2, keep_checkpoints=2)  # it may grow
    assert len(list((tmp_path / "whole").glob("*seed*"))) == 8
    means = {name_of(result.point): result for result in again.points}
    for result in whole.points:
        assert means[name_of(result.point)].values[0] == result.values[0]

    with pytest.raises(TrainingError, match="started with settings"):
        run("whole", grid=axes, batch_size=4)
    with pytest.raises(TrainingError, match="started with other rows for train"):
        run("whole", grid=axes, train=make_rows(32, 5))
    other = Model.fresh(CONFIG, Tokenizer.from_vocabulary(PIECES), seed=1)
    with pytest.raises(TrainingError, match="started with another model"):
        run("whole", grid=axes, model=other)


@pytest.mark.long
def test_the_line_of_a_run_that_a_kill_left_out_is_written(run: Run) -> None:
    axes = {"learning_rate": [1e-2, 1e-6]}
    whole = run(grid=axes).run
    journal = whole.journal_file.read_bytes()
    whole.journal_file.write_bytes(b"")  # killed when the first run had ended, before its line
    shutil.rmtree(whole.path / "learning_rate=1e-06,seed=0")
    run(grid=axes)
    assert whole.journal_file.read_bytes() == journal
    run(grid=axes)
    assert whole.journal_file.read_bytes() == journal


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "journal.jsonl",
            "the entry for learning_rate=0.01,seed=0 differs from its evaluation.json",
        ),
        ("learning_rate=0.01,seed=0/evaluation.json", "is damaged (its checksum is wrong)"),
    ],
)
def test_a_changed_digit_of_a_finished_run_is_named(run: Run, name: str, says: str) -> None:
    axes = {"learning_rate": [1e-2, 1e-6]}
    file = run(grid=axes).run.path / name
    content = file.read_text()
    at = content.index('"loss": 0.') + len('"loss": 0.')
    file.write_text(content[:at] + str(9 - int(content[at])) + content[at + 1 :])
    with pytest.raises(DataError, match=f"{re.escape(name)}: .*{re.escape(says)}"):
        run(grid=axes)
    file.write_text(content)
    run(grid=axes)


@pytest.mark.long
@pytest.mark.parametrize("pattern", ["checkpoints/*/optimizer.safetensors", "journal.jsonl"])
def test_run_with_a_damaged_state_is_restarted(run: Run, pattern: str) -> None:
    """An ordinary run would end: what it had learned is a user's to restore."""
    options = {"grid": {"learning_rate": [1e-2, 1e-6]}, "checkpoint_every": 1, "log_every": 1}
    whole = run("whole", **options).run.path
    with pytest.raises(RuntimeError, match="switched off"):
        run("broken", progress=Lines(stop_after=3), **options)
    first = whole.with_name("broken") / "learning_rate=0.01,seed=0"
    files = list(first.glob(pattern))
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        at = content.index(b'"loss":') + 8 if file.suffix == ".jsonl" else len(content) - 1
        content[at] ^= 1
        file.write_bytes(content)
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always", ResumeWarning)
        resumed_dir = run("broken", **options).run.path
    assert str(caught_warnings[-1].message).endswith("The run is restarted.")
    for name in ("grid.json", "grid.md", "journal.jsonl"):
        assert (resumed_dir / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.long
def test_a_run_that_is_trained_anew_is_not_finished(run: Run, model: Model) -> None:
    result = run()
    directory = result.best.directory
    given: dict[str, Any] = {"train": TRAIN, "dev": DEV, "out": directory, **LEARNS}
    with pytest.raises(RuntimeError, match="switched off"):
        finetune(model, **given, progress=Lines(stop_after=3))
    assert RunDirectory(directory).outcome() is None
    lines = Lines()
    assert run(progress=lines).points == result.points
    assert any("1/1 · accuracy" in line for line in lines.lines)


@pytest.mark.long
def test_directory_of_a_refused_grid_is_usable(run: Run) -> None:
    with pytest.raises(DataError, match="no column 'lable'"):
        run(grid="optuna:2", label_column="lable", epochs=2)
    result = run(grid=["optuna:2", "learning_rate=1e-3..1e-2"], label_column="label")
    assert [list(point.point) for point in result.points] == [["learning_rate"]] * 2


@pytest.mark.long
def test_the_best_run_is_the_grids_model(run: Run) -> None:
    result = run(grid={"learning_rate": [1e-6, 3e-2]}, best_metric="loss", epochs=6)
    assert result.measure == BestMetric("loss", lower_is_better=True)
    means = {float(point.point["learning_rate"]): point.mean for point in result.points}
    assert means[3e-2] < means[1e-6]
    assert result.best.point == {"learning_rate": 3e-2}
    texts = [row["text"] for row in DEV]
    mine = load(result.run.path).predict(texts)
    assert mine == load(result.best.directory).predict(texts)
    other = next(point for point in result.points if point.point != result.best.point)
    assert mine != load(other.runs[0].directory).predict(texts)
    saved = json.loads((result.run.path / "grid.json").read_text())
    assert saved["best"]["run"] == result.best.directory.name
    assert saved["points"][0]["mean"] == means[3e-2]
    again = GridResult.read(result.run.path)
    assert (again.ranked_points, again.best) == (result.ranked_points, result.best)


@pytest.mark.long
def test_a_run_that_fails_is_kept_as_failed(run: Run) -> None:
    lines = Lines()
    result = run(grid={"freeze_layers": [9, 0]}, progress=lines)
    (failed,) = result.failed_runs
    assert failed.point == {"freeze_layers": 9}
    assert "freeze_layers=9" in str(failed.error)
    assert any("1/2 · failed: " in line for line in lines.lines)
    assert [row[1] for row in result.rows()] == [f"{result.ranked_points[0].mean:.4f}", "failed"]
    assert "Failed: `freeze_layers=9,seed=0`" in (result.run.path / "grid.md").read_text()
    with pytest.raises(TrainingError, match=r"every run failed; the last: .*freeze_layers=9"):
        run("none", grid={"freeze_layers": [9]})


@pytest.mark.long
def test_impossible_settings_are_a_failed_run(run: Run) -> None:
    words = ["optuna:4", "learning_rate=1e-3..1e-2", "freeze_layers=0,9"]
    result = run(grid=words, batch_size=8, epochs=1)
    assert {point.point["freeze_layers"]: point.num_failed for point in result.points} == {
        0: 0,
        9: 1,
    }
    assert all("freeze_layers=9" in str(failed.error) for failed in result.failed_runs)
    with pytest.raises(TrainingError, match=r"every run failed; the last: best_metric='f2'.*'f1'"):
        run("none", grid={"learning_rate": [1e-3, 1e-2]}, best_metric="f2")


def test_a_point_that_cannot_read_a_row_is_named(model: Model, tmp_path: Path) -> None:
    grid = {"batch_size": [8], "max_seq_length": [5]}
    options = {"train": TRAIN, "dev": DEV, "truncation": "error", "epochs": 1}
    with pytest.raises(DataError, match=r"row \d+: .* at most 5 fit, with max_seq_length=5\. Sh"):
        finetune_grid(model, grid=grid, out=tmp_path / "one", **options)
    with pytest.raises(DataError, match=r"lable'.*its columns are 'text', 'label'\. The nearest"):
        finetune_grid(
            model, grid={"batch_size": [8]}, out=tmp_path / "two", label_column="lable", **options
        )


@pytest.mark.long
def test_a_directory_of_another_kind_is_refused(run: Run, model: Model, tmp_path: Path) -> None:
    one = {"train": TRAIN, "dev": DEV, **LEARNS}
    run()
    grid = "a grid of fine-tuning runs"
    with pytest.raises(
        TrainingError, match=f"grid: the directory holds {grid}, and this would be a"
    ):
        finetune(model, out=tmp_path / "grid", **one)
    finetune(model, out=tmp_path / "one", **one)
    with pytest.raises(TrainingError, match=f"holds a fine-tuning run, and this would be {grid}"):
        run("one")


def test_a_lack_of_memory_is_a_failed_run() -> None:
    def outcome(does: Callable[..., Any]) -> str | None:
        return do_here(GridJob(Path("run"), does), None)

    def gpu(progress: None) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20 MiB.")

    def fault(progress: None) -> None:
        raise RuntimeError("shapes do not match")

    assert "DefaultCPUAllocator" in str(outcome(lambda progress: torch.empty(10**16)))
    assert outcome(gpu) == "CUDA out of memory."
    with pytest.raises(RuntimeError, match="shapes do not match"):
        outcome(fault)


@pytest.mark.long
def test_runs_of_several_metrics_cannot_be_ranked(run: Run) -> None:
    rows = [
        {"query": row["text"], "passage": row["text"], "score": number % 3}
        for number, row in enumerate(TRAIN)
    ]
    with pytest.raises(
        SettingsError, match=r"by spearman, and others by mrr@10\. Give best_metric"
    ):
        run(task="retrieval", train=rows, dev=rows, grid={"loss": ["in-batch", "cosine"]})


@pytest.mark.slow  # each process imports torch
def test_side_by_side_gives_the_same(model: Model, run: Run, tmp_path: Path) -> None:
    start = model.save(tmp_path / "start")
    axes = {"learning_rate": [1e-2, 10.0], "freeze_layers": [0, 9]}
    here = run("here", model=start, grid=axes, schedule="constant")
    there = run("there", model=start, grid=axes, schedule="constant", jobs=2)
    files = [out.run.path / "grid.json" for out in (here, there)]
    assert files[0].read_text() == files[1].read_text()


@pytest.mark.usefixtures("new_workers")
def test_a_run_that_dies_as_it_begins_is_no_hang(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As one that the kernel kills: it reads nothing of a job that no pipe can hold."""
    resource_tracker.ensure_running()
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: b"/bin/true")
    job = GridJob(tmp_path / "run", partial(finetune, train=[{"text": "a" * 200_000}]))
    outcomes = do_in_processes([job] * 3, slots(torch.device("cpu"), 2))
    assert [error for _, error in outcomes] == ["its process died (exit status 0)"] * 3


def test_each_gpu_has_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def visible_devices(device: str, jobs: int | None) -> list[str | None]:
        places = slots(torch.device(device), jobs)
        assert sum(place.threads for place in places) <= max(len(places), torch.get_num_threads())
        return [place.environment.get("CUDA_VISIBLE_DEVICES") for place in places]

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_devices("cuda", None) == ["0", "1", "2"]
    assert visible_devices("cuda:1", 2) == ["1", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert visible_devices("cuda", 3) == ["4", "7", "4"]
    assert visible_devices("cpu", None) == [None]
    assert visible_devices("cpu", 2) == [None, None]


@pytest.mark.long
def test_a_run_that_learned_nothing_is_reported(run: Run) -> None:
    lines = Lines()
    result = run(grid={"learning_rate": [1e-9]}, progress=lines)
    notes = result.best.notes
    assert notes[0] in " ".join(" ".join(lines.lines).split())
    assert any("the run learned nothing: its loss" in note for note in notes)
    evaluation = RunDirectory(result.best.directory).evaluation
    assert json.loads(evaluation.read_text())["notes"] == list(notes)


def test_an_interrupted_process_can_say_so() -> None:
    error = RunInterrupted("stopped", signal_number=15)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.status) == (str(error), 143)


def objective(point: dict[str, Any]) -> float:
    """Least at a learning rate of 1e-3, with batches of 16."""
    return float(np.log10(point["learning_rate"] / 1e-3) ** 2 + (point["batch_size"] != 16))


WORDS = ["optuna:40", "learning_rate=1e-6..1e-1", "batch_size=8,16,32", "epochs=2..4"]


@pytest.mark.long
def test_search_proposes_points_near_the_best() -> None:
    space = Space.parse(WORDS, SETTINGS, {})
    values_by_direction: dict[bool, list[float]] = {True: [], False: []}
    random = []
    for seed in range(3):
        for lower in (True, False):
            results: list[tuple[dict[str, Any], float | None]] = []
            for number in range(40):
                (point,) = propose(space, 1, results, seed=seed, lower_is_better=lower)
                assert point["batch_size"] in (8, 16, 32)
                assert point["epochs"] in (2, 3, 4)
                assert 1e-6 <= point["learning_rate"] <= 1e-1
                assert point["learning_rate"] == float(f"{point['learning_rate']:.3g}")
                value = objective(point)
                (random if number < 10 else values_by_direction[lower]).append(value)
                results.append((point, None if number == 3 else value))
    assert np.mean(values_by_direction[True]) < 0.7 * np.mean(random)
    assert np.mean(values_by_direction[False]) > 1.5 * np.mean(random)


def test_a_search_is_a_function_of_its_results_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space.parse(WORDS, SETTINGS, {})
    random = propose(space, 12, [], seed=0, lower_is_better=False)
    assert len(set(map(name_of, random))) == 12
    results = [(point, objective(point)) for point in random]
    proposals = [propose(space, 3, results, seed=0, lower_is_better=True) for _ in range(2)]
    assert proposals[0] == proposals[1]
    assert proposals[0] != propose(space, 3, results, seed=1, lower_is_better=True)
    negative = [(point, -value) for point, value in results]
    assert proposals[0] == propose(space, 3, negative, seed=0, lower_is_better=False)
    # Points of one round are drawn away from one another, whatever optuna does by default.
    other = partial(optuna.samplers.TPESampler, constant_liar=False)
    monkeypatch.setattr(optuna.samplers, "TPESampler", other)
    assert proposals[0] == propose(space, 3, results, seed=0, lower_is_better=True)


@pytest.mark.long
def test_an_interrupted_search_has_the_same_result(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertworks.tuning.loop.STARTUP", 2)
    words = ["optuna:4", "learning_rate=1e-4..1e-1", "schedule=linear,constant"]
    given_words = {"grid": words, "batch_size": 8, "seeds": [3]}
    lines = Lines()
    whole = run("whole", **given_words, progress=lines)
    assert sum("columns: text" in line for line in lines.lines) == 1
    assert len(whole.points) == 4
    with pytest.raises(RuntimeError, match="switched off"):
        run("broken", **given_words, progress=SwitchOffAfter(runs=2))
    resumed_result = run("broken", **given_words)
    texts = [(out.run.path / "grid.json").read_text() for out in (whole, resumed_result)]
    assert texts[0] == texts[1]
    more = run("broken", **{**given_words, "grid": ["optuna:5", *words[1:]]})
    assert more.points[:4] == resumed_result.points
    less = run("broken", **{**given_words, "grid": ["optuna:1", *words[1:]]})
    assert less.points == resumed_result.points[:1]
    with pytest.raises(TrainingError, match=r"started with search\.learning_rate"):
        run("broken", **{**given_words, "grid": [*words[:1], "learning_rate=1e-4..1e-2", words[2]]})
