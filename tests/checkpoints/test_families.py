"""Each family against Hugging Face's models: hidden states, logits, losses, every gradient."""

from __future__ import annotations

import importlib
from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional as F

from bertworks.checkpoints.families import FAMILIES
from bertworks.checkpoints.heads import CLASSIFIER, SPANS, PublishedCheckpoint
from bertworks.checkpoints.network_weights import unique_tensors
from bertworks.errors import CheckpointError
from bertworks.nn.config import EncoderConfig
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.nn.layers import ACTIVATIONS, GroupedLinear
from bertworks.packed import Batch
from bertworks.tasks.classification import ClassificationSettings
from bertworks.tasks.pretraining.discriminator import DiscriminatorNetwork
from bertworks.tasks.pretraining.network import PretrainingNetwork
from bertworks.tasks.text_network import ClassificationNetwork
from tests.checkpoints import measures, oracles
from tests.checkpoints.measures import TOLERANCE
from tests.checkpoints.oracles import CONFIG_CLASSES, OF_KNOWN_PARTS, error, geometry

ALL = list(CONFIG_CLASSES)
BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
FAMILY = pytest.mark.parametrize("family", ALL)


def is_of_known_parts(family: str, name: str) -> bool:
    """Whether other families' tests in the geometry `name` test this family's parts."""
    return name != "small" and family in OF_KNOWN_PARTS


IN_GEOMETRIES = pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(family, name, marks=[pytest.mark.slow] * is_of_known_parts(family, name))
        for family in ALL
        for name in measures.geometries_of(family)
    ],
)


@pytest.mark.long
@BOTH
@IN_GEOMETRIES
def test_layers_and_logits_are_those_of_transformers(family, name, dtype):
    assert (
        measures.outputs(family, dtype, **measures.geometries_of(family)[name]) <= TOLERANCE[dtype]
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "name"),
    [
        # A large vocabulary takes a second each and says nothing new: the slow tests have it.
        pytest.param(
            family,
            name,
            marks=[pytest.mark.slow]
            * (name.startswith("large-vocabulary") or is_of_known_parts(family, name)),
        )
        for family in ALL
        for name in measures.geometries_of(family)
    ],
)
def test_bfloat16_is_as_good_as_the_reference_in_bfloat16(family, name):
    found = measures.outputs_in_bfloat16(family, **measures.geometries_of(family)[name])
    assert found.is_good, found


@pytest.mark.long
@BOTH
@FAMILY
def test_loss_and_gradients_are_those_of_transformers(family, dtype):
    found = measures.gradients(family, dtype)
    assert max(found.values()) <= TOLERANCE[dtype], found


@pytest.mark.long
@FAMILY
def test_gradients_in_bfloat16_are_close(family):
    found = measures.gradients_in_bfloat16(family)
    assert found.is_good, found


@pytest.mark.long
@BOTH
@pytest.mark.parametrize(
    ("family", "values"),
    [
        *((family, {}) for family in ALL),
        ("modernbert", {"classifier_pooling": "mean"}),
        ("eurobert", {"classifier_pooling": "cls"}),
        ("eurobert", {"classifier_pooling": "mean"}),
        ("eurobert", {"rotary": {"factor": 2.5, "theta": 300.0}}),
        ("mobilebert", {"classifier": "linear"}),
    ],
)
def test_a_classifier_has_the_same_logits(family, values, dtype):
    assert measures.classifier_logits(family, dtype, **values) <= TOLERANCE[dtype]
    found = measures.classifier_gradients(family, dtype, **values)
    assert max(found.values()) <= TOLERANCE[dtype], found


@FAMILY
def test_every_activation_is_compared(family):
    """Of those that the family's `config.json` can name, in the reference's implementation."""
    names = {geometry(family, **v).hidden_act for v in measures.geometries_of(family).values()}
    expected = {"openai-gpt": {"relu", "silu", "gelu_new"}, "esm": {"gelu"}}.get(
        family, set(ACTIVATIONS)
    )
    assert names == expected


@pytest.mark.parametrize(
    ("family", "kind"),
    [(family, kind) for family in ALL for kind in FAMILIES[family].classes if kind != "causal-lm"],
)
def test_every_parameter_is_redrawn(family, kind):
    """Gains, biases, and rows that stand for padding: none is what a fresh model has."""
    theirs = oracles.theirs_of(geometry(family), kind, torch.float64)
    for name, parameter in theirs.named_parameters():
        assert not torch.isin(parameter, torch.tensor([0.0, 1.0], dtype=torch.float64)).any(), name
        assert parameter.unique().numel() > 0.99 * parameter.numel(), name


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_classifier_adds_the_loss_of_next_pieces(dtype):
    """GPT's auxiliary objective (Radford et al. 2018, §3.2, equation 5)."""
    config = geometry("openai-gpt")
    theirs = oracles.theirs_of(config, "classification", dtype, num_labels=3)
    network = ClassificationNetwork(
        config, ClassificationSettings(labels=("a", "b", "c"), lm_weight=0.5)
    )
    pair = oracles.pair(network, theirs, config, dtype)
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
    assert max(measures.compare(pair, loss, expected, "openai-gpt").values()) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("values", [{}, {"embedding_size": None, "hidden_act": "gelu_new"}])
