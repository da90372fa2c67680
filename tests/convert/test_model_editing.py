"""Changes of vocabularies and positions: everything else is unchanged."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import bertworks as bw
from bertworks.checkpoints.sentence_settings import SentenceSettings
from bertworks.convert.model_editing import (
    add_frame,
    add_tokens,
    extend_positions,
    shrink,
    text_limit,
)
from bertworks.errors import BertworksWarning, CheckpointError, DataError, SettingsError
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.replaced_tokens import ReplacedTokensTask
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.definition import AddedPiece, Roles
from bertworks.text.tree import TreeDefinition, find_frame
from bertworks.text.wordpiece import WordPieceDefinition
from tests.checkpoints import oracles
from tests.checkpoints.journeys import PIECES
from tests.checkpoints.oracles import geometry
from tests.checkpoints.test_store import tiny


def hidden(model, text):
    packed = bw.Packed.from_arrays([model.tokenizer.encode(text).input_ids]).to("cpu")
    with torch.no_grad():
        return model.encoder(packed)


def words_of(model, text):
    return model.tokenizer.tokens(model.tokenizer.piece_ids([text])[0])


def test_words_take_the_unused_places_first(tmp_path):
    model = tiny()
    assert words_of(model, "Abba") == ["[UNK]"]  # no ## pieces in this vocabulary
    table = model.encoder.embeddings.word_embeddings.weight
    states = hidden(model, "a b c")
    result = add_tokens(model, ["Abba", "a", "c-d", "abba"])
    assert result.added_words == ("abba", "c-d")
    assert result.known_words == ("a", "abba")
    assert result.num_reused == 1
    new = result.model
    assert torch.equal(hidden(new, "a b c"), states)
    assert words_of(new, "abba a") == ["abba", "a"]
    assert words_of(new, "c-d c d") == ["c-d", "c", "d"]
    assert new.tokenizer.token_to_id("abba") == 1
    assert new.tokenizer.token_to_id("c-d") == len(model.tokenizer.pieces)
    rows = new.encoder.embeddings.word_embeddings.weight
    former = model.tokenizer.piece_ids(["c-d"])[0].tolist()
    assert torch.allclose(rows[-1], table[torch.tensor(former)].mean(0))
    new.save(tmp_path / "m")
    again = bw.load(tmp_path / "m", device="cpu")
    assert words_of(again, "abba c-d") == ["abba", "c-d"]
    assert torch.equal(hidden(again, "abba c-d"), hidden(new, "abba c-d"))
    with pytest.raises(DataError, match=r"word 2 \('\\x00'\): nothing is left"):
        add_tokens(model, ["fine", "\0"])


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("##ing", r"begins with ##, which marks pieces inside a word"),
        ("[unused0]", r"is a piece that no text gets"),
        ("[SEP]", r"is a piece that no text gets"),
    ],
)
def test_words_that_cannot_be_pieces_are_named(word, says):
    pieces = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "run", "##ing", "SEP"]
    tokenizer = bw.Tokenizer.from_vocabulary(pieces, lowercase=False)
    model = bw.Model.fresh(tiny().encoder.config.with_values(vocab_size=9), tokenizer)
    assert add_tokens(model, ["#", "##", "a##b"]).added_words == ("#", "##", "a##b")
    with pytest.raises(DataError, match=rf"^word 2 \('{re.escape(word)}'\): {says}"):
        add_tokens(model, ["fine", word])
    with pytest.raises(DataError, match=rf"^f.txt:7 \('{re.escape(word)}'\): {says}"):
        add_tokens(model, ["fine", word], where=["f.txt:1", "f.txt:7"])


def test_words_are_appended_without_unused_pieces():
    tokenizer = bw.Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    model = bw.Model.fresh(tiny().encoder.config.with_values(vocab_size=6), tokenizer)
    result = add_tokens(model, ["dog", "a-a", "cat"])
    assert result.num_reused == 0
    assert result.model.tokenizer.pieces[6:] == ("dog", "cat", "a-a")
    table = result.model.encoder.embeddings.word_embeddings.weight
    old = model.encoder.embeddings.word_embeddings.weight
    assert torch.equal(table[6], old[1])  # "dog" was [UNK]
    assert torch.equal(table[7], old[1])
    assert torch.allclose(table[8], (2 * old[5] + old[1]) / 3)


def test_a_word_of_several_parts_is_known_as_a_whole():
    result = add_tokens(tiny(), ["covid", "Covid-19", "covid-19", "covid"])
    assert result.added_words == ("covid", "covid-19")
    assert result.known_words == ("covid-19", "covid")
    assert words_of(result.model, "Covid covid-19") == ["covid", "covid-19"]
    again = add_tokens(result.model, ["COVID-19", "covid-20"])
    assert (again.added_words, again.known_words) == (("covid-20",), ("COVID-19",))


# Ideographs (one outside the library's range), kana, Thai, Hangul, Latin, digits, a sigma.
SIGNS = "机器学习東京新冠好股\U0002b822タワーのไทย서울aBé7Σ-"
IDEOGRAPH = re.compile("[机器学习東京新冠好股\U0002b822タワーのไทย]")


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("机器学习", "我喜欢机器学习和"),
        ("A股", "A股不好,买A股"),
        ("東京タワー", "東京タワーの近く"),
        ("新冠", "在新冠中"),
        ("深圳市", "深圳市。"),
        ("好", "不好的"),
        ("タワー", "高いタワーの"),
        ("ไทย", "ภาษาไทยครับ"),
        ("x" * 300, "an " + "x" * 300 + " here"),
        ("\U0002b822a", "人\U0002b822a人"),
        ("ΟΔΟΣ-5", "a ΟΔΟΣ-5 b"),
    ],
)
@pytest.mark.parametrize("lowercase", [True, False])
def test_added_word_is_one_piece_of_running_text(word, text, lowercase, tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ab我の"]
    tokenizer = bw.Tokenizer.from_vocabulary(pieces, lowercase=lowercase)
    model = bw.Model.fresh(tiny().encoder.config.with_values(vocab_size=9), tokenizer)
    addition = add_tokens(model, [word])
    new = addition.model.tokenizer.token_to_id(*addition.added_words)
    addition.model.save(tmp_path / "m")
    for tokenizer in (addition.model.tokenizer, bw.Tokenizer.load(tmp_path / "m")):
        assert tokenizer.piece_ids([word])[0].tolist() == [new]
        segment = tokenizer.segments([text])[0]
        spans = segment.offsets[segment.input_ids == new].tolist()
        assert [text[start:end] for start, end in spans] == [word] * text.count(word)


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(
    words=st.lists(st.text(SIGNS, min_size=1, max_size=5), min_size=1, max_size=4, unique=True),
    data=st.data(),
)
def test_added_words_are_those_of_transformers(words, data):
    """Words of scripts without spaces: the same words are found, at the same places."""
    words = [
        word for word in words if IDEOGRAPH.search(word) and not set(word) & set("\U0002b822Σ")
    ]
    assume(words)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ab机の7", "##の", "##7"]
    tokenizer = bw.Tokenizer.from_vocabulary(pieces)
    model = bw.Model.fresh(tiny().encoder.config.with_values(vocab_size=12), tokenizer)
    theirs = transformers.BertTokenizerFast(vocab={p: n for n, p in enumerate(pieces)})
    theirs.add_tokens(
        [word for word in words if len(theirs.tokenize(word)) > 1 or word not in pieces]
    )
    ours = add_tokens(model, words).model.tokenizer
    text = "".join(data.draw(st.lists(st.sampled_from([*words, *SIGNS, " ", "、"]), max_size=12)))
    text = re.sub("[\U0002b822Σ]", "", text)
    expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
    assert ours.segments([text])[0].offsets.tolist() == [list(o) for o in expected.offset_mapping]


def test_added_word_that_no_text_gets_is_an_error():
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    definition = WordPieceDefinition(vocabulary, added=[AddedPiece("ab")])
    config = tiny().encoder.config.with_values(vocab_size=7)
    model = bw.Model.fresh(config, bw.Tokenizer(definition))
    says = r"word 2 \('cabs'\): would never be found in texts: 'cabs' is split into \[UNK\] ab "
    with pytest.raises(DataError, match=says):
        add_tokens(model, ["fine", "cabs"])


def test_shrinking_keeps_the_tokens_of_the_texts():
    model = tiny()
    states = hidden(model, "a b [c")
    small = shrink(model, ["a b", "c"], batch=1)
    assert small.tokenizer.vocab_size < model.tokenizer.vocab_size
    assert small.tokenizer.unused_ids.tolist() == []
    assert words_of(small, "a b h") == ["a", "b", "h"]
    assert torch.equal(hidden(small, "a b [c"), states)
    table = small.encoder.embeddings.word_embeddings.weight
    assert len(table) == small.tokenizer.vocab_size == small.encoder.config.vocab_size
    assert len(small.network.mlm_head.bias) == len(table)
    with pytest.raises(DataError, match="text 2: lone surrogate"):
        shrink(model, ["fine", "\ud800"])


@pytest.fixture
def bytes_model():
    """RoBERTa with a byte-level BPE of its own, and embeddings with rows to spare."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(["the cat sat on the mat"] * 9, trainer)
    library.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tree = json.loads(library.to_str())
    roles = Roles("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    tokenizer = bw.Tokenizer(TreeDefinition(tree, roles, find_frame(tree)))
    config = geometry("roberta", vocab_size=tokenizer.vocab_size + 3)
    task = PretrainingTask(tokenizer, InstanceSettings(format="full-sentences"), max_length=30)
    torch.manual_seed(0)
    return bw.Model(tokenizer, task, task.network(config).eval())


@pytest.mark.long
def test_words_are_added_to_a_byte_level_model(bytes_model, tmp_path):
    model = bytes_model
    text = "the cat sat on a mat"
    states = hidden(model, text)
    found = add_tokens(model, ["dogs", "cat", "hat"])
    assert {"dogs", "hat"} <= set(found.added_words)
    new = found.model
    assert words_of(new, "dogs and")[0] == "dogs"
    assert "Ġdogs" in words_of(new, "the dogs")
    table = new.encoder.embeddings.word_embeddings.weight
    old = model.encoder.embeddings.word_embeddings.weight
    former = model.tokenizer.piece_ids([" dogs"])[0].tolist()
    at = new.tokenizer.token_to_id("Ġdogs")
    assert at >= model.tokenizer.vocab_size
    assert torch.equal(table[at], old[torch.tensor(former)].mean(0))
    assert torch.equal(table[: model.tokenizer.vocab_size], old[: model.tokenizer.vocab_size])
    assert torch.equal(hidden(new, "on the mat"), hidden(model, "on the mat"))
    new.save(tmp_path / "m")
    again = bw.load(tmp_path / "m", device="cpu")
    assert torch.equal(hidden(again, "the dogs sat"), hidden(new, "the dogs sat"))
    small = shrink(model, [text])
    assert torch.equal(hidden(small, text), states)
    assert small.tokenizer.vocab_size == small.encoder.config.vocab_size
    assert small.tokenizer.vocab_size < model.tokenizer.vocab_size
    small.save(tmp_path / "s")
    assert torch.equal(hidden(bw.load(tmp_path / "s", device="cpu"), text), states)


def test_a_zeroed_mask_keeps_its_place_in_a_smaller_vocabulary():
    tokenizer = bw.Tokenizer.from_vocabulary(PIECES)
    config = geometry("esm", vocab_size=len(PIECES), zeroed_token_id=tokenizer.id_of("mask"))
    model = bw.Model.fresh(config, tokenizer)
    small = shrink(model, ["a b c"])
    assert small.encoder.config.zeroed_token_id == small.tokenizer.id_of("mask")
    assert small.tokenizer.id_of("mask") != config.zeroed_token_id
    assert torch.equal(hidden(small, "a [MASK] c"), hidden(model, "a [MASK] c"))


def test_positions_begin_as_copies():
    model = tiny()
    long = extend_positions(model, 100)
    assert torch.equal(hidden(long, "a b c"), hidden(model, "a b c"))
    table = long.encoder.embeddings.position_embeddings.weight
    assert torch.equal(table[40:80], table[:40])
    ids = np.full(100, 104)
    with torch.no_grad():
        assert long.encoder(bw.Packed.from_arrays([ids]).to("cpu")).shape == (100, 48)
    with pytest.raises(SettingsError, match="already has 40 positions"):
        extend_positions(model, 40)
    config = tiny().encoder.config.with_values(family="bertworks", positions="sinusoidal")
    computed = bw.Model.fresh(config, model.tokenizer)
    with pytest.raises(SettingsError, match="positions=sinusoidal, which are not learned"):
        extend_positions(computed, 100)


@pytest.mark.parametrize("kind", [PretrainingTask, ReplacedTokensTask])
def test_texts_may_be_as_long_as_the_new_positions(kind):
    model = tiny()
    task = kind(model.tokenizer, max_length=40)
    model = bw.Model(model.tokenizer, task, task.network(model.encoder.config).eval())
    long = extend_positions(model, 100)
    assert long.task.max_length == 100
    if kind is PretrainingTask:
        assert len(long.fill_mask("a " * 90 + "[MASK]")) == 1
    task = kind(model.tokenizer, max_length=30)  # a limit of its own, which stays
    model = bw.Model(model.tokenizer, task, task.network(model.encoder.config).eval())
    assert extend_positions(model, 100).task.max_length == 30
    assert text_limit(extend_positions(model, 100)) == 30


@pytest.mark.long
@pytest.mark.parametrize(("limit", "new_limit"), [(40, 100), (30, 30), (None, None)])
def test_a_limit_of_all_positions_stays_one_and_a_smaller_one_stays(limit, new_limit, tmp_path):
    """Other tools write the limit into their files, also where it is all positions."""
    model = bw.Model.fresh(tiny().encoder.config, tiny().tokenizer)
    model.sentence = SentenceSettings(max_seq_length=limit)
    extend_positions(model, 100).save(tmp_path / "m")
    long = bw.load(tmp_path / "m", device="cpu")
    assert long.sentence.max_seq_length == new_limit
    assert text_limit(long) == (new_limit or 100)
    expected_warning = (
        pytest.warns(BertworksWarning, match="truncated to 30")
        if new_limit == 30
        else nullcontext()
    )
    with expected_warning:
        long.embed(["a " * 90])


@pytest.mark.parametrize(("limit", "new_limit"), [(40, 100), (30, 30)])
def test_a_task_reads_as_much_of_a_text(limit, new_limit):
    model = tiny("classification")
    settings = model.task.settings.with_values(max_seq_length=limit)
    task = type(model.task)(model.tokenizer, settings)
    model = bw.Model(model.tokenizer, task, task.network(model.encoder.config).eval())
    assert extend_positions(model, 100).task.settings.max_seq_length == new_limit


@pytest.fixture
def gpt(tmp_path):
    """A small GPT with its language-model head, and one row more than it has pieces."""
    letters = [piece for letter in "abcdefg_" for piece in (letter, f"{letter}</w>")]
    pieces = ["<unk>", *letters, "ab", "ab</w>"]
    (tmp_path / "gpt").mkdir()
    ids = {piece: number for number, piece in enumerate(pieces)}
    (tmp_path / "gpt" / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "gpt" / "merges.txt").write_text("#version: 0.2\na b\na b</w>\n")
    config = oracles.geometry("openai-gpt", vocab_size=len(pieces) + 1)
    oracles.theirs_of(config, "masked-lm", torch.float32).save_pretrained(tmp_path / "gpt")
    return bw.load(tmp_path / "gpt", device="cpu")


def test_transposed_matrices_have_no_codes_in_files(gpt, tmp_path):
    with pytest.raises(CheckpointError, match="matrices transposed"):
        gpt.save(tmp_path / "eight", precision="int8")
    assert not (tmp_path / "eight").exists()


def test_gpt_gets_pieces_around_its_texts(gpt, tmp_path):
    framed_gpt = add_frame(gpt, seed=3)
    tokens = framed_gpt.tokenizer.tokens
    assert tokens(framed_gpt.tokenizer.encode("ab c").input_ids) == [
        *("_start_", "ab</w>", "c</w>", "_classify_")
    ]
    pair = framed_gpt.tokenizer.encode("ab", "c")
    assert tokens(pair.input_ids) == ["_start_", "ab</w>", "_delimiter_", "c</w>", "_classify_"]
    assert not pair.token_type_ids.any()
    typed = framed_gpt.tokenizer.encode("_start_").input_ids
    assert (typed == framed_gpt.tokenizer.token_to_id("_start_")).sum() == 1, "a typed one is text"

    table, before = (model.encoder.embeddings.word_embeddings.weight for model in (framed_gpt, gpt))
    assert len(table) == framed_gpt.tokenizer.vocab_size == gpt.tokenizer.vocab_size + 3
    assert torch.equal(table[: gpt.tokenizer.vocab_size], before[:-1])
    new = table[gpt.tokenizer.vocab_size :]
    assert 0.01 < new.std() < 0.03
    assert torch.equal(add_frame(gpt, seed=3).encoder.embeddings.word_embeddings.weight, table)
    ids = torch.from_numpy(gpt.tokenizer.encode("ab c").input_ids.astype("int64"))
    packed = bw.Packed.from_arrays([ids.numpy()]).to("cpu")
    with torch.no_grad():
        assert torch.equal(framed_gpt.encoder(packed), gpt.encoder(packed))

    framed_gpt.save(tmp_path / "framed")
    copy = bw.load(tmp_path / "framed", device="cpu")
    assert copy.tokenizer.fingerprint == framed_gpt.tokenizer.fingerprint
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "framed")
    assert theirs("ab", "c")["input_ids"] == pair.input_ids.tolist()
    with pytest.raises(DataError, match="already puts special pieces around texts"):
        add_frame(copy)
    with pytest.raises(DataError, match="already puts special pieces around texts"):
        add_frame(tiny())


