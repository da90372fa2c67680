"""Terms of distances in the scores: every path of attention against the plain formula."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from bertworks.inference.activations import activations
from bertworks.inference.frozen_layers import FrozenLayer, has_packed_kernels
from bertworks.inference.frozen_native_layers import FrozenNativeLayer
from bertworks.inference.frozen_network import frozen_form
from bertworks.native import attention_fp32
from bertworks.native.library import has_kernels
from bertworks.nn import grouped_attention
from bertworks.nn.attention import attention, dense_attention
from bertworks.nn.config import EncoderConfig
from bertworks.nn.device import autocast_to
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.nn.encoder_layers import Layer
from bertworks.nn.grouped_attention import divide_into_blocks
from bertworks.nn.score_bias import BucketBias, LinearBias, ScoreBias, round_up_length
from bertworks.packed import Layout, Packed, Padded

LENGTHS = [1, 2, 5, 5, 13, 13, 33, 70]
_VECTORS = {"kind": "disentangled", "max_distance": 60}
KINDS = {
    "buckets": {"kind": "buckets"},
    "alibi": {"kind": "alibi"},
    "distances": {**_VECTORS, "num_buckets": None},
    "no key biases": {**_VECTORS, "num_buckets": None, "key_bias": False},
    "ranges": {**_VECTORS, "num_buckets": 16, "shared_maps": True, "norm": True},
    "transformer-xl": {"kind": "transformer-xl"},
}


def config_of(kind: str, hidden_size: int = 64, num_attention_heads: int = 2) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=40,
        hidden_size=hidden_size,
        num_hidden_layers=2,
        num_attention_heads=num_attention_heads,
        intermediate_size=64,
        max_position_embeddings=80,
        initializer_range=0.1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        score_bias=KINDS[kind],
    )


# ----------------------------------------------------------------------------------------- kinds


def bucket(distance: int) -> int:
    """T5's bucket of the distance of a key from a query, number by number."""
    size, first_bucket = abs(distance), 16 if distance > 0 else 0
    if size < 8:
        return first_bucket + size
    return first_bucket + min(15, 8 + int(math.log(size / 8) / math.log(128 / 8) * 8))


