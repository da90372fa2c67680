"""The average equals the formula, computed from the weights of a run without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.runs.run_directory import RunDirectory
from bertworks.tasks.best_metric import BestMetric
from bertworks.training.checkpoint import load_weights
from bertworks.training.fit import fit
from bertworks.training.plan import Phase
from bertworks.training.settings import FitSettings

from .letters import StopError, equal, fit_letters, letters_network, weights_of
from .toy import ToySource, ToyTask, toy_network

OPTIONS: dict[str, Any] = {"ema": 0.5, "freeze_embeddings": True, "unfreeze_every": 2}


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_averaged_weights_are_evaluated_and_saved(tmp_path: Path, optimizer: str) -> None:
    settings = {"optimizer": optimizer, "learning_rate": 0.01, "warmup": 0}
    plain = letters_network()
    raw, _ = fit_letters(tmp_path / "plain", plain, **settings)
    averaged_network = letters_network()
    averages, _ = fit_letters(tmp_path / "averaged", averaged_network, ema=0.5, **settings)
    for name, first in raw[0].items():
        average = first.double()
        for step, (weights, evaluated_weights) in enumerate(zip(raw, averages, strict=True), 1):
            decay = min(0.5, (1 + step) / (10 + step))
            average = decay * average + (1 - decay) * weights[name].double()
            torch.testing.assert_close(
                evaluated_weights[name].double(), average, rtol=1e-5, atol=1e-7
            )
    assert equal(weights_of(averaged_network), averages[-1])
    assert not equal(weights_of(averaged_network), weights_of(plain))


@pytest.mark.long
@pytest.mark.parametrize("stop_at", [5, 10])
def test_a_broken_run_has_the_same_averages(tmp_path: Path, stop_at: int) -> None:
    whole = letters_network()
    whole_weights, _ = fit_letters(tmp_path / "whole", whole, **OPTIONS)
    with pytest.raises(StopError):
        fit_letters(tmp_path / "broken", letters_network(), stop_at=stop_at, **OPTIONS)
    again = letters_network()
    fit_letters(tmp_path / "broken", again, **OPTIONS)
    assert equal(weights_of(whole), weights_of(again))
    resumed_network = letters_network(seed=5)
    _, result = fit_letters(tmp_path / "broken", resumed_network, **OPTIONS)
    assert result.resumed_step == 10
    assert equal(weights_of(whole), weights_of(resumed_network))
    frozen = "encoder.embeddings.word_embeddings.weight"
    assert torch.equal(whole_weights[-1][frozen], weights_of(letters_network())[frozen])


def test_the_best_weights_are_averages(tmp_path: Path) -> None:
    networks = []

    def evaluate(network: Any) -> dict[str, float]:
        networks.append(weights_of(network))
        return {"score": -abs(len(networks) - 3)}

    settings = FitSettings(batch_size=16, eval_every=1, ema=0.9, tensorboard=False)
    run = RunDirectory.open(tmp_path / "run", settings)
    phases = [Phase(ToySource(1), 5)]
    fit(toy_network(), ToyTask(), phases, settings=settings, run=run, evaluate=evaluate,
        best=BestMetric("score"))  # fmt: skip
    run.close()
    kept = toy_network(seed=9)
    load_weights(run.best_weights(3), kept)
    assert equal(weights_of(kept), networks[2])
