"""Native code: close to float64, the same bits in any batch, in training; and without kernels."""

from __future__ import annotations

import os
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import build_native
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bertworks import finetune, load
from bertworks.errors import CheckpointError
from bertworks.inference.frozen_layers import FrozenLayer
from bertworks.inference.frozen_native import FrozenNativeEmbeddings, FrozenNativeEncoder
from bertworks.inference.frozen_native_layers import FrozenNativeLayer
from bertworks.inference.frozen_network import frozen_form
from bertworks.native import attention_fp32, library, maps, quantization
from bertworks.native import training as native
from bertworks.native.embeddings_and_pooling import mean_of_sequences
from bertworks.native.library import has_kernels
from bertworks.nn.attention import attention, dense_attention
from bertworks.nn.config import EncoderConfig
from bertworks.nn.encoder import Encoder
from bertworks.nn.layers import Linear
from bertworks.nn.score_bias import BucketBias
from bertworks.packed import Layout, Packed
from bertworks.utils.progress import Progress
from tests.checkpoints.oracles import geometry
from tests.inference.test_bits import model_of, texts_of

needs_kernels = pytest.mark.skipif(
    not has_kernels("bf16"), reason="no native code: another processor, or no compiler built it"
)
needs_training = pytest.mark.skipif(
    not has_kernels("training"), reason="no native code for training on this processor"
)
needs_exact = pytest.mark.skipif(
    not has_kernels("fp32"), reason="no native code: another processor, or no compiler built it"
)
CONFIG = EncoderConfig(
    vocab_size=40,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=96,
    max_position_embeddings=1200,
    initializer_range=0.05,
)


MODERNBERT: dict[str, Any] = {
    **{"norm_first": True, "gated": True, "positions": "rotary", "type_vocab_size": 0},
    **{"use_bias": False, "norm_bias": False, "num_hidden_layers": 3},
    **{"local_attention": 24, "global_attention_every": 2, "rotary": {"theta": 160_000.0}},
}
NEOBERT: dict[str, Any] = {
    **{"norm_first": True, "embedding_norm": False, "norm": "rms", "norm_bias": False},
    **{"gated": True, "hidden_act": "silu", "positions": "rotary", "use_bias": False},
    **{"query_key_value_order": "head", "rotary": {"kind": "neighbours"}},
}
BIASES: list[dict[str, Any]] = [
    {"score_bias": {"kind": "buckets"}},
    {"score_bias": {"kind": "alibi"}},
]
EUROBERT: dict[str, Any] = {
    **{**NEOBERT, "query_key_value_order": "part", "rotary": {}, "num_key_value_heads": 1},
}


@pytest.fixture(autouse=True)
def _numbers_around_8_bits_are_bfloat16(auto_is_float32: None, monkeypatch) -> None:
    """As on a processor that is fast at it, which those with native code are."""
    monkeypatch.setattr("bertworks.nn.device.is_fast_at_bfloat16", lambda _: True)


def encoder_of(**values) -> Encoder:
    """One whose norms and biases do something, with weights that bfloat16 holds exactly."""
    torch.manual_seed(0)
    encoder = Encoder(CONFIG.with_values(**values), pooler=False).eval()
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
            weight.copy_(weight.bfloat16())
        if isinstance(encoder.score_bias, BucketBias):
            encoder.score_bias.table.weight.mul_(32)  # as large as the scores
    return encoder


def pack(*lengths: int) -> Packed:
    random = np.random.default_rng(0)
    return Packed.from_arrays([random.integers(0, 40, length) for length in lengths]).to("cpu")


def states(encoder: Encoder, packed: Packed, precision="bf16") -> torch.Tensor:
    with torch.inference_mode():
        form = frozen_form(encoder, precision)
        assert all(type(layer) is FrozenNativeLayer for layer in form.layers)
        return form(packed)


def error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """The norm of the difference, relative to that of the exact result."""
    return ((actual.double() - exact).norm() / exact.norm()).item()


def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertworks.inference.frozen_native_layers.has_kernels", lambda _: False)


@pytest.mark.long
@needs_kernels
@pytest.mark.parametrize("precision", ["bf16", "int8", "fp32"])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"hidden_act": "gelu_new"},
        {"hidden_act": "relu"},
        {"use_bias": False, "norm_bias": False},
        {"hidden_size": 160, "num_attention_heads": 5, "intermediate_size": 32},
        {"hidden_size": 78, "num_attention_heads": 3, "intermediate_size": 101},
        {"hidden_size": 384, "num_attention_heads": 3, "intermediate_size": 1536},
        {"num_hidden_groups": 1},
        {"score_bias": {"kind": "buckets"}, "type_vocab_size": 0, "position_offset": 2},  # MPNet
        {"score_bias": {"kind": "alibi"}, "positions": "none"},
        {"norm_first": True},
        {"norm_first": True, "embedding_norm": False, "norm": "rms", "norm_bias": False},
        {"gated": True, "hidden_act": "silu", "positions": "rotary", "use_bias": False},  # Nomic
        {**MODERNBERT},
        {**MODERNBERT, "hidden_size": 156, "num_hidden_layers": 3, "num_attention_heads": 6},
        {**NEOBERT},
        {"num_key_value_heads": 1, "use_bias": False, "local_attention": 31},
        {"score_bias": {"kind": "alibi"}, "local_attention": 66, "gated": True},
        {"positions": "rotary", "rotary": {"kind": "table", "scaling": "ntk", "factor": 4}},
    ],
)
def test_layers_equal_float64(values, precision, monkeypatch):
    encoder, packed = encoder_of(**values), pack(1, 2, 5, 5, 13, 31, 32, 33, 64, 129, 512)
    with torch.no_grad():
        exact = encoder.double()(packed)
    encoder.float()
    actual = states(encoder, packed, precision)
    portable(monkeypatch)
    with torch.inference_mode():
        other = frozen_form(encoder_of(**values), precision)
        assert all(isinstance(layer, FrozenLayer) for layer in other.layers)
        expected = other(packed)
    if precision == "fp32":
        assert actual.dtype is torch.float32
        assert error(actual, exact) < 1.5 * error(expected, exact) < 1e-5
        return
    assert actual.dtype is torch.bfloat16
    # Not much further from the truth than PyTorch's kernels are, which round more often.
    assert error(actual, exact) < 1.1 * error(expected.bfloat16(), exact) < 0.05