def test_a_discriminator_has_the_same_logits(values, dtype):
    config = geometry("electra", **values)
    theirs = oracles.theirs_of(config, "replaced-tokens", dtype)
    pair = oracles.pair(DiscriminatorNetwork(config), theirs, config, dtype)
    is_replaced = torch.arange(pair.packed.num_tokens) % 5 == 1
    batch = Batch(pair.packed, {"is_replaced": is_replaced})
    logits = pair.theirs(**pair.padded).logits[pair.mask]
    # Their own loss is rounded to float32.
    expected = F.binary_cross_entropy_with_logits(logits, is_replaced.to(logits.dtype))
    found = pair.ours.predict(batch)["rtd_logits"].detach()
    assert error(found, logits.detach()) <= TOLERANCE[dtype]
    loss = pair.ours(batch)["rtd"] / len(is_replaced)
    loss.backward()
    expected.backward()
    assert max(measures.compare(pair, loss, expected, "electra").values()) <= TOLERANCE[dtype]


@pytest.mark.parametrize("wrong", [{"hidden_act": "gelu_new"}, {"layer_norm_eps": 1e-8}])
def test_a_wrong_setting_shows(wrong):
    config = geometry("bert")
    networks = [
        PretrainingNetwork(c, next_sentence=False) for c in (config, config.with_values(**wrong))
    ]
    for network in networks:
        oracles.redraw(network.double().eval())
    packed = oracles.sequences(config)
    with torch.no_grad():
        right, other = (network.encoder(packed) for network in networks)
    assert error(other, right) > 100 * TOLERANCE[torch.float64]


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
def test_settings_that_a_family_lacks_are_refused(family, values, says):
    config = geometry(family).with_values(**values)
    with pytest.raises(CheckpointError, match=says):
        FAMILIES[family].write_config(config)


@pytest.mark.long
def test_round_trip_of_names_keeps_every_bit():
    for name, family in FAMILIES.items():
        network = PretrainingNetwork(geometry(name), next_sentence=False)
        own = unique_tensors(network)
        theirs = family.keys.export(own)
        for tensor, kept in own.items():
            assert torch.equal(family.keys.fetch(tensor, theirs), kept), (name, tensor)


_OF_ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
DEFAULTS_OF_FILES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "data2vec-text"), _OF_ROBERTA),
    "roberta-prelayernorm": _OF_ROBERTA,
    "esm": {"vocab_size": 33, "pad_token_id": 1},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
}
"""What all published files of a family say, where the defaults of its class are others."""


@pytest.mark.parametrize("family", CONFIG_CLASSES)
def test_defaults_of_a_family_are_those_of_its_class(family):
    """What a `config.json` leaves out, and what a fresh model of the family has."""
    theirs = getattr(transformers, CONFIG_CLASSES[family])().to_dict()
    theirs |= DEFAULTS_OF_FILES.get(family, {})
    defaults = {name: one for name, one in FAMILIES[family].defaults.items() if name in theirs}
    assert defaults == {name: theirs[name] for name in defaults}


def test_published_sizes_are_counted():
    """110 and 340 million parameters: paper §3."""
    for size, millions in (("base", 110), ("large", 340)):
        with torch.device("meta"):
            network = PretrainingNetwork(EncoderConfig.from_size(size))
        count = sum(parameter.numel() for parameter in network.parameters())
        assert round(count / 1e6, -1) == millions


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "values",
    [
        {"num_buckets": None, "max_distance": 9},
        {"num_buckets": 8, "max_distance": 20, "terms": ("c2p",)},
        {"num_buckets": None, "max_distance": 40, "terms": ("p2c",), "norm": True},
    ],
)
def test_variants_of_deberta_v2_have_the_same_states(values, dtype):
    bias = {"kind": "disentangled", **values}
    values = {"score_bias": bias, "positions": "learned", "type_vocab_size": 2}
    assert measures.outputs("deberta-v2", dtype, **values) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("bottleneck", "trigrams", "values"),
    [
        ({"attention": True}, True, {"norm": "layer", "layer_norm_eps": 0.01}),
        ({"attention": True, "shared_query_key": False}, False, {}),
        ({"num_feed_forward": 1}, True, {"norm": "layer"}),
    ],
)
def test_variants_of_mobilebert_have_the_same_states(bottleneck, trigrams, values, dtype):
    config = geometry("mobilebert")
    parts = {
        "bottleneck": config.bottleneck.with_values(**bottleneck),
        "word_map": config.word_map.with_values(trigrams=trigrams),
    }
    values = values | {name: part.model_dump() for name, part in parts.items()}
    assert measures.outputs("mobilebert", dtype, **values) <= TOLERANCE[dtype]


