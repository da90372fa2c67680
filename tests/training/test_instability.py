"""Runs that learn nothing are distinguished from those that do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.data.tables import read_rows
from bertworks.model import Model
from bertworks.tasks.classification import ClassificationTask, MultiLabelTask, TextClassifierTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.instability import failures, no_better_than_guessing, note_few_steps
from bertworks.training.settings import FinetuneSettings

from .letters import CONFIG, PIECES, TRAIN, Lines, run

GOOD_METRICS = {"accuracy": 0.9, "majority": 0.5, "matthews_correlation": 0.8}


def lines_of(losses: list[float]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for loss in losses:
        lines += [{"kind": "train", "losses": {"classification": loss}}, {"kind": "eval"}]
    return lines


def predicted(
    metrics: dict[str, float] = GOOD_METRICS,
    losses: list[float] | None = None,
    hidden_size: int = 768,
    **settings: Any,
) -> list[str]:
    journal = lines_of([0.7, 0.5, 0.3, 0.2, 0.1] if losses is None else losses)
    prior = {"classification": math.log(2)}
    return failures(metrics, journal, prior, FinetuneSettings.parse(settings), hidden_size)


def test_a_run_that_learned_has_no_failure_signs() -> None:
    assert not predicted()
    assert not predicted({})
    assert not predicted(losses=[])
    # All rows but a few are of one kind, and the few are known.
    assert not predicted({"accuracy": 0.94, "majority": 0.95, "matthews_correlation": 0.5})
    assert not predicted({"accuracy": 1.0, "majority": 1.0, "matthews_correlation": 0.0})
    assert not predicted({"loss": 1.0, "pearson": 0.3})


def test_failed_training_has_a_sign_and_advice() -> None:
    guessing_metrics = {"accuracy": 0.5, "majority": 0.5, "matthews_correlation": 0.0}
    sign, advice = predicted(guessing_metrics)
    assert sign == (
        "accuracy 0.500 is no better than 0.500, that of always predicting the most frequent class"
    )
    assert advice == (
        "to try: longer training, epochs=20; another seed=1; reinitialize_layers=1 "
        "(Mosbach et al. 2021, Zhang et al. 2021)"
    )
    # The last fifth of the lines counts, not a lucky one before.
    sign, _ = predicted(losses=[0.7, 0.1, 0.7, 0.7, 0.69])
    nothing = "the run learned nothing: its loss (0.690) is that of guessing by label frequency"
    assert sign == f"{nothing} (0.693)"
    sign, _ = predicted(losses=[0.7, 0.9])
    assert "its loss (0.900) is above that of guessing" in sign
    assert predicted(losses=[0.0, 0.0])[0].startswith("the run learned nothing: its loss was 0")
    assert len(predicted(guessing_metrics, [0.7])) == 3
    assert no_better_than_guessing({"pearson": 0.0}) is not None
    assert no_better_than_guessing({"accuracy": 0.9, "majority": 0.9, "f1": 0.0}) is not None


def test_the_advice_is_about_this_run() -> None:
    def advice(hidden_size: int = 768, **settings: Any) -> str:
        return predicted(losses=[0.7], hidden_size=hidden_size, **settings)[-1]

    assert "bias_correction=true; " in advice(bias_correction=False)
    assert "warmup=0.1; " in advice(warmup=0)
    assert "epochs=20 learning_rate=2e-5" in advice(learning_rate=1e-4)
    assert "learning_rate" not in advice(learning_rate=5e-5)
    assert "epochs" not in advice(epochs=20)
    for small in (128, 256):
        assert "learning_rate=0.0003, since the encoder is small" in advice(hidden_size=small)
    assert "learning_rate" not in advice(hidden_size=257)
    # A small encoder does not learn with the paper's rates.
    assert "learning_rate" not in advice(hidden_size=128, learning_rate=3e-4)
    assert "learning_rate=2e-5" in advice(hidden_size=768, learning_rate=3e-4)
    assert "learning_rate" not in advice(lora_rank=8, learning_rate=2e-4)
    assert "reinitialize" not in advice(lora_rank=8)
    assert "seed=5" in advice(seed=4)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (ClassificationTask, {}, True),
        (ClassificationTask, {"label_smoothing": 0.1}, False),
        (ClassificationTask, {"balance_classes": True}, False),
        (MultiLabelTask, {}, False),
    ],
)
def test_baseline_loss_is_the_entropy_of_the_labels(
    kind: type[TextClassifierTask], options: dict[str, Any], expected: bool
) -> None:
    rows = read_rows(TRAIN[:30] + TRAIN[:30:2])
    parsed = kind.user_settings().parse({"max_seq_length": 32, **options})
    task = kind.from_table(Tokenizer.from_vocabulary(PIECES), rows, parsed)
    labels = [row.values["label"] for row in rows]
    counts = {name: labels.count(name) for name in ("no", "yes")}
    shares = np.array([counts[name] for name in labels]) / len(labels)
    found = task.baseline_losses(counts)
    assert found == ({"classification": pytest.approx(-np.log(shares).mean())} if expected else {})


@pytest.mark.parametrize(
    ("steps", "epochs", "enough"), [(6, 3.0, 100), (1, 0.5, 100), (99, 3.0, 7), (100, 3.0, None)]
)
def test_few_steps_are_noted_with_the_epochs_that_suffice(
    steps: int, epochs: float, enough: int | None
) -> None:
    note = note_few_steps(steps, epochs)
    assert (note is None) == (enough is None)
    if note is not None:
        assert f"only {steps} steps in all" in note and f": epochs={enough} takes" in note
        assert steps * enough / epochs >= 200 > steps * (enough - 1) / epochs


@pytest.mark.long
def test_a_run_that_fails_says_so(tmp_path: Path) -> None:
    model = Model.fresh(CONFIG, Tokenizer.from_vocabulary(PIECES))
    progress = Lines()
    result = run(model, tmp_path / "run", learning_rate=1e-9, epochs=2, progress=progress)
    loss, accuracy, advice, one_class = result.notes
    assert "nothing has been learned yet" in one_class
    assert accuracy.startswith("accuracy 0.500 is no better")
    assert loss.startswith("the run learned nothing: its loss (0.69")
    assert "learning_rate=0.0003, since the encoder is small" in advice
    assert one_class in progress.lines
    said = [line.get("text") for line in result.run.sessions()]
    assert {accuracy, loss, advice} <= set(said)
    assert "no better than 0.500" in result.run.report.read_text()
    assert advice in repr(result)
    assert f"<p>{advice}</p>" in result._repr_html_()