@needs_kernels
@pytest.mark.parametrize("precision", ["bf16", "int8", "fp32"])
@pytest.mark.parametrize(
    "family",
    [
        "bert",
        "albert",
        "electra",
        "ernie",
        "mpnet",
        "modernbert",
        "nomic_bert",
        "gte",
        "eurobert",
        "roformer",
    ],
)
def test_a_family_is_computed_in_one_call(family, precision):
    widths = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}
    config = geometry(family, **widths, hidden_act="gelu")
    form = frozen_form(Encoder(config, pooler=False), precision)
    assert type(form) is FrozenNativeEncoder
    assert type(form.embeddings) is FrozenNativeEmbeddings


@pytest.mark.long
@needs_kernels
@pytest.mark.parametrize("precision", ["bf16", "int8", "fp32"])
@pytest.mark.parametrize("values", [{}, *BIASES, MODERNBERT, EUROBERT], ids=str)
@settings(max_examples=20)
@given(lengths=st.lists(st.integers(1, 70), min_size=1, max_size=40), seed=st.integers(0, 99))
def test_packs_change_no_bit(precision, values, lengths, seed):
    encoder = encoder_of(**values)
    random = np.random.default_rng(seed)
    rows = [random.integers(0, 40, length) for length in lengths]
    whole = states(encoder, Packed.from_arrays(rows).to("cpu"), precision)
    edges = np.cumsum([0, *lengths])
    for row, start, end in zip(rows, edges[:-1], edges[1:], strict=True):
        assert torch.equal(states(encoder, Packed.from_arrays([row]).to("cpu"), precision),
                           whole[start:end])  # fmt: skip


@pytest.mark.long
@needs_kernels
@pytest.mark.parametrize("precision", ["bf16", "int8", "fp32"])
@pytest.mark.parametrize("values", [{}, BIASES[0], MODERNBERT], ids=str)
def test_batches_of_rows_and_threads_change_no_bit(precision, values):
    """More rows than go through the phases at once, and one sequence that is as long alone."""
    encoder = encoder_of(**values)
    packed = pack(*range(1, 60), 1100, *[7] * 700)
    original = torch.get_num_threads()
    try:
        actual = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            actual.append(states(encoder, packed, precision))
    finally:
        torch.set_num_threads(original)
    assert torch.equal(actual[0], actual[1]) and torch.equal(actual[0], actual[2])
    assert torch.equal(states(encoder, pack(*range(1, 60), 1100), precision), actual[0][:2870])


@needs_kernels
@pytest.mark.parametrize(
    "values",
    [
        *({}, {"num_hidden_groups": 1}, BIASES[0]),
        {"positions": "rotary", "gated": True, "local_attention": 20, "global_attention_every": 2},
    ],
)
@pytest.mark.parametrize("precision", ["bf16", "int8", "fp32"])
def test_layers_together_and_one_by_one_are_equal(precision, values):
    packed = pack(3, 17, 600, 40)
    form = frozen_form(encoder_of(**values), precision)
    assert type(form) is FrozenNativeEncoder
    with torch.inference_mode():
        *_, last = form.hidden_states(packed)
        assert torch.equal(form(packed), last)


@needs_kernels
@pytest.mark.parametrize("precision", ["bf16", "int8", "fp32"])
@pytest.mark.parametrize("values", [{}, MODERNBERT, {**MODERNBERT, "num_hidden_groups": 1}])
def test_states_of_all_layers_end_at_the_last_state(precision, values):
    """Without PyTorch: the same bits; the norm after pre-norm layers is part of the last."""
    packed = pack(3, 17, 600, 40)
    form = frozen_form(encoder_of(**values), precision)
    assert isinstance(form, FrozenNativeEncoder) and form.native is not None
    *_, last = form.native.states(packed)
    assert np.array_equal(form.native(packed), last)
    with torch.inference_mode():
        *_, by_modules = form.hidden_states(packed)
        assert error(by_modules, form(packed).double()) < (1e-6 if precision == "fp32" else 0.01)


@needs_kernels
def test_positions_of_rotations_are_those_of_the_pack():
    packed = pack(9, 40)
    later_pack = replace(packed, position_ids=packed.position_ids + 1000)
    for kind in ("halves", "table"):
        encoder = encoder_of(positions="rotary", rotary={"kind": kind}, local_attention=9)
        form = frozen_form(encoder, "fp32")
        with torch.no_grad():
            exact = encoder.double()(later_pack)
            assert error(form(later_pack), exact) < 2e-5
        for position in (-1, 1200 if kind == "table" else -5):
            wrong = replace(packed, position_ids=packed.position_ids.clone().fill_(position))
            with pytest.raises(IndexError):
                form(wrong)


