"""LSTMs and two-way encoders learn, resume exactly, and are used like other models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from bertworks.errors import CheckpointError, SettingsError
from bertworks.loading import load
from bertworks.training.finetune import finetune
from bertworks.training.recipe import read_recipe

from .letters import DEV, TRAIN, Lines
from .test_kill import assert_same
from .tiny_run import tiny_run

GEOMETRY: dict[str, Any] = {
    **{"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2},
    **{"intermediate_size": 32, "family": "bertworks", "positions": "none", "mixer": "lstm"},
}
CAUSAL: dict[str, Any] = {
    **{"objective": "causal", "instances": {"format": "full-sentences"}, "steps": 16},
    **{"learning_rate": 1e-2, "precision": "fp32"},
}


@pytest.mark.long
@pytest.mark.parametrize("attention", ["causal", "two-way"])
def test_a_language_model_learns_resumes_exactly_and_is_used_further(
    attention: str, prepared_data: Path, tmp_path: Path
) -> None:
    settings = {**CAUSAL, "model": {**GEOMETRY, "attention": attention}}
    whole = tiny_run(prepared_data, tmp_path / "whole", **settings)
    first = next(line for line in whole.run.lines() if line["kind"] == "eval")
    assert whole.metrics["lm_loss"] < first["metrics"]["lm_loss"] - 0.2
    with pytest.raises(RuntimeError, match="switched off"):
        tiny_run(prepared_data, tmp_path / "run", **settings, progress=Lines(stop_after=12))
    assert tiny_run(prepared_data, tmp_path / "run", **settings).resumed_step == 10
    assert_same(tmp_path / "whole", tmp_path / "run")
    model = load(whole.run.model)
    text = "return the number of items"
    assert model.embed([text]).shape == (1, 16)
    model.features_to(tmp_path / "tokens.parquet", [text], layers=[0, 1])
    vectors = pq.read_table(tmp_path / "tokens.parquet").column("vector")[0].as_py()
    assert np.shape(vectors) == (32,)
    how = {"max_seq_length": 32, "epochs": 1, "classifier_pooling": "mean", "tensorboard": False}
    tuned = finetune(model, train=TRAIN, dev=DEV, out=tmp_path / "tuned", **how)
    assert 0 <= tuned.metrics["accuracy"] <= 1
    assert load(tuned.run.model).predict(["a b c"])[0]["label"] in ("yes", "no")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"mixer": "lstm"}, "mixer=lstm needs attention=causal"),
        ({"attention": "two-way"}, r"objective=mlm needs model\.attention=bidirectional"),
    ],
)
def test_masked_tokens_need_both_sides(model: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_recipe("tiny", data="x", model=model)


def test_a_family_that_has_no_lstm_is_refused_before_training(
    prepared_data: Path, tmp_path: Path
) -> None:
    model = {**GEOMETRY, "family": "bert", "positions": "learned"}
    with pytest.raises(CheckpointError, match=r"'bert' has no mixer='lstm'\..*family=bertworks"):
        tiny_run(prepared_data, tmp_path / "run", **CAUSAL, model=model)