def test_a_text_alone_has_the_states_of_mobilebert():
    """Without padding, which theirs would see as the next token."""
    config = geometry("mobilebert")
    theirs = oracles.theirs_of(config, "encoder", torch.float64)
    theirs.get_input_embeddings()._forward_hooks.clear()
    pair = oracles.pair(BareEncoder(Encoder(config)), theirs, config, torch.float64)
    with torch.no_grad():
        states = pair.ours.encoder(pair.packed)
        for start, end in pairwise(pair.packed.cu_seqlens.tolist()):
            parts = {
                "input_ids": pair.packed.input_ids,
                "token_type_ids": pair.packed.token_type_ids,
            }
            one = {name: part[None, start:end] for name, part in parts.items()}
            expected = pair.theirs(**one).last_hidden_state[0]
            assert error(states[start:end], expected) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize(
    "values",
    [
        {"max_distance": 9, "terms": ("c2p",)},
        {"max_distance": 40, "terms": ("p2c",)},
    ],
)
def test_variants_of_deberta_v1_have_the_same_states(values):
    bias = {"kind": "disentangled", "num_buckets": None, "key_bias": False, **values}
    settings = {"score_bias": bias, "positions": "learned", "type_vocab_size": 2}
    assert measures.outputs("deberta", torch.float64, **settings) <= TOLERANCE[torch.float64]


@pytest.mark.long
@pytest.mark.parametrize(
    ("convolution", "dtype"),
    [
        ({"kernel_size": 3}, torch.float64),
        ({"kernel_size": 5, "groups": 4, "activation": "gelu"}, torch.float32),
    ],
)
def test_debertas_convolution_has_the_same_states_and_gradients(convolution, dtype):
    """It meets no other sequence of the pack; kernels are wider than the shortest sequences."""
    values = {"convolution": convolution, "num_hidden_layers": 2}
    assert measures.outputs("deberta-v2", dtype, **values) <= TOLERANCE[dtype]
    found = measures.gradients("deberta-v2", dtype, **values)
    assert max(found.values()) <= TOLERANCE[dtype], found
    config = geometry("deberta-v2", **values)
    raw = FAMILIES["deberta-v2"].write_config(config)
    assert FAMILIES["deberta-v2"].read_config(raw, where="here") == config


@pytest.mark.parametrize("family", ["deberta", "deberta-v2"])
def test_debertas_legacy_head_is_read(family):
    """The layout that `transformers` has by default; the published weights have the other one."""
    config = geometry(family)
    theirs = oracles.theirs_of(config, "masked-lm", torch.float64, legacy=True)
    assert any(name.startswith("cls.predictions.") for name, _ in theirs.named_parameters())
    network = PretrainingNetwork(config, next_sentence=False)
    pair = oracles.pair(network, theirs, config, torch.float64)
    with torch.no_grad(), oracles.in_float64():
        logits = pair.ours.mlm_head(pair.ours.encoder(pair.packed))
        expected = pair.theirs(**pair.padded).logits[pair.mask]
    assert error(logits, expected) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize(
    ("family", "raw", "says"),
    [
        ("deberta", {"talking_head": True}, "talking_head=True is not supported"),
        ("deberta", {"relative_attention": False}, "relative_attention=False is not supported"),
        ("deberta", {"pos_att_type": "c2p|p2p"}, "input should be 'c2p' or 'p2c'"),
        ("deberta-v2", {"conv_kernel_size": 4}, "kernel_size=4 is not odd"),
        ("deberta-v2", {"conv_kernel_size": 3, "conv_groups": 7}, "groups=7 does not divide"),
        ("big_bird", {"attention_type": "other"}, "max_full_attention='other'"),
        ("big_bird", {"block_size": 16}, "block_size=16 is not supported"),
        ("squeezebert", {"k_groups": 2}, "k_groups=2 is not supported"),
        ("squeezebert", {"output_groups": 5}, "linear_groups.output=5 does not divide"),
        ("roformer", {"rotary_value": True}, "rotary_value=True is not supported"),
        ("rembert", {"tie_word_embeddings": True}, "tie_word_embeddings=True is not supported"),
        ("longformer", {"attention_window": [8, 16]}, "local_attention="),
        ("longformer", {"attention_window": 7}, "needs an even number for local_attention"),
        ("mobilebert", {"use_bottleneck": False}, "use_bottleneck=False is not supported"),
        ("mobilebert", {"key_query_shared_bottleneck": False}, "needs shared_query_key=true"),
        ("mobilebert", {"num_attention_heads": 3}, "bottleneck.size=128 is not divisible"),
        ("mobilebert", {"embedding_size": None}, "word_map needs embedding_size"),
        ("mobilebert", {"embedding_size": 600}, "is less than the width of the embeddings, 600"),
        ("esm", {"token_dropout": True, "mask_token_id": 99}, "99 is not below vocab_size=33"),
    ],
)
def test_unsupported_settings_of_a_family_are_named(family, raw, says):
    with pytest.raises(CheckpointError, match=says):
        FAMILIES[family].read_config({**raw}, where="here")


