"""ELECTRA pre-trained as a whole: what is learned, saved, resumed, and fine-tuned from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import bertworks as bw
from bertworks.errors import CheckpointError, SettingsError
from bertworks.tasks.pretraining.replaced_tokens import ReplacedTokensTask
from bertworks.training.checkpoint import list_checkpoints
from bertworks.training.optimizer import learning_rate
from bertworks.training.pretrain import PretrainResult
from bertworks.training.recipe import read_recipe

from .test_kill import assert_same
from .tiny_run import STEPS, tiny_run

pytestmark = pytest.mark.long

ELECTRA = ["objective=replaced_tokens", "model.family=electra", "instances.format=full-sentences"]


def electra_run(data: Path, out: Path, **values: Any) -> PretrainResult:
    """Discriminator and generator with dropout, in bfloat16, on two lengths."""
    settings: dict[str, Any] = {
        "model": {"family": "electra", "num_hidden_layers": 1, "hidden_size": 16}
        | {"embedding_size": 8, "num_attention_heads": 2, "intermediate_size": 32},
        "instances": {"format": "full-sentences"},
        "objective": "replaced_tokens",
        "replaced_tokens": {"generator_share": 0.5},
        "keep_checkpoints": 10,
        "learning_rate": 5e-3,
    }
    return tiny_run(data, out, **{**settings, **values})


@pytest.fixture(scope="module")
def unbroken(prepared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("electra") / "run"
    electra_run(prepared_data, out)
    return out


def lines_of(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "journal.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def test_generator_and_discriminator_are_both_trained(unbroken: Path) -> None:
    first, *_, last = (line["metrics"] for line in lines_of(unbroken, "eval"))
    assert last["mlm_loss"] < first["mlm_loss"] - 0.2
    assert last["rtd_loss"] < first["rtd_loss"] - 0.1
    assert last["rtd_loss"] == pytest.approx((last["loss"] - last["mlm_loss"]) / 50)
    assert 0 < last["replaced_share"] == pytest.approx(1 - last["rtd_majority"])
    assert {"mlm_accuracy", "rtd_accuracy", "rtd_precision", "rtd_recall"} <= last.keys()
    assert 0 <= last["rtd_auc"] <= 1
    train = lines_of(unbroken, "train")
    for line in train:
        losses = line["losses"]
        assert losses.keys() == {"mlm", "weighted_rtd"}
        assert line["loss"] == pytest.approx(sum(losses.values()), rel=1e-5)


def test_a_resumed_run_ends_with_the_same_bits(
    prepared_data: Path, unbroken: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(unbroken, out)
    shutil.rmtree(out / "model")
    shutil.rmtree(out / "generator")
    for checkpoint in list_checkpoints(out / "checkpoints"):
        if checkpoint.name > "step-00000015":
            shutil.rmtree(checkpoint)
    result = electra_run(prepared_data, out)
    assert result.resumed_step == 15
    assert result.steps == STEPS
    assert_same(unbroken, out)
    files = [run / "generator" / "model.safetensors" for run in (unbroken, out)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_discriminator_is_saved_as_the_model_and_the_generator_next_to_it(
    unbroken: Path,
) -> None:
    model = bw.load(unbroken, device="cpu")
    assert isinstance(model.task, ReplacedTokensTask)
    (answer,) = model.predict(["the value of a name"])
    assert all(0 < entry["probability"] < 1 for entry in answer["tokens"])
    generator = bw.load(unbroken / "generator", device="cpu")
    assert generator.encoder.config.hidden_size == 8
    assert len(generator.fill_mask("the [MASK] of a name")[0]) == 5
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "norm"):
        own, other = (getattr(each.encoder.embeddings, name).weight for each in (model, generator))
        assert torch.equal(own, other), name
    classes = {
        "model": transformers.ElectraForPreTraining,
        "generator": transformers.ElectraForMaskedLM,
    }
    for directory, kind in classes.items():
        _, info = kind.from_pretrained(unbroken / directory, output_loading_info=True)
        assert not any(info.values()), info
    assert json.loads((unbroken / "samples.json").read_text()), "the generator fills masks"
    assert "RTD" in (unbroken / "report.html").read_text()


def test_a_classifier_begins_with_the_discriminator(unbroken: Path, tmp_path: Path) -> None:
    rows = [{"text": text, "label": text[0]} for text in ("a name", "the value") for _ in range(8)]
    result = bw.finetune(str(unbroken), train=rows, out=tmp_path / "tuned", epochs=1)
    assert all(name.startswith("head.") for name in result.new_parameters)
    assert bw.load(tmp_path / "tuned", device="cpu").predict(["a name"])[0]["label"] in ("a", "t")


def test_disentangled_embeddings_resume_and_are_read_again(
    prepared_data: Path, tmp_path: Path
) -> None:
    """DeBERTa v3: the saved discriminator has the sums as its tables."""
    bias = {"kind": "disentangled", "num_buckets": 8, "max_distance": 24, "shared_maps": True}
    sharing = {"generator_share": 1.0, "generator_layers": 0.5, "sharing": "gradient-disentangled"}
    settings = {
        "model": {"family": "deberta-v2", "num_hidden_layers": 2, "hidden_size": 16}
        | {"num_attention_heads": 2, "intermediate_size": 32, "positions": "none"}
        | {"score_bias": bias},
        "replaced_tokens": sharing,
        "steps": 12,
        "precision": "fp32",
    }
    run = tmp_path / "run"
    metrics = electra_run(prepared_data, run, **settings).metrics
    tables = [
        bw.load(directory, device="cpu").encoder.embeddings.word_embeddings.weight
        for directory in (run, run / "generator")
    ]
    assert 0 < (tables[0] - tables[1]).abs().max() < 0.1
    run_copy = tmp_path / "again"
    shutil.copytree(run, run_copy)
    for directory in ("model", "generator", "checkpoints/step-00000012"):
        shutil.rmtree(run_copy / directory)
    assert electra_run(prepared_data, run_copy, **settings).resumed_step == 10
    assert_same(run, run_copy)
    start = {"init_checkpoint": str(run), "init_generator": str(run / "generator")}
    settings |= {"model": {}, "steps": 1, **start}
    electra_run(prepared_data, tmp_path / "more", **settings)
    assert lines_of(tmp_path / "more", "eval")[0]["metrics"] == pytest.approx(metrics, rel=1e-4)


def test_electra_small_has_the_papers_settings() -> None:
    """Clark et al. (2020), table 6."""
    recipe = read_recipe("electra-small", data="somewhere")
    model = recipe.model
    assert (model.num_hidden_layers, model.hidden_size, model.num_attention_heads) == (12, 256, 4)
    assert (model.intermediate_size, model.embedding_size) == (1024, 128)
    assert recipe.replaced_tokens is not None
    assert recipe.replaced_tokens.weight == 50
    assert recipe.replaced_tokens.generator_share == 0.25
    assert (recipe.steps, recipe.batch_size, recipe.learning_rate) == (1_000_000, 128, 5e-4)
    assert learning_rate(recipe, 10_000, recipe.steps) == pytest.approx(4.95e-4)


def test_sizes_fit_the_family() -> None:
    """A released size is as wide as ELECTRA's embeddings, which then have no map."""
    words = [*ELECTRA, "data=x", "replaced_tokens.weight=25"]
    recipe = read_recipe("tiny", words)
    assert recipe.model.embedding_size is None
    assert recipe.replaced_tokens is not None
    assert recipe.replaced_tokens.weight == 25
    assert read_recipe("mini", words).model.embedding_size == 128


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["replaced_tokens.wieght=1"], r"unknown setting 'replaced_tokens\.wieght'.*'weight'"),
        (["replaced_tokens.generator_share=0"], r"replaced_tokens\.generator_share=0"),
        (["instances.format=segment-pair"], r"set instances\.format to full-sentences"),
        (["distillation.teacher=x"], "distillation needs objective=distillation, but objective is"),
    ],
)
def test_bad_settings_are_named(words: list[str], message: str) -> None:
    given = {word.partition("=")[0] for word in words}
    usual = [word for word in ELECTRA if word.partition("=")[0] not in given]
    with pytest.raises(SettingsError, match=message):
        read_recipe("tiny", [*usual, "data=x", *words])


def test_other_families_have_no_discriminators(prepared_data: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'bert' has no models for replaced-tokens"):
        electra_run(prepared_data, tmp_path / "run", model={"size": "tiny"})
