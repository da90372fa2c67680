"""Each tokenizer class of `transformers` is read exactly, or refused by its name."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, trainers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from bertworks.errors import DataError
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_classes import CLASSES

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
    """Check that what is written has the same tokens, here and in `transformers`."""
    tokenizer.save(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    again = Tokenizer.load(directory)
    assert again.fingerprint == tokenizer.fingerprint
    assert_same_tokens(again, open_elsewhere(directory), **options)


def open_elsewhere(directory: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
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
def test_wordpiece_class_is_read_as_elsewhere(tmp_path, words, name, lowercase):
    model_type, special = WORDPIECES[name]
    write_vocabulary(tmp_path, special, words)
    settings = {"tokenizer_class": name, "do_lower_case": lowercase}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = open_elsewhere(tmp_path)
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


def test_mask_of_mpnet_in_a_text_is_the_mask_token(tmp_path, words):
    write_vocabulary(tmp_path, MPNET, words)
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    tokenizer = Tokenizer.load(tmp_path)
    masked = tokenizer.encode("the <mask> city", typed_mask=True)
    assert masked.input_ids.tolist() == open_elsewhere(tmp_path)("the <mask> city")["input_ids"]
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
def test_deberta_is_read_as_elsewhere(tmp_path, byte_merges, prefix):
    write_merges(tmp_path, DEBERTA, byte_merges)
    (tmp_path / "config.json").write_text('{"model_type": "deberta"}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": prefix}))
    theirs = open_elsewhere(tmp_path)
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


def test_herbert_is_read_as_elsewhere(tmp_path, word_merges):
    write_merges(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], word_merges)
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "bert", "tokenizer_class": "HerbertTokenizerFast"})
    )
    theirs = open_elsewhere(tmp_path)
    theirs.save_pretrained(tmp_path / "json")
    tokenizer = Tokenizer.load(tmp_path)
    assert_same_tokens(tokenizer, theirs)
    assert_same_tokens(Tokenizer.load(tmp_path / "json"), theirs)
    assert_same_again(tokenizer, "bert", tmp_path / "again")
    assert not tokenizer.lowercase


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
    refused = 0
    for name in named:
        known = name.removesuffix("Fast")
        is_read = known == "LlamaTokenizer" and kind == "tokenizer.json"
        if known in CLASSES or known in GENERAL or is_read:
            continue
        for file, other in (
            ("tokenizer_config.json", "config.json"),
            ("config.json", "tokenizer_config.json"),
        ):
            (tmp_path / other).unlink(missing_ok=True)
            (tmp_path / file).write_text(json.dumps({"tokenizer_class": name}))
            with pytest.raises(DataError, match=f"class {known} is not supported") as error:
                Tokenizer.load(tmp_path)
            assert error.value.where == str(tmp_path / file)
            refused += 1
    assert refused > 100


def test_every_class_of_the_table_is_one_of_transformers():
    missing = [name for name in CLASSES if not hasattr(transformers, name)]
    # Former versions had these; and no model of ERNIE's names one.
    assert missing == ["ErnieTokenizer", "RetriBertTokenizer", "RealmTokenizer", "NezhaTokenizer"]


def test_llamas_class_with_a_byte_level_file_uses_it_unchanged(tmp_path, words, byte_merges):
    write_files(tmp_path, "tokenizer.json", words, byte_merges)
    settings = {"tokenizer_class": "LlamaTokenizer", "pad_token": "<pad>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    own = Tokenizer.load(tmp_path)
    for text in TEXTS:
        assert own.encode(text).input_ids.tolist() == open_elsewhere(tmp_path)(text)["input_ids"]


@pytest.mark.parametrize("kind", ["vocab.txt", "vocab.json", "tokenizer.json"])
@pytest.mark.parametrize("name", CLASSES)
def test_a_class_that_reads_other_files_is_refused(tmp_path, words, byte_merges, kind, name):
    algorithm = CLASSES[name].algorithm
    of_file = "WordPiece" if kind == "vocab.txt" else "byte-level BPE"
    if algorithm == of_file:
        return
    write_files(tmp_path, kind, words, byte_merges)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    says = f"is {of_file}, but the tokenizer class {name} reads {algorithm}"
    with pytest.raises(DataError, match=re.escape(says)):
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
