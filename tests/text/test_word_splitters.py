"""WordPiece on words of MeCab and jieba, against the classes of `transformers`.

Both use the same splitter, so one that is not installed is replaced by a simple one.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import json
import pickle
import re
import shutil
import sys
import types
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
import transformers

from bertworks.errors import BertworksError, DataError
from bertworks.text.aligned_text import AlignedText
from bertworks.text.tokenizer import Tokenizer

from .test_tokenizer_classes import assert_same_again, assert_same_tokens, open_in_transformers

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
JAPANESE = [
    "東京スカイツリーは、有名な観光名所です。",
    "ｶﾞｲﾄﾞ付きの ＡＢＣ Tokyo Tower㍿ か\u3099 e\u0301",
    "ΟΔΟΣ, Élève's\u3000 ２０\ufffd\u200b「İ」",
    "",
    " \u3000 \n",
    "x" * 120,
]
CHINESE = ["东京是日本的首都,人口约1400万。", "Hello, World can't 中文模型!  Élève", "", "x" * 120]


SIMPLE_WORDS = r"[\u3041-\u309f]+|[\u30a1-\u30ff]+|[\u4e00-\u9fff]{1,2}|\w+|[^\w\s]"


def simple_tagger(_options: str):
    pattern = re.compile(SIMPLE_WORDS)
    return lambda text: [types.SimpleNamespace(surface=word) for word in pattern.findall(text)]


class SimpleSudachi:
    """White space is a word, as in Sudachi; in mode C, words are longer."""

    class SplitMode:
        A, B, C = "", "", "+"

    def __init__(self, **_options: object) -> None:
        pass

    def create(self, mode: str, projection: None = None):
        pattern = re.compile(rf"(?:{SIMPLE_WORDS}){mode}|\s+")

        def tokenize(text: str) -> list[types.SimpleNamespace]:
            words = pattern.findall(text)
            return [types.SimpleNamespace(surface=lambda word=word: word) for word in words]

        return types.SimpleNamespace(tokenize=tokenize)


class SimpleJumanpp:
    def is_available(self) -> bool:
        return True

    def apply_to_sentence(self, text: str) -> types.SimpleNamespace:
        words = re.findall(rf"{SIMPLE_WORDS}|\s", text)
        return types.SimpleNamespace(morphemes=[types.SimpleNamespace(text=word) for word in words])


def simple_jieba(text: str, hmm: bool) -> list[tuple[str, int, int]]:
    assert not hmm
    pattern = re.compile(r"[\u4e00-\u9fff]{1,2}|[A-Za-z0-9]+|.", re.DOTALL)
    return [(found[0], *found.span()) for found in pattern.finditer(text)]


STUBS = {
    "fugashi": {"GenericTagger": simple_tagger},
    "unidic_lite": {"DICDIR": "/nowhere"},
    "ipadic": {"DICDIR": "/nowhere"},
    "rjieba": {"tokenize": simple_jieba},
    "sudachipy": {
        "SplitMode": SimpleSudachi.SplitMode,
        "Dictionary": SimpleSudachi,
        "dictionary": types.SimpleNamespace(Dictionary=SimpleSudachi),
        "tokenizer": types.SimpleNamespace(Tokenizer=SimpleSudachi),
    },
    "sudachidict_core": {},
    "rhoknp": {"Jumanpp": SimpleJumanpp},
}
MODULE_GROUPS = [{"fugashi", "unidic_lite", "ipadic"}, {"sudachipy", "sudachidict_core"}]
"""Modules of which all are replaced if one is missing."""


@pytest.fixture
def splitters(monkeypatch):
    """All splitters: those that are installed, and simple ones instead of the others."""
    missing = {name for name in STUBS if importlib.util.find_spec(name) is None}
    for modules in MODULE_GROUPS:
        missing |= modules if modules & missing else set()
    if shutil.which("jumanpp") is None:
        missing.add("rhoknp")
    for name in missing:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update(STUBS[name])
        monkeypatch.setitem(sys.modules, name, module)


def write_files(directory: Path, pieces: list[str], **settings: object) -> None:
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def compose(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def pieces_of(texts: list[str], *, lowercase: bool = False) -> list[str]:
    """Each character of composed texts but for some, alone and within a word; and some words."""
    text = compose("".join(texts))
    letters = sorted({*text, *text.lower()} - {" ", "\n", "\u3000", "名", "口"})
    words = ["東京", "スカイ", "です", "tower", "日本", "中文", "hello"]
    return [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *words]


WORD_SETTINGS = {
    "basic": {"word_tokenizer_type": "basic"},
    "whole text": {"do_word_tokenize": False},
    "mecab": {"word_tokenizer_type": "mecab"},
    "ipadic": {
        "word_tokenizer_type": "mecab",
        "mecab_kwargs": {"mecab_dic": "ipadic", "normalize_text": False},
    },
    "sudachi": {"word_tokenizer_type": "sudachi"},
    "sudachi trimmed": {
        "word_tokenizer_type": "sudachi",
        "sudachi_kwargs": {"sudachi_split_mode": "C", "trim_whitespace": True},
    },
    "jumanpp": {"word_tokenizer_type": "jumanpp"},
    "jumanpp trimmed": {
        "word_tokenizer_type": "jumanpp",
        "jumanpp_kwargs": {"normalize_text": False, "trim_whitespace": True},
    },
}


@pytest.fixture(scope="module")
def spiece_model() -> bytes:
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(JAPANESE * 3),
        model_writer=buffer,
        vocab_size=150,
        hard_vocab_limit=False,
        character_coverage=0.98,
        control_symbols=",".join(piece for piece in SPECIAL if piece != "[UNK]"),
        unk_piece="[UNK]",
        num_threads=1,
        minloglevel=2,
    )
    return buffer.getvalue()


@pytest.mark.long
@pytest.mark.parametrize("subword", ["wordpiece", "character", "sentencepiece"])
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("words", WORD_SETTINGS)
@pytest.mark.filterwarnings("ignore:Dictionary.create")  # in `transformers`, of version 0.7
def test_japanese_bert_is_read_as_in_transformers(
    tmp_path, splitters, spiece_model, subword, lowercase, words
):
    write_files(
        tmp_path,
        pieces_of(JAPANESE),
        tokenizer_class="BertJapaneseTokenizer",
        do_lower_case=lowercase,
        subword_tokenizer_type=subword,
        **WORD_SETTINGS[words],
    )
    if subword == "sentencepiece":
        (tmp_path / "vocab.txt").unlink()
        (tmp_path / "spiece.model").write_bytes(spiece_model)
    tokenizer = Tokenizer.load(tmp_path)
    theirs = open_in_transformers(tmp_path)
    options = {"texts": JAPANESE, "pairs": [(JAPANESE[0], JAPANESE[1])]}
    assert_same_tokens(tokenizer, theirs, **options)
    assert_same_again(tokenizer, "bert", tmp_path / "again", **options)
    assert not (tmp_path / "again" / "tokenizer.json").exists()
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode(JAPANESE[0]).input_ids.tolist() == theirs(JAPANESE[0])["input_ids"]
    assert tokenizer.lowercase is (lowercase and words != "whole text")
    if words == "mecab" and subword != "sentencepiece":
        own = tokenizer.segments(JAPANESE[:2])[1]
        pieces = tokenizer.tokens(own.input_ids)
        spans = [JAPANESE[1][start:end] for start, end in own.offsets.tolist()]
        for piece, span in zip(pieces, spans, strict=True):
            expected = compose(span).lower() if lowercase else compose(span)
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
        ("BertJapaneseTokenizer", "sudachipy", "sudachi"),
        ("BertJapaneseTokenizer", "rhoknp", "jumanpp"),
    ],
)
def test_a_missing_splitter_is_named(tmp_path, monkeypatch, name, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    kind = extra if extra in ("sudachi", "jumanpp") else "mecab"
    write_files(tmp_path, SPECIAL, tokenizer_class=name, word_tokenizer_type=kind)
    tokenizer = Tokenizer.load(tmp_path)
    says = rf"class {name} needs the package '{module}'.*bertworks\[{extra}\]"
    with pytest.raises(BertworksError, match=says):
        tokenizer.encode("東京")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"word_tokenizer_type": "kytea"}, "word_tokenizer_type is 'kytea'"),
        ({"subword_tokenizer_type": "bpe"}, "subword_tokenizer_type is 'bpe'"),
        ({"do_subword_tokenize": False}, "do_subword_tokenize is False"),
        ({"never_split": ["Tokyo"]}, r"never_split is \['Tokyo'\]"),
        ({"mecab_kwargs": {"mecab_dic": "other"}}, "mecab_kwargs.mecab_dic is 'other'"),
        (
            {"sudachi_kwargs": {"sudachi_projection": "reading"}},
            "sudachi_kwargs.sudachi_projection is 'reading'",
        ),
        ({"subword_tokenizer_type": "sentencepiece"}, r"there is no spiece\.model"),
    ],
)
def test_other_japanese_settings_are_refused(tmp_path, settings, says):
    write_files(tmp_path, SPECIAL, tokenizer_class="BertJapaneseTokenizer", **settings)
    with pytest.raises(DataError, match=says):
        Tokenizer.load(tmp_path)


def test_programs_and_dictionaries_that_are_missing_are_named(tmp_path, splitters, monkeypatch):
    settings = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "jumanpp"}
    write_files(tmp_path, SPECIAL, **settings)
    monkeypatch.setattr(sys.modules["rhoknp"].Jumanpp, "is_available", lambda _self: False)
    with pytest.raises(BertworksError, match=r"needs the program jumanpp.*Install Juman"):
        Tokenizer.load(tmp_path).encode("東京")
    settings |= {"word_tokenizer_type": "sudachi", "sudachi_kwargs": {"sudachi_dict_type": "full"}}
    write_files(tmp_path, SPECIAL, **settings)
    with pytest.raises(BertworksError, match=r"needs the package 'sudachidict_full'.*pip install"):
        Tokenizer.load(tmp_path).encode("東京")


def test_a_word_that_is_not_in_its_text_is_an_error(tmp_path, splitters, monkeypatch):
    settings = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "jumanpp"}
    write_files(tmp_path, SPECIAL, **settings)
    other = types.SimpleNamespace(morphemes=[types.SimpleNamespace(text="京都")])
    jumanpp = sys.modules["rhoknp"].Jumanpp
    monkeypatch.setattr(jumanpp, "is_available", lambda _self: True)
    monkeypatch.setattr(jumanpp, "apply_to_sentence", lambda _self, _text: other)
    with pytest.raises(DataError, match="the word '京都', which jumanpp found, is not in the text"):
        Tokenizer.load(tmp_path).encode("東京")


def test_words_of_another_library_cannot_be_lowercased_later(tmp_path, splitters):
    write_files(tmp_path, SPECIAL, tokenizer_class="RoFormerTokenizer", do_lower_case=False)
    with pytest.raises(DataError, match="cannot lower-case"):
        Tokenizer.load(tmp_path).to_lowercase()
    uncased = Tokenizer.load(tmp_path, lowercase=True)
    assert uncased.to_lowercase().fingerprint == uncased.fingerprint


def test_composed_characters_know_their_sources():
    text = AlignedText("aｶﾞ㍿か\u3099b")
    text.normalize("NFKC")
    assert text.text == "aガ株式会社がb"
    assert text.origin is not None
    assert text.origin.tolist() == [[0, 1], [1, 3], *[[3, 4]] * 4, [4, 6], [6, 7]]
