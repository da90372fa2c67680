"""The run directory: private files, and its records."""

from __future__ import annotations

import json
import math
import os
import resource
from pathlib import Path

import pytest

from bertworks.errors import DataError, OutputError, TrainingError
from bertworks.runs.run_directory import RunDirectory, read_run
from bertworks.settings.base import RUN_FORMAT
from bertworks.settings.yaml_values import dump_yaml
from bertworks.training.settings import FitSettings
from bertworks.tuning.results import GridResult

SETTINGS = FitSettings(batch_size=8)

STOP = {"kind": "stop", "step": 1, "why": "it was no better"}


def test_lines_come_back_exactly_and_without_nan(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path / "run", SETTINGS)
    numbers = [0.1 + 0.2, 1e-300, 1 / 3]
    run.write({**STOP, "numbers": numbers, "deep": {"x": math.nan}})
    length = run.sync_journal()
    run.write({**STOP, "step": 2, "who": "ä"})
    assert [line["step"] for line in run.lines()] == [1, 2]
    run.truncate_journal(length)
    run.write({**STOP, "step": 3, "loss": math.inf})
    run.close()
    lines = list(read_run(tmp_path / "run").lines())
    assert [line["step"] for line in lines] == [1, 3]
    assert lines[0]["numbers"] == numbers
    assert lines[0]["deep"] == {"x": None}
    assert lines[1]["loss"] is None


def test_an_incomplete_line_is_not_read(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path, SETTINGS).close()
    (tmp_path / "journal.jsonl").write_text(json.dumps(STOP) + '\n{"kind": "st')
    assert list(read_run(tmp_path).lines()) == [STOP]


def test_an_incomplete_last_line_is_removed_before_the_next(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, SETTINGS)
    run.write(STOP)
    run.log_session("start")
    run.close()
    for file in (run.journal_file, run.sessions_file):
        file.write_bytes(file.read_bytes() + b'{"st')
    run = RunDirectory.open(tmp_path, SETTINGS)
    run.write({**STOP, "step": 2})
    run.log_session("stop")
    run.close()
    assert list(run.lines()) == [STOP, {**STOP, "step": 2}]
    assert [line["event"] for line in run.sessions()] == ["start", "stop"]


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path / "run", SETTINGS)
    run.write(STOP)
    run.close()
    RunDirectory.open(tmp_path / "run", SETTINGS.with_values(loader_workers=2)).close()
    other = SETTINGS.with_values(learning_rate=0.5)
    with pytest.raises(
        TrainingError, match=r"with learning_rate=0\.0001, not 0\.5\. Resume"
    ) as refusal:
        RunDirectory.open(tmp_path / "run", other)
    assert not (tmp_path / "run" / ".lock").exists(), refusal.value
    RunDirectory.open(tmp_path / "run", SETTINGS).close()


def test_first_setting_that_differs_is_named(tmp_path: Path) -> None:
    """A run of another task is refused as that, not by a setting that only one of them has."""
    run = RunDirectory.open(tmp_path / "run", {"task": "pairs", "balance": False, "seed": 1})
    run.write(STOP)
    run.close()
    with pytest.raises(TrainingError, match=r"started with task=pairs, not choice\. Resume"):
        RunDirectory.open(tmp_path / "run", {"task": "choice", "answer": 3, "seed": 2})


@pytest.mark.parametrize("version", [None, "none", RUN_FORMAT + 1])
def test_run_in_another_format_is_refused(tmp_path: Path, version: object) -> None:
    run = RunDirectory.open(tmp_path / "run", SETTINGS)
    run.write(STOP)
    run.close()
    first = {} if version is None else {"format_version": version}
    other = {**first, **run.settings()}
    run.settings_file.write_text(dump_yaml(other))
    message = (
        rf"^{run.settings_file}: written in another format \(.*, not {RUN_FORMAT}\)\. Run the "
        r"training again, with --overwrite \(overwrite=True\) or in another directory\.$"
    )
    for read in (read_run, GridResult.read, lambda path: RunDirectory.open(path, SETTINGS)):
        with pytest.raises(DataError, match=message):
            read(run.path)
    RunDirectory.open(run.path, SETTINGS, overwrite=True).close()
    assert read_run(run.path).settings() == SETTINGS.model_dump(mode="json")


@pytest.mark.parametrize("file_name", ["checkpoints", "states.npy"])
def test_settings_may_change_until_something_was_learned(tmp_path: Path, file_name: str) -> None:
    run = RunDirectory.open(tmp_path / "run", SETTINGS)
    run.log_session("start")
    run.close()
    for name in ("data.json", ".data.json.new"):
        (run.path / name).write_text("{}")
    run.tensorboard.mkdir()
    other = SETTINGS.with_values(batch_size=4)
    RunDirectory.open(run.path, other).close()
    assert run.settings()["batch_size"] == 4
    (run.path / file_name).mkdir()
    with pytest.raises(TrainingError, match="started with batch_size=4, not 8"):
        RunDirectory.open(run.path, SETTINGS)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(TrainingError, match="not empty and holds no run"):
        RunDirectory.open(tmp_path, SETTINGS)
    with pytest.raises(OutputError, match="is a file"):
        RunDirectory.open(tmp_path / "thesis.tex", SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_files_of_a_run_killed_at_its_start_are_ignored(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".settings.yaml.new").write_text("see")
    RunDirectory.open(tmp_path, SETTINGS).close()


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path / "run", SETTINGS)
    with pytest.raises(OutputError, match=rf"run: is being written by process {os.getpid()} on "):
        RunDirectory.open(tmp_path / "run", SETTINGS)
    run.close()
    assert not (tmp_path / "run" / ".lock").exists()
    RunDirectory.open(tmp_path / "run", SETTINGS).close()


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path / "run", SETTINGS, is_main=False)
    run.write(STOP)
    run.log_session("start")
    assert run.sync_journal() == 0
    run.truncate_journal(100)
    assert not (tmp_path / "run").exists()


def test_a_truncated_journal_is_refused(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path / "run", SETTINGS)
    with pytest.raises(TrainingError, match="shorter than the 10 bytes"):
        run.truncate_journal(10)
    run.close()


def test_a_missing_run_is_reported_with_the_nearest_name(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path / "first-run", SETTINGS).close()
    with pytest.raises(DataError, match=r"no run directory.*'first-run'"):
        read_run(tmp_path / "first-rnu")
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError, match=r"data: no run directory\. Valid: first-run$"):
        read_run(tmp_path / "data")  # its own name is no help


def test_a_full_disk_is_an_output_error(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path / "run", SETTINGS)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"journal\.jsonl: cannot be written \(File too"):
            run.write({"x": "y" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    run.close()


def test_sessions_are_recorded_with_their_time(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path / "run", SETTINGS)
    run.log_session("start", step=0, threads=2)
    run.close()
    (line,) = read_run(tmp_path / "run").sessions()
    assert (line["event"], line["threads"]) == ("start", 2)
    assert line["time"].endswith("+00:00")
    assert json.loads(json.dumps(line)) == line
