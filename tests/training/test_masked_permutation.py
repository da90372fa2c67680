"""MPNet pre-trained with its objective: what is learned, saved and copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import bertworks as bw
from bertworks.errors import SettingsError
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.training.recipe import read_recipe

from .test_kill import assert_same
from .tiny_run import tiny_run

SETTINGS = {
    "objective": "masked_permutation",
    "model": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    | {"intermediate_size": 32},
    "instances": {"format": "full-sentences"},
    "learning_rate": 5e-3,
    "steps": 24,
    "keep_checkpoints": 10,
}


@pytest.mark.long
def test_run_learns_and_resumes_and_saves_an_ordinary_model(
    prepared_data: Path, tmp_path: Path
) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    result = tiny_run(prepared_data, run, **SETTINGS)
    lines = map(json.loads, (run / "journal.jsonl").read_text().splitlines())
    first = next(line["metrics"] for line in lines if line["kind"] == "eval")
    assert result.metrics["mlm_loss"] < first["mlm_loss"] - 0.2
    model = bw.load(run, device="cpu")
    assert model.encoder.config.family == "mpnet"
    assert type(model.task) is PretrainingTask
    assert len(model.fill_mask("the [MASK] of a name")[0]) == 5
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "model")
    shutil.rmtree(copy / "checkpoints" / "step-00000024")
    assert tiny_run(prepared_data, copy, **SETTINGS).resumed_step == 20
    assert_same(run, copy)


def test_family_is_mpnet_by_default_and_pairs_are_refused() -> None:
    words = ["data=x", "objective=masked_permutation"]
    recipe = read_recipe("tiny", [*words, "instances.format=full-sentences"])
    assert recipe.model.family == "mpnet"
    with pytest.raises(SettingsError, match="masked_permutation does not use pairs"):
        read_recipe("tiny", [*words, "instances.format=segment-pair"])
