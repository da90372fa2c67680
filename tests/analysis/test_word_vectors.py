"""Static vectors: the two text formats, neighbours, and a model of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertworks.analysis.word_vectors import WordVectors
from bertworks.errors import BertworksWarning, DataError
from bertworks.loading import load

# A plane: to the right is royal, upwards is female.
PLANE = {"man": (0, -1), "woman": (0, 1), "king": (4, -1), "queen": (4, 1), "stone": (-3, 0)}


def vectors() -> WordVectors:
    return WordVectors(list(PLANE), np.array(list(PLANE.values()), np.float32))


def test_neighbours_and_analogies_are_computed() -> None:
    word_vectors = vectors()
    # Before lengths are made 1: king - man + woman is queen.
    assert word_vectors.neighbours(["king", "woman"], ["man"], top_k=1)[0][0] == "queen"
    nearest, cosine = word_vectors.neighbours(["king"])[0]
    assert (nearest, cosine) == ("queen", pytest.approx(15 / 17))
    assert word_vectors.neighbours(["king"], farthest=True, top_k=1)[0][0] == "stone"
    with pytest.raises(DataError, match="'prince'"):
        word_vectors.neighbours(["prince"])
    with pytest.raises(DataError, match="no word to start from"):
        word_vectors.neighbours([])


@pytest.mark.parametrize("format", ["word2vec", "glove"])
def test_written_vectors_are_read_with_every_bit(format: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    word_vectors = WordVectors(["a", "b c", "9"], random.normal(size=(3, 5)).astype(np.float32))
    word_vectors.write(tmp_path / "v.txt", format=format)
    again = WordVectors.read(tmp_path / "v.txt")
    assert list(again.words) == list(word_vectors.words)
    assert np.array_equal(again.vectors, word_vectors.vectors)


def test_files_as_others_write_them(tmp_path: Path) -> None:
    """word2vec's C program ends each line with a space; a word may come twice, the first counts."""
    (tmp_path / "w2v.txt").write_text("3 2\n</s> 0.5 -1 \nthe 1e-3 2 \nthe 7 7 \n")
    found = WordVectors.read(tmp_path / "w2v.txt")
    assert list(found.words) == ["</s>", "the"]
    assert found.vectors.tolist() == [[0.5, -1.0], [np.float32(1e-3), 2.0]]


@pytest.mark.parametrize(
    ("text", "where"), [("a 1 2\nb 1\n", ":2"), ("a 1 x\n", ":1"), ("a 1 nan\n", ":1")]
)
def test_bad_lines_are_named(text: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(DataError, match=where):
        WordVectors.read(tmp_path / "v.txt")


def test_model_of_vectors_embeds_words(tmp_path: Path) -> None:
    model = load(vectors().to_model().save(tmp_path / "model"))
    found = model.embed(["king queen", "Man"], pooling="mean")
    assert found.tolist() == [[4.0, 0.0], [0.0, -1.0]]
    again = WordVectors.of_model(model)
    assert np.array_equal(again.vectors, vectors().vectors)


@pytest.mark.parametrize(
    ("name", "piece", "word"),
    [
        ("roberta-pretraining", "Ġwindow", "window"),
        ("openai-gpt-pretraining", "river</w>", "river"),
        ("xlm-roberta-tagging", "▁n", "n"),
    ],
)
def test_words_of_other_families_have_their_vectors(name: str, piece: str, word: str) -> None:
    model = load(Path(__file__).parents[1] / "saved_models" / name)
    word_vectors = WordVectors.of_model(model)
    number = model.tokenizer.token_to_id(piece)
    table = model.encoder.embeddings.word_embeddings.weight.detach().numpy()
    assert np.array_equal(word_vectors.vectors[list(word_vectors.words).index(word)], table[number])
    assert len(set(word_vectors.words)) == len(word_vectors.words)
    assert not {"", "<s>", "<unk>"} & set(word_vectors.words)
    assert not any(sign in made for made in word_vectors.words for sign in ("Ġ", "▁", "</w>"))


def test_model_keeps_accents_of_words() -> None:
    words = ["über", "cafe", "café", "한국", "\u304c"]
    model = WordVectors(words, np.arange(10, dtype=np.float32).reshape(5, 2)).to_model()
    encoded = model.tokenizer.encode("Über cafe café 한국 \u304c")
    assert model.tokenizer.tokens(encoded.input_ids) == words
    plain = WordVectors(["cafe", "œuf"], np.ones((2, 2), np.float32)).to_model()
    assert plain.tokenizer.tokens(plain.tokenizer.encode("Café").input_ids) == ["cafe"]


def test_words_that_no_text_has_are_counted() -> None:
    words = ["cafe", "l’or", "u.s.", "学校", "学", "a b", "x" * 201, "."]
    vectors = WordVectors(words, np.ones((8, 2), np.float32))
    says = "5 of 8 words are found in no text, .*: 'l’or', 'u.s.', '学校', 'a b', 'xxx"
    with pytest.warns(BertworksWarning, match=says):
        model = vectors.to_model()
    encoded = model.tokenizer.encode("cafe u.s. 学校")
    found = model.tokenizer.tokens(encoded.input_ids)  # unknown pieces are left out
    assert found == ["cafe", ".", ".", "学"]
