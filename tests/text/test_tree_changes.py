"""More pieces and fewer, in vocabularies that are not WordPiece: nothing else is tokenised anew."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from bertworks.errors import DataError
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tree_changes import add_words, keep_pieces

from .test_families import xquad

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
NUM_MERGES = 12_000
"""The first of GPT-2's: with all, each reading and writing of a tokenizer takes a second."""


@pytest.fixture(scope="module", params=["roberta", "albert"])
def tokenizer(request, data_dir: Path, tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "albert":
        model = (data_dir / "vocab" / "albert-spiece.model").read_bytes()
        (folder / "spiece.model").write_bytes(model)
        return Tokenizer.load(folder)
    lines = (data_dir / "vocab" / "gpt2-vocab-lines.txt").read_text(encoding="utf-8").split("\n")
    version, *merges = (data_dir / "vocab" / "gpt2-merges.txt").read_text("utf-8").split("\n")
    merges = merges[:NUM_MERGES]
    merged = {merge.replace(" ", "") for merge in merges}
    pieces = [line for line in lines if len(line) == 1 or line in merged or line in SPECIAL]
    ids = {piece: number for number, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("\n".join([version, *merges]) + "\n", encoding="utf-8")
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def texts(data_dir: Path) -> list[str]:
    return [text for language in ("en", "de", "zh") for text in xquad(data_dir, language)[::40]]


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.tokens(tokenizer.piece_ids([text])[0])


def saved_and_opened(tokenizer: Tokenizer, folder: Path):
    from transformers import AutoTokenizer

    tokenizer.save(folder)
    assert Tokenizer.load(folder).fingerprint == tokenizer.fingerprint
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.long
def test_words_become_pieces_and_nothing_else_changes(tokenizer, texts, tmp_path):
    words = ["remdesivir", "xylitol", "the"]
    result = add_words(tokenizer.definition, words)
    new = Tokenizer(result.definition)
    assert result.added_words == ("remdesivir", "xylitol")
    assert result.known_words == ("the",)
    assert new.pieces[: tokenizer.vocab_size] == tokenizer.pieces
    for one, two in zip(tokenizer.piece_ids(texts), new.piece_ids(texts), strict=True):
        assert one.tolist() == two.tolist()
    for text, expected in {
        "we gave remdesivir, then xylitol.": ["remdesivir", "xylitol"],
        "remdesivir": ["remdesivir"],
    }.items():
        segment = new.segments([text])[0]
        words_found = [piece.strip("▁Ġ") for piece in new.tokens(segment.input_ids)]
        assert [word for word in words_found if word in words[:2]] == expected
        index = words_found.index(expected[-1])
        start, end = segment.offsets[index]
        assert text[start:end] == expected[-1]
        assert new.decode(segment.input_ids) == text
    has_bare_form = tokenizer.token_to_id("Ġthe") is not None
    assert ("remdesivir" in pieces(new, "(remdesivir)")) == has_bare_form
    before = len(tokenizer.pieces)
    for index, former in enumerate(result.former, before):
        joined = "".join(tokenizer.pieces[number] for number in former)
        assert joined == new.pieces[index]
    theirs = saved_and_opened(new, tmp_path / "t")
    for text in ("We gave remdesivir, then xylitol.", *texts[:5]):
        assert theirs(text)["input_ids"] == new.encode(text).input_ids.tolist()


@pytest.mark.long
def test_words_of_scripts_without_spaces_are_found_in_running_text(tokenizer, tmp_path):
    words = ["机器学习", "A股", "東京タワー", "ภาษาไทย"]
    texts = ["我喜欢机器学习和", "买A股了", "高い東京タワーの", "เป็นภาษาไทยครับ"]
    new = Tokenizer(add_words(tokenizer.definition, words).definition)
    theirs = saved_and_opened(new, tmp_path / "t")
    for word, text in zip(words, texts, strict=True):
        segment = new.segments([text])[0]
        added = segment.input_ids >= tokenizer.vocab_size
        ((start, end),) = segment.offsets[added].tolist()
        assert text[start:end] == word
        assert theirs(text)["input_ids"] == new.encode(text).input_ids.tolist()


@pytest.mark.long
def test_a_word_is_one_word(tokenizer):
    for words, says in (
        (["fine", "heart attack"], r"word 2 \('heart attack'\): is several words .*heart', "),
        ([" "], "nothing is left"),
        (["\ud800"], "word 1: lone surrogate"),
    ):
        with pytest.raises(DataError, match=says):
            add_words(tokenizer.definition, words)


@pytest.mark.long
def test_fewer_pieces_give_the_same_tokens(tokenizer, texts, tmp_path):
    is_used = np.zeros(tokenizer.vocab_size, np.bool_)
    for ids in tokenizer.piece_ids(texts):
        is_used[ids] = True
    definition, former = keep_pieces(tokenizer.definition, is_used)
    small = Tokenizer(definition)
    assert small.vocab_size == len(former) < tokenizer.vocab_size / 2
    assert [tokenizer.pieces[at] for at in former] == list(small.pieces)
    kept = np.array(former)
    for one, two in zip(tokenizer.piece_ids(texts), small.piece_ids(texts), strict=True):
        assert one.tolist() == kept[two].tolist()
    # Other texts come apart, but are not unknown.
    other = "Quizzically zigzagging jabberwocky 一 ☃"
    assert small.decode(small.piece_ids([other])[0]).split() == (
        tokenizer.decode(tokenizer.piece_ids([other])[0]).split()
    )
    encoding = small.encode("a", "b")
    assert small.tokens(encoding.input_ids) == tokenizer.tokens(
        tokenizer.encode("a", "b").input_ids
    )
    theirs = saved_and_opened(small, tmp_path / "t")
    assert theirs(texts[0])["input_ids"] == small.encode(texts[0]).input_ids.tolist()
    assert theirs("a", "b")["input_ids"] == encoding.input_ids.tolist()
    again, _ = keep_pieces(definition, np.ones(small.vocab_size, np.bool_))
    assert again.pieces == definition.pieces


@pytest.mark.long
def test_shrunk_tokenizer_keeps_added_words(tokenizer):
    large = Tokenizer(add_words(tokenizer.definition, ["remdesivir"]).definition)
    used = np.zeros(large.vocab_size, np.bool_)
    used[large.piece_ids(["a remdesivir"])[0]] = True
    small = Tokenizer(keep_pieces(large.definition, used)[0])
    assert pieces(small, "a remdesivir") == pieces(large, "a remdesivir")
    assert len(pieces(small, "a remdesivir")) == 2


def test_unsupported_models_are_refused(tmp_path):
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1}, "<unk>"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    with pytest.raises(DataError, match="tokenizer cannot be changed: only those of BERT"):
        add_words(tokenizer.definition, ["b"])
    with pytest.raises(DataError, match="tokenizer cannot be changed: only those of BERT"):
        keep_pieces(tokenizer.definition, np.ones(2, np.bool_))


def unigram(scores: list[tuple[str, float]]) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(tokenizers.models.Unigram([("<unk>", 0.0), *scores], 0))
    library.normalizer = tokenizers.normalizers.NFKC()
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    library.decoder = tokenizers.decoders.Metaspace()
    return library


def test_a_new_piece_is_preferred_only_to_its_former_pieces(tmp_path):
    scores = [(piece, -1.0) for piece in ("\u2581", "a", "b", "c")]
    unigram([*scores, ("bc", -1.5)]).save(str(tmp_path / "tokenizer.json"))
    definition = Tokenizer.load(tmp_path).definition
    new = Tokenizer(add_words(definition, ["ab"]).definition)
    assert pieces(new, "ab") == ["\u2581ab"]
    assert pieces(new, "abc") == pieces(Tokenizer(definition), "abc") == ["\u2581", "a", "bc"]


def test_added_pieces_outside_of_the_vocabulary_are_in_the_way(tmp_path):
    scores = [("\u2581", -2.0), *((letter, -3.0) for letter in "abrez")]
    library = unigram(scores)
    library.save(str(tmp_path / "tokenizer.json"))
    longer = add_words(Tokenizer.load(tmp_path).definition, ["zebra"])
    assert longer.definition.pieces[len(scores) + 1 :] == ("\u2581zebra",)
    library.add_tokens(["<new>"])
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="added pieces that are not in its vocabulary"):
        add_words(Tokenizer.load(tmp_path).definition, ["zebra"])
