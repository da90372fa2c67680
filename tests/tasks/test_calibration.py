"""Calibrated probabilities and label sets, against SciPy, scikit-learn's losses and counts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from sklearn.metrics import log_loss

from bertworks import explorer
from bertworks.errors import SettingsError
from bertworks.inference.native_model import NativeModel
from bertworks.loading import load
from bertworks.model import Model
from bertworks.packed import Batch
from bertworks.tasks.calibration import (
    MAX_SCORES,
    NUM_FOLDS,
    compute_conformal_scores,
    conformal_quantile,
    cross_fit,
    fit_scaling,
)
from bertworks.tasks.classification import ClassificationTask
from bertworks.tasks.probabilities import cross_entropy_sum, softmax
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.finetune import finetune
from tests.tasks.test_classification import PIECES, make_task
from tests.training.letters import CONFIG, DEV, FAST, TRAIN
from tests.training.letters import PIECES as LETTER_PIECES


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary(PIECES)


GENERATOR = np.random.default_rng(0)


def draw_rows(
    count: int, num_classes: int, temperature: float, shifts: Any = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels drawn from the probabilities of scaled logits."""
    logits = GENERATOR.normal(0, 3, (count, num_classes))
    shares = softmax(logits / temperature + shifts).cumsum(1)
    return logits, (GENERATOR.random((count, 1)) > shares).sum(1)


def find_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    def loss(log_scale: float) -> float:
        shares = softmax(logits * math.exp(log_scale))
        return log_loss(labels, shares, normalize=False) + log_scale**2 / 2

    best = minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9}).x
    return math.exp(-best)


def test_temperature_minimizes_the_cross_entropy_with_its_prior() -> None:
    logits, labels = draw_rows(300, 2, 2.5)
    scaling = fit_scaling(logits, labels)
    assert scaling.shifts == ()
    assert scaling.temperatures == pytest.approx([find_temperature(logits, labels)], rel=1e-4)


@pytest.mark.long
def test_vector_scaling_is_chosen_where_classes_differ_and_is_the_optimum() -> None:
    logits, labels = draw_rows(600, 3, np.array([1, 2, 4]), np.array([1.5, 0, -1.5]))
    scaling = fit_scaling(logits, labels)
    assert len(scaling.temperatures) == len(scaling.shifts) == 3

    def loss(parameters: np.ndarray) -> float:
        shares = softmax(logits * np.exp(parameters[:3]) + parameters[3:])
        return log_loss(labels, shares, normalize=False) + parameters @ parameters / 2

    values = np.concatenate([-np.log(scaling.temperatures), scaling.shifts])
    best = minimize(loss, np.zeros(6), method="BFGS", options={"gtol": 1e-4}).fun
    assert loss(values) == pytest.approx(best, abs=1e-4)
    applied = log_loss(labels, softmax(scaling(logits)), normalize=False)
    assert applied + values @ values / 2 == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize("rows_per_unit", [1, 2])
def test_cross_fitting_scales_rows_by_the_temperature_of_other_folds(rows_per_unit: int) -> None:
    logits, labels = draw_rows(100, 2, 2.0)
    scaled_logits = cross_fit(logits, labels, is_vector=False, rows_per_unit=rows_per_unit)
    for fold in range(NUM_FOLDS):
        is_held_out = np.arange(100) // rows_per_unit % NUM_FOLDS == fold
        temperature = find_temperature(logits[~is_held_out], labels[~is_held_out])
        np.testing.assert_allclose(
            scaled_logits[is_held_out], logits[is_held_out] / temperature, 1e-4
        )


def test_one_temperature_is_chosen_where_classes_do_not_differ() -> None:
    for seed in range(3):
        generator = np.random.default_rng(seed)
        logits = generator.normal(0, 3, (200, 20))
        shares = softmax(logits / 2).cumsum(1)
        labels = (generator.random((200, 1)) > shares).sum(1)
        assert len(fit_scaling(logits, labels).temperatures) == 1


