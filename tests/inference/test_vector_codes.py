"""Vectors as 8-bit integers and bits, compared with sentence-transformers' quantization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sentence_transformers.util import quantize_embeddings
from tests.checkpoints.test_store import tiny

import bertworks as bw
from bertworks.analysis.retrieval.bm25 import BM25Index
from bertworks.analysis.retrieval.index import Index
from bertworks.analysis.retrieval.opening import open_index
from bertworks.checkpoints.sentence_settings import SentenceSettings
from bertworks.errors import BertworksError, DataError, SettingsError
from bertworks.inference.merging import merge
from bertworks.inference.vector_codes import quantize_vectors, vectors_of_codes

TEXTS = [f"{one} {other} river" for one in "abcdefgh" for other in "ghij"]
TYPES = {"int8": np.int8, "binary": np.uint8}


@pytest.fixture(scope="module")
def model() -> bw.Model:
    return tiny()


@pytest.mark.parametrize("width", [8, 48, 13])
def test_codes_are_those_of_sentence_transformers(width: int) -> None:
    vectors = np.random.default_rng(width).normal(size=(50, width)).astype(np.float32)
    vectors[0] = 0
    bits = quantize_vectors(vectors, "binary")
    assert np.array_equal(bits, quantize_embeddings(vectors, "ubinary"))
    signs = np.where(vectors > 0, 1, -1)
    assert np.array_equal(vectors_of_codes(bits)[:, :width], signs)
    for vector, code in zip(vectors[1:], quantize_vectors(vectors, "int8")[1:], strict=True):
        largest = np.full(width, np.abs(vector).max())
        ranges = np.stack([-largest, largest])
        expected = quantize_embeddings(vector[None], "int8", ranges=ranges)[0]
        assert np.abs(code.astype(int) - expected).max() <= 2  # it has 255 steps, and rounds down
        assert code / 127 * largest == pytest.approx(vector, abs=float(largest[0]) / 253)


@pytest.mark.parametrize("dimensions", [1, 9, 12])
def test_bits_that_do_not_fill_bytes_are_refused(model: bw.Model, dimensions: int) -> None:
    with pytest.raises(SettingsError, match=f"multiple of 8 numbers, not {dimensions}"):
        model.embed(TEXTS, quantization="binary", dimensions=dimensions)
    codes = model.embed(TEXTS, quantization="int8", dimensions=dimensions)
    assert codes.shape == (len(TEXTS), dimensions)


@pytest.mark.parametrize("quantization", ["int8", "binary"])
@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_files_hold_the_codes_of_embed(
    model: bw.Model, tmp_path: Path, quantization: Any, suffix: str
) -> None:
    expected = quantize_vectors(model.embed(TEXTS), quantization)
    codes = model.embed(TEXTS, quantization=quantization)
    assert codes.dtype == TYPES[quantization]
    assert np.array_equal(codes, expected)
    file = tmp_path / f"vectors.{suffix}"
    settings: dict[str, Any] = {"quantization": quantization, "window_rows": 5}
    for number in (1, 2):
        model.embed_to(tmp_path / f"{number}.{suffix}", TEXTS, part=f"{number}/2", **settings)
    merge([tmp_path / f"{number}.{suffix}" for number in (1, 2)], file)
    if suffix == "npy":
        assert np.load(file).dtype == codes.dtype
        assert np.array_equal(np.load(file), codes)
    else:
        column = pq.read_table(file)["vector"]
        assert column.type.value_type.to_pandas_dtype() == TYPES[quantization]
        assert np.array_equal(np.stack(column.to_numpy(zero_copy_only=False)), codes)
    with pytest.raises(DataError):
        model.embed_to(file, TEXTS, window_rows=5)  # resumed as other vectors


def test_similarity_compares_codes_by_their_directions(model: bw.Model) -> None:
    cosines = model.similarity(TEXTS[:3], TEXTS)
    codes = model.embed(TEXTS, quantization="int8")
    assert model.similarity(TEXTS[:3], codes) == pytest.approx(cosines, abs=0.02)
    numbers = model.similarity(codes, codes)  # as JSON gives them: integers of another type
    assert np.array_equal(model.similarity(codes.astype(np.int64), codes), numbers)
    bits = model.embed(TEXTS, quantization="binary")
    signs = np.where(model.embed(TEXTS) > 0, 1.0, -1.0).astype(np.float32)
    expected = model.similarity(TEXTS[:3], signs)
    assert model.similarity(TEXTS[:3], bits) == pytest.approx(expected, abs=1e-6)
    shortened_codes = model.embed(TEXTS, quantization="int8", dimensions=16)
    assert np.array_equal(shortened_codes, quantize_vectors(model.embed(TEXTS)[:, :16], "int8"))
    assert model.embed([], quantization="binary").shape == (0, 6)


@pytest.mark.parametrize("quantization", ["int8", "binary"])
def test_index_of_codes_finds_what_vectors_find(
    model: bw.Model, tmp_path: Path, quantization: Any
) -> None:
    index = Index.open(model, TEXTS, tmp_path / "index", quantization=quantization)
    codes = model.embed(TEXTS, quantization=quantization)
    for query, hits in zip(TEXTS[:4], index.search(TEXTS[:4], 10), strict=True):
        cosines = model.similarity([query], codes)[0]
        assert [hit.score for hit in hits] == pytest.approx(sorted(cosines)[::-1][:10], abs=1e-5)
        if quantization == "int8":
            exact = model.similarity([query], TEXTS)[0]
            assert [hit.score for hit in hits] == pytest.approx(
                [exact[hit.row] for hit in hits], abs=0.02
            )
    assert np.load(tmp_path / "index" / "vectors.npy").dtype == TYPES[quantization]
    with pytest.raises(DataError, match="quantization"):
        Index.open(model, TEXTS, tmp_path / "index")
    with pytest.raises(BertworksError, match="quantized, which approximate search does not"):
        index.search("a", approximate=True)


def test_quantization_is_refused_where_lengths_count() -> None:
    other = tiny()
    other.sentence = SentenceSettings(entries={"similarity_fn_name": "dot"})
    with pytest.raises(SettingsError, match=r"is for models that use cosines, .* uses dot"):
        other.embed(TEXTS, quantization="int8")
    with pytest.raises(SettingsError, match="quantization=int8 is for the vectors of models"):
        open_index("bm25", TEXTS, quantization="int8")
    assert isinstance(open_index("bm25", TEXTS), BM25Index)
