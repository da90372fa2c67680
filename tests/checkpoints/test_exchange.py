"""Models go to other tools and come back: Hugging Face's classes, ONNX Runtime."""

from __future__ import annotations

import pytest
import torch
import transformers

import bertworks as bw
from bertworks.errors import BertworksError, DataError
from bertworks.export import PaddedNetwork
from bertworks.tasks.pretraining.pairs import InstanceSettings
from bertworks.tasks.pretraining.task import PretrainingTask
from tests.checkpoints import journeys, published
from tests.checkpoints.journeys import ONNX_TOLERANCE, PIECES
from tests.checkpoints.published import CONFIG_CLASSES, error, geometry

ALL = list(CONFIG_CLASSES)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "kind"), [(family, kind) for family in ALL for kind in journeys.kinds_of(family)]
)
def test_there_and_back(family, kind, tmp_path):
    found = journeys.there_and_back(family, kind, tmp_path)
    assert found.used == found.in_file
    assert found.new == 0
    assert found.changed == 0
    assert found.complaints == []
    assert found.same_ids


def test_a_changed_bit_is_counted():
    one = torch.tensor([1.0, -2.0, 3.5])
    other = one.clone()
    assert journeys.changed_bits(one, other) == 0
    other[1] = 2.0  # the sign
    assert journeys.changed_bits(one, other) == 1
    assert journeys.changed_bits(one, one.double()) == 96


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
    (named,) = transformers.AutoConfig.from_pretrained(tmp_path / "m").architectures
    assert named == "BertLMHeadModel"
    theirs = transformers.BertLMHeadModel.from_pretrained(tmp_path / "m").eval()
    packed, inputs, mask = journeys.batch_of(model)
    with torch.no_grad():
        own = model.network.mlm_head(model.encoder(packed))
        assert error(own, theirs(**inputs).logits[mask]) < 1e-5
    again = bw.load(tmp_path / "m", device="cpu")
    assert again.encoder.config == config
    assert again.generate(["a b"], max_new_tokens=5) == model.generate(["a b"], max_new_tokens=5)


def test_a_discriminator_tells_replaced_tokens(tmp_path):
    """What `predict` says of each token is what their model says of it."""
    theirs = journeys.saved_by_them("electra", "replaced-tokens", tmp_path / "m")
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
    predicted = both["tokens"] + both["pair_tokens"]
    assert [entry["token"] for entry in both["pair_tokens"]] == ["c", "a"]
    inside = torch.from_numpy(~encoding.special_tokens_mask)
    assert [entry["probability"] for entry in predicted] == pytest.approx(
        torch.sigmoid(logits[inside]).tolist(), rel=1e-4
    )
    assert [text[entry["start"] : entry["end"]] for entry in both["tokens"]] == ["a", "b", "c", "a"]
    with pytest.raises(BertworksError, match="not for masked words or next sentences"):
        model.fill_mask("a [MASK]")
    with pytest.raises(DataError, match="does not say which of its tokens were replaced"):
        model.evaluate([{"text": "a b"}])


def test_a_discriminator_padded(tmp_path):
    theirs = journeys.saved_by_them("electra", "replaced-tokens", tmp_path / "m")
    model = bw.load(tmp_path / "m", device="cpu")
    _, inputs, mask = journeys.batch_of(model)
    network = PaddedNetwork(model.network)
    assert list(network.named(**inputs)) == ["logits"]
    with torch.no_grad():
        (logits,) = network(**inputs)
        assert error(logits[mask], theirs(**inputs).logits[mask]) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("family", ALL)
def test_padded_batches_give_what_packs_give(family):
    assert journeys.padded_and_packed(family) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize(
    "family",
    ["bert", *(pytest.param(family, marks=pytest.mark.slow) for family in ALL if family != "bert")],
)
def test_onnx_runtime_gives_the_same(family, tmp_path):
    assert journeys.onnx(family, tmp_path / "onnx") < ONNX_TOLERANCE
