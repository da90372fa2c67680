"""The loop equals a loop written out in the plainest way; and what else it promises."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bertworks.errors import CheckpointError, SettingsError, TrainingError
from bertworks.packed import Batch
from bertworks.runs.run_directory import RunDirectory
from bertworks.tasks.best_metric import BestMetric
from bertworks.tasks.network import Network
from bertworks.training.checkpoint import ResumeWarning, list_checkpoints, load_weights
from bertworks.training.distributed import ProcessGroup
from bertworks.training.fit import fit
from bertworks.training.plan import Phase
from bertworks.training.settings import FitSettings, OptimizerSettings
from bertworks.training.signals import RunInterrupted
from bertworks.training.state import FitResult
from bertworks.training.stream import BatchSize, stream
from bertworks.utils.progress import Progress

from .toy import ToyNegatives, ToyNetwork, ToySource, ToyTask, measure, toy_network

SETTINGS = FitSettings.parse(
    {
        "batch_size": 16,
        "learning_rate": 0.01,
        "warmup": 0.1,
        "log_every": 3,
        "eval_every": 5,
        "checkpoint_every": 4,
        "tensorboard": False,
    }
)
PHASES = [
    Phase(ToySource(1), steps=14, name="short"),
    Phase(ToySource(2), steps=6, name="long", batch_size=8),
]


def train(
    path: Path,
    settings: FitSettings = SETTINGS,
    *,
    network: ToyNetwork | None = None,
    phases: list[Phase] | None = None,
    **options: Any,
) -> tuple[ToyNetwork, FitResult]:
    network = toy_network() if network is None else network
    run = RunDirectory.open(path, settings)
    try:
        phases = PHASES if phases is None else phases
        return network, fit(network, ToyTask(), phases, settings=settings, run=run, **options)
    finally:
        run.close()


def weights(network: Network) -> Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def journal(path: Path) -> list[dict[str, Any]]:
    """The journal without the clock."""
    return [
        {key: value for key, value in line.items() if key != "time"}
        for line in RunDirectory(path).lines()
    ]


def rewrite_state(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a checkpoint's state as if it had been written so."""
    state, manifest = checkpoint / "state.json", checkpoint / "manifest.json"
    tree, sums = json.loads(state.read_text()), json.loads(manifest.read_text())
    change(tree)
    state.write_text(json.dumps(tree))
    sums["state.json"] = hashlib.sha256(state.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(sums))


def test_updates_are_those_of_the_plainest_loop(tmp_path: Path) -> None:
    network, result = train(tmp_path / "run", network=toy_network(dropout=0.0))

    plain = toy_network(dropout=0.0)
    trained_parameters = [
        p for name, p in plain.named_parameters() if not name.startswith("unused")
    ]
    optimizer = torch.optim.AdamW(
        trained_parameters, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0
    )
    matrices = [p for p in trained_parameters if p.ndim == 2]
    losses, norms = [], []
    step = 0
    for phase in PHASES:
        size = BatchSize(phase.batch_size or 16)
        for batch in itertools.islice(stream(phase.source, ToyTask().collate, size), phase.steps):
            (whole,) = batch.micro_batches
            out = plain(whole.to("cpu"))
            loss = out["token"] / whole.counts["token"] + out["row"] / whole.counts["row"]
            optimizer.zero_grad()
            loss.backward()
            norm = torch.sqrt(sum((p.grad**2).sum() for p in trained_parameters))
            lr = 0.01 * (step / 2 if step < 2 else 1 - step / 20)
            with torch.no_grad():
                for p in trained_parameters:
                    p.grad.mul_(1 / max(1.0, norm.item()))
                for p in matrices:
                    p.mul_(1 - lr * 0.01)
            optimizer.param_groups[0]["lr"] = lr
            optimizer.step()
            losses.append(loss.item())
            norms.append(norm.item())
            step += 1
    torch.testing.assert_close(weights(network), weights(plain), rtol=1e-4, atol=1e-5)
    lines = [line for line in journal(tmp_path / "run") if line["kind"] == "train"]
    assert [line["step"] for line in lines] == [3, 6, 9, 12, 15, 18, 20]
    assert [line["phase"] for line in lines] == ["short"] * 4 + ["long"] * 3
    assert [line["lr"] for line in lines][-1] == pytest.approx(0.01 * (1 - 19 / 20))
    for line, start, end in zip(lines, (0, 3, 6, 9, 12, 15, 18), (3, 6, 9, 12, 15, 18, 20)):  # noqa: B905
        assert line["loss"] == pytest.approx(np.mean(losses[start:end]), rel=1e-4)
        assert line["grad_norm"] == pytest.approx(np.mean(norms[start:end]), rel=1e-3)
        assert line["loss"] == pytest.approx(sum(line["losses"].values()))
    assert lines[-1]["examples"] == 14 * 16 + 6 * 8 == result.state.examples
    assert result.state.step == 20
    assert result.resumed_step is None


