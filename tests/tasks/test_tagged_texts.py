"""Plain texts of a tagger: words, offsets and entities, as transformers' pipeline gives them."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

import bertworks as bw
from bertworks.data.tables import read_rows
from bertworks.errors import BertworksWarning
from bertworks.explorer.inputs import encode_input
from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.tasks.tagging.settings import TaggingSettings
from bertworks.tasks.tagging.task import TaggingTask
from bertworks.tasks.tagging.text_words import Spellings, find_spellings
from bertworks.text.tokenizer import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG")
# The label of each piece; all others are O.
LABEL_OF_PIECE = {
    **dict.fromkeys(("obama", "john", "王", "anna", "os", "สมชาย", "田"), "B-PER"),
    **dict.fromkeys(("smith", "明", "##lo", "中"), "I-PER"),
    **dict.fromkeys(("new", "london", "paris", "berlin", "北", "東", "##กรงเทพ"), "B-LOC"),
    **dict.fromkeys(("york", "京"), "I-LOC"),
    **dict.fromkeys(("google",), "B-ORG"),
}
OTHERS = (
    *"'’.,-–()!?“”、。々〆@#$%&*+/:;<=>[]^_`{|}~0123456789",
    *("s", "speech", "in", "based", "hired", "the", "train", "com", "lives", "café", "##s", "a"),
    # Without vowel signs, which the uncased tokenizer strips.
    *("住", "在", "に", "は", "さん", "##は", "##に", "##อย", "##ท", "ท", "아", "##아", "서울"),
)
PIECES = (*SPECIAL, *LABEL_OF_PIECE, *OTHERS)


def tagger(path: Path, spellings: tuple[str, ...] = (), **normalization: Any) -> Model:
    """A tagger that knows the label of each piece: the embedding decides, no layer changes it."""
    size = len(PIECES)
    config = EncoderConfig(
        vocab_size=size,
        hidden_size=size + size % 2,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=4,
        max_position_embeddings=128,
    )
    tokenizer = Tokenizer.from_vocabulary(PIECES, **normalization)
    task = TaggingTask.from_dict(
        {
            "labels": LABELS,
            "spans": True,
            "word_column": "words",
            "tag_column": "tags",
            "spellings": spellings,
            "decoding": "free",
        },
        tokenizer,
    )
    network = task.network(config)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "norm" not in name:
                weight.zero_()
        network.encoder.embeddings.word_embeddings.weight[:, :size] = 9 * torch.eye(size)
        for at, piece in enumerate(PIECES):
            network.tag_head.linear.weight[LABELS.index(LABEL_OF_PIECE.get(piece, "O")), at] = 5
    model = Model(tokenizer, task, network.eval())
    model.save(path)
    return bw.load(path, device="cpu")


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return tagger(tmp_path_factory.mktemp("tagger") / "model")


@pytest.fixture(scope="module")
def pipelines(ours):
    model = AutoModelForTokenClassification.from_pretrained(ours.source)
    tokenizer = AutoTokenizer.from_pretrained(ours.source)
    return {
        strategy: pipeline(
            "token-classification",
            model=model,
            tokenizer=tokenizer,
            aggregation_strategy=strategy,
            device="cpu",
        )
        for strategy in ("simple", "first")
    }


def entities_of(model: Model, text: str) -> list[tuple[str, str, int, int]]:
    (answer,) = model.predict([text])
    return [(one["type"], one["text"], one["start"], one["end"]) for one in answer["entities"]]


CASES = [
    ("Obama's speech in New York.", "PER Obama 0 5; LOC New York 18 26"),
    (
        "London-based Google hired John Smith.",
        "LOC London 0 6; ORG Google 13 19; PER John Smith 26 36",
    ),
    ("The Paris-Berlin train", "LOC Paris 4 9; LOC Berlin 10 16"),
    ("London.com", "LOC London 0 6"),
    ("王明住在北京", "PER 王明 0 2; LOC 北京 4 6"),
    ("田中さんは東京に住", "PER 田中 0 2; LOC 東京 5 7"),
    ("\u200bAnna\u200b lives", "PER Anna 1 5"),
    ("Os\u00adlo lives", "PER Os\u00adlo 0 5"),
    ("(Obama, John\u2060 Smith)", "PER Obama 1 6; PER John\u2060 Smith 8 19"),
    ("\ufeffNew\u00a0York", "LOC New\u00a0York 1 9"),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_entities_have_the_words_of_basic_tokenization(ours, pipelines, text, expected):
    entities = entities_of(ours, text)
    assert "; ".join(f"{t} {x} {a} {b}" for t, x, a, b in entities) == expected
    for one in pipelines.values():
        assert [(e["entity_group"], e["start"], e["end"]) for e in one(text)] == [
            (kind, start, end) for kind, _, start, end in entities
        ]


def test_scripts_without_spaces_are_read_piece_by_piece(ours, pipelines):
    text = "สมชายอยู่ที่กรุงเทพ"
    entities = entities_of(ours, text)
    assert entities == [("PER", "สมชาย", 0, 5), ("LOC", "กรุงเทพ", 12, 19)]
    theirs = pipelines["simple"](text)
    assert [(e["entity_group"], e["start"], e["end"]) for e in theirs] == [
        ("PER", 0, 5),
        ("LOC", 12, 19),
    ]


PARTS = st.sampled_from(
    [
        *("Obama", "John", "Smith", "New", "York", "London", "Google", "café", "based", "the"),
        *("王", "明", "北", "京", "東", "。", "、", "서울"),
        *(" ", " ", "  ", "\t", "\u00a0", "\u3000", "'s", "’s", "-", "–", ".", ",", "(", ")", "@"),
        *("\u00ad", "\u200b", "\u2060", "\ufeff", "\x00", "\u200d"),
    ]
)


@pytest.mark.long
@given(parts=st.lists(PARTS, max_size=16))
@settings(max_examples=60, deadline=None)
def test_entities_are_those_of_the_pipeline(ours, pipelines, parts):
    text = "".join(parts)
    (answer,) = ours.predict([text])
    for word in answer["words"]:
        assert word.strip() == word != ""
    if not text.strip():
        assert answer["entities"] == []
        return
    entities = [(one["type"], one["start"], one["end"]) for one in answer["entities"]]
    for one in pipelines.values():
        assert entities == [(e["entity_group"], e["start"], e["end"]) for e in one(text)]


@given(parts=st.lists(PARTS | st.sampled_from(["さん", "は", "ที่", "สมชาย"]), max_size=16))
@settings(max_examples=40, deadline=None)
def test_tokens_are_those_of_the_text(ours, parts):
    """A tagger reads the pieces that every other task reads."""
    text = "".join(parts)
    (words,) = Spellings(ours.tokenizer).read([text])
    (segment,) = ours.tokenizer.segments([text])
    assert np.array_equal(words.segment.input_ids, segment.input_ids)
    assert np.array_equal(words.segment.offsets, segment.offsets)
    assert words.segment.word_ids.tolist() == sorted(words.segment.word_ids.tolist())
    assert {*words.segment.word_ids.tolist()} == {*range(len(words.char_spans))}


@pytest.mark.parametrize(
    ("text", "pieces"),
    [("Os\u00adlo", ["os", "##lo"]), ("\u200bAnna\u200b lives", ["anna", "lives"])],
)
def test_invisible_characters_are_in_no_piece(ours, text, pieces):
    example = ours.task.example({"text": text}, 0, labelled=False)
    (window,) = example.sequences
    assert ours.tokenizer.tokens(window.input_ids)[1:-1] == pieces
    assert [one["token"] for one in encode_input(ours, text).tokens][1:-1] == pieces


def test_the_explorer_reads_the_words_of_the_tagger(ours):
    text = "Obama's, 王明"
    words = ours.predict([text])[0]["words"]
    assert [word["text"] for word in encode_input(ours, text).words] == words


TRAINING_WORDS = ["U.S.", "'s", "3.5", "北京", "กรุงเทพ", "สมชาย", "んで", "Obama", "-", "x\u00a0y"]


@pytest.mark.parametrize("vocabulary", [PIECES, SPECIAL], ids=["all pieces", "no pieces"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("U.S.-based u.s.", ["U.S.", "-", "based", "u.s."]),
        ("Obama’s 12.75 U.S", ["Obama", "’s", "12.75", "U", ".", "S"]),
        ("U. S.", ["U", ".", "S", "."]),
        ("北京人", ["北京", "人"]),
        ("สมชายกรุงเทพ", ["สมชาย", "กรุงเทพ"]),
        ("xyสมชายกรุงเทพz", ["xy", "สมชาย", "กรุงเทพ", "z"]),
        ("住んで", ["住", "んで"]),
        ("U\u200b.S.", ["U\u200b.S."]),
    ],
)
def test_words_are_spelled_as_in_training(text, words, vocabulary):
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    spellings = find_spellings(TRAINING_WORDS)
    assert spellings == ("'s", "0.0", "U.S.", "กรุงเทพ", "สมชาย", "んで", "北京")
    (read_text,) = Spellings(tokenizer, spellings).read([text])
    assert read_text.words_in(text) == words


def test_the_case_of_spellings_matters_to_a_cased_tokenizer():
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=False)
    (words,) = Spellings(tokenizer, ("U.S.",)).read(["u.s. U.S."])
    assert words.words_in("u.s. U.S.") == ["u", ".", "s", ".", "U.S."]


def test_a_trained_tagger_saves_the_spellings_of_its_training_data():
    rows = read_rows([{"words": ["Obama", "'s", "U.S."], "tags": ["B-PER", "O", "B-LOC"]}])
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    task = TaggingTask.from_table(tokenizer, rows, TaggingSettings())
    assert task.settings.spellings == ("'s", "U.S.")
    (example,) = task.examples([{"text": "Obama's U.S."}], 0, labelled=False)
    assert example.words == ["Obama", "'s", "U.S."]


def test_a_word_without_visible_characters_is_unknown_with_a_warning():
    task = TaggingTask.from_dict(
        {
            "labels": ("X", "Y"),
            "spans": False,
            "word_column": "words",
            "tag_column": "tags",
        },
        Tokenizer.from_vocabulary(PIECES),
    )
    row = {"words": ["anna", "\u200b", "Os\u00adlo"], "tags": ["X", "Y", "X"]}
    with pytest.warns(BertworksWarning, match=r"f:1: the tokenizer removes all .*'\\u200b'"):
        example = task.example(row, 0, where="f:1")
    (window,) = example.sequences
    tokens = task.tokenizer.tokens(window.input_ids)
    assert tokens == ["[CLS]", "anna", "[UNK]", "os", "##lo", "[SEP]"]


def publish(source: Model, path: Path, labels: str) -> Model:
    """The tagger as another tool would publish it, with other names for its labels."""
    assert source.source is not None
    shutil.copytree(source.source, path)
    (path / "bertworks.json").unlink()
    config = json.loads((path / "config.json").read_text())
    config["id2label"] = {str(at): label for at, label in enumerate(labels.split())}
    config["label2id"] = {label: int(at) for at, label in config["id2label"].items()}
    (path / "config.json").write_text(json.dumps(config))
    return bw.load(path, device="cpu")


TEXT = "Obama's speech: John Smith, Google, New York 王明 London Paris"


@pytest.mark.parametrize(
    "labels",
    [
        "O B_PER I_PER B_LOC I_LOC B_ORG",
        "O PER-B PER-I LOC-B LOC-I ORG-B",
        "o b-PER i-PER b-LOC i-LOC b-ORG",
        "O B-PER E-PER B-LOC E-LOC S-ORG",
        "O B-PER L-PER B-LOC L-LOC U-ORG",
        "O B-PER M-PER B-LOC M-LOC W-ORG",
    ],
)
def test_a_published_model_has_the_same_entities_in_every_notation(ours, tmp_path, labels):
    model = publish(ours, tmp_path / "model", labels)
    assert entities_of(model, TEXT) == entities_of(ours, TEXT)
    assert model.predict(["Obama"])[0]["tags"] == [labels.split()[1]]
    row = {"words": ["Obama", "John", "Smith"], "tags": ["B-PER", "B-PER", "I-PER"]}
    assert model.evaluate([row]).metrics["f1"] == 1


@pytest.mark.long
@pytest.mark.parametrize("labels", ["O PER NAME LOC PLACE ORG", "O I-PER I-B I-LOC I-I B-ORG"])
def test_a_published_model_groups_words_as_the_pipeline_does(ours, tmp_path, labels):
    model = publish(ours, tmp_path / "model", labels)
    assert model.source is not None
    entities = [(kind, start, end) for kind, _, start, end in entities_of(model, TEXT)]
    for strategy in ("simple", "first"):
        other = pipeline("token-classification", model.source, aggregation_strategy=strategy)
        assert entities == [(e["entity_group"], e["start"], e["end"]) for e in other(TEXT)]


def test_labels_of_no_word_are_no_entities(ours, tmp_path):
    model = publish(ours, tmp_path / "model", "O B-PER I-PER B-LOC I-LOC X")
    assert entities_of(model, "Google London") == [("LOC", "London", 7, 13)]
    rows = [{"words": ["Google", "London"], "tags": ["X", "B-LOC"]}]
    assert model.evaluate(rows).metrics["accuracy"] == 1
    assert model.evaluate([{"words": ["Google"], "tags": ["O"]}]).metrics["accuracy"] == 0


def test_gold_spans_that_the_labels_cannot_tell_apart_are_counted(ours, tmp_path):
    """Without markers, adjacent names are one: the metrics say what is missed."""
    model = publish(ours, tmp_path / "model", "O PER NAME LOC PLACE ORG")
    row = {"words": ["Obama", "John", "in", "London"], "tags": ["B-PER", "B-PER", "O", "B-LOC"]}
    metrics = model.evaluate([row]).metrics
    assert (metrics["precision"], metrics["recall"]) == (1 / 2, 1 / 3)
    assert metrics["accuracy"] == 1


def test_labels_that_only_look_like_spans_are_warned_of(ours, tmp_path):
    with pytest.warns(BertworksWarning, match="since these mark none: 'NOUN'"):
        model = publish(ours, tmp_path / "model", "O B-PER I-PER B-LOC I-LOC NOUN")
    assert "entities" not in model.predict(["Obama"])[0]


@pytest.fixture(scope="module")
def unigram(tmp_path_factory) -> Tokenizer:
    """A tokenizer like SentencePiece's, whose pieces begin words with a mark of the space."""
    library = tokenizers.Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<pad>"]
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token="<unk>")
    library.train_from_iterator(["Obama's Anna lives in 王明 さんは ที่ London-based."] * 9, trainer)
    path = tmp_path_factory.mktemp("unigram")
    library.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": "<pad>"}))
    return Tokenizer.load(path)


@given(parts=st.lists(PARTS | st.sampled_from(["さん", "は", "ที่", "สมชาย"]), max_size=12))
@settings(max_examples=40, deadline=None)
def test_words_of_other_tokenizers_are_in_order_and_whole(unigram, parts):
    text = "".join(parts)
    (words,) = Spellings(unigram, ("'s", "ที่")).read([text])
    assert all(0 <= start < end <= len(text) for start, end in words.char_spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(words.char_spans))
    assert {*words.segment.word_ids.tolist()} == {*range(len(words.char_spans))}
    assert sorted(words.segment.word_ids.tolist()) == words.segment.word_ids.tolist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Obama's lives", ["Obama", "'s", "lives"]),
        ("王明  London-based.", ["王", "明", "London", "-", "based", "."]),
        ("An\u00adna \u200b", ["An\u00adna"]),
        ("\u200b", []),
    ],
)
def test_words_of_other_tokenizers_are_those_of_basic_tokenization(unigram, text, words):
    (read_text,) = Spellings(unigram, ("'s",)).read([text])
    assert read_text.words_in(text) == words