def test_buckets_are_those_of_t5():
    part = BucketBias(config_of("buckets"), config_of("buckets").score_bias)
    expected = [bucket(distance) for distance in range(-299, 300)]
    assert part.buckets(300).tolist() == expected
    assert set(expected) == set(range(32)) - {16}  # no later token is at distance 0


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (8, [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8]),
        # 12 heads: those of 8, then every second one of 16 (Press et al. 2022, and their code).
        (12, [*(2.0**-n for n in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
        (1, [2**-8]),
    ],
)
def test_slopes_are_those_of_the_paper(heads, expected):
    config = config_of("alibi", 8 * heads, heads)
    part = LinearBias(config, config.score_bias)
    assert part.slopes == pytest.approx(expected)
    bias = part(3, torch.empty(0, dtype=torch.float64))
    assert torch.equal(bias.numbers[0], -expected[0] * torch.tensor([2.0, 1, 0, 1, 2]).double())


# --------------------------------------------------------------------------------------- backends


def numbers(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def make_bias(terms: str, length: int, heads: int, size: int) -> ScoreBias:
    """Random terms, of which `terms` names those that there are."""
    count = 2 * length - 1
    return ScoreBias(
        length,
        numbers(heads, count, seed=11).requires_grad_() if "c" in terms else None,
        numbers(heads, count, size, seed=12).requires_grad_() if "a" in terms else None,
        numbers(heads, count, size, seed=13).requires_grad_() if "b" in terms else None,
        0.3 if terms != "c" else None,
    )


def formula(query: Tensor, key: Tensor, value: Tensor, lengths, bias: ScoreBias) -> Tensor:
    """Sequence by sequence, head by head, pair by pair."""
    results, start = [], 0
    scale = 1 / math.sqrt(query.shape[-1]) if bias.scale is None else bias.scale
    for n in lengths:
        q, k, v = (part[start : start + n].transpose(0, 1) for part in (query, key, value))
        index = torch.arange(n)[None] - torch.arange(n)[:, None] + bias.length - 1
        scores = scale * (q @ k.transpose(1, 2))
        if bias.numbers is not None:
            scores = scores + bias.numbers[:, index]
        if bias.keys is not None:
            scores = scores + scale * torch.einsum("hid,hijd->hij", q, bias.keys[:, index])
        if bias.queries is not None:
            scores = scores + scale * torch.einsum("hjd,hijd->hij", k, bias.queries[:, index])
        results.append((torch.softmax(scores, -1) @ v).transpose(0, 1))
        start += n
    return torch.cat(results)


@pytest.fixture(params=[0, 3000, 50_000], ids=["one group", "some groups", "all groups"])
def block_cost(request, monkeypatch):
    """How many groups a block holds."""
    monkeypatch.setattr(grouped_attention, "_CALL_COST", request.param)
    divide_into_blocks.cache_clear()
    yield
    divide_into_blocks.cache_clear()


TERMS = pytest.mark.parametrize("terms", ["c", "a", "b", "abc"])


@TERMS
@pytest.mark.usefixtures("block_cost")
def test_gradients_equal_those_of_the_formula(terms):
    lengths, size = [1, 3, 3, 4, 9], 4
    bias = make_bias(terms, round_up_length(9), 2, size)
    parts = [numbers(sum(lengths), 2, size, seed=seed).requires_grad_() for seed in range(3)]
    leaves = [*parts, *(x for x in (bias.numbers, bias.keys, bias.queries) if x is not None)]
    layout = Layout.from_lengths(np.array(lengths))
    expected = formula(*parts, lengths, bias)
    upstream = numbers(*expected.shape, seed=7)
    gradients = torch.autograd.grad(expected, leaves, upstream)
    for attend in (attention, dense_attention):
        found = attend(*parts, layout, bias=bias.in_graph())
        assert torch.allclose(found, expected, atol=1e-12)
        for own, other in zip(torch.autograd.grad(found, leaves, upstream), gradients, strict=True):
            assert torch.allclose(own, other, atol=1e-12)


@TERMS
def test_dropout_gradients_are_those_of_the_same_mask(terms):
    lengths, size = [2, 3, 3], 2
    bias = make_bias(terms, 32, 1, size)
    parts = [numbers(sum(lengths), 1, size, seed=seed).requires_grad_() for seed in range(3)]
    leaves = [x for x in (bias.numbers, bias.keys, bias.queries) if x is not None]
    layout = Layout.from_lengths(np.array(lengths))

    def run(*tensors: Tensor) -> Tensor:
        rest = iter(tensors[3:])
        terms_of = [
            None if x is None else next(rest) for x in (bias.numbers, bias.keys, bias.queries)
        ]
        torch.manual_seed(7)
        copy = ScoreBias(32, *terms_of, bias.scale).in_graph()
        return attention(*tensors[:3], layout, dropout=0.3, bias=copy)

    assert torch.autograd.gradcheck(run, (*parts, *leaves), fast_mode=True)


@TERMS
@pytest.mark.parametrize(
    ("dtype", "limit"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.04)],
)
def test_inference_equals_the_formula(terms, dtype, limit, monkeypatch):
    monkeypatch.setattr(grouped_attention, "_CHUNK_SCORES", 400)  # two sequences at a time
    size = 32
    bias = make_bias(terms, round_up_length(70), 2, size)
    if bias.scale is not None:
        bias = ScoreBias(bias.length, bias.numbers, bias.keys, bias.queries, 0.05)
    parts = [numbers(sum(LENGTHS), 2, size, seed=seed).to(dtype) for seed in range(3)]
    expected = formula(*(part.double() for part in parts), LENGTHS, bias).detach()
    calls = []
    native = attention_fp32.attention
    monkeypatch.setattr(
        attention_fp32, "attention", lambda *inputs: calls.append(inputs) or native(*inputs)
    )
    cast = ScoreBias(
        bias.length,
        *(
            None if x is None else x.detach().to(dtype)
            for x in (bias.numbers, bias.keys, bias.queries)
        ),
        bias.scale,
    )
    layout = Layout.from_lengths(np.array(LENGTHS)).to("cpu")
    extra = [torch.cat([part, part[:3]]) for part in parts]  # rows that belong to no sequence
    with torch.inference_mode():
        actual = attention(*extra, layout, bias=cast)
        dense = dense_attention(*parts, layout, bias=cast)
    assert (actual[:-3].double() - expected).abs().max() < limit
    assert not actual[-3:].any()
    assert (dense.double() - expected).abs().max() < limit


@pytest.mark.parametrize("terms", ["", "a", "ab", "c"])
@pytest.mark.parametrize("size", [5, 12, 21, 32, 37])
def test_rows_that_are_not_aligned_have_the_same_bits_in_any_pack(terms, size, monkeypatch):
    monkeypatch.setattr("bertworks.native.library.library", lambda: None)
    lengths = [3, 5, 5, 8, 11, 11, 33, 1]
    bias = make_bias(terms, round_up_length(33), 2, size) if terms else None
    if bias is not None:
        tensors = (bias.numbers, bias.keys, bias.queries)
        bias = ScoreBias(bias.length, *(None if x is None else x.float().detach() for x in tensors))
    for value_size in (size, 3):
        sizes = (size, size, value_size)
        parts = [numbers(sum(lengths), 2, one, seed=one).float() for one in sizes]
        with torch.inference_mode():
            whole = attention(*parts, Layout.from_lengths(np.array(lengths)).to("cpu"), bias=bias)
            for start, length in zip(np.cumsum([0, *lengths]), lengths, strict=False):
                own = [part[start : start + length].clone() for part in parts]
                layout = Layout.from_lengths(np.array([length])).to("cpu")
                alone = attention(*own, layout, bias=bias)
                assert torch.equal(alone, whole[start : start + length])


@TERMS
def test_a_padded_batch_gives_real_tokens_what_a_pack_gives(terms):
    lengths, longest = [2, 5, 5, 7], 7
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    padded = Padded.from_tensors(torch.zeros_like(mask, dtype=torch.int64), mask)
    parts = [numbers(mask.numel(), 2, 3, seed=seed) for seed in range(3)]
    bias = make_bias(terms, longest, 2, 3)
    real = mask.flatten()
    found = attention(*parts, padded, bias=bias)[real]
    assert torch.allclose(found, formula(*(x[real] for x in parts), lengths, bias), atol=1e-12)


def test_biases_are_added_in_causal_attention_with_earlier_keys():
    lengths, more = [2, 3], [5, 3]
    query = numbers(sum(lengths), 2, 4, seed=1)
    key, value = (numbers(sum(more), 2, 4, seed=seed) for seed in (2, 3))
    layouts = [Layout.from_lengths(np.array(one)) for one in (lengths, more)]
    bias = make_bias("c", 32, 2, 4)
    own, other = (
        attend(query, key, value, *layouts, causal=True, bias=bias)
        for attend in (attention, dense_attention)
    )
    assert torch.allclose(own, other, atol=1e-12)
    whole = torch.cat([numbers(3, 2, 4, seed=4), query])  # the first sequence's earlier queries
    all_tokens = attention(whole, key, value, layouts[1], causal=True, bias=bias)
    assert torch.allclose(own, all_tokens[3:], atol=1e-12)
    with torch.inference_mode():
        again = attention(query, key, value, *layouts, causal=True, bias=bias)
    assert torch.allclose(again, own, atol=1e-12)


@pytest.mark.usefixtures("block_cost")
def test_values_may_have_another_size_than_queries():
    lengths = [1, 3, 3, 4, 9]
    bias = make_bias("a", round_up_length(9), 2, 4)
    query, key = (numbers(sum(lengths), 2, 4, seed=seed).requires_grad_() for seed in range(2))
    value = numbers(sum(lengths), 2, 3, seed=2).requires_grad_()
    layout = Layout.from_lengths(np.array(lengths))
    expected = formula(query, key, value, lengths, bias)
    upstream = numbers(*expected.shape, seed=7)
    gradients = torch.autograd.grad(expected, (query, key, value), upstream)
    found = attention(query, key, value, layout, bias=bias)
    assert torch.allclose(found, expected, atol=1e-12)
    own_gradients = torch.autograd.grad(found, (query, key, value), upstream)
    for own, other in zip(own_gradients, gradients, strict=True):
        assert torch.allclose(own, other, atol=1e-12)
    parts = [part.detach() for part in (query, key, value)]
    with torch.inference_mode():
        cast = ScoreBias(bias.length, keys=bias.keys.detach(), scale=bias.scale)
        again = attention(*parts, layout, bias=cast)
    assert torch.allclose(again, expected, atol=1e-12)


# --------------------------------------------------------------------------------------- encoders


def sequences() -> Packed:
    random = np.random.default_rng(0)
    types = [np.arange(n) >= n // 2 for n in LENGTHS]
    return Packed.from_arrays([random.integers(0, 40, n) for n in LENGTHS], types).to("cpu")


def encoder_of(kind: str) -> BareEncoder:
    torch.manual_seed(0)
    encoder = BareEncoder(Encoder(config_of(kind), pooler=False)).eval()
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.add_(torch.randn_like(weight) * 0.3).copy_(weight.bfloat16())
        if kind == "buckets":
            encoder.encoder.score_bias.table.weight.mul_(4)
    return encoder


def with_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose native code wherever it exists, also where PyTorch's kernels are faster."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    if has_kernels("bf16"):  # else 8-bit products go with float32
        monkeypatch.setattr("bertworks.nn.device.is_fast_at_bfloat16", lambda _: True)


def run_training(encoder: BareEncoder, packed: Packed) -> Tensor:
    return encoder.train().encoder(packed).detach()


def run_checkpointed(encoder: BareEncoder, packed: Packed) -> Tensor:
    encoder.train().encoder.gradient_checkpointing = True
    result = encoder.encoder(packed)
    result.sum().backward()
    return result.detach()


def run_half(encoder: BareEncoder, packed: Packed) -> Tensor:
    with autocast_to(encoder, torch.bfloat16):
        return encoder.train().encoder(packed).detach()


def has_numbers_only(encoder: BareEncoder) -> bool:
    return encoder.encoder.config.score_bias.kind in ("buckets", "alibi")


def run_frozen(precision: str, deterministic: bool = False) -> Callable[..., Tensor]:
    def run(encoder: BareEncoder, packed: Packed) -> Tensor:
        with torch.inference_mode():
            form = frozen_form(encoder, precision, deterministic)
            layer_class: type[Layer] | None = None
            if has_kernels(precision) and has_numbers_only(encoder):
                layer_class = FrozenNativeLayer
            elif has_packed_kernels(torch.bfloat16 if precision == "bf16" else torch.float32):
                layer_class = FrozenLayer
            if layer_class is not None:
                assert all(isinstance(layer, layer_class) for layer in form.encoder.layers)
            return form.encoder(packed)

    return run


def run_recording(encoder: BareEncoder, packed: Packed) -> Tensor:
    parts = [activations(encoder, one).states[-1].flatten(0, 1) for one in packed.split(1)]
    return torch.cat(parts)


PATHS = {
    "training": (run_training, 1e-4),
    "training, checkpointed": (run_checkpointed, 1e-4),
    "training in bfloat16": (run_half, 0.3),
    "inference": (run_frozen("fp32"), 1e-4),
    "inference in bfloat16": (run_frozen("bf16"), 0.3),
    "inference in bfloat16, deterministic": (run_frozen("bf16", deterministic=True), 0.3),
    "inference in 8 bits": (run_frozen("int8"), 0.6),
    "explanations": (run_recording, 1e-4),
}
"""Each path, and a limit of its error; without the bias the error is 1."""


@pytest.mark.long
@pytest.mark.parametrize("is_native", [False, True], ids=["portable", "native"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_path_of_an_encoder_has_the_bias(kind, path, is_native, monkeypatch):
    """The difference from the dense formula in float64, as a share of the bias's effect."""
    if is_native:
        with_native_code(monkeypatch)
    else:
        monkeypatch.setattr("bertworks.native.library.library", lambda: None)
    encoder, packed = encoder_of(kind), sequences()
    ids, mask = packed.to_padded()
    padded = Padded.from_tensors(ids, mask, packed.to_padded(packed.token_type_ids)[0])
    with torch.no_grad():
        exact = encoder_of(kind).double().encoder(padded)[mask.flatten()]
        plain = encoder_of(kind).double()
        plain.encoder.score_bias = None
        other = plain.encoder(packed)
    run, limit = PATHS[path]
    found = run(encoder, packed)
    assert (found.double() - exact).norm() / (other - exact).norm() < limit


def test_the_bias_is_frozen_with_the_embeddings():
    encoder = encoder_of("buckets").encoder
    (table,) = encoder.score_bias.parameters()
    assert any(table is parameter for parameter in encoder.parts[0].parameters())


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_has_the_same_bits_alone_and_in_a_pack(kind, precision):
    encoder, packed = encoder_of(kind), sequences()
    with torch.inference_mode():
        form = frozen_form(encoder, precision, deterministic=precision == "bf16").encoder
        whole = form(packed)
        alone = [form(one) for one in packed.split(1)]
    assert torch.equal(torch.cat(alone), whole)
