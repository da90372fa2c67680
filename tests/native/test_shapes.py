"""Layers of any width and head size: each instruction set beside the scalar form and float64."""

from __future__ import annotations

from dataclasses import replace
from math import erf
from typing import Any

import numpy as np
import pytest

from bertworks.native import library
from bertworks.native.embeddings_and_pooling import NativeEmbeddings, mean_of_sequences
from bertworks.native.layer import MAPS, NORMS, LayerGeometry, NativeLayer, NativeLayers
from bertworks.native.quantization import to_floats
from bertworks.packed import Packed

pytestmark = [
    pytest.mark.light,
    pytest.mark.skipif(not library.is_enabled(), reason="no native code"),
]

# The error of the scalar form beside float64, and of others beside it, as a part of the norm.
TOLERANCES = {"fp32": (2e-6, 2e-6), "bf16": (1.5e-2, 1.5e-2), "int8": (5e-2, 3e-2)}
SHAPES = [(1, 26, 100), (12, 26, 1), (3, 12, 36), (5, 20, 33), (1, 1, 7), (7, 9, 130)]


GEOMETRIES: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm, gated": {"norm_first": True, "is_gated": True, "activation": "silu"},
    "RMS norms": {"norm_first": True, "has_rms_norms": True, "activation": "gelu_new"},
    "neighbours by head": {"is_by_head": True, "rotates_neighbours": True, "is_gated": True},
}
WINDOWS = {"post-norm": None, "pre-norm, gated": 5, "RMS norms": 0, "neighbours by head": None}
PI = 3.141592653589793
FUNCTIONS = {
    "gelu": lambda x: x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2,
    "gelu_new": lambda x: x * (1 + np.tanh((2 / PI) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def geometry_of(name: str, heads: int, size: int) -> LayerGeometry:
    """A geometry; even numbers of heads share their keys in pairs, unless rows are by head."""
    values = {"activation": "gelu", **GEOMETRIES[name]}
    is_shared = heads % 2 == 0 and name == "pre-norm, gated"
    key_heads = heads // 2 if is_shared else heads
    values["rotates_neighbours"] = values.get("rotates_neighbours", False) and size % 2 == 0
    return LayerGeometry(heads=heads, key_heads=key_heads, epsilon=1e-6, **values)


def layers_of(random, geometry: LayerGeometry, size: int, inner: int) -> dict[str, np.ndarray]:
    """The weights of a layer by name, with large biases, which padding must not shift."""
    width = geometry.heads * size
    rows = (geometry.heads + 2 * geometry.key_heads) * size
    gated = inner * (1 + geometry.is_gated)
    shapes = [(rows, width), (width, width), (gated, width), (width, inner)]
    arrays = {}
    for name, shape in zip(MAPS, shapes, strict=True):
        arrays[f"{name}.weight"] = random.normal(size=shape) / shape[1] ** 0.5
        arrays[f"{name}.bias"] = random.normal(size=shape[0])
    for name in NORMS:
        arrays[f"{name}.weight"] = random.normal(1, 0.2, width)
        if not geometry.has_rms_norms:
            arrays[f"{name}.bias"] = random.normal(size=width)
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def angles_of(random, tokens: int, size: int) -> np.ndarray | None:
    """Cosines and sines of random angles for each token and pair of a head's numbers."""
    if size % 2:
        return None
    angles = random.normal(0, 3, size=(tokens, size // 2))
    return np.stack((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32)


def rotate(x, rotations, has_neighbours: bool) -> np.ndarray:
    """Rotate the pairs of `[heads, tokens, size]` numbers."""
    cosine, sine = rotations.astype(np.float64).swapaxes(0, 1)
    if has_neighbours:
        a, b = x[..., ::2], x[..., 1::2]
    else:
        a, b = np.split(x, 2, axis=-1)
    pairs = (a * cosine - b * sine, a * sine + b * cosine)
    return np.stack(pairs, -1).reshape(x.shape) if has_neighbours else np.concatenate(pairs, -1)


def compute(arrays, hidden, lengths, geometry, window, rotations) -> np.ndarray:
    """The formula of a layer in float64."""
    arrays = {name: array.astype(np.float64) for name, array in arrays.items()}
    heads, key_heads = geometry.heads, geometry.key_heads
    size = hidden.shape[1] // heads

    def apply_map(name, x):
        return x @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"]

    def normalize(name, x):
        if not geometry.has_rms_norms:
            x = x - x.mean(-1, keepdims=True)
        z = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6)
        return z * arrays[f"{name}.weight"] + arrays.get(f"{name}.bias", 0)

    def attend(x):
        parts = apply_map(MAPS[0], x).reshape(len(x), -1, size).swapaxes(0, 1)
        if geometry.is_by_head:
            parts = parts.reshape(heads, 3, len(x), size).swapaxes(0, 1).reshape(parts.shape)
        query, key, value = np.split(parts, [heads, heads + key_heads])
        if rotations is not None:
            query, key = (rotate(one, rotations, geometry.rotates_neighbours)
                          for one in (query, key))  # fmt: skip
        key, value = (one.repeat(heads // key_heads, axis=0) for one in (key, value))
        contexts = []
        for start, length in zip(np.cumsum([0, *lengths]), lengths, strict=False):
            q, k, v = (one[:, start : start + length] for one in (query, key, value))
            scores = q @ k.swapaxes(1, 2) / size**0.5
            if window is not None:
                distances = np.subtract.outer(np.arange(length), np.arange(length))
                scores = np.where(abs(distances) > window, -np.inf, scores)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            context = weights / weights.sum(-1, keepdims=True) @ v
            contexts.append(context.swapaxes(0, 1).reshape(length, -1))
        return apply_map(MAPS[1], np.concatenate(contexts))

    def feed(x):
        inner, gate = apply_map(MAPS[2], x), 1
        if geometry.is_gated:
            inner, gate = np.split(inner, 2, axis=1)
        return apply_map(MAPS[3], FUNCTIONS[geometry.activation](inner) * gate)

    x = hidden.astype(np.float64)
    if geometry.norm_first:
        x = x + attend(normalize(NORMS[0], x))
        return x + feed(normalize(NORMS[1], x))
    x = normalize(NORMS[0], x + attend(x))
    return normalize(NORMS[1], x + feed(x))


def error(actual, expected) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def compare(seed, shape, lengths, precision, isas, kind: str) -> None:
    random = np.random.default_rng(seed)
    heads, size, inner = shape
    geometry, window = geometry_of(kind, heads, size), WINDOWS[kind]
    arrays = layers_of(random, geometry, size, inner)
    fp32 = precision == "fp32"
    layer = NativeLayer.from_arrays(arrays, geometry, int8=precision == "int8", fp32=fp32)
    hidden = random.normal(size=(sum(lengths), heads * size)).astype(np.float32)
    bits = (hidden.view(np.uint32) >> 16).astype(np.uint16)
    hidden, states = (hidden, hidden) if fp32 else (to_floats(bits), bits)
    packed = Packed.from_arrays([np.zeros(length, np.int64) for length in lengths])
    angles = None if kind == "post-norm" else angles_of(random, len(hidden), size)
    exact = compute(arrays, hidden, lengths, geometry, window, angles)
    rotations = None if angles is None else (angles, angles)
    most, most_between = TOLERANCES[precision]
    reference, compute_natively = None, NativeLayers([layer], [window])
    for isa in isas:
        assert library.library().bertworks_choose(isa.encode()) == 0
        actual = to_floats(compute_natively(states, packed, None, rotations))
        assert actual.shape == exact.shape
        assert error(actual, exact) < most, (isa, shape, error(actual, exact))
        reference = actual if reference is None else reference
        assert error(actual, reference) < most_between, (isa, shape, error(actual, reference))
        alone = packed.from_arrays([np.zeros(lengths[0], np.int64)])
        one = compute_natively(states[: lengths[0]].copy(), alone, None, rotations)
        assert np.array_equal(to_floats(one), actual[: lengths[0]]), isa


@pytest.mark.long
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("kind", GEOMETRIES)
def test_layers_of_odd_widths_equal_float64(precision, kind, instruction_sets):
    for seed, shape in enumerate(SHAPES):
        compare(seed, shape, [1, 2, 17], precision, instruction_sets, kind)


@pytest.mark.slow
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("seed", range(30))
def test_layers_of_random_shapes_equal_float64(precision, seed, instruction_sets):
    random = np.random.default_rng(seed + 1000)
    heads = int(random.integers(1, 13))
    size = int(random.integers(max(1, 8 // heads), 400 // heads + 1))
    inner = int(random.integers(1, 900))
    lengths = random.integers(1, [3, 40, 512]).tolist()
    kind = [*GEOMETRIES][seed % len(GEOMETRIES)]
    compare(seed, (heads, size, inner), lengths, precision, instruction_sets, kind)


@pytest.mark.parametrize(
    "values",
    [
        {"heads": 3},
        {"key_heads": 1},
        {"is_gated": True},
        {"key_heads": 4},
    ],
    ids=str,
)
def test_arrays_of_another_geometry_are_refused(values):
    """Native code reads as many numbers as the geometry says."""
    arrays = layers_of(np.random.default_rng(0), geometry_of("post-norm", 2, 8), 8, 24)
    geometry = replace(geometry_of("post-norm", 2, 8), **values)
    with pytest.raises((AssertionError, ValueError)):
        NativeLayer.from_arrays(arrays, geometry, int8=False)


def test_states_and_rotations_of_other_shapes_are_refused():
    geometry = geometry_of("post-norm", 2, 8)
    arrays = layers_of(np.random.default_rng(0), geometry, 8, 24)
    layers = NativeLayers([NativeLayer.from_arrays(arrays, geometry, int8=False, fp32=True)])
    packed = Packed.from_arrays([np.zeros(3, np.int64)])
    hidden, rotations = np.zeros((3, 16), np.float32), np.zeros((3, 2, 4), np.float32)
    assert layers(hidden, packed, None, (rotations, rotations)).shape == (3, 16)
    for states in (hidden[:2], hidden[:, :15].copy(), hidden.astype(np.float64)):
        with pytest.raises(AssertionError):
            layers(states, packed)
    for wrong in (rotations[:2], rotations[..., :3].copy(), rotations.astype(np.float64)):
        with pytest.raises(AssertionError):
            layers(hidden, packed, None, (rotations, wrong))


@pytest.mark.parametrize("width", [1, 26, 36, 100, 312])
@pytest.mark.parametrize("fp32", [True, False])
def test_embeddings_and_means_of_odd_widths_equal_float64(width, fp32, instruction_sets):
    random = np.random.default_rng(width)
    words, positions, types = (
        random.normal(size=(rows, width)).astype(np.float32) for rows in (40, 20, 2)
    )
    scale, shift = random.normal(size=(2, width)).astype(np.float32)
    packed = Packed.from_arrays([random.integers(0, 40, length) for length in (1, 5, 20)])
    ids, places = (np.asarray(part) for part in (packed.input_ids, packed.position_ids))
    total = words[ids].astype(np.float64) + positions[places] + types[0]
    z = total - total.mean(1, keepdims=True)
    exact = z / np.sqrt(z.var(1, keepdims=True) + 1e-6) * scale + shift
    edges = np.asarray(packed.cu_seqlens)
    means = np.add.reduceat(exact, edges[:-1]) / np.diff(edges)[:, None]
    unit = means / np.linalg.norm(means, axis=1, keepdims=True)
    for isa in instruction_sets:
        assert library.library().bertworks_choose(isa.encode()) == 0
        embeddings = NativeEmbeddings(
            words, positions, types, (scale, shift), 0, epsilon=1e-6, fp32=fp32
        )
        hidden = embeddings(packed)
        assert hidden is not None
        tolerance = 1e-6 if fp32 else 5e-3
        assert error(to_floats(hidden), exact) < tolerance, isa
        actual = mean_of_sequences(hidden, packed, unit_length=True)
        assert error(actual, unit) < tolerance, isa