@needs_kernels
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"type_vocab_size": 1},
        {"type_vocab_size": 0},
        {"positions": "none"},
        {"position_offset": 2},
        {"norm_bias": False},
    ],
)
def test_embeddings_are_rounded_once(values):
    """They are PyTorch's in float32, but for the rounding of some to the next number."""
    encoder, packed = encoder_of(**values), pack(1, 3, 300, 40)
    types = torch.from_numpy(np.random.default_rng(1).integers(0, 2, len(packed.input_ids)))
    packed = replace(packed, token_type_ids=types)
    form = frozen_form(encoder, "bf16")
    assert type(form.embeddings) is FrozenNativeEmbeddings
    with torch.inference_mode():
        exact, found = encoder.double().embeddings(packed), form.embeddings(packed)
    assert found.dtype is torch.bfloat16
    assert error(found, exact) < 1.001 * error(exact.bfloat16(), exact)


@needs_kernels
@pytest.mark.parametrize("values", [{"zeroed_token_id": 3}, {"positions": "sinusoidal"}])
def test_other_embeddings_are_computed_by_pytorch(values):
    form = frozen_form(encoder_of(**values), "bf16")
    assert type(form) is FrozenNativeEncoder
    assert not isinstance(form.embeddings, FrozenNativeEmbeddings)


@needs_kernels
@pytest.mark.parametrize("name", ["input_ids", "token_type_ids", "position_ids"])
@pytest.mark.parametrize("index", [-1, 5000])
def test_an_index_outside_its_table_is_an_error(name, index):
    packed = pack(3, 4)
    getattr(packed, name)[5] = index
    with torch.inference_mode(), pytest.raises(IndexError):
        frozen_form(encoder_of(), "bf16")(packed)


@needs_kernels
def test_hooks_of_embeddings_are_called():
    encoder, packed, calls = encoder_of(), pack(5), []
    with torch.inference_mode():
        frozen_form(encoder, "bf16")(packed)
        encoder.embeddings.word_embeddings.register_forward_hook(lambda *_: calls.append(1))
        encoder.embeddings.register_forward_hook(lambda *_: calls.append(2))
        frozen_form(encoder, "bf16")(packed)
    assert calls == [1, 2]


def means_of(hidden: Tensor, packed: Packed, *, unit_length: bool) -> Tensor:
    bits = hidden.view(torch.uint16).numpy()
    return torch.from_numpy(mean_of_sequences(bits, packed, unit_length=unit_length))


@needs_kernels
@pytest.mark.parametrize("unit_length", [False, True])
def test_means_equal_the_formula(unit_length):
    packed = pack(1, 2, 7, 7, 300)
    hidden = torch.randn(len(packed.input_ids), 96).bfloat16()
    actual = means_of(hidden, packed, unit_length=unit_length)
    edges = packed.cu_seqlens.tolist()
    parts = [hidden[start:end].double() for start, end in pairwise(edges)]
    expected = torch.stack([part.mean(0) for part in parts])
    if unit_length:
        expected = nn.functional.normalize(expected, dim=-1)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-7)
    alone = means_of(hidden[3:10].contiguous(), pack(7), unit_length=unit_length)
    assert torch.equal(alone[0], actual[2])


@needs_kernels
def test_the_mean_of_zeros_has_no_direction():
    zeros = torch.zeros(3, 32, dtype=torch.bfloat16)
    assert means_of(zeros, pack(3), unit_length=True).eq(0).all()
    zeros[1, 5] = torch.nan
    assert means_of(zeros, pack(3), unit_length=True).isnan().all()


@needs_kernels
def test_hooks_of_layers_are_called():
    encoder, packed, calls = encoder_of(), pack(5), []
    with torch.inference_mode():
        before = frozen_form(encoder, "bf16")(packed)
        hook = encoder.layers[1].register_forward_hook(lambda *_: calls.append(1))
        assert torch.equal(frozen_form(encoder, "bf16")(packed), before)
        assert calls == [1]
        hook.remove()
        frozen_form(encoder, "bf16")(packed)
    assert calls == [1]


def lengths_of(*lengths: int) -> Layout:
    return Layout.from_lengths(np.array(lengths)).to("cpu")


@needs_exact
@pytest.mark.parametrize(("heads", "size"), [(1, 32), (3, 64), (2, 96)])
@pytest.mark.parametrize(
    ("queries", "keys"),
    [((1, 2, 13, 14, 15, 28, 29, 31, 32, 33, 100), None), ((1, 1, 5, 40), (7, 64, 65, 3))],
)
def test_float32_attention_equals_float64(heads, size, queries, keys):
    torch.manual_seed(0)
    layout = lengths_of(*queries)
    key_layout = layout if keys is None else lengths_of(*keys)
    rows, of_keys = sum(queries), sum(keys or queries)
    mixed = 3 * torch.randn(of_keys, 3, heads, size)  # of the keys, as a map gives them
    _, key, value = mixed.unbind(1)
    query = mixed[:, 0] if keys is None else torch.randn(rows, heads, size)
    assert attention_fp32.can_attend(query, key, value, layout, key_layout)
    with torch.inference_mode():
        actual = attention(query, key, value, layout, key_layout)
        double = (part.double() for part in (query, key, value))
        expected = dense_attention(*double, layout, key_layout)
        other = dense_attention(query, key, value, layout, key_layout)
    assert actual.shape == query.shape
    assert error(actual, expected) < 1.2 * error(other, expected) < 1e-5


@needs_exact
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
            assert error(actual[start:end], exact) < 1e-6, isa


