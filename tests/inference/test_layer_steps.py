"""The steps of a layer equal the network's states, its attention, and a plain computation."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import expit, ndtr
from tests.checkpoints.oracles import geometry, redraw

from bertworks.checkpoints.families import FAMILIES
from bertworks.inference.activations import activations
from bertworks.inference.layer_steps import layer_steps, matrices_of, norms_of
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.packed import Packed

LENGTH = 20
VARIANTS = {
    **{family: (family, {}) for family in sorted(FAMILIES) if family != "mobilebert"},
    "rotary causal, of several variants at once": (
        "modernbert",
        {"attention": "causal", "use_bias": True, "norm_bias": True, "hidden_act": "silu"},
    ),
    "neighbours rotated, each head's query and key": ("neobert", {}),
    "gated post-norm": ("bert", {"gated": True, "hidden_act": "relu"}),
    "pre-norm": ("bert", {"norm_first": True, "hidden_act": "tanh"}),
    "slopes of distances": ("bert", {"score_bias": {"kind": "alibi"}}),
    "one head": ("bert", {"num_attention_heads": 1}),
}
ACTIVATIONS = {
    "gelu": lambda x: x * ndtr(x),
    "gelu_new": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * expit(x),
    "tanh": np.tanh,
}


@pytest.fixture(params=VARIANTS)
def layer_inputs(request: pytest.FixtureRequest):
    """An encoder with weights that matter, a sequence, and the encoder's states and attention."""
    family, values = VARIANTS[request.param]
    ours = BareEncoder(Encoder(geometry(family, **values), pooler=False)).eval()
    redraw(ours)
    rng = np.random.default_rng(1)
    ids = rng.integers(5, ours.encoder.config.vocab_size, LENGTH)
    packed = Packed.from_arrays([ids], [np.arange(LENGTH) >= 9]).to("cpu")
    return ours.encoder, packed, activations(ours, packed, attention=True)


def test_every_layer_ends_with_the_networks_own_state(layer_inputs) -> None:
    encoder, packed, own = layer_inputs
    with torch.inference_mode():
        plain = list(encoder.hidden_states(packed))
    for number, attention in enumerate(own.attention):
        steps = layer_steps(encoder, packed, number, own.states[number][0])
        assert (steps["weights"] - attention[0]).abs().max() < 1e-5
        assert (steps["output"] - own.states[number + 1][0]).abs().max() < 1e-5
        assert (steps["output"] - plain[number + 1]).abs().max() < 1e-5
    assert len(own.attention) == encoder.config.num_hidden_layers


def test_each_step_follows_from_the_steps_before_it(layer_inputs) -> None:
    """Computed again in float64, from weights and settings alone."""
    encoder, packed, own = layer_inputs
    for number in range(encoder.config.num_hidden_layers):
        tensors = layer_steps(encoder, packed, number, own.states[number][0])
        steps = {name: step.double().numpy() for name, step in tensors.items()}
        expected = expected_steps(encoder, number, steps)
        assert list(expected) == [name for name in steps if name != "input"]
        for name, value in expected.items():
            assert np.allclose(steps[name], value, rtol=1e-5, atol=2e-5), (number, name)


