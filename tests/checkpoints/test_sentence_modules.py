"""Sentence encoders with modules after the transformer: what sentence-transformers writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as peers

import bertworks as bw
from bertworks.checkpoints.sentence_directory import read_tokenizer
from bertworks.convert.export import PaddedNetwork
from bertworks.errors import CheckpointError, SettingsError
from bertworks.utils.json_files import write_json
from tests.checkpoints.journeys import PIECES
from tests.checkpoints.oracles import geometry, theirs_of
from tests.serving.conftest import running

TEXTS = ["a b c a b c a b c", "c a", "b b b a", "c", "A B É"]
FP32 = {"precision": "fp32"}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the directory of a sentence encoder with these modules after its transformer."""

    def write(*modules: torch.nn.Module, **entries: Any) -> Path:
        torch.manual_seed(0)
        own = geometry("bert", vocab_size=len(PIECES))
        theirs = theirs_of(own, "encoder", torch.float32)
        if any(isinstance(module, peers.WeightedLayerPooling) for module in modules):
            theirs.config.output_hidden_states = True
        theirs.save_pretrained(tmp_path / "transformer")
        bw.Tokenizer.from_vocabulary(PIECES).save(tmp_path / "transformer")
        transformer = peers.Transformer(str(tmp_path / "transformer"))
        for module in modules:
            for weight in module.parameters():
                torch.nn.init.normal_(weight, std=0.5)
        SentenceTransformer(modules=[transformer, *modules], device="cpu", **entries).save(
            str(tmp_path / "theirs")
        )
        return tmp_path / "theirs"

    return write


def vectors_of(directory: Path, texts: Sequence[str] = TEXTS, **settings: Any) -> np.ndarray:
    return SentenceTransformer(str(directory), device="cpu").encode(list(texts), **settings)


def edit(file: Path, **entries: Any) -> None:
    write_json(file, {**(json.loads(file.read_text()) if file.exists() else {}), **entries})


def dense(inputs: int, outputs: int, **settings: Any) -> peers.Dense:
    return peers.Dense(inputs, outputs, **settings)


H = geometry("bert").hidden_size
MODULES: dict[str, Callable[[], list[torch.nn.Module]]] = {
    "one pooling": lambda: [peers.Pooling(H, "weightedmean")],
    "poolings": lambda: [peers.Pooling(H, ("cls", "max", "mean_sqrt_len_tokens"))],
    "poolings in another order": lambda: [peers.Pooling(H, ("lasttoken", "mean"))],
    "labse": lambda: [peers.Pooling(H, "cls"), dense(H, H), peers.Normalize()],
    "distiluse": lambda: [peers.Pooling(H, "mean"), dense(H, 5)],
    "dense without bias": lambda: [
        peers.Pooling(H, ("mean", "max")),
        dense(2 * H, 6, bias=False, activation_function=torch.nn.Identity()),
    ],
    "residual": lambda: [
        peers.Pooling(H, "mean"),
        dense(H, H, use_residual=True, activation_function=torch.nn.GELU()),
        dense(H, 7, use_residual=True, activation_function=torch.nn.SiLU()),
    ],
    "norms": lambda: [
        peers.Pooling(H, "mean"),
        peers.Normalize(),
        peers.LayerNorm(H),
        peers.Dropout(0.3),
        dense(H, 4, activation_function=torch.nn.Sigmoid()),
        peers.Normalize(),
    ],
    "layers": lambda: [
        peers.WeightedLayerPooling(
            H, num_hidden_layers=geometry("bert").num_hidden_layers, layer_start=1
        ),
        peers.Pooling(H, "mean"),
    ],
}


@pytest.mark.long
@pytest.mark.parametrize("name", MODULES)
def test_vectors_are_those_of_sentence_transformers(
    write: Write, tmp_path: Path, name: str
) -> None:
    directory = write(*MODULES[name]())
    expected = vectors_of(directory)
    model = bw.load(directory, device="cpu")
    vectors = model.embed(TEXTS, **FP32)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    alone = [model.embed(text, **FP32)[0] for text in TEXTS]
    np.testing.assert_array_equal(np.stack(alone), vectors)
    model.save(tmp_path / "ours")
    np.testing.assert_array_equal(bw.load(tmp_path / "ours").embed(TEXTS, **FP32), vectors)
    np.testing.assert_allclose(vectors_of(tmp_path / "ours"), expected, atol=1e-5)
    model.save(tmp_path / "ours", overwrite=True)  # none of its files is another's


