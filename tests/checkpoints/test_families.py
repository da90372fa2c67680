"""Each family against Hugging Face's models: hidden states, logits, losses, every gradient."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from transformers.models.modernbert import modeling_modernbert

from bertworks.checkpoints.families import FAMILIES
from bertworks.checkpoints.store import own_tensors
from bertworks.errors import CheckpointError
from bertworks.model.config import EncoderConfig
from bertworks.packed import Batch
from bertworks.tasks.classification import ClassificationNetwork
from bertworks.tasks.pretraining.replaced_tokens import DiscriminatorNetwork
from bertworks.tasks.pretraining.task import PretrainingNetwork
from tests.checkpoints import published
from tests.checkpoints.published import CONFIG_CLASSES, error, geometry

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
ALL = list(CONFIG_CLASSES)
GEOMETRIES = [
    pytest.param({}, id="small"),
    pytest.param(
        {"hidden_size": 32, "num_attention_heads": 1, "num_hidden_layers": 1, "vocab_size": 50},
        id="one-head-one-layer",
    ),
    pytest.param({"vocab_size": 60_000, "hidden_act": "relu"}, id="large-vocabulary-relu"),
    pytest.param({"max_position_embeddings": 19, "hidden_act": "silu"}, id="17-positions-silu"),
    pytest.param({"hidden_act": "gelu_new", "num_hidden_layers": 4}, id="tanh-gelu-four-layers"),
]


@pytest.fixture(autouse=True)
def exact_rotation(monkeypatch):
    monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", published.rotate_exactly)


def masked_lm(family, dtype, **values):
    config = geometry(family, **values)
    theirs = published.theirs_of(config, "masked-lm", dtype)
    ours = PretrainingNetwork(config, next_sentence=False)
    return published.pair(ours, theirs, config, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("values", GEOMETRIES)
@pytest.mark.parametrize("family", ALL)
def test_every_layer_and_the_logits(family, values, dtype):
    if family in ("distilbert", "openai-gpt") and values.get("hidden_act") == "silu":
        values = {**values, "hidden_act": "relu"}
    pair = masked_lm(family, dtype, **values)
    with torch.no_grad():
        expected = pair.theirs(**pair.padded, output_hidden_states=True)
        states = list(pair.ours.encoder.hidden_states(pair.packed))
        logits = pair.ours.mlm_head(states[-1])
    assert len(states) == len(expected.hidden_states)
    for own, other in zip(states, expected.hidden_states, strict=True):
        assert error(own, other[pair.mask]) <= TOLERANCE[dtype]
    assert error(logits, expected.logits[pair.mask]) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("family", ALL)
def test_loss_and_every_gradient(family, dtype):
    pair = masked_lm(family, dtype)
    positions = torch.tensor([0, 2, 5, 11, 30, 50, 60, 61, 88, 90])
    labels = torch.randint(0, 101, positions.shape, generator=torch.Generator().manual_seed(1))
    batch = Batch(pair.packed, {"masked_positions": positions, "masked_labels": labels})
    (sum(pair.ours(batch).values()) / len(labels)).backward()
    logits = pair.theirs(**pair.padded).logits[pair.mask][positions]
    F.cross_entropy(logits, labels).backward()
    compare_gradients(pair, family, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("family", ALL)
def test_classifier(family, dtype):
    config = geometry(family)
    theirs = published.theirs_of(config, "classification", dtype, num_labels=3)
    pair = published.pair(ClassificationNetwork(config, 3), theirs, config, dtype)
    labels = torch.arange(pair.packed.num_sequences) % 3
    expected = pair.theirs(**pair.padded).logits
    batch = Batch(pair.packed, {"labels": labels})
    assert error(pair.ours.predict(batch)["logits"].detach(), expected.detach()) <= TOLERANCE[dtype]
    (pair.ours(batch)["classification"] / len(labels)).backward()
    F.cross_entropy(expected, labels).backward()
    compare_gradients(pair, family, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_classifier_that_guesses_next_pieces_too(dtype):
    """GPT's auxiliary objective (Radford et al. 2018, §3.2, equation 5)."""
    config = geometry("openai-gpt")
    theirs = published.theirs_of(config, "classification", dtype, num_labels=3)
    network = ClassificationNetwork(config, 3, lm_weight=0.5)
    pair = published.pair(network, theirs, config, dtype)
    labels = torch.arange(pair.packed.num_sequences) % 3
    losses = pair.ours(Batch(pair.packed, {"labels": labels}))
    next_pieces = pair.packed.num_tokens - pair.packed.num_sequences
    loss = losses["classification"] / len(labels) + losses["weighted_lm"] / next_pieces
    loss.backward()
    hidden = pair.theirs.transformer(**pair.padded).last_hidden_state
    logits = hidden[:, :-1] @ pair.theirs.transformer.tokens_embed.weight.t()
    follows = pair.mask[:, 1:]
    lm = F.cross_entropy(logits[follows], pair.padded["input_ids"][:, 1:][follows])
    expected = F.cross_entropy(pair.theirs(**pair.padded).logits, labels) + 0.5 * lm
    expected.backward()
    assert error(loss.detach(), expected.detach()) <= TOLERANCE[dtype]
    compare_gradients(pair, "openai-gpt", dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("values", [{}, {"embedding_size": None, "hidden_act": "gelu_new"}])
def test_discriminator(values, dtype):
    config = geometry("electra", **values)
    theirs = published.theirs_of(config, "replaced-tokens", dtype)
    pair = published.pair(DiscriminatorNetwork(config), theirs, config, dtype)
    is_replaced = torch.arange(pair.packed.num_tokens) % 5 == 1
    batch = Batch(pair.packed, {"is_replaced": is_replaced})
    logits = pair.theirs(**pair.padded).logits[pair.mask]
    # Their own loss is rounded to float32.
    expected = F.binary_cross_entropy_with_logits(logits, is_replaced.to(logits.dtype))
    found = pair.ours.predict(batch)["rtd_logits"].detach()
    assert error(found, logits.detach()) <= TOLERANCE[dtype]
    loss = pair.ours(batch)["rtd"] / len(is_replaced)
    assert error(loss.detach(), expected.detach()) <= TOLERANCE[dtype]
    loss.backward()
    expected.backward()
    compare_gradients(pair, "electra", dtype)


@pytest.mark.parametrize("wrong", [{"hidden_act": "gelu_new"}, {"layer_norm_eps": 1e-8}])
def test_a_wrong_setting_shows(wrong):
    config = geometry("bert")
    networks = [
        PretrainingNetwork(c, next_sentence=False) for c in (config, config.with_values(**wrong))
    ]
    for network in networks:
        published.redraw(network.double().eval())
    packed = published.sequences(config)
    with torch.no_grad():
        right, other = (network.encoder(packed) for network in networks)
    assert error(other, right) > 100 * TOLERANCE[torch.float64]


def compare_gradients(pair, family, dtype):
    keys = FAMILIES[family].keys
    own = {name: p.grad for name, p in pair.ours.named_parameters()}
    gradients = keys.export(own)
    # A tied parameter of theirs goes by either of its names.
    found = dict(pair.theirs.named_parameters(remove_duplicate=False))
    others = {name: found[name].grad for name in gradients}
    unreached = {id(p) for p in pair.theirs.parameters()} - {id(found[name]) for name in others}
    assert not unreached
    largest = max(gradient.abs().max().item() for gradient in others.values())
    for name, gradient in gradients.items():
        # A bias of the keys moves all scores of a query alike: its gradient is truly zero.
        share = error(gradient, others[name])
        absolute = (gradient - others[name]).abs().max().item()
        assert share <= TOLERANCE[dtype] or absolute <= TOLERANCE[dtype] * largest * 0.1, name


@pytest.mark.parametrize("family", ALL)
def test_the_settings_survive_config_json(family):
    config = geometry(family)
    raw = FAMILIES[family].write_config(config)
    assert FAMILIES[family].read_config(raw, where="here") == config


@pytest.mark.parametrize(
    ("family", "values", "says"),
    [
        ("bert", {"position_offset": 2}, "'bert' has no position_offset=2"),
        ("roberta", {"classifier": "pooler"}, "'roberta' has no classifier='pooler'"),
        ("distilbert", {"type_vocab_size": 2}, "'distilbert' has no type_vocab_size=2"),
        ("albert", {"embedding_size": None}, "'albert' has no embedding_size=None"),
        ("openai-gpt", {"hidden_act": "gelu"}, "'openai-gpt' has no hidden_act='gelu'"),
        ("modernbert", {"use_bias": True}, "'modernbert' has no use_bias=True"),
    ],
)
def test_what_a_family_has_no_words_for_is_said(family, values, says):
    config = geometry(family).with_values(**values)
    with pytest.raises(CheckpointError, match=says):
        FAMILIES[family].write_config(config)


def test_round_trip_of_names_keeps_every_bit():
    for name, family in FAMILIES.items():
        network = PretrainingNetwork(geometry(name), next_sentence=False)
        own = own_tensors(network)
        theirs = family.keys.export(own)
        for tensor, kept in own.items():
            assert torch.equal(family.keys.fetch(tensor, theirs), kept), (name, tensor)


def test_published_sizes_are_counted():
    """110 and 340 million parameters: paper §3."""
    for size, millions in (("base", 110), ("large", 340)):
        with torch.device("meta"):
            network = PretrainingNetwork(EncoderConfig.of_size(size))
        count = sum(parameter.numel() for parameter in network.parameters())
        assert round(count / 1e6, -1) == millions