@needs_exact
def test_float32_attention_of_rows_after_the_last_sequence_is_zero():
    packed, layout = torch.randn(20, 3, 2, 32), lengths_of(4, 9)
    found = attention_fp32.attention(*packed.unbind(1), layout, layout)
    assert found[13:].eq(0).all()
    assert torch.equal(found[:13], attention_fp32.attention(*packed[:13].unbind(1), layout, layout))


@needs_exact
def test_float32_attention_has_the_same_bits_in_any_batch_and_with_any_threads():
    lengths = [3, 50, 7, 129, 14, 14, 200]
    packed, num_threads = torch.randn(sum(lengths), 3, 2, 64), torch.get_num_threads()
    edges = np.cumsum([0, *lengths])
    whole = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            layout = lengths_of(*lengths)
            whole.append(attention_fp32.attention(*packed.unbind(1), layout, layout))
    finally:
        torch.set_num_threads(num_threads)
    assert torch.equal(whole[0], whole[1]) and torch.equal(whole[0], whole[2])
    for start, end in pairwise(edges):
        layout = lengths_of(end - start)
        alone = attention_fp32.attention(*packed[start:end].unbind(1), layout, layout)
        assert torch.equal(alone, whole[0][start:end])


@needs_exact
def test_float32_attention_does_not_support_other_inputs():
    def fits(
        query=(5, 2, 32), key=(5, 2, 32), value=(5, 2, 32), query_lengths=None, keys=None
    ) -> bool:
        parts = [part if isinstance(part, Tensor) else torch.randn(part)
                 for part in (query, key, value)]  # fmt: skip
        query_lengths = query_lengths or lengths_of(2, 3)
        return attention_fp32.can_attend(*parts, query_lengths, keys or query_lengths)

    assert fits()
    assert fits((4, 2, 32), query_lengths=lengths_of(1, 3), keys=lengths_of(2, 3))
    assert not fits(torch.randn(5, 2, 32).double())
    assert fits((5, 2, 41), (5, 2, 41), (5, 2, 41))
    assert not fits(value=torch.randn(5, 32, 2).transpose(1, 2))
    assert not fits(key=(5, 1, 32), value=(5, 1, 32))
    assert not fits((4, 2, 32))
    assert not fits(value=(4, 2, 32))
    assert not fits(keys=lengths_of(5))
    assert not fits(query_lengths=Layout.from_lengths(np.array([2, 3])))


@needs_exact
def test_nan_stays_in_its_sequence():
    values, layout = torch.randn(5, 2, 32), lengths_of(2, 3)
    values[2, 1, 3] = torch.nan
    found = attention_fp32.attention(values, values, values, layout, layout)
    assert found[:2].isfinite().all() and found[2:, 1].isnan().all()


@needs_exact
def test_float32_attention_is_in_float32_whatever_the_default_is():
    values, layout = torch.randn(5, 2, 32), lengths_of(2, 3)
    default_dtype = torch.get_default_dtype()
    expected = attention_fp32.attention(values, values, values, layout, layout)
    try:
        torch.set_default_dtype(torch.bfloat16)
        assert torch.equal(
            attention_fp32.attention(values, values, values, layout, layout), expected
        )
    finally:
        torch.set_default_dtype(default_dtype)


@needs_kernels
@pytest.mark.parametrize("change", [lambda ids: ids[:4], Tensor.int, lambda ids: ids[::2]])
def test_a_pack_that_does_not_fit_is_for_pytorch(change):
    packed, form = pack(3, 4), frozen_form(encoder_of(), "bf16")
    assert form.embeddings.native(packed) is not None
    object.__setattr__(packed, "position_ids", change(packed.position_ids))
    assert form.embeddings.native(packed) is None


@needs_kernels
def test_a_hook_may_change_the_states():
    encoder, packed = encoder_of(), pack(3, 4)
    with torch.inference_mode():
        expected = 2 * frozen_form(encoder, "bf16").means(packed, unit_length=False)
        encoder.layers[-1].register_forward_hook(lambda *given: 2 * given[-1].float())
        found = frozen_form(encoder, "bf16").means(packed, unit_length=False)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@needs_kernels
