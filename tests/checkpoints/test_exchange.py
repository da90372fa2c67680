"""Models go to other tools and come back: Hugging Face's classes, ONNX Runtime."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import onnxruntime
import pytest
import torch
import transformers

import bertworks as bw
from bertworks.checkpoints.families import FAMILIES
from bertworks.errors import BertworksError, DataError
from bertworks.onnx import PaddedNetwork, write_onnx
from bertworks.packed import Packed
from bertworks.tasks.classification import ClassificationSettings, ClassificationTask
from bertworks.tasks.columns import Columns
from bertworks.tasks.pretraining.pairs import InstanceSettings
from bertworks.tasks.pretraining.task import PretrainingTask
from tests.checkpoints import published
from tests.checkpoints.published import CONFIG_CLASSES, error, geometry
from tests.checkpoints.test_store import PIECES

ALL = list(CONFIG_CLASSES)
PAIRED = ["bert", "albert", "ernie"]


def saved_by_them(family, kind, directory, **more):
    """Their model and our tokenizer in a directory."""
    config = geometry(family, vocab_size=len(PIECES))
    theirs = published.theirs_of(config, kind, torch.float32, **more)
    theirs.save_pretrained(directory)
    bw.Tokenizer.from_vocabulary(PIECES).save(directory)
    return theirs


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *[(family, "masked-lm") for family in ALL],
        *[(family, "classification") for family in ALL],
        *[(family, "pretraining") for family in PAIRED],
        *[(family, "encoder") for family in ALL],
        ("electra", "replaced-tokens"),
    ],
)
def test_there_and_back(family, kind, tmp_path, caplog, recwarn):
    theirs = saved_by_them(family, kind, tmp_path / "theirs")
    model = bw.load(tmp_path / "theirs", device="cpu")
    model.save(tmp_path / "ours")
    own_class = getattr(transformers, FAMILIES[family].classes[kind])
    caplog.clear()
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("error")
        again, info = own_class.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not caplog.records
    assert not any(info.values()), info
    expected = theirs.state_dict()
    found = again.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer("a b [c")["input_ids"] == model.tokenizer.encode("a b [c").input_ids.tolist()


def test_a_causal_bert_is_theirs_as_a_decoder(tmp_path):
    """The paper's left-to-right baseline, one setting away (§5.1)."""
    tokenizer = bw.Tokenizer.from_vocabulary(PIECES)
    config = geometry("bert", vocab_size=len(PIECES), attention="causal")
    task = PretrainingTask(
        tokenizer, InstanceSettings(format="full-sentences"), causal=True, max_length=40
    )
    model = bw.Model(tokenizer, task, task.network(config).eval())
    published.redraw(model.network)
    model.save(tmp_path / "m")
    theirs = transformers.BertLMHeadModel.from_pretrained(tmp_path / "m").eval()
    packed, inputs, mask = batch_of(model)
    with torch.no_grad():
        own = model.network.mlm_head(model.encoder(packed))
        assert error(own, theirs(**inputs).logits[mask]) < 1e-5
    again = bw.load(tmp_path / "m", device="cpu")
    assert again.encoder.config == config
    assert again.generate(["a b"], max_new_tokens=5) == model.generate(["a b"], max_new_tokens=5)


def test_a_discriminator_tells_replaced_tokens(tmp_path):
    """What `predict` says of each token is what their model says of it."""
    theirs = saved_by_them("electra", "replaced-tokens", tmp_path / "m")
    model = bw.load(tmp_path / "m", device="cpu")
    text, pair = "a b  c\u00ad a", "c a"
    encoding = model.tokenizer.encode(text, pair)
    with torch.no_grad():
        logits = theirs(
            torch.tensor(encoding.input_ids[None].astype("int64")),
            token_type_ids=torch.tensor(encoding.token_type_ids[None].astype("int64")),
        ).logits[0]
    alone, both = model.predict(["b", (text, pair)])
    assert alone.keys() == {"tokens"}
    assert [entry["token"] for entry in alone["tokens"]] == ["b"]
    told = both["tokens"] + both["pair_tokens"]
    assert [entry["token"] for entry in both["pair_tokens"]] == ["c", "a"]
    inside = torch.from_numpy(~encoding.special_tokens_mask)
    assert [entry["probability"] for entry in told] == pytest.approx(
        torch.sigmoid(logits[inside]).tolist(), rel=1e-4
    )
    assert [text[entry["start"] : entry["end"]] for entry in both["tokens"]] == ["a", "b", "c", "a"]
    with pytest.raises(BertworksError, match="not for masked words or next sentences"):
        model.fill_mask("a [MASK]")
    with pytest.raises(DataError, match="does not say which of its tokens were replaced"):
        model.evaluate([{"text": "a b"}])


def test_a_discriminator_padded(tmp_path):
    theirs = saved_by_them("electra", "replaced-tokens", tmp_path / "m")
    model = bw.load(tmp_path / "m", device="cpu")
    _, inputs, mask = batch_of(model)
    network = PaddedNetwork(model.network)
    assert network.outputs == ("logits",)
    with torch.no_grad():
        (logits,) = network(**inputs)
        assert error(logits[mask], theirs(**inputs).logits[mask]) < 1e-5


def batch_of(model):
    rng = np.random.default_rng(0)
    config = model.encoder.config
    ids = [rng.integers(5, len(PIECES), length) for length in (1, 3, 3, 9, config.max_seqlen)]
    types = [np.arange(len(row)) >= len(row) // 2 for row in ids]
    if config.type_vocab_size < 2:
        types = [np.zeros(len(row)) for row in ids]
    packed = Packed.from_arrays(ids, types).to("cpu")
    padded, mask = packed.to_padded()
    inputs = {"input_ids": padded, "attention_mask": mask.long()}
    if config.type_vocab_size > 1:
        inputs["token_type_ids"] = packed.to_padded(packed.token_type_ids)[0]
    return packed, inputs, mask


@pytest.mark.parametrize("family", ALL)
def test_padded_batches_give_what_packs_give(family):
    tokenizer = bw.Tokenizer.from_vocabulary(PIECES)
    config = geometry(family, vocab_size=len(PIECES))
    model = bw.Model.fresh(config, tokenizer)
    published.redraw(model.network)
    packed, inputs, mask = batch_of(model)
    with torch.no_grad():
        hidden = PaddedNetwork(model.network)(**inputs)[0]
        assert error(hidden[mask], model.encoder(packed)) < 1e-5


@pytest.mark.parametrize(
    "family",
    ["bert", *(pytest.param(family, marks=pytest.mark.slow) for family in ALL if family != "bert")],
)
def test_onnx_runtime_gives_the_same(family, tmp_path):
    tokenizer = bw.Tokenizer.from_vocabulary(PIECES)
    config = geometry(family, vocab_size=len(PIECES))
    task = ClassificationTask(
        tokenizer,
        ClassificationSettings(
            labels=("a", "b", "c"), columns=Columns(text="t", label="l"), max_seq_length=20
        ),
    )
    model = bw.Model(tokenizer, task, task.network(config).eval())
    published.redraw(model.network)
    write_onnx(model, tmp_path / "onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    _, inputs, _ = batch_of(model)
    with torch.no_grad():
        expected = PaddedNetwork(model.network)(**inputs)
    for rows in (slice(None), slice(0, 1), slice(1, 4)):
        longest = int(inputs["attention_mask"][rows].sum(1).max())
        part = {name: value[rows, :longest].numpy() for name, value in inputs.items()}
        (logits,) = session.run(["logits"], part)
        assert error(torch.from_numpy(logits), expected[0][rows]) < 1e-4
