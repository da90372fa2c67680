"""WordPiece on words of MeCab and jieba, against the classes of `transformers`.

Both use the same splitter, so one that is not installed is replaced by a simple one.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import re
import sys
import types
from pathlib import Path

import pytest
import transformers

from bertworks.errors import BertworksError, DataError
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.word_splitters import compose

from .test_tokenizer_classes import assert_same_again, assert_same_tokens, open_in_transformers

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
JAPANESE = [
    "東京スカイツリーは、有名な観光名所です。",
    "ｶﾞｲﾄﾞ付きの ＡＢＣ Tokyo Tower㍿ か\u3099 e\u0301",
    "",
    " \u3000 \n",
    "x" * 120,
]
CHINESE = ["东京是日本的首都,人口约1400万。", "Hello, World can't 中文模型!  Élève", "", "x" * 120]


class Word:
    def __init__(self, surface: str) -> None:
        self.surface = surface


def simple_tagger(_options: str):
    pattern = re.compile(r"[\u3041-\u309f]+|[\u30a1-\u30ff]+|[\u4e00-\u9fff]{1,2}|\w+|[^\w\s]")
    return lambda text: [Word(word) for word in pattern.findall(text)]


def simple_jieba(text: str, hmm: bool) -> list[tuple[str, int, int]]:
    assert not hmm
    pattern = re.compile(r"[\u4e00-\u9fff]{1,2}|[A-Za-z0-9]+|.", re.DOTALL)
    return [(found[0], *found.span()) for found in pattern.finditer(text)]


STUBS = {
    "fugashi": {"GenericTagger": simple_tagger},
    "unidic_lite": {"DICDIR": "/nowhere"},
    "ipadic": {"DICDIR": "/nowhere"},
    "rjieba": {"tokenize": simple_jieba},
}


@pytest.fixture
def splitters(monkeypatch):
    """All splitters: those that are installed, and simple ones instead of the others."""
    missing = [name for name in STUBS if importlib.util.find_spec(name) is None]
    if {"fugashi", "unidic_lite", "ipadic"} & set(missing):
        missing = sorted({*missing, "fugashi", "unidic_lite", "ipadic"})
    for name in missing:
        module = types.ModuleType(name)
        vars(module).update(STUBS[name])
        monkeypatch.setitem(sys.modules, name, module)


def write_files(directory: Path, pieces: list[str], **settings: object) -> None:
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def pieces_of(texts: list[str], *, lowercase: bool = False) -> list[str]:
    """Each character of composed texts but for some, alone and within a word; and some words."""
    text, _ = compose("".join(texts))
    letters = sorted({*text, *text.lower()} - {" ", "\n", "\u3000", "名", "口"})
    words = ["東京", "スカイ", "です", "tower", "日本", "中文", "hello"]
    return [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *words]


@pytest.mark.parametrize("subword", ["wordpiece", "character"])
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("mecab", [None, {"mecab_dic": "ipadic", "normalize_text": False}])
def test_japanese_bert_is_read_as_in_transformers(tmp_path, splitters, subword, lowercase, mecab):
    write_files(
        tmp_path,
        pieces_of(JAPANESE),
        tokenizer_class="BertJapaneseTokenizer",
        do_lower_case=lowercase,
        word_tokenizer_type="mecab",
        subword_tokenizer_type=subword,
        mecab_kwargs=mecab,
    )
    tokenizer = Tokenizer.load(tmp_path)
    theirs = open_in_transformers(tmp_path)
    options = {"texts": JAPANESE, "pairs": [(JAPANESE[0], JAPANESE[1])]}
    assert_same_tokens(tokenizer, theirs, **options)
    assert_same_again(tokenizer, "bert", tmp_path / "again", **options)
    assert not (tmp_path / "again" / "tokenizer.json").exists()
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode(JAPANESE[0]).input_ids.tolist() == theirs(JAPANESE[0])["input_ids"]
    assert tokenizer.lowercase is lowercase
    if mecab is None:
        own = tokenizer.segments(JAPANESE[:2])[1]
        pieces = tokenizer.tokens(own.input_ids)
        spans = [JAPANESE[1][start:end] for start, end in own.offsets.tolist()]
        for piece, span in zip(pieces, spans, strict=True):
            composed, _ = compose(span)
            expected = composed.lower() if lowercase else composed
            assert piece == "[UNK]" or piece.removeprefix("##") in expected
        assert {"ｶﾞ", "ﾄﾞ", "か\u3099", "㍿"} <= set(spans)


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"strip_accents": False}])
def test_roformer_is_read_as_in_transformers(tmp_path, splitters, settings):
    write_files(tmp_path, pieces_of(CHINESE), tokenizer_class="RoFormerTokenizer", **settings)
    tokenizer = Tokenizer.load(tmp_path)
    options = {"texts": CHINESE, "pairs": [(CHINESE[0], CHINESE[1])]}
    # From `vocab.txt`, version 5.23 looks words up in the file's name.
    theirs = transformers.RoFormerTokenizer(vocab=dict(tokenizer.definition.ids), **settings)
    assert_same_tokens(tokenizer, theirs, **options)
    assert_same_again(tokenizer, "roformer", tmp_path / "again", **options)
    (segment,) = tokenizer.segments([CHINESE[0]])
    start, end = segment.offsets[0]
    assert CHINESE[0][start:end] in ("东", "东京")


def test_files_that_name_a_word_tokenizer_are_japanese_berts(tmp_path, splitters):
    write_files(tmp_path, pieces_of(JAPANESE), word_tokenizer_type="mecab", do_lower_case=False)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.tokens(tokenizer.piece_ids(["東京です"])[0]) == ["東京", "です"]


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("BertJapaneseTokenizer", "fugashi", "japanese"),
        ("RoFormerTokenizer", "rjieba", "chinese"),
    ],
)
def test_a_missing_splitter_is_named(tmp_path, monkeypatch, name, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    write_files(tmp_path, SPECIAL, tokenizer_class=name, word_tokenizer_type="mecab")
    tokenizer = Tokenizer.load(tmp_path)
    says = rf"class {name} needs the package '{module}'.*bertworks\[{extra}\]"
    with pytest.raises(BertworksError, match=says):
        tokenizer.encode("東京")


@pytest.mark.parametrize(
    "settings",
    [
        {"word_tokenizer_type": "basic"},
        {"word_tokenizer_type": "sudachi"},
        {"word_tokenizer_type": "mecab", "subword_tokenizer_type": "sentencepiece"},
        {"word_tokenizer_type": "mecab", "do_subword_tokenize": False},
        {"word_tokenizer_type": "mecab", "mecab_kwargs": {"mecab_dic": "other"}},
    ],
)
def test_other_japanese_splitters_are_refused(tmp_path, settings):
    write_files(tmp_path, SPECIAL, tokenizer_class="BertJapaneseTokenizer", **settings)
    with pytest.raises(DataError, match=r"sudachi|basic|sentencepiece|must split|other"):
        Tokenizer.load(tmp_path)


def test_words_of_another_library_cannot_be_lowercased_later(tmp_path, splitters):
    write_files(tmp_path, SPECIAL, tokenizer_class="RoFormerTokenizer", do_lower_case=False)
    with pytest.raises(DataError, match="cannot lower-case"):
        Tokenizer.load(tmp_path).to_lowercase()
    uncased = Tokenizer.load(tmp_path, lowercase=True)
    assert uncased.to_lowercase().fingerprint == uncased.fingerprint


def test_composed_characters_know_their_sources():
    text, origin = compose("aｶﾞ㍿か\u3099b")
    assert text == "aガ株式会社がb"
    assert origin is not None
    assert origin.tolist() == [[0, 1], [1, 3], *[[3, 4]] * 4, [4, 6], [6, 7]]
    assert compose("plain") == ("plain", None)
