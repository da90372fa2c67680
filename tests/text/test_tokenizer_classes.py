"""Each tokenizer class of `transformers` is read exactly, or refused by its name."""

from __future__ import annotations

import io
import json
import pickle
import re
import unicodedata
import warnings
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, trainers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from bertworks.errors import DataError
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_classes import CLASSES, WITHOUT_JSON

TEXTS = [
    "The Élève's unaffable café costs 5€, it's 1,234.50 – “quoted”!",
    "Der Fluß übergab\tdie  Äpfel; größer als  ﬁne ½?",
    "قال الرجل إنه سيعود إلى المدينة غداً.",
    "नदी के किनारे एक बड़ा शहर है।",
    "เมืองหลวงของประเทศไทยคือกรุงเทพมหานคร",
    "东京是日本的首都,人口约1400万。ＡＢＣ",
    "",
    " \u00a0 spaces\n and ``quotes'' …  ",
    "x" * 120,
]
PAIRS = [(TEXTS[0], TEXTS[5]), (TEXTS[3], TEXTS[1]), ("", "two")]


def assert_same_tokens(tokenizer: Tokenizer, theirs, texts=TEXTS, pairs=PAIRS) -> None:
    """Check ids and token types of texts and pairs against `transformers`."""
    for text in [*((text,) for text in texts), *pairs]:
        own = tokenizer.encode(*text)
        expected = theirs(*text, return_token_type_ids=True)
        assert own.input_ids.tolist() == expected["input_ids"], text
        assert own.token_type_ids.tolist() == expected["token_type_ids"], text
    roles = ("pad", "unk", "cls", "sep", "mask")
    named = {role: getattr(theirs, f"{role}_token_id") for role in roles}
    assert {role: tokenizer.id_of(role) for role in roles} == named


def assert_same_again(tokenizer: Tokenizer, model_type: str, directory: Path, **options) -> None:
    """Check that saved files give the same tokens, here and in `transformers`."""
    tokenizer.save(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    again = Tokenizer.load(directory)
    assert again.fingerprint == tokenizer.fingerprint
    assert_same_tokens(again, open_in_transformers(directory), **options)


def open_in_transformers(directory: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers
        return transformers.AutoTokenizer.from_pretrained(directory)


def learn_pieces(trainer, model, splitter) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = splitter
    library.train_from_iterator(TEXTS, trainer)
    return library


@pytest.fixture(scope="session")
def words() -> list[str]:
    """Pieces of WordPiece, without special ones."""
    trainer = trainers.WordPieceTrainer(vocab_size=220, show_progress=False)
    library = learn_pieces(trainer, models.WordPiece(), pre_tokenizers.BertPreTokenizer())
    return sorted(library.get_vocab())


def write_vocabulary(directory: Path, special: list[str], words: list[str]) -> None:
    pieces = [*special, *(word for word in words if word not in special)]
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")


# --------------------------------------------------------------------- WordPiece with other pieces

MPNET = ["<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<mask>"]
FUNNEL = ["<pad>", "<unk>", "<cls>", "<sep>", "<mask>", "<s>", "</s>"]
WORDPIECES = {
    "BertTokenizer": ("bert", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]),
    "MPNetTokenizer": ("mpnet", MPNET),
    "FunnelTokenizer": ("funnel", FUNNEL),
}


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("name", WORDPIECES)
def test_wordpiece_class_is_read_as_in_transformers(tmp_path, words, name, lowercase):
    model_type, special = WORDPIECES[name]
    write_vocabulary(tmp_path, special, words)
    settings = {"tokenizer_class": name, "do_lower_case": lowercase}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = open_in_transformers(tmp_path)
    theirs.save_pretrained(tmp_path / "json")  # with `tokenizer.json`
    # A word of more than 100 characters is unknown to their class only.
    short = {"texts": TEXTS[:-1]}
    assert_same_tokens(Tokenizer.load(tmp_path), theirs, **short)
    tokenizer = Tokenizer.load(tmp_path / "json")
    assert_same_tokens(tokenizer, theirs)
    assert_same_again(tokenizer, model_type, tmp_path / "again")
    saved = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert saved["tokenizer_class"] == name
    assert_same_again(Tokenizer.load(tmp_path), model_type, tmp_path / "own", **short)


PLAIN_TOKEN = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)


