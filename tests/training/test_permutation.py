"""XLNet pre-trained as a whole: what is learned, resumed, and refused."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

import bertworks as bw
from bertworks.convert.export import write_onnx
from bertworks.errors import CheckpointError, SettingsError
from bertworks.explorer.target_kinds import targets_of
from bertworks.training.checkpoint import list_checkpoints
from bertworks.training.objective import with_geometry
from bertworks.training.pretrain import PretrainResult
from bertworks.training.recipe import read_recipe

from .test_kill import assert_same
from .tiny_run import tiny_run

XLNET = ["objective=permutation", "instances.format=full-sentences"]


def xlnet_run(data: Path, out: Path, **values: Any) -> PretrainResult:
    """With dropout, in bfloat16, on two lengths."""
    settings: dict[str, Any] = {
        "instances": {"format": "full-sentences"},
        "objective": "permutation",
        "masking": {"unit": "span"},
        "steps": 8,
        "checkpoint_every": 4,
        "keep_checkpoints": 10,
        "learning_rate": 1e-2,
    }
    return tiny_run(data, out, **{**settings, **values})


@pytest.mark.long
def test_a_resumed_run_ends_with_the_same_bits(prepared_data: Path, tmp_path: Path) -> None:
    unbroken, out = tmp_path / "unbroken", tmp_path / "run"
    result = xlnet_run(prepared_data, unbroken)
    first = next(line["metrics"] for line in result.run.lines() if line["kind"] == "eval")
    assert result.metrics["mlm_loss"] < first["mlm_loss"] - 0.1
    shutil.copytree(unbroken, out)
    shutil.rmtree(out / "model")
    for checkpoint in list_checkpoints(out / "checkpoints"):
        if checkpoint.name > "step-00000004":
            shutil.rmtree(checkpoint)
    assert xlnet_run(prepared_data, out).resumed_step == 4
    assert_same(unbroken, out)
    model = bw.load(out, device="cpu")
    (guesses,) = model.fill_mask("The [MASK] of a list.", top_k=3)
    assert len(guesses) == 3
    held_out = model.evaluate(prepared_data).metrics
    assert held_out["mlm_perplexity"] == pytest.approx(math.exp(held_out["mlm_loss"]))
    assert targets_of(model) == []  # the explorer has one stream
    with pytest.raises(CheckpointError, match="two streams"):
        write_onnx(model, tmp_path / "onnx")


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], 1 / 6), (["masking.unit=span"], 1 / 6), (["masking.mlm_probability=0.15"], 0.15)],
)
def test_the_objective_of_a_checkpoint_has_its_settings(
    words: list[str], expected: float, tmp_path: Path
) -> None:
    tokenizer = bw.Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    size = ["model.size=tiny", "model.hidden_size=16", "model.num_hidden_layers=1"]
    fresh = read_recipe(None, ["data=x", "steps=1", *XLNET, *size])
    bw.Model.fresh(fresh.model.config(tokenizer.vocab_size), tokenizer).save(tmp_path / "xlnet")
    start = ["data=x", "steps=1", f"init_checkpoint={tmp_path / 'xlnet'}"]
    recipe = with_geometry(read_recipe(None, [*start, "instances.format=full-sentences", *words]))
    assert recipe.objective == "permutation"
    assert recipe.masking.mlm_probability == expected
    assert recipe.model.hidden_size == 16


def test_a_recipe_has_the_settings_of_the_objective() -> None:
    recipe = read_recipe(None, ["data=x", "steps=1", *XLNET, "model.hidden_dropout_prob=0"])
    assert recipe.model.family == "xlnet" and recipe.model.is_transformer_xl
    assert recipe.model.attention_probs_dropout_prob == 0
    assert recipe.masking.mlm_probability == 1 / 6
    words = ["masking.unit=span", "masking.mlm_probability=0.25"]
    masking = read_recipe(None, ["data=x", "steps=1", *XLNET, *words]).masking
    assert (masking.unit, masking.mlm_probability) == ("span", 0.25)
    assert read_recipe(None, ["data=x", "steps=1", *XLNET, words[0]]).masking.unit == "span"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*XLNET, "model.family=bert"], "objective=permutation and model.family=xlnet need each"),
        (["model.family=xlnet"], "objective=permutation and model.family=xlnet need each other"),
        (["objective=permutation"], "permutation does not use pairs"),
        (
            [*XLNET, "masking.mask_ratio=0.5"],
            "does nothing with objective=permutation",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        read_recipe(None, ["data=x", "steps=1", *words])
