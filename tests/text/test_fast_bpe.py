"""PhoBERT's and BERTweet's byte-pair encoding, and ESM's letters, against `transformers`."""

from __future__ import annotations

import json
import pickle
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import transformers

from bertworks.errors import DataError
from bertworks.text.tokenizer import Tokenizer

from .test_tokenizer_classes import PAIRS, TEXTS, assert_same_again, assert_same_tokens

CLASSES = {
    "PhobertTokenizer": transformers.PhobertTokenizer,
    "BertweetTokenizer": transformers.BertweetTokenizer,
}
MORE = ["một hai ba\nbốn", "the them then these the", "a <mask> b </s>", "\n x\n\ny \u00a0z\u2003w"]


def learn_codes(texts: list[str], count: int) -> list[tuple[str, str]]:
    """The most frequent pairs, merged one after the other (Sennrich et al. 2016, algorithm 1)."""
    words = Counter(word for text in texts for word in text.split())
    split = {word: [*word[:-1], f"{word[-1]}</w>"] for word in words}
    codes: list[tuple[str, str]] = []
    for _ in range(count):
        pairs = Counter(
            pair
            for word, parts in split.items()
            for pair in pairwise(parts)
            for _ in range(words[word])
        )
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        codes.append(best)
        for word, parts in split.items():
            split[word] = merge(parts, best)
    return codes


def merge(parts: list[str], pair: tuple[str, str]) -> list[str]:
    merged_parts: list[str] = []
    for part in parts:
        if merged_parts and (merged_parts[-1], part) == pair:
            merged_parts[-1] += part
        else:
            merged_parts.append(part)
    return merged_parts


@pytest.fixture(scope="module", params=CLASSES)
def directory(request, tmp_path_factory) -> Path:
    """Files of a small vocabulary without some letters and some merged parts."""
    folder = tmp_path_factory.mktemp(request.param)
    codes = learn_codes([*TEXTS, *MORE], 120)
    (folder / "bpe.codes").write_text("".join(f"{a} {b} 7\n" for a, b in codes), "utf-8")
    parts = {part for pair in codes for part in (*pair, "".join(pair))}
    parts |= {letter for text in TEXTS[:4] for letter in text if letter.strip()}
    pieces = [
        part.removesuffix("</w>") if part.endswith("</w>") else f"{part}@@"
        for number, part in enumerate(sorted(parts))
        if number % 9
    ]
    (folder / "vocab.txt").write_text("".join(f"{piece} 5\n" for piece in pieces), "utf-8")
    settings = {"tokenizer_class": request.param}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_fast_bpe_is_read_as_in_transformers(directory, tmp_path):
    theirs = CLASSES[
        json.loads((directory / "tokenizer_config.json").read_text())["tokenizer_class"]
    ]
    theirs = theirs.from_pretrained(directory)
    tokenizer = Tokenizer.load(directory)
    plain = [text for text in [*TEXTS, *MORE] if "<mask>" not in text]
    assert_same_tokens(tokenizer, theirs, texts=plain, pairs=PAIRS)
    assert tokenizer.vocab_size == len(theirs)
    assert list(tokenizer.pieces) == theirs.convert_ids_to_tokens(range(len(theirs)))
    assert_same_again(tokenizer, "roberta", tmp_path / "again", texts=plain)
    ids = [number for number in tokenizer.encode("the these").input_ids if number != 3]
    assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.piece_ids([TEXTS[0]])[0].tolist() == tokenizer.piece_ids([TEXTS[0]])[0].tolist()
    unknown = sum(tokenizer.piece_ids([text])[0].tolist().count(3) for text in plain)
    assert unknown > 5


def test_typed_mask_becomes_the_mask_token_only_with_typed_mask(directory):
    tokenizer = Tokenizer.load(directory)
    masked = tokenizer.encode("the <mask> then", typed_mask=True).input_ids
    assert masked.tolist().count(tokenizer.mask_id) == 1
    assert tokenizer.mask_id not in tokenizer.encode("the <mask> then").input_ids


def test_offsets_and_words_of_fast_bpe_are_right(directory):
    tokenizer = Tokenizer.load(directory)
    (segment,) = tokenizer.segments(["them  these"])
    pieces = tokenizer.tokens(segment.input_ids)
    spans = ["them  these"[start:end] for start, end in segment.offsets.tolist()]
    for piece, span in zip(pieces, spans, strict=True):
        assert piece in ("<unk>", span, f"{span}@@")
    assert "".join(spans) == "themthese"
    with pytest.raises(DataError, match="cannot lower-case"):
        tokenizer.to_lowercase()
    continues = tokenizer.continues_word(segment.input_ids).tolist()
    known = "<unk>" not in pieces
    assert not known or continues == [
        number > 0 and segment.word_ids[number] == segment.word_ids[number - 1]
        for number in range(len(pieces))
    ]


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("vocab.txt", "a 1\nb\n", r"vocab.txt:2: not a piece and a number"),
        ("bpe.codes", "a b</w> 1\na b\n", r"bpe.codes:2: not two parts and a number"),
        ("bpe.codes", None, "bpe.codes"),
    ],
)
def test_damaged_files_are_named(directory, tmp_path, file, content, says):
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(DataError, match=says):
        Tokenizer.load(tmp_path)


PROTEINS = [
    "MKTVRQERLK",
    "M K  T\nX*x",
    "ACDEFGHIKLMNPQRSTVWYXBUZO.-",
    "",
    "<cls> abc",
    "M<null_1>K",
]


def test_esm_is_read_as_in_transformers(tmp_path):
    pieces = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-"]
    pieces += ["<null_1>", "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    (tmp_path / "config.json").write_text('{"model_type": "esm"}')
    theirs = transformers.EsmTokenizer.from_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert list(tokenizer.pieces) == pieces
    tokenizer.save(tmp_path / "again")
    (tmp_path / "again" / "config.json").write_text('{"model_type": "esm"}')
    reopened_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    for text in [*((text,) for text in PROTEINS), ("MK", "TV")]:
        if "<cls>" in text[0]:  # typed special pieces are text here
            assert tokenizer.encode(*text).input_ids.tolist() == [0, 3, 3, 2]
            continue
        expected = theirs(*text)["input_ids"]
        assert tokenizer.encode(*text).input_ids.tolist() == expected, text
        assert reopened_tokenizer(*text)["input_ids"] == expected, text
    assert Tokenizer.load(tmp_path / "again").fingerprint == tokenizer.fingerprint
    masked = tokenizer.encode("M<mask>K", typed_mask=True).input_ids.tolist()
    assert masked == theirs("M<mask>K")["input_ids"]
    assert tokenizer.mask_id not in tokenizer.encode("M<mask>K").input_ids
    (segment,) = tokenizer.segments(["M K<null_1>"])
    assert segment.offsets.tolist() == [[0, 1], [2, 3], [3, 11]]


def test_added_pieces_outside_the_vocabulary_are_refused(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "m")
    last = len(Tokenizer.load(directory).definition.pieces)
    file = tmp_path / "m" / "added_tokens.json"
    file.write_text(json.dumps({"<mask>": last - 1}))
    assert Tokenizer.load(file.parent).vocab_size == last
    file.write_text(json.dumps({"<mask>": last - 1, "<e1>": last}))
    with pytest.raises(DataError, match="the added piece '<e1>' is not in vocab"):
        Tokenizer.load(file.parent)