def test_scaling_is_left_out_where_it_does_not_help() -> None:
    """Few rows of calibrated logits: a scaling would fit their noise, and change labels."""
    num_plain = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=(2 * NUM_FOLDS, 3)) * 2
        labels = np.array([rng.choice(3, p=row) for row in softmax(logits)])
        scaling = fit_scaling(logits, labels)
        assert not scaling.shifts
        plain = cross_entropy_sum(logits, labels)
        helps = cross_entropy_sum(cross_fit(logits, labels, is_vector=False), labels) < plain
        assert helps or scaling.temperatures == (1.0,)
        num_plain += not helps
    assert num_plain > 3


def test_a_few_correct_rows_do_not_make_probabilities_certain() -> None:
    logits = np.array([[2.0, 0.0], [0.0, 2.0]] * 2)
    scaling = fit_scaling(logits, np.array([0, 1] * 2))
    assert 0.4 < scaling.temperatures[0] < 1


@pytest.mark.parametrize("count", [19, 1_000, 5_000])
def test_label_sets_have_the_requested_coverage(count: int) -> None:
    """Over draws of calibration rows and new rows, as the theorem says."""
    shares = []
    for _ in range(40):
        logits, labels = draw_rows(count + 500, 4, 1.0)
        probabilities = softmax(logits)
        scores = compute_conformal_scores(probabilities[:count], labels[:count])
        assert len(scores) == min(count, MAX_SCORES)
        if count <= MAX_SCORES:
            exact = np.sort(1 - probabilities[np.arange(count), labels[:count]])
            excess = scores - exact
            assert excess.min() > -1e-15 and excess.max() < 1e-7 + 1e-15, "rounded up"
        new = probabilities[count:]
        is_in_set = new >= 1 - conformal_quantile(scores, 0.85)
        shares.append(is_in_set[np.arange(500), labels[count:]].mean())
    error = np.std(shares) / math.sqrt(len(shares))
    assert abs(np.mean(shares) - 0.85) < 4 * error + 1 / (count + 1)


def test_quantile_is_all_labels_where_rows_are_too_few() -> None:
    assert conformal_quantile([0.1, 0.2], 0.9) == 1.0
    assert conformal_quantile([0.1, 0.2, 0.3, 0.4], 0.6) == 0.3  # rank 5 · 0.6


def test_decoding_scales_logits_and_adds_label_sets(tokenizer: Tokenizer) -> None:
    task = make_task(
        tokenizer,
        temperatures=(2.0, 1.0, 4.0),
        logit_shifts=(0.5, 0.0, -0.5),
        conformal_scores=(0.2, 0.5, 0.6),
    )
    batch = task.collate(task.examples([{"text": "good", "pair": "bad"}], 0, labelled=False))
    logits = np.array([[2.0, 1.0, -1.0]], np.float32)
    expected = np.exp([1.5, 1.0, -0.75]) / np.exp([1.5, 1.0, -0.75]).sum()
    plain = task.decode({"logits": logits}, batch)[0]
    assert list(plain["probabilities"].values()) == pytest.approx(expected.tolist())
    with_sets = task.with_coverage(0.5).decode({"logits": logits}, batch)[0]
    assert with_sets == {"label": "neg", "label_set": ["neg"], **plain}
    assert list(with_sets) == ["label", "label_set", "probabilities"]
    assert task.with_coverage(0.75).decode({"logits": logits}, batch)[0]["label_set"] == ["neg"]
    saved = ClassificationTask.from_dict(task.to_dict(), tokenizer)
    assert saved.settings == task.settings
    with pytest.raises(SettingsError, match="dev rows"):
        make_task(tokenizer).with_coverage(0.5)


def test_evaluation_compares_errors_before_and_after(tokenizer: Tokenizer) -> None:
    task = make_task(tokenizer, temperatures=(3.0,))
    rows = [{"text": "good", "pair": "bad", "label": name} for name in ("neg", "pos", "meh")]
    batch: Batch = task.collate(task.examples(rows, 0))
    logits = np.array([[4.0, 1.0, 0.0], [5.0, 2.0, 1.0], [0.0, 1.0, 6.0]])
    evaluator = task.evaluator()
    evaluator.add({"logits": logits}, batch)
    breakdown = evaluator.breakdown()
    table = breakdown.tables[-1]
    gold = batch.targets["labels"]
    for row, scaled in zip(table.rows, (logits, logits / 3), strict=True):
        shares = softmax(scaled)
        loss = log_loss(gold, shares, labels=[0, 1, 2])
        assert row.metrics["negative_log_likelihood"] == pytest.approx(loss)
        bins = np.ceil(shares.max(1) * 15).astype(int)
        is_correct = shares.argmax(1) == gold
        error = sum(
            abs((is_correct[bins == one] - shares.max(1)[bins == one]).sum()) for one in set(bins)
        )
        assert row.metrics["expected_calibration_error"] == pytest.approx(error / 3)
    losses = [row.metrics["negative_log_likelihood"] for row in table.rows]
    assert evaluator.result()["loss"] == pytest.approx(losses[1])
    facts = breakdown.calibration_facts
    assert list(facts) == ["calibration", "uncalibrated", "calibrated"]
    for row in table.rows:
        error, loss = row.metrics.values()
        assert facts[row.name] == f"error {100 * error:.1f}%, loss {loss:.3g}"


