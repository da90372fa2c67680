"""Frozen forms: the module's answers, from weights that were prepared once, for any thread."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from threading import Event

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from bertworks.inference import frozen_network
from bertworks.inference.frozen_layers import FrozenLayer, FrozenOutputLinear, has_packed_kernels
from bertworks.inference.frozen_network import frozen_form
from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.nn.device import autocast_to
from bertworks.nn.encoder import Encoder
from bertworks.nn.heads import MLMHead
from bertworks.nn.layers import OutputLinear
from bertworks.packed import Packed
from bertworks.text.tokenizer import Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])
CONFIG = EncoderConfig(
    vocab_size=TOKENIZER.vocab_size,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=160,
    initializer_range=0.2,
)
GEOMETRIES = {
    "bert": {},
    **{act: {"hidden_act": act} for act in ("gelu_new", "relu", "silu", "tanh")},
    "albert": {"embedding_size": 16, "num_hidden_groups": 1},
    "modernbert": {
        **{"norm_first": True, "gated": True, "positions": "rotary", "use_bias": False},
        **{"type_vocab_size": 0, "local_attention": 8, "global_attention_every": 2},
    },
    "gpt": {"attention": "causal", "norm_first": True},
}


class Pretrained(nn.Module):
    """An encoder and a head that shares its embeddings."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)
        self.head = MLMHead(config, self.encoder.embeddings.word_embeddings.weight)

    def forward(self, packed: Packed) -> torch.Tensor:
        return self.head(self.encoder(packed))


def pack(*lengths: int) -> Packed:
    random = np.random.default_rng(0)
    ids = [random.integers(5, TOKENIZER.vocab_size, length) for length in lengths]
    return Packed.from_arrays(ids).to("cpu")


def network_of(**values) -> Pretrained:
    torch.manual_seed(0)
    return Pretrained(CONFIG.with_values(**values))


@pytest.mark.long
@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_form_computes_what_the_module_does(name):
    network = network_of(**GEOMETRIES[name]).eval()
    packed = pack(1, 5, 5, 9, 128)
    with torch.no_grad():
        expected = network(packed)
    for precision, native in product(("fp32", "bf16"), (True, False)):
        with torch.no_grad(), autocast_to(network, {"bf16": torch.bfloat16}.get(precision)):
            module_output = network(packed)
        with torch.inference_mode():
            output = frozen_form(network, precision, native=native)(packed)
        assert output.dtype is module_output.dtype
        if precision == "fp32":
            torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
        # In bfloat16, as near to float32 as the module itself in autocast.
        least = worst_cosine(module_output, expected) - 2e-4
        assert worst_cosine(output, expected) > max(least, 0.998)


def worst_cosine(output: torch.Tensor, expected: torch.Tensor) -> float:
    """The least cosine of a token's vectors."""
    return float(nn.functional.cosine_similarity(output.double(), expected.double()).min())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("name", ["tanh", "silu", "modernbert"])
def test_blocks_of_rows_change_no_bit(name, precision, monkeypatch):
    network, packed = network_of(**GEOMETRIES[name]).eval(), pack(1, 5, 5, 9, 128)
    with torch.inference_mode():
        form = frozen_form(network, precision, native=False)
        expected = form(packed)
        monkeypatch.setattr("bertworks.inference.frozen_layers._ROWS", 7)
        output = form(packed)
    if has_packed_kernels(torch.bfloat16 if precision == "bf16" else torch.float32):
        assert all(type(layer) is FrozenLayer for layer in form.encoder.layers)
        assert torch.equal(output, expected)
    torch.testing.assert_close(output, expected)


@pytest.mark.skipif(not has_packed_kernels(torch.float32), reason="no packed kernels")
def test_the_last_map_of_a_head_is_packed():
    form = frozen_form(nn.Sequential(OutputLinear(8, 3)).eval())
    assert type(form[0]) is FrozenOutputLinear


def test_a_layer_with_parts_of_anothers_is_called_as_it_is():
    """What adapters put in the place of a linear map knows nothing of residuals."""
    network, packed = network_of().eval(), pack(4, 7)
    layer = network.encoder.layers[1]
    layer.attention.output = nn.Sequential(layer.attention.output, nn.ReLU())
    with torch.no_grad():
        expected = network(packed)
    with torch.inference_mode():
        found = frozen_form(network)(packed)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["", "attention", "feed_forward"])
def test_a_part_of_a_users_class_is_called_as_it_is(name):
    network, packed = network_of().eval(), pack(4, 7)
    part = network.encoder.layers[1].get_submodule(name)

    class DoublingPart(type(part)):
        def forward(self, *args, **kwargs):
            return 2 * super().forward(*args, **kwargs)

    part.__class__ = DoublingPart
    with torch.no_grad():
        expected = network(packed)
    with torch.inference_mode():
        output = frozen_form(network)(packed)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