@pytest.mark.long
def test_a_server_combines_layers_as_the_files_say(write: Write) -> None:
    directory = str(write(*MODULES["layers"]()))
    expected = bw.load(directory, device="cpu").embed(TEXTS, **FP32)
    with running({"m": directory}, precision="fp32") as server, bw.Client(server.url) as client:
        np.testing.assert_array_equal(client.embed(TEXTS), expected)
        with pytest.raises(
            bw.BertworksError, match=r"unknown setting .*The nearest valid name is .pooling"
        ):
            client.embed(TEXTS, poling="cls")  # type: ignore[call-arg]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["mean", "cls", "weightedmean", ("lasttoken", "max")])
def test_a_prompt_is_left_out_of_pooling(write: Write, mode: Any) -> None:
    pooling = peers.Pooling(H, mode, include_prompt=False)
    directory = write(pooling, prompts={"query": "b c ", "document": ""})
    model = bw.load(directory, device="cpu")
    for prompt in ("b c ", ""):
        expected = vectors_of(directory, prompt=prompt)
        np.testing.assert_allclose(model.embed(TEXTS, prompt=prompt, **FP32), expected, atol=1e-5)
    vectors_with_prompt = model.embed(TEXTS, prompt="b c ", include_prompt=True, **FP32)
    edit(directory / "1_Pooling" / "config.json", include_prompt=True)
    expected = vectors_of(directory, prompt="b c ")
    np.testing.assert_allclose(vectors_with_prompt, expected, atol=1e-5)
    with pytest.raises(bw.BertworksError, match="the prompt has 3 tokens, and no token"):
        model.embed(TEXTS, prompt="b c ", max_seq_length=3)


@pytest.mark.long
def test_the_transformer_may_have_a_directory_of_its_own(write: Write, tmp_path: Path) -> None:
    directory = write(*MODULES["distiluse"]())
    expected = bw.load(directory).embed(TEXTS, **FP32)
    inner, old = directory / "0_Transformer", tmp_path / "old"
    inner.mkdir()
    kept = {"modules.json", "config_sentence_transformers.json", "0_Transformer", "README.md"}
    for path in [*directory.iterdir()]:
        if path.name not in kept and not path.name[0].isdigit():
            shutil.move(path, inner / path.name)
    parts = json.loads((directory / "modules.json").read_text())
    parts[0]["path"] = inner.name
    write_json(directory / "modules.json", parts)
    write_json(directory / "config.json", {"__version__": "0.2.5"})  # as in old versions
    directory.rename(old)
    np.testing.assert_array_equal(bw.load(old).embed(TEXTS, **FP32), expected)
    np.testing.assert_allclose(vectors_of(old), expected, atol=1e-5)
    assert bw.inspect(old).parameters["total"] == bw.load(old).num_parameters


@pytest.mark.long
@pytest.mark.parametrize("name", ["distiluse", "labse"])
def test_vectors_have_the_dimensions_of_the_files(write: Write, tmp_path: Path, name: str) -> None:
    directory = write(*MODULES[name](), truncate_dim=3)
    model = bw.load(directory)
    vectors = model.embed(TEXTS, **FP32)
    expected = vectors_of(directory, normalize_embeddings=name == "labse")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    # Division by the length of three numbers enlarges the rounding of float32.
    np.testing.assert_allclose(network_vectors(model), vectors, atol=5e-6)
    assert model.embed(TEXTS, dimensions=None).shape != vectors.shape
    model.save(tmp_path / "ours")
    np.testing.assert_array_equal(bw.load(tmp_path / "ours").embed(TEXTS, **FP32), vectors)
    assert vectors_of(tmp_path / "ours").shape == vectors.shape


@pytest.mark.long
def test_more_dimensions_in_the_files_than_numbers_have_no_effect(write: Write) -> None:
    """As in sentence-transformers; more in a setting are a mistake of the user."""
    directory = write(peers.Pooling(H), truncate_dim=H + 1)
    vectors = bw.load(directory).embed(TEXTS, **FP32)
    np.testing.assert_allclose(vectors, vectors_of(directory), atol=1e-5)
    with pytest.raises(SettingsError, match=f"dimensions={H + 2} is more than the {H} numbers"):
        bw.load(directory).embed(TEXTS, dimensions=H + 2)


