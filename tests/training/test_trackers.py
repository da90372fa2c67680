"""Runs in MLflow and Weights & Biases: fakes of them record what they receive."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertworks.errors import BertworksError
from bertworks.runs.run_directory import RunDirectory
from bertworks.training import trackers
from bertworks.training.fit import fit
from tests.training.test_fit import PHASES, SETTINGS, ToyTask, measure, toy_network

KINDS: Any = ("mlflow", "wandb")


class Board:
    """What both trackers received: runs by id, their numbers by step, and their last status."""

    def __init__(self) -> None:
        self.settings: dict[str, Mapping[str, str]] = {}
        self.numbers: dict[str, dict[int, dict[str, float]]] = {}
        self.status: dict[str, str] = {}
        self.error: Exception | None = None

    def create(self, run_id: str, settings: Mapping[str, str]) -> None:
        if self.error is not None:
            raise self.error
        self.settings.setdefault(run_id, settings)
        self.status[run_id] = "running"

    def log(self, run_id: str, numbers: Mapping[str, float], step: int) -> None:
        if self.error is not None:
            raise self.error
        self.numbers.setdefault(run_id, {}).setdefault(step, {}).update(numbers)


def fake_mlflow(board: Board) -> Any:
    class MlflowClient:
        def get_experiment_by_name(self, name: str) -> Any:
            assert name == "bertworks"

        def create_experiment(self, name: str) -> str:
            return "7"

        def create_run(self, experiment_id: str, run_name: str) -> Any:
            assert (experiment_id, run_name) == ("7", "run")
            board.create(f"run {len(board.settings)}", {})
            return SimpleNamespace(info=SimpleNamespace(run_id=f"run {len(board.settings) - 1}"))

        def log_param(self, run_id: str, key: str, value: str) -> None:
            board.settings[run_id] = {**board.settings[run_id], key: value}

        def update_run(self, run_id: str, status: str) -> None:
            board.status[run_id] = status.lower()

        def log_batch(self, run_id: str, metrics: list[Any]) -> None:
            for metric in metrics:
                assert re.fullmatch(r"[\w./ -]+", metric.key)  # else MLflow refuses it
                board.log(run_id, {metric.key: metric.value}, metric.step)

        def set_terminated(self, run_id: str, status: str) -> None:
            board.status[run_id] = {"FINISHED": "ended", "KILLED": "stopped"}[status]

    def metric(key: str, value: float, timestamp: int, step: int) -> Any:
        return SimpleNamespace(key=key, value=value, step=step)

    return SimpleNamespace(MlflowClient=MlflowClient, entities=SimpleNamespace(Metric=metric))


def fake_wandb(board: Board) -> Any:
    class Settings(SimpleNamespace):
        model_fields = dict.fromkeys(("console", "disable_git", "save_code", "x_disable_meta"))

    def init(
        *,
        project: str,
        id: str,
        name: str,
        config: Mapping[str, str],
        resume: str,
        settings: Settings,
    ) -> Any:
        assert (project, name, resume) == ("bertworks", "run", "allow")
        assert vars(settings).keys() == Settings.model_fields.keys()  # no field that is unknown
        assert settings.console == "off" and settings.disable_git and not settings.save_code
        board.create(id, config)

        def log(numbers: Mapping[str, float]) -> None:
            rest = {key: value for key, value in numbers.items() if key != "step"}
            board.log(id, rest, int(numbers["step"]))

        def finish(exit_code: int) -> None:
            board.status[id] = "stopped" if exit_code else "ended"

        def define_metric(name: str, step_metric: str) -> None:
            assert (name, step_metric) == ("*", "step")

        return SimpleNamespace(log=log, finish=finish, define_metric=define_metric)

    return SimpleNamespace(init=init, Settings=Settings)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    board = Board()
    modules = {"mlflow": fake_mlflow(board), "wandb": fake_wandb(board)}
    monkeypatch.setattr(trackers, "import_optional", lambda name, *_: modules[name])
    return board


def train(path: Path, tracking: Any, **options: Any) -> Any:
    settings = SETTINGS.with_values(tracking=tracking)
    with RunDirectory.open(path, settings) as run:
        return fit(toy_network(), ToyTask(), PHASES, settings=settings, run=run, **options)


def journal_numbers(path: Path) -> dict[int, dict[str, float]]:
    """The losses and metrics of the journal, under the trackers' names."""
    numbers: dict[int, dict[str, float]] = {}
    for line in RunDirectory(path).lines():
        if line["kind"] == "train":
            numbers.setdefault(line["step"], {})["train/loss"] = line["loss"]
        elif line["kind"] == "eval":
            at_step = numbers.setdefault(line["step"], {})
            at_step |= {f"eval/metrics/{name}": value for name, value in line["metrics"].items()}
    return numbers


