"""Tokenizers of the families, each against an independent implementation, offsets included."""

from __future__ import annotations

import json
import pickle
import struct
import unicodedata
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import sentencepiece
import tokenizers

from bertworks.checkpoints.families import FAMILIES
from bertworks.errors import DataError
from bertworks.text.combining_marks import removal_of_marks
from bertworks.text.sentencepiece_model import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
    read_model,
)
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tree import Frame, template
from bertworks.utils.protobuf import bytes_field, number_field

from . import peers
from .compare import LANGUAGES, SAMPLE, Peer, compare, xquad

SAVED_MODELS = Path(__file__).parents[1] / "saved_models"
each_text = pytest.mark.parametrize(
    "step", [pytest.param(SAMPLE, id="sample"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)


@pytest.fixture(scope="module")
def peers_of(data_dir: Path, tmp_path_factory):
    """The tokenizers of each family; made once."""
    peers_by_family: dict[str, list[Peer]] = {}

    def find(family: str) -> list[Peer]:
        if family not in peers_by_family:
            peers_by_family[family] = peers.PEERS[family](data_dir, tmp_path_factory.mktemp(family))
        return peers_by_family[family]

    return find


WITHOUT_PEER = {"roformer", "esm"}
"""Tested elsewhere: one needs a package (`test_word_splitters.py`), one reads proteins
(`test_fast_bpe.py`)."""


def test_every_other_family_has_a_peer():
    assert list(peers.PEERS) == [family for family in FAMILIES if family not in WITHOUT_PEER]


# Families of one function have the same files, and with them the same tokenizers.
FAMILY_OF_PEERS = {make: family for family, make in reversed(peers.PEERS.items())}
FAMILIES_OF_PEERS = list(reversed(FAMILY_OF_PEERS.values()))


@pytest.mark.long
@each_text
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("family", FAMILIES_OF_PEERS)
def test_tokens_and_offsets_are_those_of_the_oracle(peers_of, data_dir, family, language, step):
    texts = xquad(data_dir, language)
    assert len(texts) == 240 + 1190
    counts = compare(peers_of(family), texts[::step])
    assert counts.different == 0
    assert counts.misplaced_offsets == 0
    assert min(counts.tokens, counts.offsets) > 1000


def test_a_difference_is_counted(peers_of):
    (peer,) = peers_of("distilbert")
    other = Peer(
        Tokenizer.from_vocabulary(peer.tokenizer.pieces), peer.tokens, peer.count_misplaced
    )
    text = ["This is a Test"]
    assert compare([peer], text) == (4, 0, 4, 0)
    lowered = compare([other], text)
    assert lowered.different >= 2
    assert lowered.misplaced_offsets >= 2


# ---------------------------------------------------------------------------- RoBERTa, byte-level


@pytest.fixture(scope="module")
def roberta_files(data_dir: Path, tmp_path_factory) -> Path:
    return peers.roberta_files(data_dir, tmp_path_factory.mktemp("roberta"))


@pytest.fixture(scope="module")
def roberta(peers_of) -> Tokenizer:
    return peers_of("roberta")[0].tokenizer


@pytest.mark.long
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


@pytest.mark.long
def test_saving_hands_the_files_back(roberta, roberta_files, tmp_path):
    roberta.save(tmp_path)
    for name in ("vocab.json", "merges.txt"):
        assert (tmp_path / name).read_bytes() == (roberta_files / name).read_bytes()
    copy = Tokenizer.load(tmp_path)
    assert copy.fingerprint == roberta.fingerprint
    assert pickle.loads(pickle.dumps(roberta)).fingerprint == roberta.fingerprint
    text = "It's  naïve – “quoted” 中文\n"
    assert copy.encode(text).input_ids.tolist() == roberta.encode(text).input_ids.tolist()
    assert roberta.decode(roberta.piece_ids([text])[0]) == text
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(text)["input_ids"] == roberta.encode(text).input_ids.tolist()
    assert theirs.mask_token_id == roberta.mask_id


def test_continuation_marks_pieces_without_a_space(roberta):
    ids = roberta.piece_ids(["The unaffable one"])[0]
    goes_on = roberta.continuation[ids].tolist()
    tokens = roberta.tokens(ids)
    assert [not token.startswith("Ġ") for token in tokens] == goes_on
    assert not roberta.continuation[roberta.special_ids].any()


# --------------------------------------------------------------------------- ALBERT, SentencePiece


@pytest.fixture(scope="module")
def albert_files(data_dir: Path, tmp_path_factory) -> Path:
    return peers.albert_files(data_dir, tmp_path_factory.mktemp("albert"))


@pytest.mark.long
def test_special_pieces_of_albert_have_their_ids(albert_files):
    tokenizer = Tokenizer.load(albert_files)
    assert [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id] == [0, 1, 2]
    assert [tokenizer.sep_id, tokenizer.mask_id] == [3, 4]


@pytest.mark.long
def test_a_special_piece_is_not_found_in_the_lattice(albert_files):
    tokenizer = Tokenizer.load(albert_files)
    for text in ("[CLS]", "a [MASK] b", "<pad>", "<unk>", "x[SEP]y"):
        ids = tokenizer.piece_ids([text])[0].tolist()
        assert not {0, 2, 3, 4} & set(ids), text
    masked = tokenizer.encode("a [MASK] b", typed_mask=True)
    assert masked.input_ids.tolist().count(tokenizer.mask_id) == 1


# ----------------------------------------------------------- XLM-RoBERTa, CamemBERT, the first GPT


@pytest.mark.long
@pytest.mark.parametrize("family", ["xlm-roberta", "camembert"])
def test_fairseq_puts_two_separators_between(peers_of, family):
    (peer,) = peers_of(family)
    ids = peer.tokenizer.encode("", "").input_ids
    assert peer.tokenizer.tokens(ids)[1:-1] == ["</s>", "</s>"]


@pytest.mark.parametrize("model", ["xlm-roberta-tagging", "camembert-classification"])
def test_fairseq_special_pieces_are_not_read_in_text(tmp_path, model):
    for name in ("sentencepiece.bpe.model", "config.json"):
        (tmp_path / name).write_bytes((SAVED_MODELS / model / name).read_bytes())
    tokenizer = Tokenizer.load(tmp_path)
    added_pieces = {piece for piece in tokenizer.pieces if piece[0] == "<" and len(piece) > 1}
    assert {"<s>", "</s>", "<pad>", "<mask>", "<unk>"} <= added_pieces
    for text in added_pieces:
        tokens = tokenizer.tokens(tokenizer.piece_ids([f"a {text} b"])[0])
        assert not set(tokens) & (added_pieces - {"<unk>"}), text


@pytest.mark.parametrize("model", ["camembert-classification", "roberta-classification"])
def test_added_piece_after_a_special_piece_keeps_its_id(tmp_path, model):
    tree = json.loads((SAVED_MODELS / model / "tokenizer.json").read_text())
    first = len(Tokenizer.load(SAVED_MODELS / model).pieces)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tree["added_tokens"] += [
        {"id": first, "content": "<e1>", "special": True, **plain},
        {"id": first + 1, "content": "zzq", "special": False, **plain},
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    ids = Tokenizer.load(tmp_path).piece_ids(["zzq <e1>"])[0].tolist()
    assert first + 1 in ids
    assert first not in ids


def test_the_first_gpt_has_no_special_tokens(peers_of):
    tokenizer = peers_of("openai-gpt")[0].tokenizer
    assert tokenizer.encode("hello").num_tokens == len(tokenizer.piece_ids(["hello"])[0])
    assert not tokenizer.has("mask")
    with pytest.raises(DataError, match="has no mask token"):
        tokenizer.encode("a", typed_mask=True)


# ------------------------------------------------------------------------------------------ damage


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("spiece.model", b"not a model", "not a SentencePiece model"),
        ("spiece.model", b"", "not a SentencePiece model"),
        ("merges.txt", b"#version: 0.2\na b\n", "No such file"),
        ("tokenizer.json", b'{"model": {"type": "BPE"}}', "added_tokens is missing"),
        (
            "tokenizer.json",
            b'{"model": {"type": "Nothing"}, "added_tokens": [], "normalizer": null, '
            b'"pre_tokenizer": null, "decoder": null}',
            "tokenizer",
        ),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        Tokenizer.load(tmp_path)


def test_merge_of_unknown_pieces_is_refused(tmp_path):
    (tmp_path / "vocab.json").write_text('{"<s>": 0, "a": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(DataError, match=r"merges\.txt:2: 'b' is not in the vocabulary"):
        Tokenizer.load(tmp_path)


def test_token_types_of_a_frame_are_kept_by_the_library():
    ids = {"<s>": 0, "</s>": 1, "|": 2, "a": 3, "b": 4}
    tree = json.loads(tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "a")).to_str())
    frame = Frame(("<s>",), ("</s>", "|"), ("</s>",), 1)
    tree["post_processor"] = template(frame, ids)
    library = tokenizers.Tokenizer.from_str(json.dumps(tree))
    single, pair = library.encode("a"), library.encode("a", "b")
    assert (single.tokens, single.type_ids) == (["<s>", "a", "</s>"], [0, 0, 0])
    assert pair.tokens == ["<s>", "a", "</s>", "|", "b", "</s>"]
    assert pair.type_ids == [0, 0, 0, 0, 1, 1]
    with pytest.raises(DataError, match="the vocabulary has no </s>"):
        template(frame, {})


@pytest.mark.parametrize("head", ["", "#version: 0.2\n"])
def test_a_merge_of_a_number_sign_is_no_version(tmp_path, head):
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = [*special, "a", "#version", "b", "a#version", "#versionb"]
    ids = {piece: number for number, piece in enumerate(pieces)}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "merges.txt").write_text(f"{head}a #version\n#version b\n")
    tree = Tokenizer.load(tmp_path).definition.tree
    assert tree["model"]["merges"] == [["a", "#version"], ["#version", "b"]]


def test_template_of_unknown_pieces_is_refused(tmp_path):
    """The library panics where its template names a piece that it does not describe."""
    tree = json.loads((SAVED_MODELS / "roberta-classification" / "tokenizer.json").read_text())
    sequence = [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    frame = {"single": sequence, "pair": sequence, "special_tokens": {}}
    tree["post_processor"] = {"type": "TemplateProcessing", **frame}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    with pytest.raises(DataError, match="the tokenizer cannot be read"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("roberta-classification", ["tokenizer.json"]),
        ("roberta-classification", ["vocab.json", "merges.txt"]),
        ("camembert-classification", ["sentencepiece.bpe.model"]),
    ],
)
def test_case_is_part_of_these(tmp_path, model, names):
    for name in names:
        (tmp_path / name).write_bytes((SAVED_MODELS / model / name).read_bytes())
    Tokenizer.load(tmp_path)
    with pytest.raises(DataError, match=r"case cannot be changed\. Leave `lowercase` out"):
        Tokenizer.load(tmp_path, lowercase=True)


def test_sentencepiece_model_without_settings_has_the_defaults(tmp_path):
    def field(number: int, value: bytes) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value

    file = tmp_path / "spiece.model"
    file.write_bytes(b"".join(field(1, field(1, piece)) for piece in (b"a", b"b")))
    pieces = (Piece("a", 0.0, NORMAL), Piece("b", 0.0, NORMAL))
    assert read_model(file) == SentencePieceModel(pieces, 0, b"", True, True, False)


def test_a_text_ends_with_a_separator_or_what_the_settings_name():
    definition = Tokenizer.load(SAVED_MODELS / "roberta-classification").definition
    assert replace(definition, config={}).end == "</s>"
    bare = replace(definition, roles=replace(definition.roles, sep=None))
    unusable = [("none of it", None), (["<s>"], None)]
    for named, end in [("<pad>", "<pad>"), ({"content": "<s>"}, "<s>"), *unusable]:
        assert replace(bare, config={"eos_token": named}).end == end
    assert replace(bare, config={}).end is None


@pytest.mark.parametrize("begins_with_space", [True, False])
def test_user_defined_pieces_are_encoded_as_in_sentencepiece(tmp_path, begins_with_space):
    """Users' pieces compete with those that they are a part of, a little better or worse."""
    scores = {"a": -2.3, "b": -5.2, "é": -4.7, "▁": -3.1, "▁a": -2.9}
    scores |= {"baa": -2.15, "bab": -5.15, "éba": -2.05, "ébb": -5.05}
    pieces = [("<pad>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN)]
    pieces += [(special, 0.0, CONTROL) for special in ("[CLS]", "[SEP]", "[MASK]")]
    pieces += [(text, score, NORMAL) for text, score in scores.items()]
    pieces += [(text, 0.0, USER_DEFINED) for text in ("ba", "éb")]
    model = b"".join(
        bytes_field(
            1,
            bytes_field(1, text.encode())
            + b"\x15"  # the second field, of four bytes
            + struct.pack("<f", score)
            + number_field(3, kind),
        )
        for text, score, kind in pieces
    )
    model += bytes_field(3, number_field(3, begins_with_space))
    (tmp_path / "spiece.model").write_bytes(model)
    (tmp_path / "tokenizer_config.json").write_text('{"keep_accents": true}')
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = Tokenizer.load(tmp_path)
    texts = ["".join(letters) for letters in product("abé ", repeat=5)]
    for text, own in zip(texts, tokenizer.piece_ids(texts), strict=True):
        # Two orders of the same pieces are equally good.
        assert sorted(own.tolist()) == sorted(theirs.encode(text)), text


def test_marks_that_albert_removes_are_those_with_a_combining_class():
    """Python's table is this one, or a newer one."""
    tree = {"type": "Sequence", "normalizers": removal_of_marks()}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a"))
    described = {**json.loads(library.to_str()), "normalizer": tree}
    normalizer = tokenizers.Tokenizer.from_str(json.dumps(described)).normalizer
    marks = [char for char in map(chr, range(0x110000)) if unicodedata.combining(char)]
    new = set(normalizer.normalize_str("".join(marks)))
    if unicodedata.unidata_version == "14.0.0":
        assert not new
    assert len(marks) - len(new) == 912
    others = (char for char in map(chr, range(0x110000)) if unicodedata.category(char)[0] == "M")
    text = unicodedata.normalize("NFKD", "".join(others))
    expected = "".join(char for char in text if not unicodedata.combining(char))
    own = normalizer.normalize_str(text)
    # The library composes by an older version of Unicode.
    assert set(unicodedata.normalize("NFD", own)) - new == set(
        unicodedata.normalize("NFD", expected)
    )
