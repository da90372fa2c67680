"""NeoBERT equals its formula: its code is in no package, so the paper's is written out here."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

import bertworks as bw
from bertworks.checkpoints.families import find_family
from bertworks.checkpoints.network_weights import unique_tensors
from bertworks.packed import Batch
from bertworks.tasks.classification import ClassificationSettings
from bertworks.tasks.pretraining.network import PretrainingNetwork
from bertworks.tasks.text_network import ClassificationNetwork
from tests.checkpoints import journeys, oracles
from tests.checkpoints.measures import TOLERANCE
from tests.checkpoints.oracles import error, geometry

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
HEADS, EPSILON = 4, 1e-6


def hidden_states(tensors: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The last states of one text (Le Breton et al. 2025, section 3.1): `[tokens, hidden_size]`.

    RMS norms before attention and before SwiGLU, rotations of complex numbers, no biases.
    """
    x = tensors["model.encoder.weight"][ids]
    length, size = len(ids), x.shape[1] // HEADS
    exponents = torch.arange(0, size, 2).float() / size
    # In float32, as in the published code.
    angles = torch.outer(torch.arange(length).float(), 1.0 / 10_000.0**exponents)
    turns = torch.complex(angles.cos().double(), angles.sin().double())[:, None]

    def rotate(part: Tensor) -> Tensor:
        pairs = torch.view_as_complex(part.double().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turns).flatten(-2).to(part.dtype)

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * tensors[name]

    number = 0
    while f"{(layer := f'model.transformer_encoder.{number}')}.qkv.weight" in tensors:
        mixed = norm(x, f"{layer}.attention_norm.weight") @ tensors[f"{layer}.qkv.weight"].t()
        query, key, value = mixed.view(length, HEADS, 3 * size).chunk(3, -1)
        scores = torch.einsum("qhd,khd->hqk", rotate(query), rotate(key)) / math.sqrt(size)
        context = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1)
        x = x + context @ tensors[f"{layer}.wo.weight"].t()
        both = norm(x, f"{layer}.ffn_norm.weight") @ tensors[f"{layer}.ffn.w12.weight"].t()
        first, second = both.chunk(2, -1)
        x = x + (F.silu(first) * second) @ tensors[f"{layer}.ffn.w3.weight"].t()
        number += 1
    return norm(x, "model.layer_norm.weight")


def reference_of(network: torch.nn.Module) -> dict[str, Tensor]:
    """The network's tensors under the published names, in float64, as leaves of a graph."""
    tensors = find_family("neobert").keys.export(unique_tensors(network))
    return {name: one.double().requires_grad_() for name, one in tensors.items()}


def compare_gradients(network: torch.nn.Module, reference: dict[str, Tensor]) -> float:
    own = find_family("neobert").keys.export({n: p.grad for n, p in network.named_parameters()})
    assert own.keys() == reference.keys()
    return max(error(own[name], reference[name].grad) for name in own)


@BOTH
def test_masked_words_and_gradients_are_those_of_the_formula(dtype):
    config = geometry("neobert")
    network = PretrainingNetwork(config, next_sentence=False).to(dtype).eval()
    oracles.redraw(network)
    packed, reference = oracles.sequences(config), reference_of(network)
    states = [
        hidden_states(reference, part)
        for part in packed.input_ids.long().split(packed.lengths.tolist())
    ]
    expected = torch.cat(states) @ reference["decoder.weight"].t() + reference["decoder.bias"]
    hidden = network.encoder(packed)
    logits = network.mlm_head(hidden)
    assert error(hidden.detach(), torch.cat(states).detach()) <= TOLERANCE[dtype]
    assert error(logits.detach(), expected.detach()) <= TOLERANCE[dtype]
    labels = torch.arange(len(logits)) % config.vocab_size
    F.cross_entropy(logits, labels).backward()
    F.cross_entropy(expected, labels).backward()
    assert compare_gradients(network, reference) <= TOLERANCE[dtype]


@BOTH
def test_a_classifier_has_a_layer_with_tanh(dtype):
    config = geometry("neobert")
    network = (
        ClassificationNetwork(config, ClassificationSettings(labels=("a", "b", "c")))
        .to(dtype)
        .eval()
    )
    oracles.redraw(network)
    packed, reference = oracles.sequences(config), reference_of(network)
    first = torch.stack(
        [
            hidden_states(reference, part)[0]
            for part in packed.input_ids.long().split(packed.lengths.tolist())
        ]
    )
    inner = torch.tanh(first @ reference["dense.weight"].t() + reference["dense.bias"])
    expected = inner @ reference["classifier.weight"].t() + reference["classifier.bias"]
    found = network.predict(Batch(packed))["logits"]
    assert error(found.detach(), expected.detach()) <= TOLERANCE[dtype]


def test_config_and_tensors_have_the_published_names(tmp_path):
    tokenizer = bw.Tokenizer.from_vocabulary(journeys.PIECES)
    config = geometry("neobert", vocab_size=len(journeys.PIECES))
    model = bw.Model.fresh(config, tokenizer)
    oracles.redraw(model.network)
    model.save(tmp_path / "m")
    raw = json.loads((tmp_path / "m" / "config.json").read_text())
    names = ("model_type", "intermediate_size", "max_length", "norm_eps", "decoder_init_range")
    assert [raw[name] for name in names] == ["neobert", 120, 40, EPSILON, 0.02]
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    assert {
        name.removeprefix("model.") for name in tensors if "." in name and "transformer" not in name
    } >= {"encoder.weight", "layer_norm.weight"}
    copy = bw.load(tmp_path / "m", device="cpu")
    assert copy.encoder.config == config
    packed, *_ = journeys.batch_of(model)
    with torch.no_grad():
        assert torch.equal(copy.encoder(packed), model.encoder(packed))
