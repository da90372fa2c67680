"""A model carries the learning rate that suits it; `finetune` uses it unless another is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bertworks as bw
from bertworks.convert.model_editing import add_tokens
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.settings import FinetuneSettings, suitable_rate

from .letters import GEOMETRY, TRAIN, WORD_PIECES, Lines

FAST: dict[str, Any] = {"train": TRAIN[:32], "max_seq_length": 32, "epochs": 1}


@pytest.fixture
def carrier(tmp_path: Path) -> bw.Model:
    """A classifier that carries a rate, loaded from its directory."""
    model = bw.Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    model = bw.finetune(model, out=tmp_path / "first", **FAST).model
    model.learning_rate = 5e-3
    return bw.load(model.save(tmp_path / "carrier"))


def _rate(result: Any) -> float:
    rate = result.run.settings()["learning_rate"]
    assert isinstance(rate, float)
    return rate


def test_rate_of_the_model_is_the_default(carrier: bw.Model, tmp_path: Path) -> None:
    progress = Lines()
    result = bw.finetune(carrier, out=tmp_path / "a", progress=progress, **FAST)
    assert _rate(result) == 5e-3
    assert "learning_rate=0.005, the rate that the model carries" in progress.lines
    assert bw.load(result.run.model).learning_rate == 5e-3, "the fine-tuned model carries it on"


@pytest.mark.long
def test_given_rate_wins(carrier: bw.Model, tmp_path: Path) -> None:
    usual = FinetuneSettings().learning_rate
    for number, learning_rate in enumerate((1e-4, usual)):  # also where it is the usual one
        progress = Lines()
        out = tmp_path / str(number)
        result = bw.finetune(
            carrier, out=out, learning_rate=learning_rate, progress=progress, **FAST
        )
        assert _rate(result) == learning_rate
        assert not any("the model carries" in line for line in progress.lines)


def test_model_without_a_rate_has_the_usual_one(tmp_path: Path) -> None:
    model = bw.Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    result = bw.finetune(model, out=tmp_path / "a", **FAST)
    assert _rate(result) == FinetuneSettings().learning_rate
    assert "learning_rate" not in json.loads((result.run.model / "bertworks.json").read_text())


@pytest.mark.long
def test_grid_varies_or_takes_the_rate(carrier: bw.Model, tmp_path: Path) -> None:
    settings = {**FAST, "dev": TRAIN[32:64]}
    found = bw.finetune_grid(carrier, out=tmp_path / "a", seeds=1, **settings)
    assert found.best.directory is not None
    files = (tmp_path / "a").glob("*/settings.yaml")
    assert all("learning_rate: 0.005" in file.read_text() for file in files)
    bw.finetune_grid(carrier, out=tmp_path / "b", seeds=1, grid=["learning_rate=1e-4"], **settings)
    (file,) = (tmp_path / "b").glob("*/settings.yaml")
    assert "learning_rate: 0.0001" in file.read_text()


def test_rate_survives_added_tokens(carrier: bw.Model) -> None:
    assert add_tokens(carrier, ["abc"]).model.learning_rate == 5e-3


@pytest.mark.parametrize("name", ["mini", "mini-sentences"])
def test_bundled_models_carry_a_rate(name: str) -> None:
    model = bw.load(name)
    assert model.learning_rate == 1e-3


def test_only_small_models_need_a_rate_of_their_own() -> None:
    assert suitable_rate(128) == suitable_rate(256) == 3e-4
    assert suitable_rate(512) is None
    assert suitable_rate(768) is None


def test_report_begins_with_what_failed(tmp_path: Path) -> None:
    model = bw.Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    result = bw.finetune(model, out=tmp_path / "a", learning_rate=1e-9, **FAST)
    page = result.run.report.read_text(encoding="utf-8")
    sign = result.notes[0]
    assert sign.startswith("the run learned nothing: its loss (0.")
    assert page.index("the run learned nothing") < page.index('class="figures"')
