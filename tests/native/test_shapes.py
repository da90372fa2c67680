"""Layers of any width and head size: each instruction set beside the scalar form and float64."""

from __future__ import annotations

from math import erf

import numpy as np
import pytest
import torch

from bertworks.native import attention_fp32, library
from bertworks.native.embeddings_and_pooling import NativeEmbeddings, mean_of_sequences
from bertworks.native.layer import MAPS, NORMS, NativeLayer, NativeLayers
from bertworks.native.quantization import to_floats
from bertworks.packed import Packed

pytestmark = pytest.mark.skipif(not library.is_enabled(), reason="no native code")

# The error of the scalar form beside float64, and of others beside it, as a part of the norm.
TOLERANCES = {"fp32": (2e-6, 2e-6), "bf16": (1.5e-2, 1.5e-2), "int8": (5e-2, 3e-2)}
SHAPES = [(1, 26, 100), (12, 26, 1), (3, 12, 36), (5, 20, 33), (1, 1, 7), (7, 9, 130)]


def layers_of(random, heads: int, size: int, inner: int) -> dict[str, np.ndarray]:
    """The weights of a layer by name, with large biases, which padding must not shift."""
    width = heads * size
    shapes = [(3 * width, width), (width, width), (inner, width), (width, inner)]
    arrays = {}
    for name, shape in zip(MAPS, shapes, strict=True):
        arrays[f"{name}.weight"] = random.normal(size=shape) / shape[1] ** 0.5
        arrays[f"{name}.bias"] = random.normal(size=shape[0])
    for name in NORMS:
        arrays[f"{name}.weight"] = random.normal(1, 0.2, width)
        arrays[f"{name}.bias"] = random.normal(size=width)
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def compute(arrays, hidden, lengths, heads) -> np.ndarray:
    """The formula of a layer in float64."""
    arrays = {name: array.astype(np.float64) for name, array in arrays.items()}

    def apply_map(name, x):
        return x @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"]

    def normalize(name, x):
        z = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return z * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]

    x = hidden.astype(np.float64)
    parts = apply_map(MAPS[0], x).reshape(len(x), 3, heads, -1).transpose(1, 2, 0, 3)
    contexts = []
    for start, length in zip(np.cumsum([0, *lengths]), lengths, strict=False):
        query, key, value = parts[:, :, start : start + length]
        scores = query @ key.transpose(0, 2, 1) / query.shape[-1] ** 0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        context = weights / weights.sum(-1, keepdims=True) @ value
        contexts.append(context.transpose(1, 0, 2).reshape(length, -1))
    middle = normalize(NORMS[0], apply_map(MAPS[1], np.concatenate(contexts)) + x)
    inner = apply_map(MAPS[2], middle)
    gelu = inner * (1 + np.vectorize(erf)(inner / 2**0.5)) / 2
    return normalize(NORMS[1], apply_map(MAPS[3], gelu) + middle)


def error(actual, expected) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def compare(seed, shape, lengths, precision, isas) -> None:
    random = np.random.default_rng(seed)
    heads, size, inner = shape
    arrays = layers_of(random, heads, size, inner)
    fp32 = precision == "fp32"
    layer = NativeLayer.from_arrays(
        arrays,
        int8=precision == "int8",
        epsilons=(1e-6, 1e-6),
        heads=heads,
        activation="gelu",
        fp32=fp32,
    )
    hidden = random.normal(size=(sum(lengths), heads * size)).astype(np.float32)
    bits = (hidden.view(np.uint32) >> 16).astype(np.uint16)
    hidden, states = (hidden, hidden) if fp32 else (to_floats(bits), bits)
    packed = Packed.from_arrays([np.zeros(length, np.int64) for length in lengths])
    exact = compute(arrays, hidden, lengths, heads)
    most, most_between = TOLERANCES[precision]
    reference = None
    for isa in isas:
        assert library.library().bertworks_choose(isa.encode()) == 0
        actual = to_floats(NativeLayers([layer])(states, packed))
        assert actual.shape == exact.shape
        assert error(actual, exact) < most, (isa, shape, error(actual, exact))
        reference = actual if reference is None else reference
        assert error(actual, reference) < most_between, (isa, shape, error(actual, reference))
        alone = packed.from_arrays([np.zeros(lengths[0], np.int64)])
        bits_alone = to_floats(NativeLayers([layer])(states[: lengths[0]].copy(), alone))
        assert np.array_equal(bits_alone, actual[: lengths[0]]), isa


@pytest.mark.long
@pytest.mark.parametrize("precision", TOLERANCES)
def test_layers_of_odd_widths_equal_float64(precision, instruction_sets):
    for seed, shape in enumerate(SHAPES):
        compare(seed, shape, [1, 2, 17], precision, instruction_sets)


@pytest.mark.slow
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("seed", range(30))
def test_layers_of_random_shapes_equal_float64(precision, seed, instruction_sets):
    random = np.random.default_rng(seed + 1000)
    heads = int(random.integers(1, 13))
    size = int(random.integers(max(1, 8 // heads), 400 // heads + 1))
    inner = int(random.integers(1, 900))
    lengths = random.integers(1, [3, 40, 512]).tolist()
    compare(seed, (heads, size, inner), lengths, precision, instruction_sets)


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
        embeddings = NativeEmbeddings(words, positions, types, (scale, shift, 1e-6), 0, fp32=fp32)
        hidden = embeddings(packed)
        assert hidden is not None
        tolerance = 1e-6 if fp32 else 5e-3
        assert error(to_floats(hidden), exact) < tolerance, isa
        actual = mean_of_sequences(hidden, packed, unit_length=True)
        assert error(actual, unit) < tolerance, isa


@pytest.mark.parametrize("size", [1, 7, 26, 36, 80])
def test_attention_of_odd_heads_equals_float64(size, instruction_sets):
    torch.manual_seed(size)
    packed = Packed.from_arrays([np.zeros(length, np.int64) for length in (1, 9, 40)]).to("cpu")
    query, key, value = torch.randn(3, 50, 3, size)
    for isa in instruction_sets[1:]:  # PyTorch's kernels are taken instead of scalar ones
        assert library.library().bertworks_choose(isa.encode()) == 0
        assert attention_fp32.can_attend(query, key, value, packed, packed)
        actual = attention_fp32.attention(query, key, value, packed, packed)
        for start, end in zip([0, 1, 10], [1, 10, 50], strict=True):
            q, k, v = (x[start:end].transpose(0, 1).double() for x in (query, key, value))
            exact = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1)
            assert error(actual[start:end].numpy(), exact.numpy()) < 1e-6, isa