@pytest.mark.long
@pytest.mark.parametrize("strips_accents", [None, True])
def test_texts_are_converted_to_lower_case(write: Write, strips_accents: bool | None) -> None:
    directory = write(peers.Pooling(H))
    pieces = [*PIECES[:-1], "é"]
    tokenizer = bw.Tokenizer.from_vocabulary(pieces, lowercase=False, strip_accents=strips_accents)
    tokenizer.save(directory, overwrite=True)
    edit(directory / "sentence_bert_config.json", do_lower_case=True, max_seq_length=4)
    model = bw.load(directory)
    assert model.tokenizer.lowercase
    assert read_tokenizer(directory).fingerprint == model.tokenizer.fingerprint
    with pytest.warns(bw.BertworksWarning, match="3 of 5 texts were truncated"):
        vectors = model.embed(TEXTS, **FP32)
    np.testing.assert_allclose(vectors, vectors_of(directory), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "entries", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "cls2"]}, r"pooling \(mean, cls2\)"),
        ("2_Dense/config.json", {"activation_function": "my.Tanh"}, "activation_function is 'my.T"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name is"),
        ("3_Normalize/config.json", {"module_output_name": "token_embeddings"}, "output_name is"),
        ("2_Dense/config.json", {"in_features": 3}, "the weights of the module are not linear"),
        ("2_Dense/config.json", {"bias": False}, "the weights of the module are not linear.weight"),
        ("sentence_bert_config.json", {"transformer_task": "text-generation"}, "transformer_task"),
        (
            "sentence_bert_config.json",
            {"processing_kwargs": {"text": {"add_special_tokens": False}}},
            "processing_kwargs is .* not supported",
        ),
        ("sentence_bert_config.json", {"processing_kwargs": ["text"]}, "processing_kwargs is"),
        ("sentence_bert_config.json", {"query_length": 4}, "query_length is 4, which is for late"),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "truncate_dim is 0, not a num"),
        (
            "config_sentence_transformers.json",
            {"model_type": "CrossEncoder"},
            "model_type is 'CrossEncoder', which is not supported with the modules Transformer, P",
        ),
    ],
)
def test_unsupported_settings_of_modules_are_refused(
    write: Write, file: str, entries: dict[str, Any], message: str
) -> None:
    directory = write(*MODULES["labse"]())
    edit(directory / file, **entries)
    with pytest.raises((CheckpointError, SettingsError), match=message):
        bw.load(directory)


def test_other_modules_are_refused_by_name(write: Write) -> None:
    directory = write(*MODULES["labse"]())
    parts = json.loads((directory / "modules.json").read_text())
    parts[2]["type"] = "sentence_transformers.models.CNN"
    write_json(directory / "modules.json", parts)
    with pytest.raises(CheckpointError, match="the module 'CNN' in place 2 is not supported"):
        bw.load(directory)


def test_a_pooling_that_the_modules_do_not_fit_is_refused(write: Write) -> None:
    model = bw.load(write(*MODULES["labse"]()))
    with pytest.raises(SettingsError, match=f"takes vectors of {H} numbers, and pooling gives"):
        model.embed(TEXTS, pooling="cls+max")
    with pytest.raises(SettingsError, match="'clss' is not a pooling"):
        model.embed(TEXTS, pooling="clss")


def test_a_graph_for_onnx_has_the_modules(write: Write) -> None:
    model = bw.load(write(*MODULES["norms"]()))
    np.testing.assert_allclose(network_vectors(model), model.embed(TEXTS, **FP32), atol=1e-6)


def network_vectors(model: bw.Model) -> np.ndarray:
    """The vectors that the padded network computes, which becomes a graph for ONNX."""
    rows = model.tokenizer.encode_batch(TEXTS)
    length = max(row.num_tokens for row in rows)
    ids, mask = (torch.zeros(len(rows), length, dtype=torch.int64) for _ in range(2))
    for number, row in enumerate(rows):
        ids[number, : row.num_tokens] = torch.from_numpy(row.input_ids)
        mask[number, : row.num_tokens] = 1
    network = PaddedNetwork(model.network, model.sentence, model.modules).eval()
    with torch.no_grad():
        return network.outputs_by_name(ids, mask)["sentence_embedding"].numpy()