@pytest.mark.parametrize(
    "settings",
    [
        *({"do_basic_tokenize": False}, {"never_split": ["5€"]}, {"split_special_tokens": True}),
        *({"do_lower_case": False, "strip_accents": True}, {"strip_accents": False}),
        *({"tokenize_chinese_chars": False}, {"truncation_side": "right", "padding_side": "left"}),
        *({"clean_up_tokenization_spaces": True}, {"chat_template": "{{ messages }}"}),
        {"new": {"content": "city km", "lstrip": True, "rstrip": True}},
        {"new": {"content": "Quoted", "single_word": True, "normalized": True}},
        {"new": {"content": "affab", "rstrip": True, "normalized": True}},
    ],
)
def test_settings_of_bert_have_the_effect_that_they_have_in_transformers(tmp_path, words, settings):
    write_vocabulary(tmp_path, WORDPIECES["BertTokenizer"][1], words)
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **settings}
    if "new" in settings:
        number = len((tmp_path / "vocab.txt").read_text(encoding="utf-8").splitlines())
        new_token = {**PLAIN_TOKEN, **settings.pop("new")}
        settings["added_tokens_decoder"] = {str(number): new_token}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    texts = [*TEXTS[:-1], "a city km, quoted «Quoted» Quotedly"]
    assert_same_tokens(Tokenizer.load(tmp_path), open_in_transformers(tmp_path), texts=texts)


def test_mask_of_mpnet_in_a_text_is_the_mask_token(tmp_path, words):
    write_vocabulary(tmp_path, MPNET, words)
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    tokenizer = Tokenizer.load(tmp_path)
    masked = tokenizer.encode("the <mask> city", typed_mask=True)
    assert (
        masked.input_ids.tolist() == open_in_transformers(tmp_path)("the <mask> city")["input_ids"]
    )
    assert tokenizer.mask_id in masked.input_ids
    assert tokenizer.mask_id not in tokenizer.encode("the <mask> city").input_ids


# ------------------------------------------------------------------------------ byte-pair encoding


@pytest.fixture(scope="session")
def byte_merges() -> tuple[list[str], list[tuple[str, str]]]:
    """The pieces and merges of a byte-level BPE."""
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    library = learn_pieces(trainer, models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=False))
    return _pieces_and_merges(library)


@pytest.fixture(scope="session")
def word_merges() -> tuple[list[str], list[tuple[str, str]]]:
    """The pieces and merges of a BPE of words, which end in `</w>`."""
    trainer = trainers.BpeTrainer(
        vocab_size=300, show_progress=False, special_tokens=["<unk>"], end_of_word_suffix="</w>"
    )
    model = models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
    return _pieces_and_merges(learn_pieces(trainer, model, pre_tokenizers.BertPreTokenizer()))


def _pieces_and_merges(library: tokenizers.Tokenizer) -> tuple[list[str], list[tuple[str, str]]]:
    model = json.loads(library.to_str())["model"]
    return list(model["vocab"]), [tuple(pair) for pair in model["merges"]]


def write_merges(directory: Path, special: list[str], pieces_and_merges) -> None:
    pieces, merges = pieces_and_merges
    pieces = [*special, *(piece for piece in pieces if piece not in special)]
    ids = {piece: number for number, piece in enumerate(pieces)}
    (directory / "vocab.json").write_text(json.dumps(ids))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (directory / "merges.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")


DEBERTA = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]


