"""The model inside the package: its name in every verb, its quality, its description."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.checkpoints.locate import BUNDLED_MODELS, local_directory, locate
from bertworks.errors import BertworksWarning, CheckpointError
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def mini() -> bw.Model:
    return bw.load("mini", device="cpu")


def test_mini_knows_some_english(mini: bw.Model) -> None:
    likely = {
        "he was born in new [MASK] in 1950.": "york",
        "the capital of the united [MASK] of america.": "states",
        "she was one of the first women [MASK] do so.": "to",
        "it is located in the north [MASK] the country.": "of",
    }
    for text, word in likely.items():
        (guesses,) = mini.fill_mask(text, top_k=3)
        assert word in [guess["token"] for guess in guesses], text


def test_mini_is_small_and_has_both_heads(mini: bw.Model) -> None:
    directory = locate("mini")
    assert sum(file.stat().st_size for file in directory.iterdir()) < 12_000_000
    assert mini.encoder.config.hidden_size == 256
    assert mini.encoder.config.max_seqlen == 512
    assert 0 < mini.next_sentence("the war ended in 1945.", "the frog lives in trees.") < 1
    assert mini.embed(["a text"]).shape == (1, 256)


@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_a_directory_of_that_name_is_reached_by_a_path(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundled_directory = locate(name)
    shutil.copytree(bundled_directory, name)
    assert local_directory(f"./{name}") == Path(name)
    assert local_directory(Path(name)) == Path(name)
    with pytest.warns(BertworksWarning, match=rf"the directory here is \./{name}"):
        assert locate(name) == bundled_directory


def test_error_without_a_model_names_mini(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such directory") as caught:
        bw.load(tmp_path / "nowhere")
    assert "Bundled models: mini, a small BERT" in str(caught.value)


def test_a_misspelt_name_suggests_the_model_that_is_meant(tmp_path: Path) -> None:
    shutil.copytree(locate("mini"), tmp_path / "tickets" / "model")
    (tmp_path / "ticket-data").mkdir()  # closer, and no model
    for name, model in (
        ("mini!", "mini"),
        ("mini-sentence!", "mini-sentences"),
        (str(tmp_path / "ticket"), str(tmp_path / "tickets")),
        (tmp_path / "mini", None),
        ("q!", None),
    ):
        with pytest.raises(CheckpointError) as error:
            locate(name)
        assert ("Did you mean" in str(error.value)) == (model is not None), name
        assert model is None or f"Did you mean {model!r}? Bundled" in str(error.value)


def test_mini_sentences_separates_meanings(mini: bw.Model) -> None:
    sentences = bw.load("mini-sentences", device="cpu")
    assert sentences.sentence is not None
    assert (sentences.sentence.pooling, sentences.sentence.normalize) == ("mean", True)
    assert sentences.encoder.config.hidden_size == mini.encoder.config.hidden_size
    assert sentences.tokenizer.fingerprint == mini.tokenizer.fingerprint
    texts = [
        "The river flows into the sea.",
        "A stream runs down to the ocean.",
        "The song was a hit in the charts.",
        "Their album sold a million copies.",
        "The army was defeated in the battle.",
        "Troops were beaten by the enemy in the war.",
    ]
    cosines = sentences.similarity(texts, texts)
    np.testing.assert_allclose(cosines.diagonal(), 1, atol=1e-5)
    np.fill_diagonal(cosines, -1)
    assert cosines.argmax(1).tolist() == [1, 0, 3, 2, 5, 4]
    other_sentences = [
        cosines[one, other] for one in range(6) for other in range(6) if one // 2 != other // 2
    ]
    assert max(other_sentences) < 0.5


def test_the_models_inside_are_small_enough_for_a_wheel_of_20_mb() -> None:
    assert set(BUNDLED_MODELS) == {"mini", "mini-sentences"}
    sizes = [
        file.stat().st_size
        for name in BUNDLED_MODELS
        for file in locate(name).rglob("*")
        if file.is_file()
    ]
    assert sum(sizes) < 23_000_000  # before they are packed
    for name in BUNDLED_MODELS:
        assert (locate(name) / "README.md").is_file()


@pytest.mark.long
def test_mini_is_a_start_for_a_run(mini: bw.Model, tmp_path: Path) -> None:
    rows = [(f"the {thing} is here", thing) for thing in ("river", "house") * 4]
    result = bw.finetune("mini", train=rows, dev=rows, out=tmp_path / "run", epochs=1)
    weights = result.model.encoder.embeddings.word_embeddings.weight
    assert torch.allclose(weights, mini.encoder.embeddings.word_embeddings.weight, atol=1e-3)


@pytest.mark.long
def test_mini_in_bfloat16_is_half_as_large_and_rounded_once(mini: bw.Model, tmp_path: Path) -> None:
    from transformers import AutoModel

    config = mini.encoder.config.with_values(num_hidden_layers=1)
    model = bw.Model.fresh(config, mini.tokenizer)
    sizes = {}
    for precision in ("fp32", "bf16"):
        saved = model.save(tmp_path / precision, precision=precision)
        sizes[precision] = (saved / "model.safetensors").stat().st_size
    assert sizes["bf16"] < 0.51 * sizes["fp32"]
    again = bw.load(tmp_path / "bf16", device="cpu").network.state_dict()
    for name, tensor in model.network.state_dict().items():
        assert torch.equal(again[name], tensor.bfloat16().float()), name
    assert AutoModel.from_pretrained(tmp_path / "bf16").dtype == torch.bfloat16


def test_notebooks_show_models_and_evaluations(mini: bw.Model) -> None:
    page = mini._repr_html_()
    assert "<th style='text-align:left'>layers</th><td style='text-align:left'>4</td>" in page
    rows = bw.Model.fresh(mini.encoder.config, mini.tokenizer)
    rows.source = "<script>"
    assert "<script>" not in rows._repr_html_()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "first_hour.ipynb", 4)
    nbclient.NotebookClient(
        notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    assert not [out for out in outputs if out.output_type == "error"]
    tables = [out["data"] for out in outputs if "text/html" in out.get("data", {})]
    assert len(tables) >= 4  # the model, two runs of training, an evaluation
    lines = [out["data"]["text/plain"] for out in outputs if out.output_type == "display_data"]
    assert any("tok/s" in line for line in lines)
