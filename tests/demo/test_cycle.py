"""The demo: in small, that each stage is told of; in full (slow), that pre-training pays."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from bertworks.demo import cycle, run_demo, texts
from bertworks.demo.texts import Module, Passage

PACKAGES = ("river", "garden", "train", "letter")
VERBS = ("opened", "closed", "followed", "painted", "forgot", "found", "kept", "lost")


def _library() -> list[Module]:
    """A standard library of four packages."""
    return [
        Module(
            package,
            tuple(
                Passage((f"The {package} number {n} was {verb} by somebody else.",), True)
                for n, verb in enumerate(VERBS * 2)
            ),
        )
        for package in PACKAGES
    ]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "standard_library", _library)
    monkeypatch.setattr(cycle, "VOCABULARY_SIZE", 600)
    monkeypatch.setattr(cycle, "PRETRAINING", {**cycle.PRETRAINING, "steps": 4, "batch_size": 4})
    monkeypatch.setattr(cycle, "FINETUNING", {**cycle.FINETUNING, "epochs": 1})


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_every_stage_is_told_of_and_it_can_be_run_again(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    told = io.StringIO()
    result = run_demo(out, console=Console(file=told, width=80))
    text = told.getvalue()
    for stage in range(1, 9):
        assert f"\n{stage}  " in text, text
    assert f"{result.majority:.1%}" in text
    assert f"{result.with_pretraining:.1%}" in text
    assert f"{result.without_pretraining:.1%}" in text
    assert ("NOT" in text) is not result.beats_both
    assert str(result.report) in text
    assert result.report.is_file()

    again = run_demo(out, console=Console(file=io.StringIO()))
    assert again.with_pretraining == result.with_pretraining
    assert again.held_out_loss == result.held_out_loss


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pretraining_beats_both_baselines_clearly(tmp_path: Path, seed: int) -> None:
    result = run_demo(tmp_path / "demo", seed=seed, console=Console(file=io.StringIO()))
    before, after = result.held_out_loss
    assert after < before - 2.5
    assert result.without_pretraining > result.majority + 0.2
    assert result.with_pretraining > result.without_pretraining + 0.03
