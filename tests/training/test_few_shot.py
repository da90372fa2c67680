"""Fine-tuning with few rows: a run like any other, whose model is an ordinary classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.checkpoints.sentence_settings import SentenceSettings
from bertworks.errors import DataError, SettingsError
from bertworks.loading import load
from bertworks.model import Model
from bertworks.tasks.classification import ClassificationTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.finetune import FinetuneResult, finetune

from .letters import CONFIG, DEV, PIECES, Lines, make_rows, run

FEW = make_rows(16, 5)


@pytest.fixture
def model() -> Model:
    return Model.fresh(CONFIG, Tokenizer.from_vocabulary(PIECES))


def few_shot(model: Model, out: Path, **settings: Any) -> FinetuneResult:
    return run(model, out, **{"train": FEW, "epochs": 3, "few_shot": True, **settings})


@pytest.mark.long
def test_few_rows_make_a_classifier_like_any_other(model: Model, tmp_path: Path) -> None:
    progress = Lines()
    result = few_shot(model, tmp_path / "run", progress=progress, train=make_rows(40, 5))
    assert result.metrics["accuracy"] > 0.9
    assert not result.notes
    assert "few_shot: 150 updates, each on 16 pairs of the 40 rows; then the head is fitted" in (
        progress.lines
    )
    assert {name for line in result.history for name in line.get("losses", ())} == {"pairs"}
    saved_model = load(result.run.model)
    assert type(saved_model.task) is ClassificationTask
    assert saved_model.task.settings.temperatures  # calibrated on dev
    assert saved_model.evaluate(DEV).metrics == pytest.approx(dict(result.metrics), abs=1e-5)
    texts = [row["text"] for row in DEV]
    ours, theirs = (
        [answer["probabilities"]["yes"] for answer in one.predict(texts)]
        for one in (result.model, saved_model)
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    further = run(saved_model, tmp_path / "further", epochs=1, train=FEW)
    assert not further.new_parameters


@pytest.mark.long
@pytest.mark.parametrize("dev", [DEV, None], ids=["dev", "no dev"])
def test_an_interrupted_run_of_few_rows_resumes_to_the_same_bits(
    model: Model, tmp_path: Path, dev: Any
) -> None:
    settings = {"dev": dev, "checkpoint_every": 7, "pairs_per_row": 4}
    whole = few_shot(model, tmp_path / "whole", **settings)
    for step in (3, 20):
        with pytest.raises(RuntimeError, match="switched off"):
            few_shot(model, tmp_path / "broken", progress=Lines(stop_after=step), **settings)
    for _ in range(2):  # the second time the run is finished
        resumed_run = few_shot(model, tmp_path / "broken", **settings)
        weights = resumed_run.model.network.state_dict()
        for name, value in whole.model.network.state_dict().items():
            assert torch.equal(weights[name], value), name
        files = [one.run.model / "model.safetensors" for one in (whole, resumed_run)]
        assert files[0].read_bytes() == files[1].read_bytes()
    other = few_shot(model, tmp_path / "other", seed=1, **settings)
    assert not torch.equal(
        other.model.network.state_dict()["head.linear.weight"], weights["head.linear.weight"]
    )


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [(None, "mean"), ("mean", "mean"), ("cls", "cls"), ("sep", "last"), ("max", "mean")],
)
def test_vectors_are_pooled_as_in_the_sentence_encoder(
    model: Model, tmp_path: Path, pooling: Any, expected: str
) -> None:
    model.sentence = None if pooling is None else SentenceSettings(pooling=pooling)
    result = few_shot(model, tmp_path / "run", dev=None, epochs=1, pairs_per_row=1)
    assert result.model.encoder.config.classifier_pooling == expected


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"truncation": "windows"}, SettingsError, "few_shot=true: rows in several windows"),
        ({"balance_classes": True}, SettingsError, "balance_classes=True does nothing with few_sh"),
        ({"lora_rank": 2}, SettingsError, "lora_rank=2 does nothing with few_shot"),
        ({"unfreeze_every": 2}, SettingsError, "unfreeze_every=2 does nothing with few_shot"),
        ({"teacher": "mini"}, SettingsError, "few_shot=True does nothing with a teacher"),
        ({"few_shot": False, "pairs_per_row": 2}, SettingsError, "nothing without few_shot"),
        ({"pairs_per_row": 1001}, SettingsError, "pairs_per_row=1001: .* 1000"),
        ({"train": FEW[::2]}, DataError, "two different labels"),
        ({"train": FEW[:2]}, DataError, "no label has two rows"),
        (
            {"train": [{"text": "a", "pair": "b", "label": row["label"]} for row in FEW]},
            SettingsError,
            "few_shot=true is for single texts, and the rows are pairs",
        ),
    ],
)
def test_few_shot_refuses_impossible_settings(
    model: Model, tmp_path: Path, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        few_shot(model, tmp_path / "run", **settings)
    assert not (tmp_path / "run" / "journal.jsonl").exists()


class OwnTask(ClassificationTask):
    name = "own classification"


def test_few_shot_is_for_the_packages_classifier(model: Model, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="few_shot=true is for the task classification"):
        finetune(model, OwnTask, train=FEW, out=tmp_path / "run", few_shot=True)


def test_few_rows_are_advised(model: Model, tmp_path: Path) -> None:
    def advice(out: str, **settings: Any) -> list[str]:
        progress = Lines()
        run(model, tmp_path / out, **{"epochs": 0.1, "dev": None, "progress": progress, **settings})
        return [line for line in progress.lines if "few_shot=true" in line]

    assert len(advice("few", train=make_rows(126, 1))) == 1
    assert not advice("enough", train=make_rows(128, 1))
    assert not advice("few shot", train=FEW, few_shot=True)
