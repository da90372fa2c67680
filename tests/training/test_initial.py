"""Pre-training that starts from a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import bertworks
from bertworks.convert.model_editing import add_tokens
from bertworks.data.prepare import prepare
from bertworks.data.shards import Corpus
from bertworks.errors import BertworksError, CheckpointError, SettingsError
from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.text.vocabulary import train_vocabulary
from bertworks.training.pretrain import PretrainResult
from bertworks.training.recipe import read_recipe

from .tiny_run import tiny_run

MLM = {"format": "full-sentences"}
PLAIN: dict[str, Any] = {"precision": "fp32", "phases": [{"max_seq_length": 48}]}


@pytest.fixture(scope="module")
def trained_run(prepared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> PretrainResult:
    out = tmp_path_factory.mktemp("trained") / "run"
    return tiny_run(prepared_data, out, learning_rate=1e-2, **PLAIN)


def go_on(start: object, data: Path, out: Path, **values: Any) -> PretrainResult:
    """A run that begins as `start`; its geometry is left to that."""
    settings = {"model": {}, "steps": 4, "checkpoint_every": 2, **PLAIN, **values}
    return tiny_run(data, out, init_checkpoint=str(start), **settings)


def first_metrics(result: PretrainResult) -> dict[str, float]:
    found: dict[str, float] = next(result.run.lines())["metrics"]
    return found


@pytest.mark.long
def test_a_run_starts_from_the_checkpoint_s_metrics(
    trained_run: PretrainResult, prepared_data: Path, tmp_path: Path
) -> None:
    result = go_on(trained_run.run.path, prepared_data, tmp_path / "run")
    assert result.start is not None
    assert not result.start.new_tensors
    assert first_metrics(result) == pytest.approx(trained_run.metrics, rel=1e-6)
    assert first_metrics(result)["mlm_loss"] < first_metrics(trained_run)["mlm_loss"] - 0.5
    settings = result.run.settings()
    assert settings["model"]["hidden_size"] == 16, "written down, wherever it comes from"


@pytest.mark.long
def test_a_bare_encoder_gets_fresh_heads_on_its_own_weights(
    prepared_data: Path, tmp_path: Path
) -> None:
    tokenizer = Corpus.open(prepared_data).load_tokenizer()
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size + 3,  # rows that no piece has
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=48,
    )
    bare = Model.fresh(config, tokenizer, seed=5)
    bare.save(tmp_path / "bare")
    result = go_on(
        tmp_path / "bare", prepared_data, tmp_path / "run", learning_rate=1e-30, weight_decay=0.0
    )
    assert result.start is not None
    heads = {name.split(".")[0] for name in result.start.new_tensors}
    assert heads == {"mlm_head", "nsp_head"}, "the decoder is tied, and the pooler there"
    model = bertworks.load(result.run.model, device="cpu")
    for name, tensor in bare.encoder.state_dict().items():
        torch.testing.assert_close(model.encoder.state_dict()[name], tensor, rtol=0, atol=1e-20)
    notes = [line["text"] for line in result.run.sessions() if line["event"] == "note"]
    assert any(note.startswith("newly initialised: mlm_head.") for note in notes)


@pytest.mark.long
def test_tensors_without_a_place_in_the_objective_are_named(
    trained_run: PretrainResult, prepared_data: Path, tmp_path: Path
) -> None:
    result = go_on(trained_run.run.path, prepared_data, tmp_path / "run", instances=MLM)
    assert result.start is not None
    assert set(result.start.dropped_tensors) >= {
        "cls.seq_relationship.weight",
        "bert.pooler.dense.bias",
    }
    assert first_metrics(result)["mlm_loss"] < first_metrics(trained_run)["mlm_loss"] - 0.5


@pytest.mark.long
def test_a_resumed_run_does_not_read_the_initial_checkpoint(
    trained_run: PretrainResult, prepared_data: Path, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    shutil.copytree(trained_run.run.model, start)
    whole = go_on(start, prepared_data, tmp_path / "run").run
    weights = (whole.model / "model.safetensors").read_bytes()
    (start / "model.safetensors").write_bytes(b"changed since")
    shutil.rmtree(max(whole.checkpoints.glob("step-*")))
    resumed_result = go_on(start, prepared_data, tmp_path / "run")
    assert resumed_result.resumed_step == 2
    assert resumed_result.start is None
    assert (resumed_result.run.model / "model.safetensors").read_bytes() == weights


def test_weights_of_another_geometry_than_the_checkpoint_says_are_refused(
    trained_run: PretrainResult, prepared_data: Path, tmp_path: Path
) -> None:
    """Before networks of that geometry are made."""
    start = tmp_path / "start"
    shutil.copytree(trained_run.run.model, start)
    raw = json.loads((start / "config.json").read_text())
    for key in ("hidden_size", "num_hidden_layers", "intermediate_size"):
        (start / "config.json").write_text(json.dumps({**raw, key: 8000}))
        with pytest.raises(CheckpointError, match=r"not \(.*as config\.json says|is missing"):
            go_on(start, prepared_data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_grown_vocabulary_is_learned(trained_run: PretrainResult, tmp_path: Path) -> None:
    text = tmp_path / "domain.txt"
    text.write_text("\n\n".join(["the qubit is here.\nthe qubit is there."] * 40))
    before = bertworks.load(trained_run.run.model, device="cpu")
    larger_model = add_tokens(before, ["qubit"])
    assert larger_model.added_words == ("qubit",)
    larger_model.model.save(tmp_path / "grown")
    prepare(text, tokenizer=tmp_path / "grown", out=tmp_path / "data")
    result = go_on(
        tmp_path / "grown",
        tmp_path / "data",
        tmp_path / "run",
        steps=50,
        instances=MLM,
        learning_rate=2e-2,
        warmup=1,
    )
    final_model = bertworks.load(result.run.model, device="cpu")

    def chance(model: Model) -> float:
        (predicted,) = model.fill_mask("the [MASK] is here.", top_k=model.tokenizer.vocab_size)
        return next(one["probability"] for one in predicted if one["token"] == "qubit")

    assert chance(larger_model.model) < 0.05
    assert chance(final_model) > 0.5


@pytest.mark.long
def test_electra_is_initialized_with_its_generator(prepared_data: Path, tmp_path: Path) -> None:
    both: dict[str, Any] = {"instances": MLM, "objective": "replaced_tokens"}
    both["replaced_tokens"] = {"generator_share": 0.5}
    geometry = {"family": "electra", "num_hidden_layers": 1, "hidden_size": 16}
    geometry |= {"embedding_size": 8, "num_attention_heads": 2, "intermediate_size": 32}
    first = tiny_run(
        prepared_data, tmp_path / "first", model=geometry, **{**PLAIN, **both}, learning_rate=1e-2
    )
    pair = {"init_generator": str(first.run.path / "generator")}
    again = go_on(first.run.path, prepared_data, tmp_path / "again", **both, **pair)
    assert first_metrics(again) == pytest.approx(first.metrics, rel=1e-6)
    alone = go_on(first.run.path, prepared_data, tmp_path / "alone", **both)
    assert first_metrics(alone)["mlm_loss"] > first.metrics["mlm_loss"] + 0.3
    narrow = {**both, "replaced_tokens": {"generator_share": 0.25}}
    with pytest.raises(SettingsError, match=r"the generator has \w+_size=.*generator_share"):
        go_on(first.run.path, prepared_data, tmp_path / "other", **narrow, **pair)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model": {"hidden_size": 24}},
            r"model\.hidden_size=24, but the checkpoint has 16.*adapt",
        ),
        # 64 is not divisible by the default of 12 heads, which is not the checkpoint's.
        (
            {"model": {"hidden_size": 64}},
            r"is kept: leave out model\.hidden_size",
        ),
        ({"model": {"size": "mini"}}, r"model\.hidden_size=256, but"),
        ({"model": {"family": "roberta"}}, r"model\.\w+=.*, but the checkpoint has"),
        ({"phases": [{"max_seq_length": 1000}]}, "max_seq_length=1000 is longer than the 512"),
        ({"init_generator": "x"}, "init_generator needs init_checkpoint and objective="),
        (
            {"objective": "distillation", "distillation": {"teacher": "x"}},
            r"set distillation\.initialize=false",
        ),
        ({"init_checkpoint": "no/such/place/at/all"}, "no such directory"),
    ],
)
def test_an_initial_checkpoint_that_does_not_fit_is_refused(
    trained_run: PretrainResult,
    prepared_data: Path,
    tmp_path: Path,
    values: dict[str, Any],
    message: str,
) -> None:
    settings: dict[str, Any] = {"init_checkpoint": str(trained_run.run.path), "model": {}, **values}
    with pytest.raises(BertworksError, match=message):
        tiny_run(prepared_data, tmp_path / "run", **{**PLAIN, **settings})
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_dropout_is_no_geometry(
    trained_run: PretrainResult, prepared_data: Path, tmp_path: Path
) -> None:
    result = go_on(
        trained_run.run.path, prepared_data, tmp_path, steps=1, model={"hidden_dropout_prob": 0.3}
    )
    model = bertworks.load(result.run.model, device="cpu")
    assert model.encoder.config.hidden_dropout_prob == 0.3


def test_another_vocabulary_is_refused(trained_run: PretrainResult, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Some other text.\nOf other words.\n\n" * 10)
    prepare(
        tmp_path / "text.txt", tokenizer=train_vocabulary(["other"], size=130), out=tmp_path / "d"
    )
    with pytest.raises(SettingsError, match=r"prepared with another tokenizer.*--tokenizer"):
        go_on(trained_run.run.path, tmp_path / "d", tmp_path / "run")


def test_the_recipe_leaves_geometry_to_the_checkpoint() -> None:
    settings = read_recipe("adapt", data="x", init_checkpoint="y")
    assert not settings.model.model_fields_set
    assert not settings.instances.next_sentence
