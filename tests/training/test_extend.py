"""A run resumed with more steps is, to the bit, the one planned with them from the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.errors import CheckpointError, SettingsError, TrainingError
from bertworks.model import Model
from bertworks.runs.run_directory import RunDirectory, read_run
from bertworks.tasks.best_metric import BestMetric
from bertworks.tasks.network import Network
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.checkpoint import list_checkpoints, load_weights, step_of
from bertworks.training.finetune import FinetuneSettings
from bertworks.training.optimizer import decay_start, learning_rate
from bertworks.training.plan import Phase, Plan
from bertworks.training.settings import FitSettings, OptimizerSettings

from .letters import CONFIG, PIECES, TRAIN, run
from .test_fit import SETTINGS, StopError, StoppingSource, journal, train, weights
from .tiny_run import tiny_run
from .toy import ToySource, measure, toy_network

STABLE = {
    "learning_rate": 0.01,
    "warmup": 2,
    "schedule": "warmup-stable-decay",
    "decay_share": 0.25,
}


def settings(**optimizer: Any) -> FitSettings:
    return SETTINGS.with_values(**{**STABLE, **optimizer})


def phases(*steps: int) -> list[Phase]:
    return [Phase(ToySource(number), count, f"{number}") for number, count in enumerate(steps, 1)]


def kept_steps(path: Path) -> list[int]:
    return [step_of(checkpoint) for checkpoint in list_checkpoints(path / "checkpoints")]


@pytest.mark.parametrize(
    ("warmup", "total", "expected"),
    [
        (2, 8, [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5]),
        (2, 16, [0.0, 0.5, *[1.0] * 10, 1.0, 0.75, 0.5, 0.25]),
        (0.25, 8, [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5]),
        (6, 4, [0.0, 1 / 6, 2 / 6, 3 / 6]),  # the warm-up does not end
        (0, 1, [1.0]),
    ],
)
def test_the_rate_is_constant_and_then_falls(
    warmup: float, total: int, expected: list[float]
) -> None:
    optimizer = OptimizerSettings.parse({**STABLE, "learning_rate": 1.0, "warmup": warmup})
    rates = [learning_rate(optimizer, step, total) for step in range(total)]
    assert rates == pytest.approx(expected)
    assert learning_rate(optimizer, total, total) == 0


def test_the_share_needs_its_schedule() -> None:
    with pytest.raises(SettingsError, match=r"decay_share=0\.1 does nothing without schedule="):
        FitSettings.parse({"decay_share": 0.1})
    with pytest.raises(SettingsError, match=r"decay_share=0\.1 does nothing without schedule="):
        FinetuneSettings.parse({"decay_share": 0.1}).check_together()
    optimizer = OptimizerSettings.parse({"schedule": "warmup-stable-decay"})
    assert decay_start(optimizer, 100) == 80
    assert decay_start(OptimizerSettings(), 100) is None


@pytest.mark.long
def test_an_extended_run_is_the_one_planned_longer(tmp_path: Path) -> None:
    whole, _ = train(tmp_path / "whole", settings(), phases=phases(40), evaluate=measure)
    path = tmp_path / "run"
    short, _ = train(path, settings(), phases=phases(20), evaluate=measure)
    assert kept_steps(path) == [15, 16, 20], "two are kept, and that before the decay"
    assert not torch.equal(weights(short), weights(whole))
    long, result = train(path, settings(), phases=phases(40), evaluate=measure)
    assert result.resumed_step == 16, "the newest that no decay has touched"
    assert torch.equal(weights(long), weights(whole))
    assert journal(path) == journal(tmp_path / "whole")
    assert kept_steps(path) == kept_steps(tmp_path / "whole") == [30, 36, 40]


@pytest.mark.long
def test_a_run_stopped_before_its_decay_is_extended(tmp_path: Path) -> None:
    whole, _ = train(tmp_path / "whole", settings(), phases=phases(40))
    path = tmp_path / "run"
    with pytest.raises(StopError):
        train(path, settings(), phases=[Phase(StoppingSource(1, 10), 24, "1")])
    long, result = train(path, settings(), phases=phases(40))
    assert result.resumed_step == 12
    assert torch.equal(weights(long), weights(whole))
    assert journal(path) == journal(tmp_path / "whole")


@pytest.mark.long
def test_an_extended_run_that_is_killed_is_still_the_same(tmp_path: Path) -> None:
    whole, _ = train(tmp_path / "whole", settings(), phases=phases(40))
    path = tmp_path / "run"
    train(path, settings(), phases=phases(20))
    with pytest.raises(StopError):
        train(path, settings(), phases=[Phase(StoppingSource(1, 1), 40, "1")])
    assert kept_steps(path) == [15, 16], "the decayed ones are gone: they belong to another plan"
    back, _ = train(path, settings(), phases=phases(20))
    short, _ = train(tmp_path / "short", settings(), phases=phases(20))
    assert torch.equal(weights(back), weights(short)), "the first plan can be taken up again"
    long, _ = train(path, settings(), phases=phases(40))
    assert torch.equal(weights(long), weights(whole))


@pytest.mark.long
def test_a_constant_rate_is_extended_from_the_end(tmp_path: Path) -> None:
    constant = SETTINGS.with_values(learning_rate=0.01, warmup=2, schedule="constant")
    whole, _ = train(tmp_path / "whole", constant, phases=phases(40))
    train(tmp_path / "run", constant, phases=phases(15))
    long, result = train(tmp_path / "run", constant, phases=phases(40))
    assert result.resumed_step == 15
    assert torch.equal(weights(long), weights(whole))


@pytest.mark.long
@pytest.mark.parametrize(
    ("optimizer", "first_steps", "second_steps"),
    [
        ({"schedule": "linear", "decay_share": None}, (20,), (40,)),
        ({"warmup": 0.1}, (20,), (40,)),
        ({}, (10, 10), (20, 20)),
        ({}, (20,), (12,)),  # step 15 was done already
    ],
)
def test_a_plan_that_changes_the_past_is_refused(
    tmp_path: Path,
    optimizer: dict[str, Any],
    first_steps: tuple[int, ...],
    second_steps: tuple[int, ...],
) -> None:
    path = tmp_path / "run"
    train(path, settings(**optimizer), phases=phases(*first_steps))
    files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(CheckpointError, match="no checkpoint fits the number of steps"):
        train(path, settings(**optimizer), phases=phases(*second_steps))
    changed = {file for file, content in files.items() if file.read_bytes() != content}
    assert changed <= {path / "sessions.jsonl"}
    _, result = train(path, settings(**optimizer), phases=phases(*first_steps))
    assert result.resumed_step == sum(first_steps)


@pytest.mark.parametrize(
    ("step", "previous_steps", "now", "expected"),
    [
        (15, (20,), (40,), None),
        (16, (20,), (40,), None),  # update 16 has the full rate under both plans
        (17, (20,), (40,), "that changes the learning rate from step 17 on (0.008, now 0.01)"),
        (10, (10, 10), (20, 20), None),  # the first phase is longer
        (11, (10, 10), (20, 20), "that puts step 11 into another phase"),
        (11, (20, 20), (10, 10), "that puts step 11 into another phase"),
        (50, (60,), (40,), "the earliest checkpoint is of step 50 already"),
        (20, (20,), (20,), None),
    ],
)
def test_a_conflict_of_plans_is_named(
    step: int, previous_steps: tuple[int, ...], now: tuple[int, ...], expected: str | None
) -> None:
    optimizer = OptimizerSettings.parse(STABLE)
    state = {"train": {"step": step}, "plan": {"phase_steps": list(previous_steps)}}
    assert Plan(now, optimizer).difference(state) == expected


SHORT = {"eval_every": 10, **STABLE, "learning_rate": 1e-3, "eval_first": False}
ONE = [{"max_seq_length": 24}]


@pytest.mark.long
def test_a_finished_pre_training_is_extended(prepared_data: Path, tmp_path: Path) -> None:
    tiny_run(prepared_data, tmp_path / "whole", steps=40, phases=ONE, **SHORT)
    path = tmp_path / "run"
    tiny_run(prepared_data, path, steps=20, phases=ONE, **SHORT)
    result = tiny_run(prepared_data, path, steps=40, phases=ONE, **SHORT)
    assert (result.resumed_step, result.steps) == (15, 40)
    models = [out / "model" / "model.safetensors" for out in (path, tmp_path / "whole")]
    assert models[0].read_bytes() == models[1].read_bytes()
    assert journal(path) == journal(tmp_path / "whole")
    assert read_run(path).settings()["steps"] == 40


@pytest.mark.long
def test_a_refused_plan_leaves_the_settings(prepared_data: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    values = {**SHORT, "phases": ONE, **STABLE, "warmup": 0.5}
    tiny_run(prepared_data, path, steps=4, **values)
    with pytest.raises(
        TrainingError,
        match=r"run: the run was started with steps=4, not 8, and that changes the learning rate "
        r"from step 2 on \(0\.005, now 0\.0025\), so this run cannot be resumed with it\. Resume",
    ):
        tiny_run(prepared_data, path, steps=8, **values)
    assert read_run(path).settings()["steps"] == 4
    assert tiny_run(prepared_data, path, steps=4, **values).resumed_step == 4


@pytest.mark.long
def test_more_epochs_extend_a_fine_tuning(tmp_path: Path) -> None:
    model = Model.fresh(CONFIG, Tokenizer.from_vocabulary(PIECES))
    values = {"warmup": 2, "schedule": "warmup-stable-decay", "decay_share": 0.5, "dev": None}
    whole = run(model, tmp_path / "whole", epochs=2, **values)
    short = run(model, tmp_path / "run", epochs=1, **values)
    long = run(model, tmp_path / "run", epochs=2, **values)
    files = [result.run.model / "model.safetensors" for result in (whole, long)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert long.run.outcome() == whole.run.outcome()
    with pytest.raises(
        TrainingError, match=r"epochs=2\.0, not 1\.0, and that changes the learning rate"
    ):
        run(model, tmp_path / "run", epochs=1, **values)
    assert short.run.path == long.run.path


@pytest.mark.long
def test_other_rows_leave_the_settings(tmp_path: Path) -> None:
    model = Model.fresh(CONFIG, Tokenizer.from_vocabulary(PIECES))
    values = {"warmup": 0, "schedule": "constant", "dev": None}
    run(model, tmp_path, epochs=0.1, **values)
    with pytest.raises(TrainingError, match="started with other rows for train"):
        run(model, tmp_path, epochs=0.2, train=TRAIN[1:], **values)
    assert read_run(tmp_path).settings()["epochs"] == 0.1


@pytest.mark.long
def test_the_best_of_an_extended_run_is_none_of_the_first_plan(tmp_path: Path) -> None:
    """The decayed weights of the first plan are the best of all, and no part of the second."""
    scores, path = {5: 0.1, 10: 0.5, 15: 0.2, 20: 0.9}, tmp_path / "run"
    evaluation_steps = []

    def evaluate(network: Network) -> dict[str, float]:
        evaluation_steps.append(weights(network))
        return {"score": next(values)}

    values = iter(scores.values())
    train(path, settings(), phases=phases(20), evaluate=evaluate, best=BestMetric("score"))
    assert sorted(file.name[5:13] for file in (path / "best").iterdir()) == ["00000010", "00000020"]
    values = iter([0.4] * 5)
    _, result = train(
        path, settings(), phases=phases(40), evaluate=evaluate, best=BestMetric("score")
    )
    assert (result.resumed_step, result.state.best_step) == (16, 10)
    kept = toy_network(3)
    load_weights(RunDirectory(path).best_weights(10), kept)
    assert torch.equal(weights(kept), evaluation_steps[1])