@pytest.mark.long
@pytest.mark.parametrize("task", ["classification", "multilabel"])
def test_finetune_calibrates_on_dev_and_every_way_applies_it(tmp_path: Path, task: str) -> None:
    """The probabilities of the model with and without PyTorch and of the explorer."""
    model = Model.fresh(CONFIG, Tokenizer.from_vocabulary(LETTER_PIECES))
    settings = {**FAST, "epochs": 1, "train": TRAIN, "dev": DEV}
    result = finetune(model, task, out=tmp_path / "run", **settings)
    saved = json.loads((result.run.model / "bertworks.json").read_text())["task_settings"]
    (temperature,) = saved["temperatures"]
    assert temperature != 1
    plain = finetune(model, task, out=tmp_path / "plain", calibrate=False, **settings)
    texts = [row["text"] for row in DEV[:6]]
    raw, probabilities = plain.model.predict_proba(texts), result.model.predict_proba(texts)
    logits = np.log(raw / (1 - raw))  # of two classes, that of the difference of logits
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-logits / temperature)), atol=1e-6)
    native = NativeModel.load(result.run.model).predict_proba(texts)
    np.testing.assert_allclose(native, probabilities, atol=1e-5)
    view = explorer.predict(load(result.run.model), texts[0])["prediction"]
    shown = {one["name"]: one["probability"] for one in view["distribution"]}
    expected = dict(zip(result.model.labels, probabilities[0], strict=True))
    assert shown == pytest.approx(expected, abs=1e-5)
    head = explorer.steps(load(result.run.model), texts[0])["head"]
    values = np.array([one["logit"] for one in head["logits"]])
    shares = 1 / (1 + np.exp(-values)) if task == "multilabel" else softmax(values[None])[0]
    names = [one["name"] for one in head["logits"]]
    expected = {one["name"]: one["probability"] for one in head["probabilities"]}
    assert dict(zip(names, shares, strict=True)) == pytest.approx(expected, abs=1e-6)
    assert head["is_calibrated"]
    assert head["activation"] == ("sigmoid" if task == "multilabel" else "softmax")
    page = (result.run.path / "report.html").read_text()
    assert "uncalibrated" in page and "The calibration was fitted on these rows" in page
    stages = result.breakdown.tables[-1].rows
    assert [stage.name for stage in stages] == ["uncalibrated", "calibrated", "cross-fitted"]
    losses = [stage.metrics["negative_log_likelihood"] for stage in stages]
    assert losses[1] == min(losses)
    assert losses[:2] == pytest.approx([plain.metrics["loss"], result.metrics["loss"]], rel=1e-5)
    evaluation = load(result.run.model).evaluate(DEV)
    assert evaluation.breakdown.tables[-1].rows == stages[:2]
    if task == "multilabel":
        return
    sets = [one["label_set"] for one in result.model.predict(DEV, coverage=0.8)]
    share = np.mean([row["label"] in one for row, one in zip(DEV, sets, strict=True)])
    assert abs(share - 0.8) <= 1 / len(DEV)
    with pytest.raises(SettingsError, match="dev rows"):
        plain.model.predict(texts, coverage=0.8)


def test_calibrate_needs_dev(tmp_path: Path) -> None:
    model = Model.fresh(CONFIG, Tokenizer.from_vocabulary(LETTER_PIECES))
    with pytest.raises(SettingsError, match="calibrate=True: there are no evaluation rows"):
        finetune(model, "classification", train=TRAIN, out=tmp_path / "run", calibrate=True)