def test_states_are_the_same_in_many_threads():
    encoder, packs = encoder_of(), [pack(*range(1, 9 + at)) for at in range(8)]
    expected = [states(encoder, packed) for packed in packs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            found = pool.map(lambda packed: states(encoder, packed), packs)
            assert all(map(torch.equal, found, expected))


@needs_kernels
@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize(
    "part", ["attention.query_key_value", "attention.output", "feed_forward.intermediate"]
)
def test_non_finite_numbers_stay_non_finite(part, precision):
    model = model_of(64)
    linear = model.encoder.layers[0].get_submodule(part)
    with torch.no_grad():
        linear.bias[0] = torch.nan  # of the queries, among others
    with pytest.raises(CheckpointError, match="not finite"):
        model.embed("a b c", precision=precision)


@pytest.mark.long
@needs_kernels
def test_calibrated_codes_are_those_of_the_kernels(monkeypatch):
    model, texts = model_of(96), texts_of(40)
    model.calibrate(texts)
    exact = model.embed(texts, precision="fp32")
    actual = model.embed(texts, precision="int8", normalize=True)
    portable(monkeypatch)
    other = model_of(96)
    other.calibrate(texts)
    expected = other.embed(texts, precision="int8", normalize=True)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    assert (actual * exact).sum(1).min() > (expected * exact).sum(1).min() - 0.002 > 0.98


@needs_kernels
@pytest.mark.parametrize(
    "values",
    [
        {"attention": "causal"},
        {"hidden_act": "tanh"},
        {"norm": "none"},
        {"local_attention": 8, "global_tokens": {}},
        {"score_bias": {"kind": "disentangled"}},
        {"score_bias": {"kind": "transformer-xl"}},
    ],
)
def test_other_networks_are_computed_by_pytorch(values):
    form = frozen_form(encoder_of(**values), "bf16")
    assert not any(isinstance(layer, FrozenNativeLayer) for layer in form.layers)


@needs_kernels
def test_layers_with_parts_of_anothers_are_called_as_they_are():
    encoder = encoder_of()
    fed = encoder.layers[1].feed_forward
    fed.output = nn.Sequential(fed.output, nn.ReLU())
    kinds = [type(layer) for layer in frozen_form(encoder, "bf16").layers]
    assert kinds[0] is FrozenNativeLayer and kinds[1] is not FrozenNativeLayer


def test_numbers_are_rounded_as_pytorch_does():
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    halves = np.arange(0x3F80_0000, 0x3F88_0000, 0x800, dtype=np.uint32)  # ties among them
    special = np.array([0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0x7FFF_FFFF, 0, 1 << 31], np.uint32)
    values = np.concatenate([bits, halves, special]).view(np.float32)
    expected = torch.from_numpy(values).bfloat16()
    actual = torch.from_numpy(quantization.to_bfloat16(values)).view(torch.bfloat16)
    is_nan = torch.isnan(expected)
    assert torch.equal(torch.isnan(actual), is_nan)
    assert torch.equal(actual[~is_nan].view(torch.int16), expected[~is_nan].view(torch.int16))


@needs_kernels
def test_packing_keeps_all_numbers():
    """Each number is where kernels.h says, and half panels are filled up with zeros."""
    for outputs, inputs, group, dtype in (
        (32, 2, 2, torch.bfloat16),
        (70, 34, 2, torch.bfloat16),
        (32, 2, 2, torch.float32),
        (70, 34, 2, torch.float32),
        (161, 96, 2, torch.float64),
        (33, 44, 4, torch.int8),
    ):
        rows = torch.randint(-9, 9, (outputs, inputs)).to(dtype)
        if dtype.is_floating_point:
            rows.mul_(1.37)
        is_bfloat16 = dtype is torch.bfloat16
        array = (rows.view(torch.uint16) if is_bfloat16 else rows).numpy()
        if dtype is torch.float64:
            array = maps.to_floats(array)
        packed = torch.from_numpy(maps._pack(array, group))
        packed = packed if dtype is torch.int8 else packed.view(torch.bfloat16)
        packed = packed.view(-1, inputs // group, library.PANEL, group)
        rounded = rows.to(packed.dtype).float()
        padded = nn.functional.pad(rounded, (0, 0, 0, -outputs % library.PANEL))
        expected = padded.view(-1, library.PANEL, inputs // group, group).transpose(1, 2)
        assert torch.equal(packed.float(), expected)


@pytest.fixture
def fresh_library(monkeypatch):
    """The library is looked for again, during the test and after it."""
    monkeypatch.delenv("BERTWORKS_NATIVE", raising=False)
    library.library.cache_clear()
    yield
    monkeypatch.undo()
    library.library.cache_clear()


def test_memory_of_weights_is_freed_with_the_last_array():
    blocks = library.Blocks()
    first, second = blocks.empty(5, np.float32), blocks.empty(library._BLOCK - 64, np.int8)
    third = blocks.empty(65, np.int8)
    for array in (first, second, third):
        assert array.ctypes.data % 64 == 0
        array[:] = 5
    assert first.base is second.base and third.base is not first.base
    assert (first == 5).all() and len(first) == 5 and third.dtype == np.int8
    block = weakref.ref(first.base)
    del first, array
    assert block() is not None
    del second
    assert block() is None
    large = blocks.empty(library._BLOCK + 1, np.int8)
    assert len(large) == library._BLOCK + 1


@pytest.mark.usefixtures("fresh_library")
def test_layers_are_pytorchs_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "native.so")
    assert not has_kernels("bf16")
    assert model_of(64).embed("a b", precision="bf16").shape == (1, 64)


@pytest.mark.usefixtures("fresh_library")
def test_a_library_of_another_machine_is_not_used(tmp_path, monkeypatch):
    other = tmp_path / "native.so"
    other.write_bytes(b"of another machine")
    monkeypatch.setattr(library, "LIBRARY", other)
    with pytest.warns(RuntimeWarning, match="cannot be loaded"):
        assert not has_kernels("bf16")


@needs_training
def test_buffers_are_float32_whatever_the_default_is():
    qkv, layout = mixed([40], 2, 32), layout_of([40])
    expected = native.attention(qkv, layout, 2, 0.0)
    torch.set_default_dtype(torch.float16)
    try:
        assert torch.equal(native.attention(qkv, layout, 2, 0.0), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@needs_kernels
def test_layers_of_other_widths_are_called_as_they_are():
    encoder = encoder_of()
    fed = encoder.layers[0].feed_forward
    fed.intermediate, fed.output = Linear(64, 100), Linear(100, 64)
    encoder.layers[1].feed_forward.activation = torch.tanh
    kinds = [type(layer) for layer in frozen_form(encoder, "bf16").layers]
    assert FrozenNativeLayer not in kinds


@needs_kernels
@pytest.mark.usefixtures("fresh_library")
def test_a_library_of_another_source_is_not_used(tmp_path, monkeypatch):
    other = tmp_path / "other.c"
    other.write_bytes(b"int other;")
    monkeypatch.setattr(library, "SOURCES", [*library.SOURCES, other])
    with pytest.warns(RuntimeWarning, match=r"other source files.*build_native"):
        assert not has_kernels("bf16")


def test_native_code_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("BERTWORKS_NATIVE", "0")
    assert not has_kernels("bf16")


def test_building_without_a_compiler_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(build_native, "LIBRARY", tmp_path / "native.so")
    monkeypatch.setenv("CC", "no-such-compiler -O9")
    assert "no C compiler: no-such-compiler" in build_native.compile_native()
    monkeypatch.setenv("CC", "false")
    assert build_native.compile_native().startswith("false says")
    monkeypatch.setattr(build_native.sys, "platform", "win32")
    assert build_native.compile_native() == "it is for Linux and macOS on x86_64 and aarch64"
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not library.LIBRARY.exists(), reason="no native code")
def test_a_library_is_current_until_its_sources_or_the_script_change(tmp_path, monkeypatch):
    copy = tmp_path / "native.so"
    monkeypatch.setattr(build_native, "LIBRARY", copy)
    assert not build_native.is_current()
    shutil.copy(library.LIBRARY, copy)
    assert build_native.is_current()
    os.utime(copy, (0, 0))  # older than the script
    assert not build_native.is_current()
    os.utime(copy)
    monkeypatch.setattr(build_native, "source_checksum", lambda: 0)
    assert not build_native.is_current()
    other = tmp_path / "other.so"  # the loader remembers libraries by path
    other.write_bytes(b"of another machine")
    monkeypatch.setattr(build_native, "LIBRARY", other)
    assert not build_native.is_current()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_build_adds_the_library_to_a_wheel(tmp_path, monkeypatch):
    pytest.importorskip("hatchling", reason="hatchling is there while a wheel is built")
    monkeypatch.setattr(build_native, "LIBRARY", build_native.NATIVE / f"test-{os.getpid()}.so")
    hook = SimpleNamespace(root=str(build_native.NATIVE.parents[2]))
    data = {"artifacts": [], "pure_python": True}
    build_native.NativeCode.initialize(hook, "standard", data)
    build_native.LIBRARY.unlink()
    assert data["artifacts"] == [f"/src/bertworks/native/{build_native.LIBRARY.name}"]
    assert data["tag"].startswith("py3-none-linux_") and not data["pure_python"]


def mixed(lengths: list[int], heads: int, size: int, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(sum(lengths), 3 * heads * size).bfloat16()


def formula(
    qkv: torch.Tensor, lengths: list[int], heads: int, factors: list[torch.Tensor] | None = None
) -> torch.Tensor:
    """Attention in the precision of its input; `kept` are the factors of dropout."""
    actual = []
    for number, part in enumerate(torch.split(qkv, lengths)):
        query, key, value = part.view(len(part), 3, heads, -1).permute(1, 2, 0, 3)
        weights = torch.softmax(query @ key.transpose(1, 2) / query.shape[-1] ** 0.5, -1)
        if factors is not None:
            weights = weights * factors[number]
        actual.append((weights @ value).transpose(0, 1).flatten(1))
    return torch.cat(actual)


def layout_of(lengths: list[int]) -> Layout:
    return Layout.from_lengths(np.array(lengths)).to("cpu")


@needs_training
@pytest.mark.parametrize(
    ("heads", "size", "lengths"),
    [(2, 32, [1, 2, 5, 13, 31, 32, 33, 64, 100]), (3, 64, [128, 77, 3]), (1, 96, [300, 1])],
)
def test_attention_and_its_gradient_equal_float64(heads, size, lengths):
    qkv, more = mixed(lengths, heads, size), 3  # rows of zeros after the last sequence
    gradient = torch.randn(len(qkv) + more, heads * size).bfloat16()
    exact = qkv.double().requires_grad_()
    expected = formula(exact, lengths, heads)
    expected.backward(gradient[:-more].double())
    inputs = nn.functional.pad(qkv, (0, 0, 0, more)).requires_grad_()
    actual = native.attention(inputs, layout_of(lengths), heads, 0.0)
    actual.backward(gradient)
    assert error(actual[:-more], expected) < 0.004
    for one, other in zip(inputs.grad[:-more].chunk(3, 1), exact.grad.chunk(3, 1), strict=True):
        assert error(one, other) < 0.004
    assert not actual[-more:].any() and not inputs.grad[-more:].any()


@needs_training
def test_dropout_is_the_same_forward_and_backward():
    heads, size, lengths, dropout = 3, 64, [40, 17, 64, 1], 0.3
    layout, gradient = layout_of(lengths), torch.randn(sum(lengths), heads * size).bfloat16()

    def run(qkv: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        return native.attention(qkv, layout, heads, dropout)

    # With one-hot values and equal scores a context is a row of the weights after dropout.
    one_hot = torch.zeros(sum(lengths), 3, heads, size, dtype=torch.bfloat16)
    start = 0
    for length in lengths:
        one_hot[start : start + length, 2] = torch.eye(length, size)[:, None]
        start += length
    rows = run(one_hot.flatten(1)).view(-1, heads, size)
    factors = [
        (part[..., : len(part)].transpose(0, 1) > 0).double() / (1 - dropout)
        for part in torch.split(rows, lengths)
    ]
    qkv = mixed(lengths, heads, size)
    exact = qkv.double().requires_grad_()
    expected = formula(exact, lengths, heads, factors)
    expected.backward(gradient.double())
    inputs = qkv.requires_grad_()
    found = run(inputs)
    found.backward(gradient)
    assert error(found, expected) < 0.004
    for one, other in zip(inputs.grad.chunk(3, 1), exact.grad.chunk(3, 1), strict=True):
        assert error(one, other) < 0.006


@needs_training
@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_so_many_weights_are_dropped(dropout):
    """Over heads, queries, keys and sequences; one of two neighbours says nothing of the other."""
    heads, size, lengths = 16, 64, [64] * 30
    one_hot = torch.zeros(sum(lengths), 3, heads, size, dtype=torch.bfloat16)
    one_hot[:, 2] = torch.eye(64).repeat(30, 1)[:, None]
    torch.manual_seed(0)
    found = native.attention(one_hot.flatten(1), layout_of(lengths), heads, dropout)
    is_kept = (found.view(30, 64, heads, 64) > 0).double()
    assert (
        abs(is_kept.mean() - (1 - dropout)) < 6 * (dropout * (1 - dropout) / is_kept.numel()) ** 0.5
    )
    for over in ((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)):
        means = is_kept.mean(over)
        count = is_kept.numel() / len(means)
        assert (means - means.mean()).abs().max() < 6 * (dropout * (1 - dropout) / count) ** 0.5
    for one, other in (
        (is_kept[1:], is_kept[:-1]),
        (is_kept[:, 1:], is_kept[:, :-1]),
        (is_kept[:, :, 1:], is_kept[:, :, :-1]),
        (is_kept[..., 1:], is_kept[..., :-1]),
        (is_kept[:, 1:, :, 0], is_kept[:, 0, :, 1:].transpose(1, 2)),
    ):
        correlation = torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]
        assert abs(correlation) < 5 / one.numel() ** 0.5


@needs_training
def test_gradients_are_as_exact_as_pytorchs(monkeypatch):
    """Gradients of all parameters, in bfloat16, as close to float64's as the formula's are."""
    packed = pack(1, 2, 5, 5, 13, 31, 32, 33, 64, 129)
    target = torch.randn(packed.num_tokens, CONFIG.hidden_size)

    def gradients(dtype: torch.dtype | None) -> torch.Tensor:
        encoder = encoder_of()
        if dtype is torch.float64:
            encoder.double()
        else:
            encoder.compute_dtype = dtype
        (encoder(packed) * target).sum().backward()
        actual = [part.grad.flatten() for part in encoder.parameters() if part.grad is not None]
        return torch.cat(actual)

    exact, actual = gradients(torch.float64), gradients(torch.bfloat16)
    calls = []
    real = native.attention
    monkeypatch.setattr(native, "attention", lambda *given: calls.append(1) or real(*given))
    assert torch.equal(gradients(torch.bfloat16), actual) and len(calls) == 2
    monkeypatch.setenv("BERTWORKS_NATIVE", "0")
    assert error(actual, exact) < 1.1 * error(gradients(torch.bfloat16), exact) < 0.05
    assert len(calls) == 2


class _StoppedError(Exception):
    """The process was stopped."""


class _Stop(Progress):
    def train(self, step: int, *_total: int, **_facts: Any) -> None:
        if step == 5:
            raise _StoppedError


@needs_training
@pytest.mark.long
def test_a_run_resumes_to_the_same_bits_in_bfloat16(tmp_path):
    rows = [(f"{word} {at % 7}", word) for at in range(48) for word in ("a b", "c d")]
    texts, labels = map(list, zip(*rows, strict=True))
    first = tmp_path / "first"
    model_of(64).save(first)

    def run(out: str, progress: Progress | None = None) -> dict[str, torch.Tensor]:
        given = {"train": (texts, labels), "dev": (texts[:8], labels[:8]), "out": tmp_path / out}
        settings = {"epochs": 2, "batch_size": 16, "precision": "bf16", "checkpoint_every": 1}
        finetune(first, progress=progress, **given, **settings)
        return load(tmp_path / out).network.state_dict()

    whole = run("whole")
    with pytest.raises(_StoppedError):
        run("parts", _Stop())
    parts = run("parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@needs_training
@pytest.mark.parametrize("bias", [True, False])
def test_norm_of_a_sum_and_its_gradient_equal_float64(bias):
    torch.manual_seed(0)
    x, residual, gradient = torch.randn(3, 37, 80).bfloat16().unbind()
    norm = nn.LayerNorm(80, eps=1e-3, bias=bias)
    with torch.no_grad():
        for part in norm.parameters():
            part.add_(torch.randn_like(part))
    inputs = [part.clone().requires_grad_() for part in (x, residual)]
    exact = [part.double().requires_grad_() for part in (x, residual)]
    reference = nn.LayerNorm(80, eps=1e-3, bias=bias).double()
    reference.load_state_dict(norm.state_dict())
    actual, expected = native.add_and_norm(*inputs, norm, 0.0), reference(exact[0] + exact[1])
    actual.backward(gradient)
    expected.backward(gradient.double())
    assert error(actual, expected) < 0.004
    for one, other in zip(
        [*inputs, *norm.parameters()], [*exact, *reference.parameters()], strict=True
    ):
        assert error(one.grad, other.grad) < 0.005


@needs_training
def test_dropout_before_a_norm_equals_the_formula():
    """What is dropped, how much of it, and that no gradient flows through it."""
    torch.manual_seed(0)
    x = torch.ones(400, 96, dtype=torch.bfloat16).requires_grad_()
    residual = torch.randn(400, 96).bfloat16().requires_grad_()
    norm = nn.LayerNorm(96)
    torch.manual_seed(1)
    actual = native.add_and_norm(x, residual, norm, 0.25)
    actual.backward(torch.randn(400, 96).bfloat16())
    is_kept = x.grad != 0
    assert abs(is_kept.double().mean() - 0.75) < 6 * (0.25 * 0.75 / x.numel()) ** 0.5
    scale = 1 / 0.75
    expected = norm(residual.float() + is_kept * scale)
    assert error(actual, expected.double()) < 0.004
    ratio = (x.grad.float() / residual.grad.float())[is_kept]
    assert (ratio - scale).abs().max() < 0.02 * scale
    torch.manual_seed(1)
    assert torch.equal(native.add_and_norm(x, residual, norm, 0.25), actual)
    assert not torch.equal(native.add_and_norm(x, residual, norm, 0.25), actual)


@needs_training
@pytest.mark.parametrize("dropout", [1.0, 1 - 1e-12])
def test_all_may_be_dropped(dropout):
    """As in PyTorch; the bound of the random numbers has 32 bits, and begins again at 0."""
    qkv = mixed([40, 3], 2, 64).requires_grad_()
    actual = native.attention(qkv, layout_of([40, 3]), 2, dropout)
    actual.sum().backward()
    assert not actual.any() and not qkv.grad.any()
    x, residual = torch.randn(2, 50, 96).bfloat16().unbind()
    x.requires_grad_()
    norm = nn.LayerNorm(96)
    actual = native.add_and_norm(x, residual, norm, dropout)
    actual.sum().backward()
    assert torch.equal(actual, native.add_and_norm(torch.zeros_like(x), residual, norm, 0.0))
    assert not x.grad.any()


@needs_training
def test_gelu_and_its_gradient_equal_float64():
    x = torch.linspace(-9, 9, 80_000).bfloat16().view(-1, 16).requires_grad_()
    actual = native.gelu(x)
    actual.backward(torch.full_like(x, 2.0))
    exact = x.detach().double().requires_grad_()
    expected = nn.functional.gelu(exact)
    expected.backward(torch.full_like(exact, 2.0))
    # Beside the rounding to bfloat16, 2e-7 of the error function's formula and reciprocal.
    half = 2.0**-8
    assert ((actual.double() - expected).abs() <= half * expected.abs() + 2e-5).all()
    assert ((x.grad.double() - exact.grad).abs() <= half * exact.grad.abs() + 1e-4).all()
    assert native.gelu(torch.full((1, 16), torch.nan, dtype=torch.bfloat16)).isnan().all()


@needs_training
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("classes", [1, 7, 16, 33, 30_522])
def test_exponentials_and_their_loss_equal_float64(classes, has_bias):
    torch.manual_seed(0)
    logits = (torch.randn(5, classes) * 4).bfloat16()
    logits[1] += 300  # whose exponentials no float holds
    bias = torch.randn(classes) if has_bias else None
    labels = torch.randint(0, classes, (3,))
    exact = logits.double() if bias is None else logits.double() + bias.double()
    runs, num_threads = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            actual = logits.clone()
            torch.set_num_threads(threads)
            runs.append((actual, *native.exponentials(actual, bias, labels)))
    finally:
        torch.set_num_threads(num_threads)
    assert all(
        torch.equal(one, other) for run in runs for one, other in zip(run, runs[0], strict=True)
    )
    actual, loss, inverses = runs[0]
    expected = nn.functional.cross_entropy(exact[:3], labels, reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
    assert not inverses[3:].any()
    probabilities = actual[:3].double() * inverses[:3, None]
    assert (probabilities - exact[:3].softmax(-1)).abs().max() < 2**-8
    assert error(actual, (exact - exact.amax(-1, keepdim=True)).exp()) < 2**-8


@needs_training
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_labels_may_be_any_integers(dtype):
    logits = torch.randn(4, 20).bfloat16()
    labels = torch.arange(8, dtype=dtype)[::2]
    loss, _ = native.exponentials(logits.clone(), None, labels)
    expected = nn.functional.cross_entropy(logits.double(), labels.long(), reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@needs_training
@pytest.mark.parametrize("label", [-1, 20, 1 << 40])
def test_a_loss_of_labels_that_are_no_classes_is_nan(label):
    loss, _ = native.exponentials(
        torch.zeros(1, 20, dtype=torch.bfloat16), None, torch.tensor([label])
    )
    assert loss.isnan()


@needs_training
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_loss_of_logits_that_are_not_finite_is_not_finite(value):
    logits = torch.zeros(2, 40, dtype=torch.bfloat16)
    logits[1, 35] = value
    loss, _ = native.exponentials(logits, None, torch.tensor([0, 1]))
    assert not loss.isfinite()


@needs_training
@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(3, 20, dtype=torch.bfloat16),
        torch.zeros(3, 32),
        torch.zeros(32, 32, dtype=torch.bfloat16).t()[:, :16],
    ],
)
def test_other_values_are_computed_by_pytorch(x):
    assert not native.can_compute(x)


@needs_training
@pytest.mark.parametrize(
    ("logits", "bias"),
    [
        (torch.zeros(4, 3, dtype=torch.bfloat16).t(), None),
        (torch.zeros(3, 4), None),
        (torch.zeros(3, 4, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.bfloat16)),
        (torch.zeros(3, 4, dtype=torch.bfloat16), torch.zeros(8)[::2]),
    ],
)
def test_other_logits_are_computed_by_pytorch(logits, bias):
    assert not native.can_take_logits(logits, bias)
