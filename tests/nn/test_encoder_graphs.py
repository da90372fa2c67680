"""Packs that are padded for CUDA graphs; the graphs themselves: `tests/gpu/test_card.py`."""

import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertworks.nn.config import EncoderConfig
from bertworks.nn.encoder import Encoder
from bertworks.nn.encoder_graphs import (
    InferenceGraphs,
    TrainingGraphs,
    _Owner,
    _replay,
    pad_packed,
    padded_shape,
)
from bertworks.packed import Packed

CONFIG = EncoderConfig(
    vocab_size=30,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=50,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=20)


def random_pack(lengths: list[int]) -> Packed:
    random = np.random.default_rng(0)
    return Packed.from_arrays([random.integers(0, 30, size) for size in lengths]).to("cpu")


@pytest.mark.long
@pytest.mark.parametrize("steps", [1, 8])
@given(LENGTHS)
def test_padded_pack_has_its_shape_and_few_pads(steps, lengths):
    packed = random_pack(lengths)
    shape = padded_shape(packed, 50, steps)
    padded = pad_packed(packed, shape)
    edges = padded.cu_seqlens.tolist()
    assert (padded.num_tokens, padded.num_sequences, padded.max_seqlen) == shape
    assert shape.tokens - packed.num_tokens < max(64, packed.num_tokens / steps + 1)
    assert edges[: len(lengths) + 1] == packed.cu_seqlens.tolist()
    assert edges == sorted(edges) and edges[-1] == shape.tokens
    assert max(np.diff(edges)) <= shape.length <= 50
    counts = [position for size in np.diff(edges) for position in range(size)]
    assert padded.position_ids.tolist() == counts
    assert sum(group.sequences * group.length for group in padded.groups) == shape.tokens


@pytest.mark.long
def test_shapes_are_few():
    random = np.random.default_rng(0)
    shapes = set()
    for _ in range(500):
        layout = Packed.from_arrays([np.zeros(size) for size in random.integers(10, 129, 32)])
        shapes.add(padded_shape(layout, 512, 8))
    assert len(shapes) <= 16


@pytest.mark.long
@given(LENGTHS)
def test_padded_pack_has_the_same_outputs_and_gradients(lengths):
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).double().train()
    packed = random_pack(lengths)
    results = []
    for pack in (packed, pad_packed(packed, padded_shape(packed, CONFIG.max_seqlen, 8))):
        encoder.zero_grad()
        output = encoder.compute(pack)[: packed.num_tokens]
        (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum().backward()
        gradients = [one.grad.clone() for one in encoder.parameters() if one.grad is not None]
        results.append([output.detach(), *gradients])
    for expected, own in zip(*results, strict=True):
        assert (own - expected).abs().max() < 1e-12


@pytest.mark.parametrize("kind", [InferenceGraphs, TrainingGraphs])
def test_encoder_with_graphs_is_freed_at_once(kind):
    encoder = Encoder(CONFIG)
    encoder.graphs = kind(CONFIG.max_seqlen)
    reference = weakref.ref(encoder)
    del encoder
    assert reference() is None


@pytest.mark.parametrize("is_trained", [True, False])
def test_packs_without_a_recorded_graph_are_padded_alike(is_trained, monkeypatch):
    monkeypatch.setattr(TrainingGraphs, "_graph", lambda *_: None)
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).double().train(is_trained)
    packed = random_pack([3, 7, 12])
    packs = []
    monkeypatch.setattr(encoder.embeddings, "words", record(encoder.embeddings.words, packs))
    expected = encoder(packed)
    encoder.graphs = TrainingGraphs(CONFIG.max_seqlen)
    assert (encoder(packed) - expected).abs().max() < 1e-12
    assert [pack.num_tokens for pack in packs] == [22, 64 if is_trained else 22]


def record(function, arguments):
    """The function, which also appends its argument to a list."""
    return lambda argument: arguments.append(argument) or function(argument)


def test_backward_pass_of_a_graph_runs_once() -> None:
    graph = SimpleNamespace(output=torch.ones(3, 2), output_gradient=torch.ones(3, 2))
    graph.forward = graph.backward = lambda: None  # what a card computes
    anchor = torch.zeros((), requires_grad=True)
    output = _replay(anchor, graph, _Owner(), 2)
    output.backward(torch.full((2, 2), 5.0), retain_graph=True)
    assert graph.output_gradient.tolist() == [[5, 5], [5, 5], [0, 0]]
    with pytest.raises(RuntimeError, match="runs once"):
        output.backward(torch.ones(2, 2))
