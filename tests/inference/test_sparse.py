"""Sparse vectors (SPLADE), compared with sentence-transformers' `SparseEncoder`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sentence_transformers.sparse_encoder import SparseEncoder
from sentence_transformers.sparse_encoder import modules as peers
from tests.checkpoints.journeys import PIECES
from tests.checkpoints.oracles import geometry, theirs_of
from tests.serving.conftest import running

import bertworks as bw
from bertworks.analysis.retrieval.index import Index
from bertworks.errors import CheckpointError, DataError, SettingsError
from bertworks.inference import sparse
from bertworks.inference.merging import merge
from bertworks.serving.client import Client
from bertworks.serving.client_base import ServerError
from bertworks.utils.json_files import read_json, write_json

TEXTS = ["a b c a b c a b c", "c a", "b b b a", "c", "a b"]
FP32 = {"precision": "fp32"}


def write(folder: Path, strategy: str = "max", activation: str = "relu") -> Path:
    """Write a SPLADE model with random weights."""
    torch.manual_seed(0)
    theirs = theirs_of(geometry("bert", vocab_size=len(PIECES)), "masked-lm", torch.float32)
    theirs.save_pretrained(folder / "transformer")
    bw.Tokenizer.from_vocabulary(PIECES).save(folder / "transformer")
    transformer = peers.Transformer(str(folder / "transformer"), transformer_task="fill-mask")
    pooling = peers.SpladePooling(strategy, activation)
    SparseEncoder(modules=[transformer, pooling], device="cpu").save(str(folder / "splade"))
    return folder / "splade"


def vectors_of(directory: Path) -> np.ndarray:
    encoder = SparseEncoder(str(directory), device="cpu")
    vectors: np.ndarray = encoder.encode(TEXTS, convert_to_tensor=True).to_dense().numpy()
    return vectors


@pytest.fixture(scope="module")
def splade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("splade"))


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_sparse_vectors_are_those_of_sentence_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, activation: str
) -> None:
    directory = write(tmp_path, strategy, activation)
    expected = vectors_of(directory)
    assert 0 < (expected > 0).mean() < 1
    model = bw.load(directory, device="cpu")
    vectors: Any = model.embed(TEXTS, **FP32)
    assert isinstance(vectors, scipy.sparse.csr_matrix)
    np.testing.assert_allclose(vectors.toarray(), expected, atol=1e-5)
    alone = scipy.sparse.vstack([model.embed(text, **FP32) for text in TEXTS])
    np.testing.assert_array_equal(alone.toarray(), vectors.toarray())
    model.save(tmp_path / "ours")
    again: Any = bw.load(tmp_path / "ours").embed(TEXTS, **FP32)
    np.testing.assert_array_equal(again.toarray(), vectors.toarray())
    np.testing.assert_allclose(vectors_of(tmp_path / "ours"), expected, atol=1e-5)
    monkeypatch.setattr(sparse, "_CHUNK_TOKENS", 2)
    chunked: Any = model.embed(TEXTS, **FP32)
    np.testing.assert_allclose(chunked.toarray(), expected, atol=1e-5)
    plain = bw.load(tmp_path / "transformer")
    log = "-log" if activation == "log1p_relu" else ""
    declared: Any = plain.embed(TEXTS, pooling=f"splade-{strategy}{log}", **FP32)
    np.testing.assert_allclose(declared.toarray(), expected, atol=1e-5)


def test_a_sparse_model_still_fills_masks(splade: Path) -> None:
    model = bw.load(splade)
    assert len(model.fill_mask("a [MASK] c", top_k=3)[0]) == 3
    assert model.embed(TEXTS, pooling="mean").shape == (5, geometry("bert").hidden_size)


def test_sparse_vectors_are_compared(splade: Path) -> None:
    model = bw.load(splade)
    vectors: Any = model.embed(TEXTS, **FP32)
    expected = vectors.toarray() @ vectors.toarray().T
    np.testing.assert_allclose(model.similarity(TEXTS, vectors, **FP32), expected, rtol=1e-6)
    theirs = SparseEncoder(str(splade), device="cpu")
    encoded = theirs.encode(TEXTS)
    np.testing.assert_allclose(theirs.similarity(encoded, encoded).numpy(), expected, rtol=1e-4)
    (hits,) = Index.open(model, TEXTS, **FP32).search(TEXTS[1], top_k=5)
    order = np.argsort(-expected[1], kind="stable")
    assert [hit.row for hit in hits] == order.tolist()
    assert [hit.similarity for hit in hits] == pytest.approx(expected[1][order], rel=1e-6)
    with pytest.raises(DataError, match="sparse vectors are compared with sparse vectors only"):
        model.similarity(TEXTS, np.zeros((1, len(PIECES)), np.float32))


@pytest.mark.long
def test_files_of_sparse_vectors_merge(splade: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    model = bw.load(splade)
    vectors: Any = model.embed(TEXTS, **FP32)
    settings = {"window_rows": 2, **FP32}
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    for suffix in (".npz", ".parquet"):
        out = tmp_path / f"vectors{suffix}"
        assert model.embed_to(out, str(texts), **settings).rows == 5
        parts = [tmp_path / f"{number}{suffix}" for number in (1, 2)]
        for number, part in enumerate(parts, 1):
            model.embed_to(part, str(texts), part=f"{number}/2", **settings)
        merge(parts, tmp_path / f"merged{suffix}")
        assert (tmp_path / f"merged{suffix}").read_bytes() == out.read_bytes()
    saved = scipy.sparse.load_npz(tmp_path / "vectors.npz")
    np.testing.assert_array_equal(saved.toarray(), vectors.toarray())
    table = pq.read_table(tmp_path / "vectors.parquet").to_pylist()
    assert [row["indices"] for row in table] == [row.indices.tolist() for row in vectors]
    assert [row["values"] for row in table] == [row.data.tolist() for row in vectors]
    with pytest.raises(DataError, match="sparse vectors are not written in this format"):
        model.embed_to(tmp_path / "vectors.npy", TEXTS)


@pytest.mark.long
def test_a_server_gives_the_same_sparse_vectors(splade: Path) -> None:
    model = bw.load(splade, device="cpu")
    vectors: Any = model.embed(TEXTS, **FP32)
    expected = [dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in vectors]
    with running({"splade": str(splade)}, precision="fp32") as server:
        with Client(server.url, model="splade") as client:
            assert client.embed_sparse(TEXTS) == expected
            with pytest.raises(ServerError, match="makes sparse vectors"):
                client.embed(TEXTS)
            np.testing.assert_array_equal(
                client.similarity(iter(TEXTS[:2]), TEXTS),
                model.similarity(TEXTS[:2], TEXTS, **FP32),
            )
            np.testing.assert_array_equal(
                client.similarity(TEXTS, TEXTS[0], pooling="max"),
                model.similarity(TEXTS, TEXTS[0], pooling="max", **FP32),
            )
            assert client.similarity(TEXTS, []).shape == (len(TEXTS), 0)
            with pytest.raises(SettingsError, match="normalize: the server compares sparse vec"):
                client.similarity(TEXTS, TEXTS, normalize=True)
            with pytest.raises(SettingsError, match="unknown setting 'truncat'"):
                client.similarity(TEXTS, TEXTS, truncat=True)
        path = server.http.get("/openapi.json").json()["paths"]["/embed_sparse"]["post"]
        example = path["requestBody"]["content"]["application/json"]["example"]
        assert len(server.ask("/embed_sparse", example)) == 1
        inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
        scores = server.ask("/similarity", {"model": "splade", "inputs": inputs})
        (similar,) = model.similarity(TEXTS[:1], TEXTS[1:], **FP32)
        np.testing.assert_array_equal(np.array(scores, np.float32), similar)


def test_unsupported_uses_of_splade_are_refused(splade: Path, tmp_path: Path) -> None:
    model = bw.load(splade)
    with pytest.raises(SettingsError, match="splade-max gives no dense vector"):
        model.embed(TEXTS, pooling="cls+splade-max")
    encoder = bw.Model(model.tokenizer, None, bw.load(splade, task="encoder").network)
    with pytest.raises(SettingsError, match="the model has no masked-language-model head"):
        encoder.embed(TEXTS, pooling="splade-max")
    model.save(tmp_path / "ours")
    file = tmp_path / "ours" / "1_SpladePooling" / "config.json"
    write_json(file, {**read_json(file, CheckpointError), "pooling_strategy": "mean"})
    with pytest.raises(CheckpointError, match="pooling_strategy 'mean' with activation_function"):
        bw.load(tmp_path / "ours")
