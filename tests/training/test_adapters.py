"""Low-rank adapters: which weights learn and are saved, and that they are those trained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.errors import BertworksError, SettingsError
from bertworks.loading import load
from bertworks.model import Model
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.checkpoint import load_newest
from bertworks.training.finetune import FinetuneResult
from bertworks.training.freezing import Adapters
from bertworks.training.settings import AdapterSettings

from .letters import CONFIG, DEV, PIECES, TASK, Lines, letters_network, run

pytest.importorskip("peft")

MATRICES = ("attention.query_key_value", "feed_forward.output")
SETTINGS: dict[str, Any] = {
    "lora_rank": 4,
    "lora_dropout": 0.1,
    "lora_targets": MATRICES,
    "learning_rate": 3e-2,
    "checkpoint_every": 9,
}


@pytest.fixture
def model() -> Model:
    # What is random and frozen must tell texts apart.
    config = CONFIG.with_values(initializer_range=0.1)
    return Model.fresh(config, Tokenizer.from_vocabulary(PIECES))


def same_weights(one: FinetuneResult, other: FinetuneResult) -> bool:
    states = one.model.network.state_dict(), other.model.network.state_dict()
    return all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_merged_adapters_keep_the_outputs_of_the_network() -> None:
    network, plain = (letters_network(initializer_range=0.3) for _ in range(2))
    batch = TASK.collate(TASK.examples(DEV, 0)).to("cpu")
    adapters = Adapters(network, AdapterSettings(lora_rank=3, lora_alpha=6, lora_targets=MATRICES))
    network.eval()
    plain.eval()
    with torch.no_grad():
        at_first = network.predict(batch)["logits"]
        assert torch.equal(at_first, plain.predict(batch)["logits"])  # B is 0
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
        logits = network.predict(batch)["logits"]
        adapters.merge()
        merged = network.predict(batch)["logits"]
    assert (logits - at_first).abs().max() > 0.1
    torch.testing.assert_close(merged, logits, rtol=1e-5, atol=1e-5)
    assert network.state_dict().keys() == plain.state_dict().keys()
    assert all(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.long
def test_only_a_product_of_thin_matrices_is_added(model: Model, tmp_path: Path) -> None:
    result = run(model, tmp_path / "run", dev=None, **SETTINGS, epochs=10)
    assert result.model.evaluate(DEV).metrics["accuracy"] > 0.9
    last = load_newest(result.run.checkpoints)
    assert last is not None
    initial_weights = model.encoder.state_dict(prefix="encoder.")
    for name, value in result.model.network.state_dict().items():
        if not name.startswith(("encoder.layers.", "encoder.embeddings.")):
            continue
        if name.removeprefix("encoder.layers.0.").removesuffix(".weight") not in MATRICES:
            assert torch.equal(value, initial_weights[name]), name
            continue
        stem = name.removesuffix(".weight")
        a, b = (last.weights[f"{stem}.lora_{letter}.default.weight"] for letter in "AB")
        assert a.shape[0] == b.shape[1] == 4
        assert b.abs().max() > 1e-2
        torch.testing.assert_close(
            value, initial_weights[name] + 2.0 * (b @ a), rtol=1e-5, atol=1e-6
        )
    again = load(result.run.model)
    assert again.evaluate(DEV).metrics == result.model.evaluate(DEV).metrics


@pytest.mark.long
def test_an_interrupted_run_resumes_to_the_same_bits(model: Model, tmp_path: Path) -> None:
    whole = run(model, tmp_path / "whole", **SETTINGS)
    with pytest.raises(RuntimeError, match="switched off"):
        run(model, tmp_path / "broken", progress=Lines(stop_after=31), **SETTINGS)
    broken = run(model, tmp_path / "broken", **SETTINGS)
    assert same_weights(whole, broken)
    assert same_weights(whole, run(model, tmp_path / "whole", **SETTINGS))


def test_an_unknown_matrix_is_refused_before_the_run(model: Model, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no matrix 'query'.*attention\.query_key_value"):
        run(model, tmp_path / "run", lora_rank=4, lora_targets=("query",))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("settings", [{"lora_alpha": 16}, {"lora_targets": ("attention.output",)}])
def test_settings_of_adapters_need_a_rank(
    model: Model, tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError, match=r"lora_\w+=.* does nothing without lora_rank"):
        run(model, tmp_path / "run", **settings)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(BertworksError, match=r"bertworks\[peft\]"):
        Adapters(letters_network(), AdapterSettings(lora_rank=8))
