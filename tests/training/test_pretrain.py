"""Recipes, and a pre-training run as a whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.checkpoints.bert import BERT
from bertworks.checkpoints.network_weights import load_weights
from bertworks.checkpoints.store import read_config, read_task
from bertworks.checkpoints.tensors import read_tensors
from bertworks.errors import CheckpointError, DataError, SettingsError, TrainingError
from bertworks.runs.run_directory import RunDirectory, read_run
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.checkpoint import load_newest
from bertworks.training.optimizer import learning_rate
from bertworks.training.pretrain import PretrainingData, pretrain
from bertworks.training.recipe import PretrainSettings, find_recipe, read_recipe

from .tiny_run import STEPS, tiny_run

CAUSAL = ("objective=causal", "instances.format=full-sentences")
RECIPES = ("tiny", "mini", "small", "medium", "base", "large", "paper")


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipes_are_valid_and_say_what_they_are(name: str, tmp_path: Path) -> None:
    settings = read_recipe(name, ["data=somewhere"])
    assert settings.model.size == ("base" if name == "paper" else name)
    assert sum(settings.phase_steps()) == settings.steps
    RunDirectory.open(tmp_path, settings).close()
    assert read_recipe(tmp_path / "settings.yaml") == settings, "a run's settings are a recipe too"


def test_the_recipe_of_the_bundled_model_is_read() -> None:
    settings = read_recipe("mini-wiki", data=Path("somewhere"))
    assert settings.data == "somewhere"
    assert settings.model.size == "mini"
    assert settings.initial_attention == "neighbours"


@pytest.mark.parametrize(
    "other",
    [
        {"init_checkpoint": "mini"},
        {"objective": "distillation", "distillation": {"teacher": "mini"}},
    ],
)
def test_a_beginning_on_neighbours_is_of_fresh_weights(other: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="initial_attention is for new weights"):
        read_recipe(None, data="somewhere", steps=1, initial_attention="neighbours", **other)


def test_the_paper_s_recipe_is_the_paper_s() -> None:
    paper = read_recipe("paper", data="somewhere")
    assert paper.phase_steps() == [900_000, 100_000]
    assert [phase.max_seq_length for phase in paper.phases] == [128, 512]
    assert paper.batch_size == 256
    assert paper.model.num_hidden_layers == 12
    assert paper.model.hidden_size == 768
    assert learning_rate(paper, 10_000, paper.steps) == pytest.approx(0.99e-4)
    assert learning_rate(paper, 5_000, paper.steps) == pytest.approx(0.5e-4)
    assert not paper.bias_correction


def test_a_leak_is_accepted_with_allow_leak() -> None:
    words = ["objective=causal", "model.attention=bidirectional", "instances.format=full-sentences"]
    settings = read_recipe("tiny", ["data=d", *words, "allow_leak=true"])
    assert settings.model.attention == "bidirectional"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.hiden_size=64"], r"unknown setting 'model\.hiden_size'.*'hidden_size'"),
        (["model.size=huge"], "no size is called 'huge'"),
        (["model.num_attention_heads=3"], "not divisible"),
        (["optimiser.lr=1"], "unknown setting 'optimiser'.*'optimizer'"),
        (["phases=[{share: 0.5}]"], "shares must add up to 1"),
        (["phases=[{max_seq_length: 1000}]"], "max_seq_length=1000 is longer"),
        (["instances.max_seq_length=64"], "set by each phase"),
        (["batch_tokens=4096"], "exclude each other"),
        (["batch_size=1000000000"], "batch_size=1000000000: .*1048576"),
        (["batch_size=null", f"batch_tokens={10**30}"], r"batch_tokens=10+: .*1073741824"),
        (["phases=[{batch_size: 9000000}]"], r"phases\.0\.batch_size=9000000: .*1048576"),
        (["phases=[{batch_size: 4, batch_tokens: 512}]"], r"phases\.0=.*of a phase exclude"),
        (["steps=0"], "steps=0"),
        (["masking.mask_ratio=2"], "mask_ratio"),
        (
            ["masking.span_lengths=geometric"],
            "does nothing without masking.unit=",
        ),
        (["masking={unit: knowledge, max_span_words: 5}"], "max_span_words=5 does nothing without"),
        (["objective=distillation"], r"needs distillation\.teacher=MODEL"),
        (["distillation.teacher=x"], "needs objective=distillation, but objective is 'mlm'"),
        (["objective=mlm", "model.attention=causal"], r"needs model\.attention=bidirectional"),
        (["objective=causal", "model.attention=bidirectional"], r"needs model\.attention=causal"),
        (["objective=causal"], r"segment-pair with objective=causal: the \[CLS\] of a causal"),
        (["objective=mlm", "replaced_tokens={}"], "replaced_tokens needs objective="),
        (
            [*CAUSAL, "masking.unit=span"],
            "unit='span' does nothing with objective=",
        ),
        (["masking.dupe_factor=5"], r"dupe_factor=5 does nothing without masking\.static=true"),
        (
            ["instances={format: doc-sentences, short_seq_prob: 0.2}"],
            "short_seq_prob=0.2 does",
        ),
        (
            ["instances={format: full-sentences, next_sentence_balance: exact}"],
            r"does nothing with instances\.format=full-sentences; leave it",
        ),
    ],
)
def test_bad_settings_are_named(overrides: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_recipe("tiny", ["data=somewhere", *overrides])


def test_a_causal_encoder_needs_no_more_than_its_objective() -> None:
    assert read_recipe("tiny", ["data=x", *CAUSAL]).model.attention == "causal"
    recipe = read_recipe("tiny", [*CAUSAL[1:], "data=x", "objective=replaced_tokens"])
    assert recipe.replaced_tokens is not None


def test_a_missing_recipe_is_reported_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match=r"tiney: no such recipe.*'tiny'"):
        find_recipe("tiney")
    with pytest.raises(SettingsError, match=r"mine\.yaml: no such recipe"):
        find_recipe("mine.yaml")
    with pytest.raises(SettingsError, match="'data' is missing"):
        read_recipe("tiny")


def test_the_vocabulary_is_the_tokenizer_s_unless_a_larger_is_given() -> None:
    model = read_recipe("tiny", data="x").model
    assert model.config(1000).vocab_size == 1000
    padded = read_recipe("tiny", ["model.vocab_size=1024"], data="x").model
    assert padded.config(1000).vocab_size == 1024
    with pytest.raises(SettingsError, match="the tokenizer has 2000 pieces"):
        padded.config(2000)


@pytest.mark.long
def test_a_run_leaves_everything_in_its_directory(prepared_data: Path, tmp_path: Path) -> None:
    result = tiny_run(prepared_data, tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert result.steps == STEPS
    assert f"{STEPS} steps, " in repr(result)
    assert f"Pre-trained for {STEPS} steps, " in result._repr_html_()
    assert result.resumed_step is None
    lines = list(run.lines())
    evaluations = [line for line in lines if line["kind"] == "eval"]
    assert [line["step"] for line in evaluations] == [0, 8, 16, 24, 32, 40]
    assert evaluations[-1]["metrics"] == result.metrics
    assert evaluations[-1]["metrics"]["mlm_loss"] < evaluations[0]["metrics"]["mlm_loss"]
    assert {line["phase"] for line in lines if line["kind"] == "train"} == {
        "length 24",
        "length 48",
    }
    assert PretrainSettings.parse(run.settings()).steps == STEPS
    assert json.loads((run.path / "data.json").read_text())["corpus"]["documents"] > 50
    samples = json.loads((run.path / "samples.json").read_text())
    assert samples
    for sample in samples:
        assert sample["text"].count("[MASK]") == len(sample["answers"]) == len(sample["guesses"])
        assert all(0 <= guess["probability"] <= 1 for guess in sample["guesses"][0])
    assert run.report.is_file()
    # The saved model is the trained one.
    config, _ = read_config(run.model)
    task_description = read_task(run.model)
    assert task_description is not None
    assert task_description.task == PretrainingTask.name
    task = PretrainingTask.from_dict(task_description.task_settings, Tokenizer.load(run.model))
    network = task.network(config)
    tensors, dropped = read_tensors(run.model, BERT)
    assert not dropped
    report = load_weights(network, tensors, BERT, "model")
    assert not report.new_tensors
    found = load_newest(run.checkpoints)
    assert found is not None
    for key, tensor in found.weights.items():
        assert torch.equal(tensor, network.state_dict()[key]), key


@pytest.mark.long
def test_other_data_and_other_settings_are_refused(prepared_data: Path, tmp_path: Path) -> None:
    short = {"steps": 2, "eval_first": False, "eval_every": 100}
    tiny_run(prepared_data, tmp_path / "run", **short)
    with pytest.raises(TrainingError, match="started with steps=2, not 3"):
        tiny_run(prepared_data, tmp_path / "run", **{**short, "steps": 3})
    moved_path = tmp_path / "moved"
    shutil.copytree(prepared_data, moved_path)
    summary = tmp_path / "run" / "data.json"
    summary_bytes = summary.read_bytes()
    summary.write_bytes(
        summary_bytes.replace(b"documents", b"dokuments")
    )  # nobody reads it but people
    assert tiny_run(moved_path, tmp_path / "run", **short).resumed_step == 2
    assert summary.read_bytes() == summary_bytes
    other = tmp_path / "other-data"
    shutil.copytree(prepared_data, other)
    (other / "manifest.json").write_text((other / "manifest.json").read_text() + " ")
    with pytest.raises(TrainingError, match="started with other data"):
        tiny_run(other, tmp_path / "run", **short)
    assert read_run(tmp_path / "run").settings()["data"] == str(moved_path)
    with pytest.raises(DataError, match="nowhere"):
        pretrain("tiny", data=str(tmp_path / "nowhere"), out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_missing_batch_size_is_refused_before_a_run_starts(
    prepared_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="no batch size"):
        tiny_run(prepared_data, tmp_path / "run", batch_size=None)
    assert not (tmp_path / "run").exists()


def test_a_changed_bit_of_a_shard_is_named(prepared_data: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "prepared"
    shutil.copytree(prepared_data, corpus)
    shard = max(corpus.glob("*.arrow"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{shard.name}: .*checksum"):
        tiny_run(corpus, tmp_path / "run")


def test_runs_of_different_seeds_can_share_what_is_held_out(prepared_data: Path) -> None:
    def open_data(seed: int, held_out: int | None) -> PretrainingData:
        settings = {"data": str(prepared_data), "steps": 1, "seed": seed, "batch_size": 8}
        return PretrainingData.open(
            PretrainSettings.parse({**settings, "held_out": {"documents": 5, "seed": held_out}})
        )

    def sequences(data: PretrainingData) -> list[list[int]]:
        return [one.input_ids.tolist() for one in data.held_out.examples(limit=20)]

    first, second, other = open_data(1, 7), open_data(2, 7), open_data(2, None)
    assert sequences(first) == sequences(second) != sequences(other)
    assert open_data(7, None).held_out_documents.tolist() == first.held_out_documents.tolist()
    blocks = [data.phases[0].source.block(0, 0).tokens.tolist() for data in (first, second)]
    assert blocks[0] != blocks[1]


@pytest.mark.long
def test_workers_do_not_change_a_bit(prepared_data: Path, tmp_path: Path) -> None:
    short = {"steps": 12, "held_out": {"documents": 5, "sequences": 4}}
    tiny_run(prepared_data, tmp_path / "alone", **short)
    tiny_run(prepared_data, tmp_path / "helped", loader_workers=2, **short)
    models = [tmp_path / name / "model" / "model.safetensors" for name in ("alone", "helped")]
    assert models[0].read_bytes() == models[1].read_bytes()


@pytest.mark.long
def test_static_masking_and_other_formats_train(prepared_data: Path, tmp_path: Path) -> None:
    result = tiny_run(
        prepared_data,
        tmp_path / "run",
        steps=3,
        instances={"format": "doc-sentences"},
        masking={"static": True, "unit": "whole-word"},
        optimizer="lamb",
        learning_rate=1e-3,
        precision="fp32",
    )
    assert "nsp_loss" not in result.metrics