@pytest.mark.long
@pytest.mark.parametrize("micro", [{"micro_batch_size": 5}, {"micro_batch_tokens": 30}])
def test_accumulation_gives_the_update_of_the_whole_batch(
    tmp_path: Path, micro: dict[str, int]
) -> None:
    whole, _ = train(tmp_path / "whole", network=toy_network(dropout=0.0))
    parts, _ = train(
        tmp_path / "parts", SETTINGS.with_values(**micro), network=toy_network(dropout=0.0)
    )
    torch.testing.assert_close(weights(whole), weights(parts), rtol=1e-4, atol=1e-6)


class StopError(Exception):
    """Stands for a kill: nothing after it is run."""


class StoppingSource(ToySource):
    """Is killed when a block has been read a certain number of times."""

    def __init__(self, seed: int, blocks_left: int) -> None:
        super().__init__(seed)
        self.left = blocks_left

    def block(self, epoch: int, block: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise StopError
        return super().block(epoch, block)


@pytest.mark.long
@pytest.mark.parametrize("name", ["adamw", "lamb"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_run_ends_as_an_unbroken_one(tmp_path: Path, name: str, workers: int) -> None:
    settings = SETTINGS.with_values(optimizer=name, learning_rate=0.01, warmup=0.1)
    whole, _ = train(tmp_path / "whole", settings, evaluate=measure)
    interrupted_path = tmp_path / "broken"
    for after in (3, 5):
        phases = [Phase(StoppingSource(1, after), 14, "short"), PHASES[1]]
        with pytest.raises(StopError):
            train(interrupted_path, settings, phases=phases, evaluate=measure)
        torch.rand(5)
    helped = settings.with_values(loader_workers=workers)
    again, result = train(interrupted_path, helped, evaluate=measure)
    assert result.resumed_step == 8
    assert torch.equal(weights(whole), weights(again))
    assert journal(tmp_path / "whole") == journal(interrupted_path)
    assert torch.rand(1).item() >= 0  # the generator still works


def test_run_that_stopped_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    """Without the lines that the first session wrote."""
    settings = SETTINGS.with_values(log_every=1, checkpoint_every=100)
    whole, _ = train(tmp_path / "whole", settings)
    phases = [Phase(StoppingSource(1, 2), 14, "short"), PHASES[1]]
    with pytest.raises(StopError):
        train(tmp_path / "run", settings, phases=phases)
    assert journal(tmp_path / "run")
    again, result = train(tmp_path / "run", settings)
    assert result.resumed_step is None
    assert torch.equal(weights(whole), weights(again))
    assert journal(tmp_path / "whole") == journal(tmp_path / "run")


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    first, _ = train(tmp_path / "run", evaluate=measure)
    first_journal = journal(tmp_path / "run")
    second, result = train(tmp_path / "run", network=toy_network(5), evaluate=measure)
    assert result.resumed_step == 20
    assert result.metrics == first_journal[-1]["metrics"]
    assert torch.equal(weights(first), weights(second))
    assert journal(tmp_path / "run") == first_journal


def test_ranks_that_see_other_checkpoints_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on two machines without a common file system."""
    train(tmp_path / "run")
    monkeypatch.setattr(ProcessGroup, "gather", lambda _, value: [value, None])
    with pytest.raises(TrainingError, match=r"\(0: step-00000020, 1: none\)\. Put the run"):
        train(tmp_path / "run")


@pytest.mark.parametrize(("precision", "computes_in"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_session_records_its_precision(tmp_path: Path, precision: str, computes_in: str) -> None:
    settings = SETTINGS.with_values(precision=precision)
    train(tmp_path / "run", settings, phases=[Phase(ToySource(1), 1, "short")])
    start, *_ = RunDirectory(tmp_path / "run").sessions()
    facts = start["event"], start["computes in"], start["processes"], start["sharding"]
    assert facts == ("start", computes_in, 1, "none")


def signalling(signal_call: int, number: int) -> Callable[[Network], dict[str, float]]:
    """An evaluation during which, the `at`-th time, a signal comes."""
    calls = itertools.count(1)

    def evaluate(network: Network) -> dict[str, float]:
        if next(calls) == signal_call:
            os.kill(os.getpid(), number)
        return measure(network)

    return evaluate


@pytest.mark.long
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_stops_after_the_step(tmp_path: Path, number: int, status: int) -> None:
    whole, _ = train(tmp_path / "whole", evaluate=measure)
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(
        RunInterrupted, match=r"^stopped after step 10 of 20 \(saved; the same command resumes\)$"
    ) as info:
        train(tmp_path / "run", evaluate=signalling(2, number))
    assert info.value.status == status
    assert handlers == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    assert list_checkpoints(tmp_path / "run" / "checkpoints")[-1].name == "step-00000010"
    again, result = train(tmp_path / "run", evaluate=measure)
    assert result.resumed_step == 10
    assert torch.equal(weights(whole), weights(again))
    assert journal(tmp_path / "whole") == journal(tmp_path / "run")


@pytest.mark.long
def test_a_second_ctrl_c_aborts_at_once(tmp_path: Path) -> None:
    def evaluate(network: Network) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", evaluate=evaluate)
    _, result = train(tmp_path / "run", evaluate=measure)
    assert result.resumed_step == 4


def test_a_loss_that_is_not_finite_stops_before_the_step(tmp_path: Path) -> None:
    poisoned_phases = [Phase(ToySource(1, poison=(0, 5, 7)), 14, "short")]
    network = toy_network()
    with pytest.raises(
        TrainingError, match=r"loss of step (\d+) is not finite.*epoch 0, block"
    ) as e:
        train(tmp_path / "run", network=network, phases=poisoned_phases)
    step = int(str(e.value).split("step ")[1].split()[0])
    assert "phase 'short'" in str(e.value)
    # The same steps on good data, but the last: the network must be as it was before it.
    good, _ = train(tmp_path / "good", phases=[Phase(ToySource(1), 14, "short")])
    assert torch.isfinite(weights(network)).all()
    assert not torch.equal(weights(network), weights(good))
    with pytest.raises(TrainingError, match=f"loss of step {step} is not finite"):
        train(tmp_path / "run", phases=poisoned_phases)


class ExplodingNetwork(ToyNetwork):
    """Its loss is finite, its gradient is not."""

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        losses = super().forward(batch)
        return {**losses, "row": losses["row"] + torch.sqrt(0 * losses["row"])}


def test_a_gradient_that_is_not_finite_stops_before_the_step(tmp_path: Path) -> None:
    network = ExplodingNetwork()
    initial_weights = weights(network)
    with pytest.raises(TrainingError, match="gradient of step 1 is not finite"):
        train(tmp_path / "run", network=network)
    assert torch.equal(weights(network), initial_weights)


@pytest.mark.parametrize("has_evaluation", [True, False])
def test_a_last_update_that_is_not_finite_is_not_saved(
    tmp_path: Path, has_evaluation: bool
) -> None:
    """No later loss would show it."""
    settings = SETTINGS.model_copy(
        update={"learning_rate": 3e38, "warmup": 0, "weight_decay": 1.0}  # beyond their bounds
    )
    phases = [Phase(ToySource(1), steps=1, name="only")]
    evaluate = measure if has_evaluation else None
    with pytest.raises(TrainingError, match="weights are not finite after step 1"):
        train(tmp_path / "run", settings, phases=phases, evaluate=evaluate)
    assert not list_checkpoints(tmp_path / "run" / "checkpoints")


def test_losses_that_do_not_add_up_are_not_split(tmp_path: Path) -> None:
    settings = SETTINGS.with_values(micro_batch_size=4)
    run = RunDirectory.open(tmp_path / "run", settings)
    with pytest.raises(SettingsError, match=r"micro_batch_size=4.*do not add up"):
        fit(toy_network(), ToyNegatives(), PHASES, settings=settings, run=run)
    fit(toy_network(), ToyNegatives(), PHASES, settings=SETTINGS, run=run)
    run.close()


def test_the_best_weights_are_kept(tmp_path: Path) -> None:
    values = iter([0.3, 0.7, 0.7, 0.5])
    weights_at_evaluations: list[Tensor] = []

    def evaluate(network: Network) -> dict[str, float]:
        weights_at_evaluations.append(weights(network))
        return {"accuracy": next(values)}

    _, result = train(tmp_path / "run", evaluate=evaluate, best=BestMetric("accuracy"))
    assert (result.state.best_step, result.state.best_value) == (10, 0.7)
    network = toy_network(3)
    load_weights(RunDirectory(tmp_path / "run").best_weights(10), network)
    assert torch.equal(weights(network), weights_at_evaluations[1])
    assert not BestMetric("loss", lower_is_better=True).is_better(0.5, 0.5)
    assert BestMetric("loss", lower_is_better=True).is_better(0.4, 0.5)
    assert BestMetric("matthews").is_better(0.1, math.nan)
    assert not BestMetric("matthews").is_better(math.nan, 0.1)


def scores(*values: float, die_after: int | None = None) -> Callable[[Network], dict[str, float]]:
    """An evaluation with these outcomes, by the network's step; it may end in a kill."""
    calls = itertools.count()

    def evaluate(network: Network) -> dict[str, float]:
        call = next(calls)
        if call == die_after:
            raise StopError
        return {"score": values[call]}

    return evaluate


@pytest.mark.long
@pytest.mark.parametrize(
    ("values", "patience", "end"),
    [
        ((0.5, 0.4, 0.5, 0.4), 2, 15),  # an equal one is no better
        ((0.5, 0.4, 0.6, 0.4), 2, 20),
        ((0.5, 0.4, 0.3, 0.2), 1, 10),
        ((0.5, 0.4, 0.3, 0.2), 3, 20),  # the last step is no early one
        ((0.1, 0.2, 0.3, 0.4), 1, 20),
        ((math.nan, 0.2, 0.1, 0.4), 1, 15),
    ],
)
def test_a_run_that_gets_no_better_ends(
    tmp_path: Path, values: tuple[float, ...], patience: int, end: int
) -> None:
    best = BestMetric("score", patience=patience)
    network, result = train(tmp_path / "run", evaluate=scores(*values), best=best)
    assert result.state.step == end
    lines = journal(tmp_path / "run")
    assert [line["step"] for line in lines if line["kind"] == "stop"] == ([end] if end < 20 else [])
    whole, _ = train(tmp_path / "whole", evaluate=scores(*values), best=BestMetric("score"))
    assert torch.equal(weights(whole), weights(network)) == (end == 20)
    train_lines = [line for line in lines if line["kind"] == "train"]
    assert train_lines[-1]["step"] == end
    rates = {line["step"]: line["lr"] for line in journal(tmp_path / "whole") if "lr" in line}
    assert all(line["lr"] == rates.get(line["step"], line["lr"]) for line in train_lines)


def test_the_best_are_those_of_the_journal_whatever_a_killed_session_measured(
    tmp_path: Path,
) -> None:
    """Resumed under other conditions, the same step may be measured differently."""
    settings, best = SETTINGS.with_values(checkpoint_every=7), BestMetric("score")
    weights_at_evaluations: list[Tensor] = []

    def evaluate(network: Network) -> dict[str, float]:
        weights_at_evaluations.append(weights(network))
        return {"score": next(values)}

    path, values = tmp_path / "run", iter([0.1, 0.5, 0.9])
    phases = [Phase(ToySource(1), 14), Phase(StoppingSource(2, 1), 6)]
    with pytest.raises(StopError):  # at step 17: of step 15, the best so far, no checkpoint knows
        train(path, settings, phases=phases, evaluate=evaluate, best=best)
    values = iter([0.3, 0.2])
    phases = [phases[0], Phase(ToySource(2), 6)]
    _, result = train(path, settings, phases=phases, evaluate=evaluate, best=best)
    assert (result.resumed_step, result.state.best_step, result.state.best_value) == (14, 10, 0.5)
    scores = {line["step"]: line["metrics"]["score"] for line in journal(path) if "metrics" in line}
    assert scores == {5: 0.1, 10: 0.5, 15: 0.3, 20: 0.2}
    kept = toy_network(3)
    load_weights(RunDirectory(path).best_weights(10), kept)
    assert torch.equal(weights(kept), weights_at_evaluations[1])
    assert [file.name for file in (path / "best").iterdir()] == ["step-00000010.safetensors"]


@pytest.mark.long
def test_an_early_end_is_the_same_after_a_kill_and_stays(tmp_path: Path) -> None:
    values, settings = (0.1, 0.5, 0.4, 0.3), SETTINGS.with_values(checkpoint_every=7)
    options: dict[str, Any] = {
        "best": BestMetric("score", patience=2),
        "phases": [Phase(ToySource(1), steps=50)],
    }
    whole, _ = train(tmp_path / "whole", settings, evaluate=scores(*values), **options)
    run = tmp_path / "run"
    dying = scores(*values, die_after=3)  # at step 20, with a checkpoint of step 14
    with pytest.raises(StopError):
        train(run, settings, evaluate=dying, **options)
    again, result = train(run, settings, evaluate=scores(*values[2:]), **options)
    assert (result.resumed_step, result.state.step, result.state.best_step) == (14, 20, 10)
    assert torch.equal(weights(whole), weights(again))
    assert journal(tmp_path / "whole") == journal(run)
    messages: list[str] = []

    class Lines(Progress):
        def note(self, text: str) -> None:
            messages.append(text)

    last, result = train(run, settings, evaluate=scores(), progress=Lines(), **options)
    assert result.resumed_step == result.state.step == 20
    assert torch.equal(weights(whole), weights(last))
    assert journal(tmp_path / "whole") == journal(run)
    assert messages == [
        "stopped early after step 20 of 50: score was best at step 10, and no better in 2 "
        "evaluations since"
    ]


def test_metrics_that_are_not_finite_stop_nothing(tmp_path: Path) -> None:
    def evaluate(network: Network) -> dict[str, float]:
        return {"perplexity": math.inf, "matthews": math.nan}

    train(tmp_path / "run", evaluate=evaluate, best=BestMetric("matthews"))
    _, result = train(tmp_path / "run", evaluate=evaluate, best=BestMetric("matthews"))
    assert result.metrics["perplexity"] == math.inf


@pytest.mark.long
def test_a_signal_before_the_first_step_loses_nothing(tmp_path: Path) -> None:
    settings = SETTINGS.with_values(eval_first=True)
    whole, _ = train(tmp_path / "whole", settings, evaluate=measure)
    with pytest.raises(RunInterrupted, match="after step 0 of 20"):
        train(tmp_path / "run", settings, evaluate=signalling(1, signal.SIGTERM))
    again, result = train(tmp_path / "run", settings, evaluate=measure)
    assert result.resumed_step == 0
    assert torch.equal(weights(whole), weights(again))
    assert journal(tmp_path / "whole") == journal(tmp_path / "run")


@pytest.mark.long
def test_evaluating_leaves_no_trace_in_the_weights(tmp_path: Path) -> None:
    without, _ = train(tmp_path / "without")
    often, _ = train(tmp_path / "often", SETTINGS.with_values(eval_every=1), evaluate=measure)
    assert torch.equal(weights(without), weights(often))


def test_evaluation_can_come_first(tmp_path: Path) -> None:
    train(tmp_path / "run", SETTINGS.with_values(eval_first=True), evaluate=measure)
    steps = [line["step"] for line in journal(tmp_path / "run") if line["kind"] == "eval"]
    assert steps == [0, 5, 10, 15, 20]


def test_other_conditions_warn(tmp_path: Path) -> None:
    train(tmp_path / "run")
    newest = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    rewrite_state(newest, lambda tree: tree["facts"].update(threads=99))
    with pytest.warns(ResumeWarning, match=r"threads 99 → \d+: it will not be the same"):
        train(tmp_path / "run")


def test_a_missing_batch_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Give batch_size or batch_tokens"):
        train(tmp_path / "run", FitSettings())
    with pytest.raises(SettingsError, match="exclude each other"):
        FitSettings.parse({"batch_size": 3, "batch_tokens": 5})


def test_deterministic_algorithms_are_enabled_during_the_run_only(tmp_path: Path) -> None:
    modes = []

    def evaluate(network: Network) -> dict[str, float]:
        modes.append(torch.are_deterministic_algorithms_enabled())
        return {"loss": 1.0}

    train(tmp_path / "run", SETTINGS.with_values(deterministic=True), evaluate=evaluate)
    assert modes == [True] * 4
    assert not torch.are_deterministic_algorithms_enabled()


def test_tensorboard_gets_the_journal(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(tmp_path / "run", SETTINGS.with_values(tensorboard=True), evaluate=measure)
    board = events.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    lines = [line for line in journal(tmp_path / "run") if line["kind"] == "train"]
    shown = [(event.step, event.value) for event in board.Scalars("train/loss")]
    assert shown == [(line["step"], pytest.approx(line["loss"])) for line in lines]
    assert {"train/losses/row", "eval/metrics/loss"} <= set(board.Tags()["scalars"])


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "run")
    other = toy_network()
    other.row_head = torch.nn.Linear(8, 3)
    with pytest.raises(CheckpointError, match="row_head"):
        train(tmp_path / "run", network=other)


def test_settings_have_the_paper_s_defaults() -> None:
    optimizer = OptimizerSettings()
    assert (optimizer.eps, optimizer.betas, optimizer.weight_decay) == (1e-6, (0.9, 0.999), 0.01)
    assert FitSettings().max_grad_norm == 1.0