def expected_steps(encoder, number: int, steps: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each step from those before it (Vaswani et al. 2017, §3.1 to §3.3)."""
    config = encoder.config
    apply_map, apply_norm = (
        partial(_apply_map, encoder, number, steps),
        partial(_apply_norm, encoder, number),
    )
    expected = {}
    source = "input"
    if config.norm_first:
        source = "attention_input"
        expected[source] = apply_norm(source, steps["input"])
    shape = (LENGTH, config.num_attention_heads, config.head_size)
    for name in ("query", "key", "value"):
        expected[name] = apply_map(name, source).reshape(shape)
    query, key = "query", "key"
    if config.positions == "rotary":
        query, key = "rotated_query", "rotated_key"
        theta = config.rotary.local_theta if config.is_local(number) else config.rotary.theta
        for name in ("query", "key"):
            has_neighbours = config.rotary.rotates_neighbours
            expected[f"rotated_{name}"] = _rotate(steps[name], theta, has_neighbours)
    scores = np.einsum("qhd,khd->hqk", steps[query], steps[key]) / math.sqrt(config.head_size)
    distance = np.arange(LENGTH)[None] - np.arange(LENGTH)[:, None]
    if config.score_bias is not None:
        expected["score_bias"] = _score_bias(encoder, number, steps, distance)
        scores = scores * math.sqrt(config.head_size / config.score_divisor)
        scores = scores + expected["score_bias"].transpose(1, 0, 2)
    window = config.window(number)
    if config.attention == "causal":
        scores = np.where(distance > 0, -np.inf, scores)
    if window is not None:
        scores = np.where(np.abs(distance) > window, -np.inf, scores)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    expected |= {"scores": scores, "weights": powers / powers.sum(-1, keepdims=True)}
    context = np.einsum("hqk,khd->qhd", steps["weights"], steps["value"])
    expected["context"] = context.reshape(LENGTH, -1)
    expected["attention_output"] = apply_map("attention_output", "context")
    expected["attention_sum"] = steps["input"] + steps["attention_output"]
    expected["feed_forward_input"] = apply_norm("feed_forward_input", steps["attention_sum"])
    expected["intermediate"] = apply_map("intermediate", "feed_forward_input")
    activations = ACTIVATIONS[config.hidden_act](steps["intermediate"])
    if config.gated:
        expected["gate"] = apply_map("gate", "feed_forward_input")
        activations = activations * steps["gate"]
    expected["activated"] = activations
    expected["feed_forward_output"] = apply_map("feed_forward_output", "activated")
    before = steps["attention_sum" if config.norm_first else "feed_forward_input"]
    expected["feed_forward_sum"] = before + steps["feed_forward_output"]
    expected["output"] = apply_norm("output", steps["feed_forward_sum"])
    return expected


def _apply_map(encoder, number: int, steps: dict[str, np.ndarray], name: str, source: str):
    weight, bias = matrices_of(encoder, number)[name]
    return steps[source] @ weight.double().numpy().T + (0 if bias is None else bias.numpy())


def _apply_norm(encoder, number: int, name: str, x: np.ndarray) -> np.ndarray:
    norm = norms_of(encoder, number).get(name)
    if norm is None:
        return x
    weight, bias = (
        None if one is None else one.detach().numpy() for one in (norm.weight, norm.bias)
    )
    if encoder.config.norm == "layer":
        x = x - x.mean(-1, keepdims=True)
    scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps)
    result: np.ndarray = scaled * weight + (0 if bias is None else bias)
    return result


def _score_bias(encoder, number: int, steps: dict[str, np.ndarray], distance: np.ndarray):
    settings, part = encoder.config.score_bias, encoder.score_bias
    if settings.kind == "transformer-xl":
        return _transformer_xl_terms(encoder, number, steps, distance)
    size = np.abs(distance)
    table = None if settings.kind == "alibi" else part.table.weight.detach().double().numpy()
    if settings.kind == "alibi":  # four heads (Press et al. 2022, §3)
        return -np.array([0.25, 0.0625, 0.015625, 0.00390625])[None, :, None] * size[:, None]
    if settings.kind == "buckets":  # 32, for distances up to 128 (Raffel et al. 2020, §2.1)
        far_buckets = 8 + (np.log(np.maximum(size, 1) / 8) / np.log(128 / 8) * 8).astype(int)
        buckets = np.where(size < 8, size, np.minimum(far_buckets, 15)) + 16 * (distance > 0)
        return table[buckets].transpose(0, 2, 1)
    if settings.num_buckets is None:  # a vector for each distance up to 30, no biases of keys
        rows = np.clip(30 - distance, 0, 59)
        maps = encoder.layers[number].attention.distance_maps
        assert maps.key.bias is None
        keys, queries = (
            part(torch.from_numpy(table).float()).detach().double().numpy()
            for part in (maps.key, maps.query)
        )
        return _distance_terms(encoder, steps, rows, queries, keys)
    # 16 buckets for distances up to 30 (He et al. 2021, §3.1, and the code of version 2)
    far_buckets = np.ceil(np.log(np.maximum(size, 1) / 8) / np.log(29 / 8) * 7) + 8
    rows = 16 - np.where(size <= 8, distance, far_buckets * np.sign(distance)).astype(int)
    vectors = torch.from_numpy(table).float()
    if part.norm is not None:
        vectors = part.norm(vectors).detach()
    assert settings.shared_maps
    queries, keys = (
        (vectors @ weight.T + bias).detach().double().numpy()
        for weight, bias in map(matrices_of(encoder, number).get, ("query", "key"))
    )
    return _distance_terms(encoder, steps, rows, queries, keys)


def _transformer_xl_terms(encoder, number: int, steps: dict[str, np.ndarray], distance: np.ndarray):
    """Yang et al. (2019), §2.5, without the term of segments that is the same for all keys."""
    maps, config = encoder.layers[number].attention.distance_maps, encoder.config
    content, position, segment, segments, weight = (
        part.detach().double().numpy()
        for part in (
            *(maps.content_bias, maps.position_bias, maps.segment_bias),
            *(maps.segments, maps.position.weight),
        )
    )
    frequencies = 10_000.0 ** (-np.arange(0, config.hidden_size, 2) / config.hidden_size)
    angles = -distance[..., None] * frequencies
    vectors = np.concatenate([np.sin(angles), np.cos(angles)], -1) @ weight.T
    keys = vectors.reshape(LENGTH, LENGTH, *content.shape)
    terms = np.einsum("hd,khd->hk", content, steps["key"])
    terms = terms + np.einsum("qhd,qkhd->qhk", steps["query"] + position, keys)
    is_second = np.arange(LENGTH) >= 9
    is_same = is_second[:, None] == is_second
    same = np.einsum("qhd,hd->qh", steps["query"] + segment, segments[0] - segments[1])
    return (terms + same[..., None] * is_same[:, None]) / math.sqrt(config.head_size)


def _distance_terms(encoder, steps: dict[str, np.ndarray], rows, queries, keys) -> np.ndarray:
    """Products with the queries and keys of distances, whose rows are given for each pair."""
    shape = (len(keys), encoder.config.num_attention_heads, -1)
    queries, keys = queries.reshape(shape), keys.reshape(shape)
    terms = np.einsum("qhd,qkhd->qhk", steps["query"], keys[rows])
    terms += np.einsum("khd,qkhd->qhk", steps["key"], queries[rows])
    return terms / math.sqrt(encoder.config.score_divisor)


def _rotate(x: np.ndarray, theta: float, has_neighbours: bool) -> np.ndarray:
    """Pairs of features as complex numbers, turned by the angle of their position."""
    half = x.shape[-1] // 2
    angles = np.arange(LENGTH)[:, None] * theta ** (-np.arange(half) / half)
    turns = np.exp(1j * angles)[:, None]
    if has_neighbours:
        pairs = (x[..., ::2] + 1j * x[..., 1::2]) * turns
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)
    pairs = (x[..., :half] + 1j * x[..., half:]) * turns
    return np.concatenate([pairs.real, pairs.imag], -1)
