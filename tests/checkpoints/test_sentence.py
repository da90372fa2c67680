"""Sentence encoders and cross-encoders in sentence-transformers' layout, compared with theirs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

import bertworks as bw
from bertworks.analysis.retrieval.index import Index
from bertworks.checkpoints.sentence_settings import SentenceSettings
from bertworks.errors import BertworksError, CheckpointError
from bertworks.tasks.texts import sigmoid
from bertworks.utils.json_files import write_json
from tests.checkpoints.journeys import PIECES
from tests.checkpoints.oracles import geometry, theirs_of

TEXTS = ["a b c a b c a b c", "c a", "b b b a", "c c"]
FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """The directory of a sentence encoder."""
    tokenizer = bw.Tokenizer.from_vocabulary(PIECES)
    model = bw.Model.fresh(geometry("bert", vocab_size=len(PIECES)), tokenizer)
    sentence = SentenceSettings(max_seq_length=5)
    bw.Model(tokenizer, None, model.network, sentence=sentence).save(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.fixture
def cross_encoder(tmp_path: Path) -> Callable[..., Path]:
    """Saves a model with a single output, and with other entries in `config.json`."""

    def save(**entries: Any) -> Path:
        own = geometry("bert", vocab_size=len(PIECES))
        theirs_of(own, "classification", torch.float32, num_labels=1).save_pretrained(tmp_path)
        bw.Tokenizer.from_vocabulary(PIECES).save(tmp_path)
        file = tmp_path / "config.json"
        write_json(file, {**json.loads(file.read_text()), **entries})
        return tmp_path

    return save


def edit(file: Path, **entries: Any) -> None:
    found = json.loads(file.read_text()) if file.exists() else {}
    write_json(file, {**found, **entries})


@pytest.mark.filterwarnings("ignore:2 of 4 texts were truncated")
@pytest.mark.parametrize("family", FAMILIES)
def test_length_limits_are_read_under_the_names_of_families(encoder: Path, family: str) -> None:
    from sentence_transformers import SentenceTransformer

    (encoder / "sentence_bert_config.json").rename(encoder / f"sentence_{family}_config.json")
    model = bw.load(encoder, device="cpu")
    assert model.sentence is not None
    assert model.sentence.max_seq_length == 5
    theirs = SentenceTransformer(str(encoder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(model.embed(TEXTS, precision="fp32"), theirs, atol=1e-5)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:. of . texts were truncated")
@pytest.mark.filterwarnings("ignore:the texts given. . of . texts were too long")
@pytest.mark.parametrize("function", [None, "cosine", "dot", "euclidean", "manhattan"])
def test_similarities_are_those_of_sentence_transformers(
    encoder: Path, function: str | None
) -> None:
    from sentence_transformers import SentenceTransformer

    edit(encoder / "config_sentence_transformers.json", similarity_fn_name=function)
    model, theirs = bw.load(encoder, device="cpu"), SentenceTransformer(str(encoder), device="cpu")
    vectors = theirs.encode(TEXTS)
    found = model.similarity(TEXTS, TEXTS[:2], precision="fp32")
    np.testing.assert_allclose(found, theirs.similarity(vectors, vectors[:2]), atol=1e-4, rtol=1e-5)
    index = Index.open(model, TEXTS, precision="fp32")
    (hits,) = index.search(TEXTS[1], top_k=4)
    (scores,) = model.similarity(TEXTS[1], TEXTS, precision="fp32")
    assert [hit.row for hit in hits] == np.argsort(-scores, kind="stable").tolist()
    assert [hit.similarity for hit in hits] == pytest.approx(sorted(scores, reverse=True), rel=1e-5)
    if function in ("euclidean", "manhattan"):
        with pytest.raises(BertworksError, match=f"similarity_fn_name='{function}'"):
            index.search(TEXTS[1], approximate=True)


def test_an_unknown_similarity_is_an_error(encoder: Path) -> None:
    edit(encoder / "config_sentence_transformers.json", similarity_fn_name="maxsim")
    with pytest.raises(CheckpointError, match="similarity_fn_name is 'maxsim', which is not"):
        bw.load(encoder)


@pytest.mark.long
@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=7, max_size=7), min_size=1))
def test_cosines_are_at_most_1(rows: list[list[float]]) -> None:
    vectors = np.array(rows, np.float32)
    model = bw.Model.__new__(bw.Model)  # vectors that are given need no network
    model.sentence = model.query_model = None
    similarities = model.similarity(vectors, np.concatenate([vectors, 3 * vectors, -vectors]))
    assert np.abs(similarities).max() <= 1
    alone = np.concatenate([model.similarity(vector[None], vectors) for vector in vectors])
    np.testing.assert_array_equal(similarities[:, : len(rows)], alone)


@pytest.mark.long
@pytest.mark.parametrize(
    ("entries", "activation"),
    [
        ({}, "sigmoid"),
        ({"problem_type": "regression"}, "identity"),
        ({"sentence_transformers": {"version": "5.0.0"}}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, "tanh"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}, "sigmoid"),
        (
            {
                "problem_type": "regression",
                "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
            },
            "sigmoid",
        ),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
    ],
)
def test_values_follow_the_activation(
    cross_encoder: Callable[..., Path], tmp_path: Path, entries: dict[str, Any], activation: str
) -> None:
    from sentence_transformers import CrossEncoder

    pairs = [("a b", "c"), ("c", "a b b"), ("a", "a")]
    model = bw.load(cross_encoder(**entries), device="cpu")
    values = [answer["value"] for answer in model.predict(pairs, precision="fp32")]
    assert model.task.settings.activation == activation
    if "sentence_transformers" in entries or not entries:
        theirs = CrossEncoder(str(tmp_path), device="cpu").predict(pairs)
        assert values == pytest.approx(theirs.tolist(), abs=1e-6)
    rows = [
        {"text": a, "pair": b, "label": value} for (a, b), value in zip(pairs, values, strict=True)
    ]
    assert model.evaluate(rows, precision="fp32").metrics["loss"] == pytest.approx(0, abs=1e-15)
    model.save(tmp_path / "ours")
    for is_bare in (False, True):
        if is_bare:
            (tmp_path / "ours" / "bertworks.json").unlink()
        again = bw.load(tmp_path / "ours", device="cpu").predict(pairs, precision="fp32")
        assert [answer["value"] for answer in again] == values, is_bare


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:. of . rows were too long")
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_cross_encoders_have_length_limits_too(
    cross_encoder: Callable[..., Path], tmp_path: Path, family: str
) -> None:
    from sentence_transformers import CrossEncoder

    folder = tmp_path / "theirs"
    CrossEncoder(str(cross_encoder()), device="cpu").save_pretrained(str(folder))
    edit(folder / "sentence_bert_config.json", max_seq_length=7)
    (folder / "sentence_bert_config.json").rename(folder / f"sentence_{family}_config.json")
    pairs = [("a b c a b c a b", "c"), ("c", "a b b"), ("a", "a")]
    model = bw.load(folder, device="cpu")
    assert model.task.settings.max_seq_length == 7
    values = [answer["value"] for answer in model.predict(pairs, precision="fp32")]
    theirs = CrossEncoder(str(folder), device="cpu").predict(pairs)
    assert values == pytest.approx(theirs.tolist(), abs=1e-6)


def test_an_activation_that_is_not_supported_is_an_error(
    cross_encoder: Callable[..., Path],
) -> None:
    folder = cross_encoder(sentence_transformers={"activation_fn": "torch.nn.ReLU"})
    with pytest.raises(CheckpointError, match=r"the activation 'torch\.nn\.ReLU' is not supported"):
        bw.load(folder)


def test_a_prompt_of_a_cross_encoder_is_refused(cross_encoder: Callable[..., Path]) -> None:
    folder = cross_encoder()
    marks = {"model_type": "CrossEncoder", "prompts": {"query": "find: "}}
    edit(folder / "config_sentence_transformers.json", **marks)
    assert bw.load(folder).predict([("a b", "c")])  # it has the prompt, and does not use it
    edit(folder / "config_sentence_transformers.json", default_prompt_name="query")
    with pytest.raises(CheckpointError, match="default_prompt_name is set, and prompts of cross"):
        bw.load(folder)


@given(st.floats(-700, 700), st.floats(-700, 700))
def test_sigmoids_are_exact_at_both_ends(one: float, other: float) -> None:
    assert sigmoid(one) == pytest.approx(expit(one), rel=1e-14)
    assert (one - other) * (sigmoid(one) - sigmoid(other)) >= 0
    assert 0 < sigmoid(-abs(one)) <= 0.5