@pytest.mark.long
def test_a_framed_gpt_is_fine_tuned(gpt, tmp_path):
    rows = [
        {"premise": premise, "hypothesis": hypothesis, "label": str(premise == hypothesis)}
        for premise in ("ab", "c d", "e")
        for hypothesis in ("ab", "c d", "e")
    ]
    settings = {"epochs": 2, "batch_size": 4, "lm_weight": 0.5, "max_seq_length": 16}
    result = bw.finetune(add_frame(gpt), train=rows, out=tmp_path / "run", **settings)
    lines = map(json.loads, (tmp_path / "run" / "journal.jsonl").read_text().splitlines())
    assert {"classification", "weighted_lm"} == next(
        line["losses"].keys() for line in lines if line["kind"] == "train"
    )
    model = bw.load(tmp_path / "run", device="cpu")
    assert model.predict([("ab", "ab")]) == result.model.predict([("ab", "ab")])
    example = model.task.example({"premise": "ab", "hypothesis": "c"}, 0, labelled=False)
    assert model.tokenizer.id_to_token(int(example.sequences[0].input_ids[-1])) == "_classify_"
    with pytest.raises(SettingsError, match=r"lm_weight=0\.5: a bert model has no head"):
        bw.finetune(tiny(), train=rows, out=tmp_path / "other", **settings)
