"""The demo: a small one shows each stage; a full one (slow) shows that pre-training helps."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from bertworks.lab.demo import cycle, run_demo, texts
from bertworks.lab.demo.texts import Module, Passage

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
def test_every_stage_is_shown_and_it_can_be_run_again(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    shown = io.StringIO()
    result = run_demo(out, console=Console(file=shown, width=80))
    text = shown.getvalue()
    for stage in range(9):
        assert f"\n{stage}  " in text, text
    assert f"{result.majority:.1%}" in text
    assert f"{result.with_pretraining:.1%}" in text
    assert f"{result.without_pretraining:.1%}" in text
    assert ("NOT" in text) is not result.beats_both
    assert str(result.report) in text
    assert result.report.is_file()

    repeated_result = run_demo(out, console=Console(file=io.StringIO()))
    assert repeated_result.with_pretraining == result.with_pretraining
    assert repeated_result.held_out_loss == result.held_out_loss
    assert repeated_result.standard_error == result.standard_error


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_a_quick_cycle_is_written_next_to_the_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle, "QUICK", {"steps": 2, "eval_every": 2, "checkpoint_every": 2})
    shown = io.StringIO()
    result = run_demo(tmp_path, quick=True, console=Console(file=shown, width=80))
    assert "the accuracies mean little" in " ".join(shown.getvalue().split())
    assert result.report == tmp_path / "quick" / "pretrained" / "report.html"
    assert not (tmp_path / "pretrained").exists()


def test_a_difference_is_clear_from_two_standard_errors_on() -> None:
    def result(accuracy: float) -> cycle.DemoResult:
        return cycle.DemoResult((9.0, 6.0), 0.3, 0.5, accuracy, 0.02, Path("report.html"), 1.0)

    assert result(0.545).is_clear
    assert not result(0.535).is_clear
    assert result(0.535).beats_both


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pretraining_beats_both_baselines_clearly(tmp_path: Path, seed: int) -> None:
    result = run_demo(tmp_path / "demo", seed=seed, console=Console(file=io.StringIO()))
    before, after = result.held_out_loss
    assert after < before - 2.5
    assert result.without_pretraining > result.majority + 0.2
    assert result.with_pretraining > result.without_pretraining + 0.03
