"""BERT's tokenizer and means of rows in native code equal the library's and NumPy's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.checkpoints.static import static_config
from bertworks.inference.settings import EmbedSettings, EngineSettings
from bertworks.inference.static_vectors import StaticEmbedder, native_wordpiece
from bertworks.model import Model
from bertworks.native.library import is_enabled
from bertworks.native.mean_of_rows import write_means_of_rows
from bertworks.text.static_tokenizer import to_static
from bertworks.text.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(not is_enabled(), reason="no native code: no compiler built it")

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "ab", "abc", "##a", "##b", "##bca", "A"]
PIECES += [",", "#", "##", "[", "é", "##ab", "b" * 40]
TEXT = st.text(st.sampled_from("aabbcABC ,#[]\t\n\r\0\x01\x0b\x0c\x1f\x7f{~"), max_size=40)
FEW = 7


def tokenizer_of(*, lowercase: bool, drops_unknown: bool, limit: int) -> Tokenizer:
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=lowercase, max_word_characters=limit)
    definition = to_static(tokenizer.definition)
    return Tokenizer(definition if drops_unknown else replace(definition, unknown_id=None))


@pytest.mark.long
@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("drops_unknown", [True, False])
@given(texts=st.lists(TEXT, max_size=5))
def test_native_wordpiece_gives_the_ids_of_the_library(
    lowercase: bool, drops_unknown: bool, texts: list[str]
) -> None:
    texts = [*texts, "b" * 40, "b" * 41, "a" * 300]
    tokenizer = tokenizer_of(lowercase=lowercase, drops_unknown=drops_unknown, limit=40)
    native = native_wordpiece(tokenizer.definition)
    assert native is not None
    ids, counts = native(texts, 1000)
    expected = tokenizer.piece_ids(texts)
    assert counts.tolist() == [len(row) for row in expected]
    assert ids.tolist() == np.concatenate(expected).tolist()
    ids, counts = native(texts, FEW)
    assert counts.tolist() == [len(row) for row in expected]
    assert ids.tolist() == np.concatenate([row[:FEW] for row in expected]).tolist()


def test_other_tokenizers_are_left_to_the_library() -> None:
    framed = Tokenizer.from_vocabulary(PIECES)
    assert native_wordpiece(framed.definition) is None
    long_words = tokenizer_of(lowercase=True, drops_unknown=True, limit=1000)
    assert native_wordpiece(long_words.definition) is None


@pytest.mark.parametrize("unit_length", [True, False])
@pytest.mark.parametrize("width", [1, 16, 37])
def test_means_of_rows_equal_numpys(width: int, unit_length: bool) -> None:
    random = np.random.default_rng(width)
    table = random.normal(size=(9, width)).astype(np.float32)
    lengths = np.array([3, 0, 1, 70])
    ids = random.integers(0, 9, lengths.sum()).astype(np.int32)
    means = np.empty((4, width), np.float32)
    write_means_of_rows(table, ids, lengths, means, unit_length=unit_length)
    for row, part in zip(means, np.split(ids, np.cumsum(lengths)[:-1]), strict=True):
        expected = table[part].astype(np.float64).mean(0) if len(part) else np.zeros(width)
        if unit_length and len(part):
            expected /= np.linalg.norm(expected)
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-6)
    with pytest.raises(IndexError):
        write_means_of_rows(table, ids + 8, lengths, means, unit_length=False)


@pytest.mark.parametrize("unit_length", [False, True])
def test_static_vectors_are_the_same_bits_with_and_without_native_wordpiece(
    monkeypatch: pytest.MonkeyPatch, unit_length: bool
) -> None:
    tokenizer = tokenizer_of(lowercase=True, drops_unknown=True, limit=40)
    model = Model.fresh(static_config(len(PIECES), 16), tokenizer)
    texts = ["abca", "Ab, é", "é b", "a", *["b ab"] * 600]
    embed = partial(model.embed, normalize=unit_length)
    vectors = embed(texts)
    assert isinstance(model.embedder(), StaticEmbedder)
    assert not isinstance(model.embedder(prompt="a ", include_prompt=False), StaticEmbedder)
    assert np.array_equal(np.concatenate([embed(text) for text in texts[:6]]), vectors[:6])
    assert np.array_equal(embed(data=iter(texts)), vectors)
    settings = EmbedSettings(normalize=unit_length), EngineSettings()
    plain = StaticEmbedder(model.network, tokenizer, *settings)
    monkeypatch.setattr(StaticEmbedder, "_native", None)
    assert np.array_equal(plain.embed(texts), vectors)
    encoded = plain.encode(texts, texts)
    assert np.array_equal(plain.vectors(encoded[::-1]), vectors)
    monkeypatch.setattr("bertworks.inference.static_vectors.is_enabled", lambda: False)
    assert plain.embed(texts) == pytest.approx(vectors, abs=1e-6)


@pytest.mark.parametrize("prompt", ["a ", "é a ", "ab"])
@pytest.mark.parametrize("texts", [["ca", "b ab"], ["ca", "é b"], ["é ab"]])
def test_a_prompt_of_any_characters_precedes_static_texts(prompt: str, texts: list[str]) -> None:
    tokenizer = tokenizer_of(lowercase=True, drops_unknown=True, limit=40)
    model = Model.fresh(static_config(len(PIECES), 16), tokenizer)
    expected = model.embed([prompt + text for text in texts])
    assert isinstance(model.embedder(prompt=prompt), StaticEmbedder)
    assert np.array_equal(model.embed(texts, prompt=prompt), expected)
