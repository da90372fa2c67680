"""Tokenizers of other families, each against an independent implementation, offsets included."""

from __future__ import annotations

import io
import json
import pickle
import re
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bertworks.errors import DataError
from bertworks.text.tokenizer import Tokenizer

from .bpe_oracle import ByteLevelOracle, word_oracle

LANGUAGES = ("ar", "de", "en", "hi", "th", "zh")
# Every text takes minutes; the quick tests take each seventh.
each_text = pytest.mark.parametrize(
    "step", [pytest.param(7, id="sample"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)


def xquad(data_dir: Path, language: str) -> list[str]:
    tree = json.loads((data_dir / "xquad" / f"xquad.{language}.json").read_text(encoding="utf-8"))
    paragraphs = [p for article in tree["data"] for p in article["paragraphs"]]
    texts = [paragraph["context"] for paragraph in paragraphs]
    return texts + [question["question"] for p in paragraphs for question in p["qas"]]


# ---------------------------------------------------------------------------- RoBERTa, byte-level


@pytest.fixture(scope="module")
def roberta_files(data_dir: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("roberta")
    lines = (data_dir / "vocab" / "gpt2-vocab-lines.txt").read_text(encoding="utf-8").split("\n")
    pieces = lines[:-1] if lines[-1] == "" else lines
    ids = {piece: number for number, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(ids))
    merges = (data_dir / "vocab" / "gpt2-merges.txt").read_text(encoding="utf-8")
    (folder / "merges.txt").write_text(merges, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def roberta(roberta_files: Path) -> Tokenizer:
    return Tokenizer.load(roberta_files)


@pytest.fixture(scope="module")
def byte_level(roberta_files: Path) -> ByteLevelOracle:
    lines = (roberta_files / "merges.txt").read_text(encoding="utf-8").split("\n")[1:]
    return ByteLevelOracle([tuple(line.split(" ")) for line in lines if line])


@each_text
@pytest.mark.parametrize("language", LANGUAGES)
def test_byte_level_bpe(roberta, byte_level, data_dir, language, step):
    texts = xquad(data_dir, language)
    assert len(texts) == 240 + 1190
    texts = texts[::step]
    for text, segment in zip(texts, roberta.segments(texts), strict=True):
        expected = byte_level.tokenize(text)
        assert roberta.tokens(segment.input_ids) == [token for token, *_ in expected]
        assert segment.offsets.tolist() == [[start, end] for _, start, end in expected]


def test_roberta_frames_pairs_with_two_separators(roberta):
    encoding = roberta.encode("Hello world", "again")
    assert roberta.tokens(encoding.input_ids) == [
        *["<s>", "Hello", "Ġworld", "</s>", "</s>", "again", "</s>"]
    ]
    assert encoding.token_type_ids.tolist() == [0] * 7
    assert encoding.offsets.tolist() == [[0, 0], [0, 5], [6, 11], [0, 0], [0, 0], [0, 5], [0, 0]]
    assert roberta.num_special_tokens(pair=True) == 4
    short = roberta.encode("one two three", "four five", max_length=7, truncation="longest_first")
    assert (short.num_tokens, short.truncated_tokens) == (7, 2)


def test_a_typed_special_token_is_text(roberta):
    for text in ("<s>", "a <mask> b", "</s>", "<pad>"):
        ids = roberta.piece_ids([text])[0]
        assert not set(ids.tolist()) & set(roberta.special_ids.tolist()), text
        assert roberta.decode(ids) == text
    masked = roberta.encode("a <mask> b", typed_mask=True)
    assert roberta.tokens(masked.input_ids) == ["<s>", "a", "<mask>", "Ġb", "</s>"]


def test_words_that_are_split_already_begin_like_words(roberta):
    encoding = roberta.encode_words(["Hello", "unaffable", "world"])
    tokens = roberta.tokens(encoding.input_ids)
    assert [tokens[1], tokens[-2]] == ["ĠHello", "Ġworld"]
    assert encoding.word_ids.tolist()[:2] == [-1, 0]
    assert max(encoding.word_ids.tolist()) == 2
    assert encoding.offsets.tolist()[1] == [0, 5]


def test_saving_hands_the_files_back(roberta, roberta_files, tmp_path):
    roberta.save(tmp_path)
    for name in ("vocab.json", "merges.txt"):
        assert (tmp_path / name).read_bytes() == (roberta_files / name).read_bytes()
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == roberta.fingerprint
    assert pickle.loads(pickle.dumps(roberta)).fingerprint == roberta.fingerprint
    text = "It's  naïve – “quoted” 中文\n"
    assert again.encode(text).input_ids.tolist() == roberta.encode(text).input_ids.tolist()
    assert roberta.decode(roberta.piece_ids([text])[0]) == text
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(text)["input_ids"] == roberta.encode(text).input_ids.tolist()
    assert theirs.mask_token_id == roberta.mask_id


def test_which_pieces_go_on_a_word(roberta):
    ids = roberta.piece_ids(["The unaffable one"])[0]
    goes_on = roberta.continuation[ids].tolist()
    tokens = roberta.tokens(ids)
    assert [not token.startswith("Ġ") for token in tokens] == goes_on
    assert not roberta.continuation[roberta.special_ids].any()


# --------------------------------------------------------------------------- ALBERT, SentencePiece


@pytest.fixture(scope="module")
def albert_files(data_dir: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("albert")
    model = (data_dir / "vocab" / "albert-spiece.model").read_bytes()
    (folder / "spiece.model").write_bytes(model)
    return folder


def albert_preprocessed(text: str) -> str:
    """What ALBERT's own code does before SentencePiece sees the text."""
    text = " ".join(text.strip().split()).replace("``", '"').replace("''", '"')
    text = unicodedata.normalize("NFKD", text)
    return "".join(char for char in text if not unicodedata.combining(char)).lower()


def albert_pieces(model: sentencepiece.SentencePieceProcessor, text: str) -> list[str]:
    """SentencePiece's pieces, and a comma cut off the numbers that it is one piece with."""
    found: list[str] = []
    for piece in model.encode(albert_preprocessed(text), out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            parts = model.encode(piece[:-1].replace("▁", ""), out_type=str)
            if piece[0] != "▁" and parts[0][0] == "▁":
                parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
            found += [*parts, piece[-1]]
        else:
            found.append(piece)
    return found


def is_unseen(char: str) -> bool:
    """White space, and characters that have no width."""
    return char.isspace() or unicodedata.category(char) in ("Cf", "Cc")


def sentencepieces(
    model: sentencepiece.SentencePieceProcessor, text: str
) -> list[tuple[int, int, int]]:
    """SentencePiece's own pieces: id, and the characters that they came from, in part at least.

    Where each character of the normalised text came from is its own account too. What cannot be
    seen, before a piece and behind it, is left out.
    """
    normalized, origins = model.normalize(text, with_offsets=True)
    found = []
    at = 0
    for piece in model.encode(text, return_type="proto").pieces:
        first, at = at, at + len(piece.piece)
        assert normalized[first:at] == piece.piece
        start, last = origins[first], origins[at - 1]
        end = next((origin for origin in origins[at:] if origin > last), len(text))
        while start < end and is_unseen(text[start]):
            start += 1
        while end > start and is_unseen(text[end - 1]):
            end -= 1
        found.append((piece.id, start, start if piece.piece == "▁" else end))
    return found


@each_text
@pytest.mark.parametrize("language", LANGUAGES)
def test_sentencepiece_of_albert(albert_files, data_dir, language, step):
    model = sentencepiece.SentencePieceProcessor(str(albert_files / "spiece.model"))
    tokenizer = Tokenizer.load(albert_files)
    assert [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id] == [0, 1, 2]
    assert [tokenizer.sep_id, tokenizer.mask_id] == [3, 4]
    texts = xquad(data_dir, language)[::step]
    different = [
        text
        for text, ids in zip(texts, tokenizer.piece_ids(texts), strict=True)
        if ids.tolist() != [model.piece_to_id(p) for p in albert_pieces(model, text)]
    ]
    assert different == []


@each_text
@pytest.mark.parametrize("language", LANGUAGES)
def test_offsets_of_sentencepiece(albert_files, data_dir, language, tmp_path, step):
    (tmp_path / "spiece.model").write_bytes((albert_files / "spiece.model").read_bytes())
    config = {"do_lower_case": False, "keep_accents": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path)
    model = sentencepiece.SentencePieceProcessor(str(tmp_path / "spiece.model"))
    # Not those that are changed before, or whose numbers lose a comma.
    plain = [t for t in xquad(data_dir, language) if not re.search(r"``|''|\d,", t)]
    texts = plain[::step]
    for text, segment in zip(texts, tokenizer.segments(texts), strict=True):
        expected = [(start, end) for _, start, end in sentencepieces(model, text)]
        assert [tuple(offsets) for offsets in segment.offsets.tolist()] == expected, text


def test_a_special_piece_is_not_found_in_the_lattice(albert_files):
    tokenizer = Tokenizer.load(albert_files)
    for text in ("[CLS]", "a [MASK] b", "<pad>", "<unk>", "x[SEP]y"):
        ids = tokenizer.piece_ids([text])[0].tolist()
        assert not {0, 2, 3, 4} & set(ids), text
    masked = tokenizer.encode("a [MASK] b", typed_mask=True)
    assert masked.input_ids.tolist().count(tokenizer.mask_id) == 1


# ------------------------------------------------------- XLM-RoBERTa and CamemBERT, fairseq's ids


@pytest.fixture(scope="module")
def fairseq_model(data_dir: Path, tmp_path_factory) -> Path:
    """A small SentencePiece model of six languages, trained as fairseq's were."""
    folder = tmp_path_factory.mktemp("fairseq")
    texts = [t for language in LANGUAGES for t in xquad(data_dir, language)[:240]]
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=written,
        vocab_size=4000,
        model_type="unigram",
        num_threads=1,
        minloglevel=2,
    )
    (folder / "sentencepiece.bpe.model").write_bytes(written.getvalue())
    return folder


@each_text
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("family", "shift", "unk"), [("xlm-roberta", 1, 3), ("camembert", 4, 3)])
def test_fairseqs_ids(fairseq_model, data_dir, language, family, shift, unk, step):
    (fairseq_model / "config.json").write_text(json.dumps({"model_type": family}))
    tokenizer = Tokenizer.load(fairseq_model)
    model = sentencepiece.SentencePieceProcessor(str(fairseq_model / "sentencepiece.bpe.model"))
    assert tokenizer.tokens(tokenizer.encode("", "").input_ids)[1:-1] == ["</s>", "</s>"]
    texts = xquad(data_dir, language)[::step]
    for text, segment in zip(texts, tokenizer.segments(texts), strict=True):
        expected = sentencepieces(model, text)
        ids = [number + shift if number else unk for number, *_ in expected]
        assert segment.input_ids.tolist() == ids, text
        offsets = [tuple(pair) for pair in segment.offsets.tolist()]
        assert offsets == [(start, end) for _, start, end in expected], text


# ----------------------------------------------------------------------------------- the first GPT


@pytest.fixture(scope="module")
def gpt_files(data_dir: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gpt")
    library = Library(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=["<unk>"],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    library.train_from_iterator(xquad(data_dir, "en")[:240], trainer)
    library.model.save(str(folder))
    return folder


@each_text
@pytest.mark.parametrize("language", LANGUAGES)
def test_bpe_of_the_first_gpt(gpt_files, data_dir, language, step):
    tokenizer = Tokenizer.load(gpt_files)
    lines = (gpt_files / "merges.txt").read_text(encoding="utf-8").split("\n")[1:]
    bert = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    oracle = word_oracle(
        [tuple(line.split(" ")) for line in lines if line],
        bert.normalization.words,
        set(tokenizer.pieces),
    )
    texts = xquad(data_dir, language)[::step]
    for text, ids in zip(texts, tokenizer.piece_ids(texts), strict=True):
        assert tokenizer.tokens(ids) == oracle(text)
    assert tokenizer.encode("hello").num_tokens == len(tokenizer.piece_ids(["hello"])[0])
    assert not tokenizer.has("mask")
    with pytest.raises(DataError, match="has no mask token"):
        tokenizer.encode("a", typed_mask=True)


# ------------------------------------------------------------------------------------------ damage


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("spiece.model", b"not a model", "no SentencePiece model"),
        ("spiece.model", b"", "no SentencePiece model"),
        ("merges.txt", b"#version: 0.2\na b\n", "no such file"),
        ("tokenizer.json", b'{"model": {"type": "BPE"}}', "added_tokens is missing"),
        (
            "tokenizer.json",
            b'{"model": {"type": "Nothing"}, "added_tokens": [], "normalizer": null, '
            b'"pre_tokenizer": null, "decoder": null}',
            "tokenizer",
        ),
    ],
)
def test_damaged_files_are_said(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        Tokenizer.load(tmp_path)


def test_a_merge_of_unknown_pieces_is_said(tmp_path):
    (tmp_path / "vocab.json").write_text('{"<s>": 0, "a": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(DataError, match=r"merges\.txt:2: 'b' is not in the vocabulary"):
        Tokenizer.load(tmp_path)