def test_module_does_not_change():
    network = network_of(hidden_act="tanh").train()
    old_state = {name: value.clone() for name, value in network.state_dict().items()}
    classes = [type(part) for part in network.modules()]
    form = frozen_form(network, "bf16", native=False)
    assert [type(part) for part in network.modules()] == classes
    assert all(part.training for part in network.modules())
    assert not any(part.training for part in form.modules())
    assert network.encoder.compute_dtype is None
    assert all(torch.equal(value, old_state[name]) for name, value in network.state_dict().items())
    assert form.encoder.embeddings.word_embeddings.weight is (
        network.encoder.embeddings.word_embeddings.weight
    )


def change_in_place(network: Pretrained) -> None:
    with torch.no_grad():
        network.encoder.layers[1].feed_forward.output.weight.mul_(2)


def load(network: Pretrained) -> None:
    network.load_state_dict({name: 1.2 * part for name, part in network.state_dict().items()})


def replace_parameter(network: Pretrained) -> None:
    part = network.encoder.layers[0].attention.output
    part.weight = nn.Parameter(2 * part.weight.detach())


def step(network: Pretrained) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1, fused=True)
    for part in network.parameters():
        part.grad = torch.ones_like(part)
    optimizer.step()


def write_data(network: Pretrained) -> None:
    for part in network.parameters():
        part.data.mul_(1.2)


def replace_module(network: Pretrained) -> None:
    torch.manual_seed(1)
    network.encoder.layers[2] = Encoder(CONFIG).eval().layers[2]


@pytest.mark.parametrize(
    "change", [change_in_place, load, step, write_data, replace_parameter, replace_module]
)
def test_changed_weights_are_seen(change):
    network, packed = network_of().eval(), pack(4, 7)
    with torch.inference_mode():
        old = frozen_form(network)
        assert frozen_form(network) is old
        old_output = old.encoder(packed)
    change(network)
    with torch.no_grad():
        expected = network.encoder(packed)
    with torch.inference_mode():
        output = frozen_form(network).encoder(packed)
        assert frozen_form(network) is frozen_form(network)
    assert not torch.allclose(output, old_output, atol=1e-3)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


def test_a_part_more_or_less_is_seen():
    network = network_of().eval()
    last = [module for module in network.modules() if module._parameters][-1]
    old = frozen_form(network)
    last.register_parameter("more", nn.Parameter(torch.ones(1)))
    new = frozen_form(network)
    assert new is not old and frozen_form(network) is new
    del last.more
    assert frozen_form(network) is not new


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_pruned_weights_are_seen(name):
    """The mask is a new buffer, and the last parameter changes its name alone."""
    network, packed = network_of().eval(), pack(4, 7)
    with torch.inference_mode():
        frozen_form(network)
    part = network.encoder.layers[1].feed_forward.output
    nn.init.ones_(part.bias)
    frozen_form(network)
    prune.random_unstructured(part, name, 0.8)
    with torch.no_grad():
        expected = network.encoder(packed)
    with torch.inference_mode():
        found = frozen_form(network).encoder(packed)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_forms_are_freed():
    network = network_of()
    forms = [weakref.ref(frozen_form(network, precision)) for precision in ("fp32", "bf16")]
    other = network_of()
    other_form = frozen_form(other)
    step(network)
    gc.collect()
    assert [form() for form in forms] == [None, None]
    assert frozen_form(other) is other_form
    form = weakref.ref(frozen_form(network))
    assert form() is not None
    del network
    gc.collect()
    assert form() is None


def test_networks_do_not_wait_for_the_form_of_another(monkeypatch):
    network, other = network_of(), network_of()
    is_making, may_make = Event(), Event()

    class SlowNetwork(frozen_network.FrozenNetwork):
        def __init__(self, module, key):
            if module is network:
                is_making.set()
                assert may_make.wait(60)
            super().__init__(module, key)

    monkeypatch.setattr(frozen_network, "FrozenNetwork", SlowNetwork)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(frozen_form, network)
        assert is_making.wait(60)
        same = pool.submit(frozen_form, network)
        try:
            other_form = pool.submit(frozen_form, other).result(timeout=20)
        finally:
            may_make.set()
        assert other_form is not first.result()
        assert same.result() is first.result(), "made once"


@pytest.mark.long
def test_threads_share_a_model():
    model = Model.fresh(CONFIG, TOKENIZER)
    model.network.train()
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(list(LETTERS), length)) for length in (1, 3, 3, 9, 40, 130)]

    def vectors(number: int) -> np.ndarray:
        precision = ("fp32", "bf16")[number % 2]
        return model.embed(texts[number % 3 :], precision=precision)

    expected = [vectors(number) for number in range(6)]
    with torch.no_grad():
        model.network.encoder.layers[0].attention.output.weight.add_(0)  # so that threads make them
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(vectors, range(48)))
    assert not np.array_equal(expected[0], expected[3])
    for number, made in enumerate(found):
        assert np.array_equal(made, expected[number % 6])
    assert model.network.training
