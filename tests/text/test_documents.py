"""Sentences of a document: their tokens are the document's, by the libraries that made them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from bertworks.text import segmenter
from bertworks.text.segmenter import Portion
from bertworks.text.sentences import LANGUAGES as LANGUAGES_WITH_RULES
from bertworks.text.sentences import sentence_ids, sentence_tokens, split_sentences
from bertworks.text.tokenizer import Tokenizer

LANGUAGES = ("ar", "de", "en", "hi", "th", "zh")


def xquad(data_dir: Path, language: str) -> list[list[str]]:
    """Each paragraph as a document of sentences."""
    tree = json.loads((data_dir / "xquad" / f"xquad.{language}.json").read_text(encoding="utf-8"))
    paragraphs = [p["context"] for article in tree["data"] for p in article["paragraphs"]]
    rules = language if language in LANGUAGES_WITH_RULES else "en"
    return [split_sentences(paragraph, rules) for paragraph in paragraphs[:12]]


def flat(parts: list) -> list[int]:
    return [number for part in parts for number in part.tolist()]


@pytest.fixture(scope="module")
def roberta(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("roberta")
    lines = (data_dir / "vocab" / "gpt2-vocab-lines.txt").read_text(encoding="utf-8").split("\n")
    (folder / "vocab.json").write_text(json.dumps({p: n for n, p in enumerate(lines) if p}))
    merges = (data_dir / "vocab" / "gpt2-merges.txt").read_text(encoding="utf-8")
    (folder / "merges.txt").write_text(merges, encoding="utf-8")
    Tokenizer.load(folder).save(folder, overwrite=True)
    return folder


@pytest.fixture(scope="module")
def roberta_tokenizer(roberta: Path) -> Tokenizer:
    return Tokenizer.load(roberta)


@pytest.mark.long
@pytest.mark.parametrize("chunk_characters", [1 << 16, 150])
def test_byte_level_pieces_are_the_whole_documents(
    roberta_tokenizer: Tokenizer,
    roberta: Path,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    chunk_characters: int,
) -> None:
    """However often a long document is cut into texts for the library."""
    monkeypatch.setattr("bertworks.text.sentences._CHUNK_CHARACTERS", chunk_characters)
    oracle = PreTrainedTokenizerFast(tokenizer_file=str(roberta / "tokenizer.json"))
    for language in LANGUAGES:
        texts = xquad(data_dir, language)
        ids = sentence_ids(roberta_tokenizer, texts)
        assert len(ids) == sum(map(len, texts))
        start = 0
        for sentences in texts:
            whole = oracle(" ".join(sentences), add_special_tokens=False)["input_ids"]
            assert flat(ids[start : start + len(sentences)]) == whole
            first, *others = (
                roberta_tokenizer.tokens(part) for part in ids[start : start + len(sentences)]
            )
            assert not first[0].startswith("Ġ")
            assert all(pieces[0].startswith("Ġ") for pieces in others)
            start += len(sentences)


def test_a_sentence_alone_would_have_other_pieces(roberta_tokenizer: Tokenizer) -> None:
    pair = ["It is so.", "Unaffable people say it."]
    first, second = map(roberta_tokenizer.tokens, sentence_ids(roberta_tokenizer, [pair]))
    assert first[0] == "It"
    assert second[0] == "ĠUn"
    assert roberta_tokenizer.tokens(roberta_tokenizer.piece_ids(pair[1:])[0])[0] == "Un"


@pytest.mark.long
def test_sentencepieces_are_the_whole_documents(data_dir: Path, tmp_path: Path) -> None:
    content = (data_dir / "vocab" / "albert-spiece.model").read_bytes()
    (tmp_path / "spiece.model").write_bytes(content)
    config = {"do_lower_case": False, "keep_accents": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    tokenizer = Tokenizer.load(tmp_path)
    for language in LANGUAGES:
        for sentences in xquad(data_dir, language):
            text = " ".join(sentences)
            if "``" in text or "''" in text or any(f"{n}," in text for n in range(10)):
                continue  # ALBERT's own code changes these
            assert flat(sentence_ids(tokenizer, [sentences])) == model.encode(text)


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(
        st.lists(
            st.text("aB .,é中力😀'\x07\u0301", min_size=1, max_size=9).map(str.strip).filter(bool),
            min_size=1,
            max_size=4,
        ),
        max_size=4,
    )
)
def test_offsets_are_the_sentences_own(
    roberta_tokenizer: Tokenizer, texts: list[list[str]]
) -> None:
    """Each token's characters lie in its sentence; together they cover all that can be seen."""
    encodings = sentence_tokens(roberta_tokenizer, texts)
    sentences = [sentence for document in texts for sentence in document]
    assert [tokens.input_ids.tolist() for tokens in encodings] == [
        ids.tolist() for ids in sentence_ids(roberta_tokenizer, texts)
    ]
    for sentence, tokens in zip(sentences, encodings, strict=True):
        covered_positions = set()
        for start, end in tokens.offsets.tolist():
            assert 0 <= start <= end <= len(sentence)
            covered_positions |= set(range(start, end))
        assert {at for at, char in enumerate(sentence) if not char.isspace()} <= covered_positions


@pytest.mark.parametrize("limit", [1, 20, 50])
def test_memory_is_bounded_by_characters(
    roberta_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """The library is not given more together, however long a document is; nothing else changes."""
    wordpiece = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "."])
    texts = [["a a."] * 9, [], ["a" * 60, "."], ["a."]]
    monkeypatch.setattr("bertworks.text.sentences._CHUNK_CHARACTERS", 8)
    groups: list[list[str]] = []
    group_portions = segmenter.group_portions
    for tokenizer in (wordpiece, roberta_tokenizer):
        whole, ids = sentence_tokens(tokenizer, texts), sentence_ids(tokenizer, texts)
        with monkeypatch.context() as context:

            def record_groups(parts: Iterable[Portion]) -> Iterator[list[Portion]]:
                for group in group_portions(parts):
                    groups.append([str(part.text) for part in group])
                    yield group

            context.setattr(segmenter, "group_portions", record_groups)
            context.setattr(segmenter, "_CHUNK_CHARACTERS", limit)
            encodings = sentence_tokens(tokenizer, texts)
            assert flat(sentence_ids(tokenizer, texts)) == flat(ids)
        assert all(sum(map(len, part[:-1])) < limit for part in groups)
        for one, two in zip(encodings, whole, strict=True):
            assert one.input_ids.tolist() == two.input_ids.tolist()
            assert one.offsets.tolist() == two.offsets.tolist()


def test_words_of_wordpiece_need_no_context() -> None:
    tokenizer = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "."])
    texts = [["a.", "A a."], [], ["."]]
    expected = [[5, 6], [5, 5, 6], [6]]
    assert [ids.tolist() for ids in sentence_ids(tokenizer, texts)] == expected
    found = sentence_tokens(tokenizer, texts)
    assert [tokens.offsets.tolist() for tokens in found] == [
        [[0, 1], [1, 2]],
        [[0, 1], [2, 3], [3, 4]],
        [[0, 1]],
    ]
