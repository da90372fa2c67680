"""Linear maps of 8-bit numbers: their results, with the processor's instructions or without."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.inference.test_bits import model_of, texts_of
from tests.inference.test_form import GEOMETRIES, TOKENIZER, network_of
from torch import nn

from bertworks.errors import CheckpointError, DataError, SettingsError
from bertworks.inference.calibration import ActivationStatistics
from bertworks.inference.frozen_layers import FUSED_ACTIVATIONS, has_packed_kernels
from bertworks.inference.frozen_network import frozen_form
from bertworks.loading import load
from bertworks.model import Model
from bertworks.nn.encoder_layers import Layer
from bertworks.nn.layers import ACTIVATIONS, Linear
from bertworks.nn.quantization import InputCodes
from bertworks.nn.quantized import CalibratedLinear, QuantizedLinear, has_exact_products
from bertworks.training.settings import FinetuneSettings


def linear_of(bias: bool) -> Linear:
    torch.manual_seed(0)
    linear = Linear(96, 40, bias=bias)
    with torch.no_grad():
        linear.weight[3] = 0
        linear.weight[5] *= 1000
    return linear


def rows() -> torch.Tensor:
    torch.manual_seed(1)
    x = torch.randn(17, 96)
    x[2] = 0
    x[4] *= 1e4
    x[6, 7] = 300
    return x


def expected(linear: Linear, x: torch.Tensor) -> np.ndarray:
    """The formula in float64, by NumPy."""
    weight, inputs = linear.weight.detach().double().numpy(), x.double().numpy()
    of_rows = np.maximum(np.abs(inputs).max(1, keepdims=True), 1e-30) / 127
    of_outputs = np.maximum(np.abs(weight).max(1, keepdims=True), 1e-30) / 127
    codes, weights = np.rint(inputs / of_rows), np.rint(weight / of_outputs)
    result = of_rows * (codes @ weights.T) * of_outputs.T
    return result if linear.bias is None else result + linear.bias.detach().numpy()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("has_vnni", [True, False])
@pytest.mark.parametrize("chunk_rows", [384, 5])
def test_product_follows_the_formula(bias, has_vnni, chunk_rows, monkeypatch):
    monkeypatch.setattr("bertworks.nn.quantized.CHUNK_ROWS", chunk_rows)
    if not has_vnni:
        monkeypatch.setattr("bertworks.nn.quantized.has_exact_products", lambda: False)
    linear, x = linear_of(bias), rows()
    inputs = x.clone()
    reference = expected(linear, x)
    scale = np.abs(reference).max(1, keepdims=True) + 1e-30
    linear = QuantizedLinear.from_linear(linear)
    with torch.inference_mode():
        output = linear(x).numpy()
        none = linear(x[:0])
    # A number that lies between two codes may be rounded to either.
    assert np.max(np.abs(output - reference) / scale) < 1e-3
    assert none.shape == (0, 40)
    assert torch.equal(x, inputs)


SATURATING = """
import torch
torch.cpu._is_vnni_supported = lambda: True
from tests.inference.test_quantized import largest_product_errors
print(max(largest_product_errors()))
"""


def largest_product_errors() -> list[float]:
    """The relative errors of maps whose neighbouring weights and inputs are large, of one sign."""
    generator = torch.Generator().manual_seed(2)
    errors = []
    for inputs, outputs, count in ((4, 32, 1), (96, 40, 17), (384, 64, 70)):
        linear = Linear(inputs, outputs, bias=False)
        signs = torch.randint(2, (outputs, inputs // 4, 1), generator=generator) * 2 - 1
        sizes = 0.9 + 0.1 * torch.rand(outputs, inputs // 4, 4, generator=generator)
        linear.weight.data = (signs * sizes).view(outputs, inputs)
        x = 0.9 + 0.1 * torch.rand(count, inputs, generator=generator)
        reference = expected(linear, x)
        with torch.inference_mode():
            difference = QuantizedLinear.from_linear(linear)(x).numpy() - reference
        errors.append(float(np.abs(difference).max() / np.abs(reference).max()))
    return errors


@pytest.mark.parametrize("isa", ["AVX2", "DEFAULT"])
def test_products_do_not_saturate(isa):
    """Where a processor with VNNI is told to use AVX2, or the reverse."""
    variables = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    command = [sys.executable, "-c", SATURATING]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    assert float(done.stdout) < 1e-3


@pytest.mark.long
def test_vectors_are_close_and_the_model_stays_as_it_is(tmp_path):
    model, texts = model_of(384), texts_of(12)
    exact = model.embed(texts, precision="fp32")
    vectors = model.embed(texts, precision="int8")
    cosines = (
        (exact * vectors).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(vectors, axis=1)
    )
    assert 0.995 < cosines.min() < 1
    assert np.array_equal(model.embed(texts, precision="fp32"), exact)
    model.embed_to(tmp_path / "v.npy", texts, precision="int8")
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), vectors)
    assert not any(isinstance(part, QuantizedLinear) for part in model.network.modules())


def test_training_in_eight_bits_is_refused():
    with pytest.raises(SettingsError, match="precision"):
        FinetuneSettings.parse({"precision": "int8"})


def test_gated_network_is_close_to_fp32():
    network = network_of(**GEOMETRIES["modernbert"]).eval()
    model = Model(TOKENIZER, None, network)
    exact, found = (model.embed("a b c d", precision=name) for name in ("fp32", "int8"))
    cosine = nn.functional.cosine_similarity(torch.tensor(exact), torch.tensor(found))
    assert 0.98 < cosine.item() < 1


@pytest.mark.long
def test_a_model_saved_in_eight_bits_answers_as_the_one_it_was_made_of(tmp_path):
    model, texts = model_of(384), texts_of(12)
    second_model = load(model.save(tmp_path / "m", precision="int8"))
    assert (
        second_model.report is not None
        and not second_model.report.dropped_tensors
        and not second_model.report.new_tensors
    )
    file = load_file(tmp_path / "m" / "model.safetensors")
    codes = [name for name, tensor in file.items() if tensor.dtype is torch.int8]
    # query, key, value and three more maps of each layer
    assert len(codes) == 6 * model.encoder.config.num_hidden_layers
    assert {name.removesuffix("codes") + "scales" for name in codes} <= file.keys()
    rest = [tensor for name, tensor in file.items() if not name.endswith((".codes", ".scales"))]
    assert {tensor.dtype for tensor in rest} == {torch.bfloat16}
    bf16_model = load(model.save(tmp_path / "b", precision="bf16"))
    layers = {name: part for name, part in model.network.state_dict().items() if ".layers." in name}
    bf16_model.network.load_state_dict(layers, strict=False)
    for part in bf16_model.network.modules():  # all but the matrices of layers is in bfloat16
        if isinstance(part, Layer):
            for inner in part.parameters():
                if inner.ndim == 1:
                    inner.data = inner.data.bfloat16().float()
    expected, found = (one.embed(texts, precision="int8") for one in (bf16_model, second_model))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_damaged_codes_are_named(tmp_path):
    directory = model_of(384).save(tmp_path / "m", precision="int8")
    file = directory / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith(".scales"))
    save_file({key: value for key, value in tensors.items() if key != name}, file)
    with pytest.raises(CheckpointError, match=r"has no '\.scales' of its rows"):
        load(directory)


FUSED_NAMES = {
    "none": ("none", ""),
    **{name: FUSED_ACTIVATIONS[ACTIVATIONS[name]] for name in ACTIVATIONS},
}


def calibrated_linear(activation: str = "none") -> tuple[Linear, torch.Tensor]:
    """A map whose inputs have ranges of their own, and some of them."""
    torch.manual_seed(3)
    linear = Linear(96, 64)
    x = torch.randn(40, 96) * torch.rand(96) + torch.randn(96)
    x[:, 7] *= 50
    least, greatest = x.aminmax(dim=0)
    steps, offsets = (greatest - least) / 250, (greatest + least) / 2
    linear.input_codes = InputCodes.fit(linear.weight.detach(), steps, offsets, x.median(0).values)
    linear = QuantizedLinear.from_linear(linear)
    linear.activation, linear.fused = ACTIVATIONS.get(activation), FUSED_NAMES[activation]
    return linear, x


def by_hand(linear: Linear, x: torch.Tensor) -> np.ndarray:
    """A calibrated map in float64, by NumPy, before its activation."""
    weight, inputs = linear.weight.detach().double().numpy(), x.double().numpy()
    steps, offsets = (
        part.double().numpy() for part in (linear.input_codes.steps, linear.input_codes.offsets)
    )
    codes = np.clip(np.rint((inputs - offsets) / steps), -128, 127)
    scales = np.abs(weight * steps).max(1, keepdims=True) / 127
    rounded_weight = np.rint(weight * steps / scales) * scales
    usual = np.median(inputs, 0) if len(inputs) % 2 else np.sort(inputs, 0)[(len(inputs) - 1) // 2]
    shift = weight @ usual - rounded_weight @ ((usual - offsets) / steps)
    return codes @ rounded_weight.T + shift + linear.bias.detach().double().numpy()


@pytest.mark.parametrize("has_vnni", [True, False])
@pytest.mark.parametrize("name", FUSED_NAMES)
def test_calibrated_codes_equal_the_formula(name, has_vnni, monkeypatch):
    monkeypatch.setattr("bertworks.nn.quantization.CHUNK_ROWS", 16)
    if not has_vnni:
        monkeypatch.setattr("bertworks.nn.quantized.has_exact_products", lambda: False)
    linear, x = calibrated_linear(name)
    inputs = x.clone()
    before = torch.tensor(by_hand(linear, x))
    expected = before if name == "none" else ACTIVATIONS[name](before)
    residual = torch.randn(40, 64)
    with torch.inference_mode():
        output, none = linear(x), linear(x[:0])
        batch_output = linear(x.view(4, 10, 96))
        if name == "none":
            kept = residual.clone()
            added = linear.plus(x, residual)
            assert torch.equal(residual, kept)
            torch.testing.assert_close(added.double(), expected + residual, rtol=1e-3, atol=1e-3)
    # A number between two codes may be rounded to either; oneDNN has its own tables of functions.
    torch.testing.assert_close(output.double(), expected, rtol=1e-2, atol=2e-2)
    assert (output.double() - expected).abs().median() < 1e-3
    assert none.shape == (0, 64)
    assert torch.equal(batch_output.view(40, 64), output)
    assert torch.equal(x, inputs)


@pytest.mark.skipif(not has_exact_products(), reason="no VNNI: no kernel emits codes")
def test_output_codes_are_the_input_codes_of_the_next_map():
    linear, x = calibrated_linear("gelu")
    torch.manual_seed(4)
    following = Linear(64, 32)
    step = torch.tensor([0.02])
    of_zero = (128 - 20) * step
    following.input_codes = InputCodes.fit(
        following.weight.detach(), step, of_zero, torch.zeros(64)
    )
    with torch.inference_mode():
        numbers = linear(x)
        linear.output_codes = following.input_codes.step_and_zero_point
        assert linear.output_codes == (pytest.approx(0.02), 20)
        codes = linear(x)
        expected = following.input_codes.encode(numbers)
        assert codes.dtype is torch.uint8
        assert (codes.int() - expected.int()).abs().max() <= 1
        assert (codes != expected).float().mean() < 0.01
        quantized = QuantizedLinear.from_linear(following, torch.float32)
        assert torch.equal(quantized(expected), quantized(numbers))


def cosines_of(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)


@pytest.mark.long
def test_a_calibrated_model_is_closer_and_nothing_else_changes(tmp_path):
    model, texts = model_of(384), texts_of(12)
    exact, old_vectors = (model.embed(texts, precision=name) for name in ("fp32", "int8"))
    model.calibrate(texts_of(60)[12:])
    new_vectors = model.embed(texts, precision="int8")
    closer, close = cosines_of(exact, new_vectors), cosines_of(exact, old_vectors)
    assert np.median(closer) > np.median(close) > 0.9999
    assert closer.min() > 0.99  # some texts have positions that none of the others had
    assert np.array_equal(model.embed(texts, precision="fp32"), exact)
    second_model = load(model.save(tmp_path / "m", precision="int8"))
    assert (
        second_model.report is not None
        and not second_model.report.dropped_tensors
        and not second_model.report.new_tensors
    )
    file = load_file(tmp_path / "m" / "model.safetensors")
    assert not [name for name in file if name.endswith(".codes")]
    ends = (".calibrated_codes", ".scales", ".calibrated_inputs", ".calibrated_shift")
    counts = [sum(name.endswith(end) for name in file) for end in ends]
    assert counts == [6 * model.encoder.config.num_hidden_layers] * 4
    vectors = second_model.embed(texts, precision="int8")
    assert cosines_of(vectors, new_vectors).min() > 0.9995  # the rest is in bfloat16
    second_vectors = load(second_model.save(tmp_path / "again", precision="int8"))
    other = load_file(tmp_path / "again" / "model.safetensors")
    for name in file:
        torch.testing.assert_close(other[name], file[name], rtol=1e-6, atol=1e-8)
    assert cosines_of(second_vectors.embed(texts, precision="int8"), vectors).min() > 0.99999
    assert cosines_of(second_model.embed(texts, precision="fp32"), exact).min() > 0.999


@pytest.mark.long
@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_geometry_can_be_calibrated(name):
    network = network_of(**GEOMETRIES[name]).eval()
    model = Model(TOKENIZER, None, network)
    texts = texts_of(40, 100)
    exact = model.embed(texts, precision="fp32")
    model.calibrate(texts)
    assert cosines_of(exact, model.embed(texts, precision="int8")).mean() > 0.99
    alone = np.concatenate([model.embed([text], precision="int8") for text in texts[:10]])
    if has_packed_kernels(torch.float32):
        assert np.array_equal(alone, model.embed(texts, precision="int8")[:10])


@pytest.mark.long
def test_other_weights_have_no_fixed_codes(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTWORKS_NATIVE", "0")  # PyTorch's layers
    model, texts = model_of(64), texts_of(12)
    model.calibrate(texts)
    first = model.encoder.layers[0].attention.query_key_value
    with torch.no_grad():
        first.weight[:, 5] *= 1.5
    model.embed(texts, precision="int8")
    with torch.inference_mode():
        form = frozen_form(model.network, "int8")
    assert type(form.encoder.layers[0].attention.query_key_value) is QuantizedLinear
    assert type(form.encoder.layers[1].attention.query_key_value) is CalibratedLinear
    file = load_file(model.save(tmp_path / "m", precision="int8") / "model.safetensors")
    assert sum(name.endswith(".codes") for name in file) == 3


def test_calibration_needs_text():
    with pytest.raises(DataError, match="there is no text to calibrate by"):
        model_of(64).calibrate([])


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda t: {k: v for k, v in t.items() if not k.endswith(".calibrated_inputs")},
            r"has no '\.calibrated_inputs'",
        ),
        (
            lambda t: {k: v[:3] if k.endswith(".calibrated_shift") else v for k, v in t.items()},
            r"has no '\.calibrated_shift'",
        ),
        (
            lambda t: {k: -v if k.endswith(".calibrated_inputs") else v for k, v in t.items()},
            "impossible",
        ),
        (
            lambda t: {k: v / 0 if k.endswith(".calibrated_shift") else v for k, v in t.items()},
            "impossible",
        ),
        (lambda t: {k: v for k, v in t.items() if not k.endswith(".scales")}, "no '.scales'"),
        (
            lambda t: {
                k: v[:, :2] if k.endswith(".calibrated_inputs") else v for k, v in t.items()
            },
            "another",
        ),
    ],
)
def test_damaged_calibration_is_named(change, says, tmp_path):
    model = model_of(64)
    model.calibrate(texts_of(5))
    directory = model.save(tmp_path / "m", precision="int8")
    file = directory / "model.safetensors"
    save_file({k: v.contiguous() for k, v in change(load_file(file)).items()}, file)
    with pytest.raises(CheckpointError, match=says):
        load(directory)


def test_a_map_has_the_codes_with_the_smaller_error():
    """Fixed codes, a step for each input, or scales for each token."""
    torch.manual_seed(5)
    x = torch.randn(400, 32)
    x[:, 3] += 40  # an input that is large in each token, as models have
    for scale, suits in ((1.0, True), (100, False)):  # a few tokens of another size
        statistics = ActivationStatistics(Linear(32, 16))
        statistics.add(torch.zeros(7, 32))  # rows that fill up a batch count for nothing
        statistics.add(torch.cat([x, x[:40] * scale]))
        assert statistics.tokens == 440
        assert (statistics.codes(is_common=False) is not None) == suits


@pytest.mark.parametrize("shape", [(-1, 4), (2, -1, 4), (3, 2, -1, 4)])
def test_statistics_are_of_each_input_over_all_tokens(shape: tuple[int, ...]) -> None:
    """Whatever the dimensions before the inputs; a row of zeros is no token."""
    rows = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)) + 5
    statistics = ActivationStatistics(Linear(4, 4))
    for part in rows.split(12):
        statistics.add(torch.cat([part, torch.zeros(12, 4)]).reshape(shape))
    assert statistics.tokens == 24
    assert torch.equal(statistics.least, rows.amin(0))
    assert torch.equal(statistics.greatest, rows.amax(0))
    assert torch.equal(torch.stack(statistics.sample), rows)