@pytest.mark.parametrize("prefix", [False, True])
def test_deberta_is_read_as_in_transformers(tmp_path, byte_merges, prefix):
    write_merges(tmp_path, DEBERTA, byte_merges)
    (tmp_path / "config.json").write_text('{"model_type": "deberta"}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": prefix}))
    theirs = open_in_transformers(tmp_path)
    theirs.save_pretrained(tmp_path / "json")
    # The original code puts one separator between texts; since version 5, `transformers` puts two.
    own = Tokenizer.load(tmp_path)
    assert_same_tokens(own, theirs, pairs=[])
    pair = own.encode("one", "two")
    first, second = (own.encode(text).input_ids.tolist() for text in ("one", "two"))
    assert pair.input_ids.tolist() == first + second[1:]
    assert pair.token_type_ids.tolist() == [0] * len(first) + [1] * (len(second) - 1)
    tokenizer = Tokenizer.load(tmp_path / "json")
    assert_same_tokens(tokenizer, theirs)
    assert_same_again(tokenizer, "deberta", tmp_path / "again")
    assert_same_again(own, "deberta", tmp_path / "own")


def test_herbert_is_read_as_in_transformers(tmp_path, word_merges):
    write_merges(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], word_merges)
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "bert", "tokenizer_class": "HerbertTokenizerFast"})
    )
    theirs = open_in_transformers(tmp_path)
    theirs.save_pretrained(tmp_path / "json")
    tokenizer = Tokenizer.load(tmp_path)
    assert_same_tokens(tokenizer, theirs)
    assert_same_tokens(Tokenizer.load(tmp_path / "json"), theirs)
    assert_same_again(tokenizer, "bert", tmp_path / "again")
    assert not tokenizer.lowercase


# ----------------------------------------------------------------------------------- SentencePiece

SPECIAL_OPTIONS: dict[str, dict[str, object]] = {
    "deberta-v2": {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"},
    "rembert": {"pad": "<pad>", "bos": "<s>", "unk": "<unk>", "more": "[CLS],[SEP],[MASK]"},
    "big_bird": {
        **{"pad": "<pad>", "eos": "</s>", "bos": "<s>", "unk": "<unk>"},
        "more": "[SEP],[MASK],[CLS]",
    },
    "xlnet": {
        **{"unk": "<unk>", "bos": "<s>", "eos": "</s>"},
        "more": "<cls>,<sep>,<pad>,<mask>,<eod>,<eop>",
    },
    "kobert": {"unk": "[UNK]", "pad": "[PAD]", "more": "[CLS],[SEP],[MASK]"},
}
FILE_OF = {"deberta-v2": "spm.model", "rembert": "sentencepiece.model"}
CLASS_OF = {
    "deberta-v2": "DebertaV2Tokenizer",
    "rembert": "RemBertTokenizer",
    "big_bird": "BigBirdTokenizer",
    "xlnet": "XLNetTokenizer",
    "kobert": "KoBERTTokenizer",
}


def train_sentencepiece(
    directory: Path, family: str, texts: list[str] = TEXTS
) -> sentencepiece.SentencePieceProcessor:
    """Write a small model with the special pieces of a family, in their order."""
    special = dict(SPECIAL_OPTIONS[family])
    more = special.pop("more", "")
    options: dict[str, object] = {f"{role}_id": -1 for role in ("pad", "unk", "bos", "eos")}
    for number, (role, piece) in enumerate(special.items()):
        options |= {f"{role}_id": number, f"{role}_piece": piece}
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for text in texts for _ in range(3)]),
        model_writer=buffer,
        vocab_size=260,
        hard_vocab_limit=False,
        control_symbols=more,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    (directory / FILE_OF.get(family, "spiece.model")).write_bytes(buffer.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=buffer.getvalue())


def unchanged_texts(library: sentencepiece.SentencePieceProcessor) -> list[str]:
    """The texts whose characters a model file does not change."""
    marked = {text: f"▁{text}".replace(" ", "▁") for text in TEXTS}
    unchanged = [text for text in TEXTS if library.normalize(text) == marked[text]]
    assert len(unchanged) > 3
    return unchanged


def simplify(text: str, *, lowercase: bool, keep_accents: bool) -> str:
    """What ALBERT's and XLNet's own code does before SentencePiece sees the text."""
    text = " ".join(text.strip().split()).replace("``", '"').replace("''", '"')
    if not keep_accents:
        text = unicodedata.normalize("NFKD", text)
        text = "".join(char for char in text if not unicodedata.combining(char))
    return text.lower() if lowercase else text