@pytest.mark.parametrize("kind", KINDS)
def test_tracker_gets_the_journal_and_the_settings(kind: Any, board: Board, tmp_path: Path) -> None:
    train(tmp_path / "run", kind, evaluate=measure)
    ((run_id, numbers),) = board.numbers.items()
    expected = journal_numbers(tmp_path / "run")
    assert numbers.keys() == expected.keys()
    for step, values in expected.items():
        assert {name: numbers[step][name] for name in values} == values
    assert board.settings[run_id]["learning_rate"] == "0.01"
    assert board.status == {run_id: "ended"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_continues_the_trackers_run(kind: Any, board: Board, tmp_path: Path) -> None:
    def stop(network: Any) -> dict[str, float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", kind, evaluate=stop)
    assert set(board.status.values()) == {"stopped"}
    train(tmp_path / "run", kind, evaluate=measure)
    ((run_id, numbers),) = board.numbers.items()
    assert board.status == {run_id: "ended"}
    assert journal_numbers(tmp_path / "run").keys() <= numbers.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_tracker_does_not_end_a_training(kind: Any, board: Board, tmp_path: Path) -> None:
    board.error = ConnectionError("no such host\nmore")
    result = train(tmp_path / "run", kind, evaluate=measure)
    plain = train(tmp_path / "plain", None, evaluate=measure)
    assert result.metrics == plain.metrics
    assert journal_numbers(tmp_path / "run") == journal_numbers(tmp_path / "plain")
    notes = [line["text"] for line in RunDirectory(tmp_path / "run").sessions() if "text" in line]
    assert len(notes) == 1 and "ConnectionError: no such host" in notes[0] and kind in notes[0]


def test_a_slow_tracker_is_given_up(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = threading.Event()
    monkeypatch.setattr(board, "create", lambda *_: wait.wait(20))
    monkeypatch.setattr(trackers, "_SECONDS_AT_END", 0.05)
    try:
        train(tmp_path / "run", "wandb")
    finally:
        wait.set()
    notes = [line["text"] for line in RunDirectory(tmp_path / "run").sessions() if "text" in line]
    assert len(notes) == 1 and "did not take everything" in notes[0]


def test_tracking_is_off_by_default(board: Board, tmp_path: Path) -> None:
    train(tmp_path / "run", None)
    assert not board.settings and not (tmp_path / "run" / "tracking.json").exists()


def test_a_missing_package_is_an_error_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BertworksError, match=r"wandb.*bertworks\[wandb\]"):
        train(tmp_path / "run", "wandb")
    assert not RunDirectory(tmp_path / "run").is_begun


def test_names_of_metrics_are_those_that_mlflow_takes(board: Board) -> None:
    tracker = trackers.MlflowTracker({}, "run", {})
    tracker.log({"recall@10": 0.5, "f1 (macro)": 0.25, "lr": 1.0}, 3)
    assert board.numbers == {"run 0": {3: {"recall_at_10": 0.5, "f1 _macro_": 0.25, "lr": 1.0}}}
