"""Attention's backends against the plain formula in float64, gradients included."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertworks.nn import grouped_attention
from bertworks.nn.attention import attention, dense_attention
from bertworks.nn.grouped_attention import divide_into_blocks
from bertworks.nn.varlen_attention import varlen_attention
from bertworks.packed import Layout, Padded


def layout(lengths):
    return Layout.from_lengths(np.array(lengths))


def tensors(count, heads, size, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (count, heads, size)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def formula(query, key, value, lengths, key_lengths, causal, window, is_global=None):
    """Sequence by sequence, head by head, as the paper writes it."""
    results, q0, k0 = [], 0, 0
    for n, m in zip(lengths, key_lengths, strict=True):
        q, k, v = query[q0 : q0 + n], key[k0 : k0 + m], value[k0 : k0 + m]
        heads = []
        for head in range(q.shape[1]):
            scores = q[:, head] @ k[:, head].T / math.sqrt(q.shape[-1])
            for i in range(n):
                for j in range(m):
                    distance = j - (i + m - n)
                    is_far = window is not None and abs(distance) > window
                    is_far = is_far and not (is_global is not None and is_global[k0 + j])
                    if (causal and distance > 0) or is_far:
                        scores[i, j] = -math.inf
            heads.append(torch.softmax(scores, -1) @ v[:, head])
        results.append(torch.stack(heads, 1))
        q0, k0 = q0 + n, k0 + m
    return torch.cat(results)


@pytest.fixture
def in_turn(monkeypatch):
    """Each group of equal lengths is computed by itself."""
    monkeypatch.setattr("bertworks.nn.grouped_attention._CALL_COST", 0)
    divide_into_blocks.cache_clear()
    yield
    divide_into_blocks.cache_clear()


@pytest.mark.long
@pytest.mark.parametrize("attend", [attention, dense_attention])
@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    more=st.none() | st.lists(st.integers(0, 3), min_size=6, max_size=6),
    causal=st.booleans(),
    window=st.none() | st.integers(0, 4),
    num_global=st.none() | st.integers(0, 9),
    seed=st.integers(0, 2**16),
)
@example(lengths=[2, 3, 9], more=None, causal=False, window=1, num_global=1, seed=0)
def test_attention_equals_the_formula(attend, lengths, more, causal, window, num_global, seed):
    key_lengths = [n + extra for n, extra in zip(lengths, more or [0] * 6, strict=False)]
    q = tensors(sum(lengths), 2, 3, seed)
    k, v = (tensors(sum(key_lengths), 2, 3, seed + part) for part in (1, 2))
    layouts = (layout(lengths), None if more is None else layout(key_lengths))
    is_global = None
    if num_global is not None:
        generator = torch.Generator().manual_seed(seed)
        is_global = torch.rand(sum(key_lengths), generator=generator) < num_global / 10
    scope = {"causal": causal, "window": window, "is_global": is_global}
    own = attend(q, k, v, *layouts, **scope)
    expected = formula(q, k, v, lengths, key_lengths, *scope.values())
    assert torch.allclose(own, expected, atol=1e-12)
    upstream = torch.randn(own.shape, dtype=torch.float64)
    for mine, other in zip(
        torch.autograd.grad(own, (q, k, v), upstream),
        torch.autograd.grad(expected, (q, k, v), upstream),
        strict=True,
    ):
        assert torch.allclose(mine, other, atol=1e-11)


@pytest.mark.usefixtures("in_turn")
def test_groups_in_turn_give_what_one_block_gives():
    """Blocks of one group, of some, and of all: as many are padded as the cost of calls says."""
    lengths = [3, 3, 4, 9, 9, 30]
    q, k, v = (tensors(sum(lengths) + 2, 2, 4, seed) for seed in (1, 2, 3))
    pairs = tuple((group, group) for group in layout(lengths).groups)
    actual, counts = [], []
    for calls in (0, 3000, 100_000):
        grouped_attention._CALL_COST = calls
        divide_into_blocks.cache_clear()
        counts.append(len(divide_into_blocks(pairs, 2, 4, q.device)))
        torch.manual_seed(0)
        result = attention(q, k, v, layout(lengths), dropout=0.3)
        actual.append((result, *torch.autograd.grad(result.square().sum(), (q, k, v))))
    assert counts == [4, 2, 1]
    for other in actual[1:]:
        for mine, theirs in zip(actual[0], other, strict=True):
            assert torch.allclose(mine, theirs, atol=1e-12)
            assert not mine[sum(lengths) :].any() and not theirs[sum(lengths) :].any()


@pytest.mark.parametrize("size", [1 << 19, 3000])  # scores at once: all, or a few sequences
@pytest.mark.parametrize("heads", [(2, 32), (3, 64)])
def test_bfloat16_attention_without_gradients_equals_the_formula(monkeypatch, size, heads):
    monkeypatch.setattr("bertworks.nn.grouped_attention._CHUNK_SCORES", size)
    lengths = [1, 1, 13, 13, 13, 31, 32, 33, 70, 70]
    q, k, v = (tensors(sum(lengths) + 3, *heads, seed).detach().bfloat16() for seed in range(3))
    with torch.inference_mode():
        actual = attention(q, k, v, layout(lengths))
    total = sum(lengths)
    exact = [part[:total].double() for part in (q, k, v)]
    expected = formula(*exact, lengths, lengths, causal=False, window=None)
    # Scores and weights are rounded to 8 bits; a pad that had a weight would move far more.
    assert (actual[:total].double() - expected).abs().max() < 0.03
    assert not actual[total:].any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 0, 2])
def test_a_padded_batch_gives_its_real_tokens_what_a_pack_gives(causal, window):
    lengths, longest = [2, 5, 5, 7], 7
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    padded = Padded.from_tensors(torch.zeros_like(mask, dtype=torch.int64), mask)
    real = mask.flatten()
    q, k, v = (tensors(len(real), 2, 3, seed) for seed in (1, 2, 3))
    rules = {"causal": causal, "window": window}
    own = attention(q, k, v, padded, **rules)[real]
    expected = attention(q[real], k[real], v[real], layout(lengths), **rules)
    assert torch.allclose(own, expected, atol=1e-12)
    dropped = attention(q, k, v, padded, **rules, dropout=0.5)[real]
    assert window == 0 or not torch.allclose(dropped, expected, atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("attend", [attention, dense_attention])
def test_dropout_drops_and_rescales(attend):
    """With the identity as values, the output is the weights themselves: 0 or 1 / (1 - p) times."""
    n, p = 64, 0.25
    zeros = torch.zeros(n * 40, 1, n, dtype=torch.float64)
    eye = torch.eye(n, dtype=torch.float64).repeat(40, 1)[:, None]
    torch.manual_seed(0)
    weights = attend(zeros, zeros, eye, layout([n] * 40), dropout=p) * n
    values = weights.unique()
    assert torch.allclose(values, torch.tensor([0, 1 / (1 - p)], dtype=torch.float64))
    draws = weights.numel()
    assert abs((weights == 0).double().mean() - p) < 5 * math.sqrt(p * (1 - p) / draws)


@pytest.mark.long
def test_dropout_gradient_is_that_of_the_same_mask():
    lengths = [3, 3, 5]
    q, k, v = (tensors(11, 2, 4, seed) for seed in (1, 2, 3))

    def run(q, k, v):
        torch.manual_seed(7)
        return attention(q, k, v, layout(lengths), dropout=0.3)

    assert torch.autograd.gradcheck(run, (q, k, v))


def test_varlen_refuses_the_cpu():
    inputs = [torch.zeros(4, 2, 8, dtype=torch.bfloat16)] * 3
    with pytest.raises(ValueError, match="on cpu, head_size=8"):
        varlen_attention(*inputs, layout([4]), layout([4]), False, None, 0.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="variable-length attention needs CUDA")
@pytest.mark.parametrize("causal", [False, True])
def test_varlen_equals_dense(causal):
    lengths = [5, 5, 17, 64]
    position = layout(lengths).to("cuda")
    q, k, v = (tensors(91, 2, 32, seed).detach() for seed in (1, 2, 3))
    expected = dense_attention(q, k, v, layout(lengths), causal=causal)
    half = [x.to("cuda", torch.bfloat16) for x in (q, k, v)]
    own = varlen_attention(*half, position, position, causal, None, 0.0)
    assert (own.double().cpu() - expected).abs().max() < 0.03