def has_vowel_sign(text: str) -> bool:
    """Whether a text has marks without a combining class, as in Hindi and Thai.

    Since version 5, `transformers` strips them together with accents.
    """
    return any(
        unicodedata.category(char)[0] == "M" and not unicodedata.combining(char)
        for char in unicodedata.normalize("NFKD", text)
    )


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True}, {"split_by_punct": True}])
def test_deberta_v2_is_sentencepiece(tmp_path, settings):
    library = train_sentencepiece(tmp_path, "deberta-v2")
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.mask_id == library.get_piece_size()  # it follows the model's pieces
    for text in TEXTS:
        if "split_by_punct" not in settings:
            given = text.lower() if settings else text
            assert tokenizer.piece_ids([text])[0].tolist() == library.encode(given), text
    theirs = open_in_transformers(tmp_path)
    # Since version 5, `transformers` does not normalise characters as the model file says.
    plain = unchanged_texts(library)
    assert_same_tokens(tokenizer, theirs, texts=plain, pairs=[(plain[0], plain[1])])
    theirs.save_pretrained(tmp_path / "json")
    from_json = Tokenizer.load(tmp_path / "json")
    assert_same_tokens(from_json, theirs)
    assert_same_again(from_json, "deberta-v2", tmp_path / "again")
    assert_same_again(tokenizer, "deberta-v2", tmp_path / "own")