@pytest.mark.parametrize("head", [CLASSIFIER, SPANS])
def test_a_head_of_longformer_is_refused_without_its_class(head):
    """Whether tokens are global is decided by the class, and no tensor tells it."""
    family = FAMILIES["longformer"]
    config = family.read_config({}, where="here")
    (output,) = family.keys.theirs(f"{head.name}.linear.weight")

    def has_head(raw: dict[str, list[str]]) -> bool:
        checkpoint = PublishedCheckpoint(raw, config, family, {output: torch.zeros(2)}, None, 512)
        return checkpoint.has_head(head)

    with pytest.raises(CheckpointError, match="no `architectures`, which decide which tokens"):
        has_head({})
    assert not has_head({"architectures": ["LongformerModel"]})


CAUSAL_ONLY = {
    *("roberta", "xlm-roberta", "camembert", "ernie", "electra", "data2vec-text", "megatron-bert"),
    *("roberta-prelayernorm", "xlm-roberta-xl", "rembert", "roformer", "big_bird"),
}
"""Families with a class `…ForCausalLM`, whose files say `is_decoder`, which is refused by name."""
WITHOUT_HEADS = {
    "xlnet": {"XLNetForQuestionAnswering"},  # a search over starts, then ends; only the encoder
    "big_bird": {"BigBirdForQuestionAnswering"},  # with a layer more
    "roformer": {"RoFormerForMultipleChoice"},  # of the last token of a padded row
}
"""Classes of transformers whose heads are not read: only their encoders are."""


@pytest.mark.parametrize("family", ALL)
def test_classes_of_transformers_are_read_or_known(family):
    """A class that a new version of transformers adds to a family is found here."""
    own = FAMILIES[family].classes
    module = importlib.import_module(getattr(transformers, own["encoder"]).__module__)
    classes = {
        name
        for name in module.__all__
        if isinstance(kind := getattr(module, name), type)
        and issubclass(kind, transformers.PreTrainedModel)
        and not name.endswith("PreTrainedModel")
    }
    missing = classes - set(own.values())
    causal = {name for name in missing if name.endswith("ForCausalLM")}
    assert bool(causal) == (family in CAUSAL_ONLY)
    assert missing - causal == WITHOUT_HEADS.get(family, set())
    assert set(own.values()) <= classes


@pytest.mark.parametrize("family", sorted(CAUSAL_ONLY))
def test_decoders_are_refused_by_name(family):
    with pytest.raises(CheckpointError, match="is_decoder=True is not supported"):
        FAMILIES[family].read_config({"is_decoder": True}, where="here")


def test_bigbird_is_read_up_to_the_length_of_its_full_attention():
    read_config = FAMILIES["big_bird"].read_config
    assert read_config({}, where="here").max_seqlen == (5 + 2 * 3) * 64
    assert read_config({"attention_type": "original_full"}, where="here").max_seqlen == 4096


def test_a_map_with_groups_is_a_convolution_and_a_matrix_with_zeros():
    linear = GroupedLinear(12, 24, groups=4, parts=2).double()
    oracles.redraw(linear)
    x = torch.randn(5, 12, dtype=torch.float64)
    parts = zip(linear.weight.chunk(2), linear.bias.chunk(2), strict=True)
    expected = [F.conv1d(x[..., None], w[..., None], b, groups=4).squeeze(-1) for w, b in parts]
    assert torch.allclose(linear(x), torch.cat(expected, -1))
    assert torch.allclose(F.linear(x, linear.dense_weight, linear.bias), linear(x))
