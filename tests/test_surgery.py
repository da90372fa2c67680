"""Vocabulary surgery: what is not touched stays what it was."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
import torch

import bertworks as bw
from bertworks.errors import DataError, SettingsError
from bertworks.surgery import add_tokens, extend_positions, shrink
from bertworks.tasks.pretraining.pairs import InstanceSettings
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.definition import Roles
from bertworks.text.tree import TreeDefinition, find_frame
from tests.checkpoints.published import geometry
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
    before = hidden(model, "a b c")
    found = add_tokens(model, ["Abba", "a", "c-d", "abba"])
    assert found.added == ("abba", "c-d")
    assert found.known == ("a", "abba")
    assert found.reused == 1
    new = found.model
    assert torch.equal(hidden(new, "a b c"), before)
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


def test_words_go_behind_when_nothing_is_unused():
    tokenizer = bw.Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    model = bw.Model.fresh(tiny().encoder.config.with_values(vocab_size=6), tokenizer)
    found = add_tokens(model, ["dog", "a-a", "cat"])
    assert found.reused == 0
    assert found.model.tokenizer.pieces[6:] == ("dog", "cat", "a-a")
    table = found.model.encoder.embeddings.word_embeddings.weight
    old = model.encoder.embeddings.word_embeddings.weight
    assert torch.equal(table[6], old[1])  # "dog" was [UNK]
    assert torch.equal(table[7], old[1])
    assert torch.allclose(table[8], (2 * old[5] + old[1]) / 3)


def test_shrinking_keeps_the_tokens_of_the_texts():
    model = tiny()
    before = hidden(model, "a b [c")
    small = shrink(model, ["a b", "c"], batch=1)
    assert small.tokenizer.vocab_size < model.tokenizer.vocab_size
    assert small.tokenizer.unused_ids.tolist() == []
    assert words_of(small, "a b h") == ["a", "b", "h"]
    assert torch.equal(hidden(small, "a b [c"), before)
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


def test_words_of_a_byte_level_model(bytes_model, tmp_path):
    model = bytes_model
    text = "the cat sat on a mat"
    before = hidden(model, text)
    found = add_tokens(model, ["dogs", "cat", "hat"])
    assert {"dogs", "hat"} <= set(found.added)
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
    assert torch.equal(hidden(small, text), before)
    assert small.tokenizer.vocab_size == small.encoder.config.vocab_size
    assert small.tokenizer.vocab_size < model.tokenizer.vocab_size
    small.save(tmp_path / "s")
    assert torch.equal(hidden(bw.load(tmp_path / "s", device="cpu"), text), before)


def test_positions_begin_as_copies():
    model = tiny()
    long = extend_positions(model, 100)
    assert torch.equal(hidden(long, "a b c"), hidden(model, "a b c"))
    table = long.encoder.embeddings.position_embeddings.weight
    assert torch.equal(table[40:80], table[:40])
    ids = np.full(100, 104)
    with torch.no_grad():
        assert long.encoder(bw.Packed.from_arrays([ids]).to("cpu")).shape == (100, 48)
    with pytest.raises(SettingsError, match="has 40 positions already"):
        extend_positions(model, 40)