@pytest.mark.parametrize("lowercase", [False, True])
def test_rembert_is_read_as_in_transformers(tmp_path, lowercase):
    train_sentencepiece(tmp_path, "rembert")
    settings = {"tokenizer_class": "RemBertTokenizer", "do_lower_case": lowercase}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = open_in_transformers(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    # Version 5.23 puts no special pieces around texts here; its older versions put BERT's.
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.piece_ids([text])[0].tolist() == ids
    pair = tokenizer.tokens(tokenizer.encode("a", "a").input_ids)
    assert pair == ["[CLS]", "▁a", "[SEP]", "▁a", "[SEP]"]
    assert_same_again(tokenizer, "rembert", tmp_path / "again")


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True}, {"keep_accents": True}])
def test_xlnet_is_its_original_code(tmp_path, settings):
    library = train_sentencepiece(tmp_path, "xlnet")
    (tmp_path / "config.json").write_text('{"model_type": "xlnet"}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.load(tmp_path)
    lowercase, keep = (settings.get(name, False) for name in ("do_lower_case", "keep_accents"))
    for text in TEXTS:
        plain = simplify(text, lowercase=lowercase, keep_accents=keep)
        assert tokenizer.piece_ids([text])[0].tolist() == library.encode(plain), text
    theirs = open_in_transformers(tmp_path)
    theirs.save_pretrained(tmp_path / "json")
    if not keep:  # since version 5, `transformers` strips accents always
        plain = [text for text in TEXTS if not has_vowel_sign(text)]
        assert_same_tokens(tokenizer, theirs, texts=plain, pairs=PAIRS[:1])
    assert_same_tokens(Tokenizer.load(tmp_path / "json"), theirs)
    assert_same_again(tokenizer, "xlnet", tmp_path / "again")
    pair = tokenizer.encode("one", "two")
    assert tokenizer.tokens(pair.input_ids[-1:]) == ["<cls>"]
    assert set(pair.token_type_ids.tolist()) == {0, 1, 2}


def test_bigbird_is_sentencepiece(tmp_path):
    library = train_sentencepiece(tmp_path, "big_bird")
    (tmp_path / "config.json").write_text('{"model_type": "big_bird"}')
    tokenizer = Tokenizer.load(tmp_path)
    for text in TEXTS:
        assert tokenizer.piece_ids([text])[0].tolist() == library.encode(text), text
    theirs = open_in_transformers(tmp_path)
    plain = unchanged_texts(library)
    assert_same_tokens(tokenizer, theirs, texts=plain, pairs=[(plain[0], plain[1])])
    theirs.save_pretrained(tmp_path / "json")
    assert_same_tokens(Tokenizer.load(tmp_path / "json"), theirs)
    assert_same_again(tokenizer, "big_bird", tmp_path / "again")


KOREAN = ["한국어 모델을 공유합니다.", "서울은 대한민국의 수도이다. Élève"]


@pytest.mark.parametrize("name", ["KoBERTTokenizer", "KoBertTokenizer"])
def test_kobert_is_xlnets_code_with_berts_pieces_around_texts(tmp_path, name):
    library = train_sentencepiece(tmp_path, "kobert", [*TEXTS, *KOREAN])
    pieces = [library.id_to_piece(number) for number in range(library.get_piece_size())]
    if name == "KoBertTokenizer":  # its ids are those of a vocabulary next to the model
        (tmp_path / "spiece.model").rename(tmp_path / "tokenizer_78b3253a26.model")
        pieces = [*pieces[:5], *pieces[:4:-1]]
        (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    tokenizer = Tokenizer.load(tmp_path)
    assert list(tokenizer.pieces) == pieces
    for text in [*TEXTS, *KOREAN]:
        plain = simplify(text, lowercase=False, keep_accents=False)
        ids = [library.piece_to_id(piece) for piece in library.encode(plain, out_type=str)]
        own = tokenizer.encode(text)
        expected = [pieces.index(library.id_to_piece(number)) for number in ids]
        assert own.input_ids.tolist() == [tokenizer.cls_id, *expected, tokenizer.sep_id], text
    assert "한" in tokenizer.tokens(tokenizer.piece_ids(KOREAN)[0])
    first, second = (tokenizer.encode(text).input_ids.tolist() for text in ("one", "two"))
    pair = tokenizer.encode("one", "two")
    assert pair.input_ids.tolist() == first + second[1:]
    assert pair.token_type_ids.tolist() == [0] * len(first) + [1] * (len(second) - 1)
    assert_same_again(tokenizer, "bert", tmp_path / "again", texts=[*TEXTS, *KOREAN])


@pytest.mark.parametrize("family", ["deberta-v2", "rembert", "big_bird"])
def test_decomposed_characters_are_composed_as_in_sentencepiece(tmp_path, family):
    """Korean and Japanese as file systems write them, kana of half width, and marks alone."""
    sentences = ["한국어 모델을 공유합니다.", "ガイドブックがある", "ガード ﾀﾞﾌﾞﾙ", "x\u09cb"]
    library = train_sentencepiece(tmp_path, family, [*TEXTS, *sentences])
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    tokenizer = Tokenizer.load(tmp_path)
    tokenizer.piece_ids(sentences)
    tokenizer = pickle.loads(pickle.dumps(tokenizer))
    tokenizer.save(tmp_path / "again")
    texts = [unicodedata.normalize("NFD", text) for text in sentences]
    texts += [unicodedata.normalize("NFD", text) for text in TEXTS]
    for text, own, saved_ids in zip(
        texts,
        tokenizer.segments(texts),
        Tokenizer.load(tmp_path / "again").piece_ids(texts),
        strict=True,
    ):
        if "``" in text and family == "rembert":  # its code changes quotes first
            continue
        expected = library.encode(text.strip())
        assert own.input_ids.tolist() == saved_ids.tolist() == expected, text
        if text not in texts[: len(sentences)]:
            continue
        for piece, (start, end) in zip(
            tokenizer.tokens(own.input_ids), own.offsets.tolist(), strict=True
        ):
            letters = unicodedata.normalize("NFKC", text[start:end]).replace(" ", "")
            assert piece.removeprefix("▁") in letters or piece in ("<unk>", "[UNK]")


def test_xlnets_class_in_a_bert_is_refused(tmp_path):
    train_sentencepiece(tmp_path, "kobert")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "XLNetTokenizer"}')
    with pytest.raises(DataError, match=r"XLNetTokenizer contradicts .* set .* KoBERTTokenizer"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("family", CLASS_OF)
def test_offsets_of_sentencepieces_are_those_of_the_text(tmp_path, family):
    train_sentencepiece(tmp_path, family)
    settings = {"tokenizer_class": CLASS_OF[family], "keep_accents": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.load(tmp_path)
    for text in [text for text in TEXTS if "`" not in text]:
        (segment,) = tokenizer.segments([text])
        for piece, (start, end) in zip(
            tokenizer.tokens(segment.input_ids), segment.offsets.tolist(), strict=True
        ):
            expected = unicodedata.normalize("NFKC", text[start:end])
            if piece not in ("<unk>", "[UNK]"):
                letters = "".join(piece.replace("▁", " ").split())
                if len(expected) == end - start:  # else a part of a character became a piece
                    assert letters == "".join(expected.split())
                assert letters in expected


# --------------------------------------------------------------------------------- refused by name

NAMES = sorted({name for name in TOKENIZER_MAPPING_NAMES.values() if name})
GENERAL = {"TokenizersBackend", "PythonBackend", "PreTrainedTokenizer"}


def write_files(directory: Path, kind: str, words, byte_merges) -> None:
    """Files of one kind, without the name of a class."""
    if kind == "vocab.txt":
        write_vocabulary(directory, WORDPIECES["BertTokenizer"][1], words)
    elif kind == "vocab.json":
        write_merges(directory, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], byte_merges)
    elif kind == "tokenizer.json":
        write_files(directory, "vocab.json", words, byte_merges)
        Tokenizer.load(directory).save(directory, overwrite=True)
        (directory / "tokenizer_config.json").unlink()
    else:
        (directory / kind).write_bytes(b"a model of SentencePiece, read after its class")


@pytest.mark.parametrize("kind", ["vocab.txt", "vocab.json", "tokenizer.json", "spiece.model"])
def test_every_other_class_is_refused_by_its_name(tmp_path, words, byte_merges, kind):
    write_files(tmp_path, kind, words, byte_merges)
    named = [*NAMES, *(f"{name}Fast" for name in NAMES), "OfSomebodyTokenizer"]
    num_refused = 0
    for name in named:
        slow_name = name.removesuffix("Fast")
        is_read = slow_name == "LlamaTokenizer" and kind == "tokenizer.json"
        if slow_name in CLASSES or slow_name in GENERAL or is_read:
            continue
        for file, other in (
            ("tokenizer_config.json", "config.json"),
            ("config.json", "tokenizer_config.json"),
        ):
            (tmp_path / other).unlink(missing_ok=True)
            (tmp_path / file).write_text(json.dumps({"tokenizer_class": name}))
            with pytest.raises(DataError, match=f"class {slow_name} is not supported") as error:
                Tokenizer.load(tmp_path)
            assert error.value.where == str(tmp_path / file)
            num_refused += 1
    assert num_refused > 100


def test_every_class_of_the_table_is_one_of_transformers():
    missing = [name for name in CLASSES if not hasattr(transformers, name)]
    # Former versions had these; and no model of ERNIE's names one.
    former = ["ErnieTokenizer", "RetriBertTokenizer", "RealmTokenizer", "NezhaTokenizer"]
    assert missing == [*former, "KoBERTTokenizer", "KoBertTokenizer"]


def test_llamas_class_with_a_byte_level_file_uses_it_unchanged(tmp_path, words, byte_merges):
    write_files(tmp_path, "tokenizer.json", words, byte_merges)
    settings = {"tokenizer_class": "LlamaTokenizer", "pad_token": "<pad>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    own = Tokenizer.load(tmp_path)
    for text in TEXTS:
        assert (
            own.encode(text).input_ids.tolist() == open_in_transformers(tmp_path)(text)["input_ids"]
        )


LLAMA_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture
def like_llama(tmp_path, byte_merges) -> Path:
    """A `tokenizer.json` as Llama 3 and EuroBERT have it."""
    pieces, merges = byte_merges
    model = models.BPE({piece: at for at, piece in enumerate(pieces)}, merges, ignore_merges=True)
    library = tokenizers.Tokenizer(model)
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "<|pad|>"]
    library.add_special_tokens(special)
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(LLAMA_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = tokenizers.decoders.ByteLevel()
    begin, end = special[:2]
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B {end}",
        special_tokens=[(piece, library.token_to_id(piece)) for piece in (begin, end)],
    )
    library.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": begin, "eos_token": end}
    settings |= {"mask_token": "<|mask|>", "pad_token": "<|pad|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_files_like_llamas_are_used_unchanged(like_llama):
    tokenizer = Tokenizer.load(like_llama)
    theirs = open_in_transformers(like_llama)
    for text in [*((text,) for text in TEXTS), *PAIRS]:
        expected = theirs(*text)["input_ids"]
        assert tokenizer.encode(*text).input_ids.tolist() == expected, text
    assert tokenizer.tokens([tokenizer.cls_id, tokenizer.sep_id]) == [
        *("<|begin_of_text|>", "<|end_of_text|>")
    ]
    assert tokenizer.mask_id == theirs.mask_token_id
    words = tokenizer.encode_words(["the", "café!", "in", "the"])
    assert tokenizer.decode(words.input_ids) == " the café! in the"
    offsets = [(["the", "café!", "in", "the"][word], span) for word, span in _spans(words)]
    assert "".join(word[start:end] for word, (start, end) in offsets) == "thecafé!inthe"
    tokenizer.save(like_llama / "again")
    again = open_in_transformers(like_llama / "again")
    assert again(TEXTS[0], TEXTS[1])["input_ids"] == theirs(TEXTS[0], TEXTS[1])["input_ids"]


def _spans(encoding) -> list[tuple[int, tuple[int, int]]]:
    """The word of each token of the text, and its characters, once each."""
    numbers, spans = encoding.word_ids.tolist(), encoding.offsets.tolist()
    return sorted(
        {(number, tuple(span)) for number, span in zip(numbers, spans, strict=True) if number >= 0}
    )


@pytest.mark.parametrize("settings", [{"add_bos_token": True}, {"add_eos_token": False}])
def test_settings_that_contradict_a_frame_are_refused(like_llama, settings):
    file = like_llama / "tokenizer_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, **settings}))
    with pytest.raises(DataError, match=r"contradicts add_(bos|eos)_token"):
        Tokenizer.load(like_llama)
    file.write_text(json.dumps({**config, "add_bos_token": True, "add_eos_token": True}))
    own, theirs = Tokenizer.load(like_llama), open_in_transformers(like_llama)
    assert own.encode("the city").input_ids.tolist() == theirs("the city")["input_ids"]


@pytest.mark.parametrize("kind", ["vocab.txt", "vocab.json", "tokenizer.json"])
@pytest.mark.parametrize("name", CLASSES)
def test_a_class_that_reads_other_files_is_refused(tmp_path, words, byte_merges, kind, name):
    algorithm = CLASSES[name].algorithm
    of_file = "WordPiece" if kind == "vocab.txt" else "byte-level BPE"
    if algorithm.startswith(of_file):
        return
    write_files(tmp_path, kind, words, byte_merges)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    says = re.escape(f"is {of_file}, but the tokenizer class {name} reads {algorithm}")
    if algorithm in WITHOUT_JSON:  # it reads `vocab.txt` only, of another kind
        says = r"there is no vocab\.txt|not a piece and a number|the vocabulary has no <cls>"
    with pytest.raises(DataError, match=says):
        Tokenizer.load(tmp_path)


def test_a_class_is_no_reader_of_files_that_no_class_has(tmp_path):
    model = tokenizers.models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    says = "tokenizer.json: is of another kind, but .* RobertaTokenizer reads byte-level BPE"
    with pytest.raises(DataError, match=says):
        Tokenizer.load(tmp_path)


def test_a_frame_that_is_not_the_class_is_refused(tmp_path, words, byte_merges):
    write_files(tmp_path, "tokenizer.json", words, byte_merges)
    file = tmp_path / "tokenizer.json"
    tree = json.loads(file.read_text())
    tree["post_processor"]["pair"] = [
        part for at, part in enumerate(tree["post_processor"]["pair"]) if at != 3
    ]
    file.write_text(json.dumps(tree))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    says = r"puts <s> A </s> B </s> .* class RobertaTokenizer <s> A </s> </s> B </s>"
    with pytest.raises(DataError, match=says):
        Tokenizer.load(tmp_path)
