"""Linear maps of 8-bit numbers: what they compute, with the processor's instructions or without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.inference.test_bits import model_of, texts_of
from tests.inference.test_form import GEOMETRIES, TOKENIZER, network_of
from torch import nn

from bertworks.api import Model, load
from bertworks.errors import CheckpointError, SettingsError
from bertworks.model.eight_bits import QuantizedLinear
from bertworks.model.encoder import Layer
from bertworks.model.layers import Linear
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
    weight, given = linear.weight.detach().double().numpy(), x.double().numpy()
    of_rows = np.maximum(np.abs(given).max(1, keepdims=True), 1e-30) / 127
    of_outputs = np.maximum(np.abs(weight).max(1, keepdims=True), 1e-30) / 127
    codes, weights = np.rint(given / of_rows), np.rint(weight / of_outputs)
    result = of_rows * (codes @ weights.T) * of_outputs.T
    return result if linear.bias is None else result + linear.bias.detach().numpy()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("has_vnni", [True, False])
@pytest.mark.parametrize("at_once", [384, 5])
def test_the_formula(bias, has_vnni, at_once, monkeypatch):
    monkeypatch.setattr("bertworks.model.eight_bits._AT_ONCE", at_once)
    if not has_vnni:
        monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    linear, x = linear_of(bias), rows()
    given = x.clone()
    wanted = expected(linear, x)
    scale = np.abs(wanted).max(1, keepdims=True) + 1e-30
    QuantizedLinear.prepare(linear)
    with torch.inference_mode():
        found = linear(x).numpy()
        none = linear(x[:0])
    # A number that lies between two codes may be rounded to either.
    assert np.max(np.abs(found - wanted) / scale) < 1e-3
    assert none.shape == (0, 40)
    assert torch.equal(x, given)


def test_vectors_are_close_and_the_model_stays_as_it_is(tmp_path):
    model, texts = model_of(384), texts_of(12)
    exact = model.embed(texts, precision="fp32")
    found = model.embed(texts, precision="int8")
    cosines = (exact * found).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(found, axis=1)
    assert 0.995 < cosines.min() < 1
    assert np.array_equal(model.embed(texts, precision="fp32"), exact)
    model.embed_to(tmp_path / "v.npy", texts, precision="int8")
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), found)
    assert not any(isinstance(part, QuantizedLinear) for part in model.network.modules())


def test_nothing_is_trained_in_eight_bits():
    with pytest.raises(SettingsError, match="precision"):
        FinetuneSettings.parse({"precision": "int8"})


def test_a_gated_network_too():
    network = network_of(**GEOMETRIES["modernbert"]).eval()
    model = Model(TOKENIZER, None, network)
    exact, found = (model.embed("a b c d", precision=name) for name in ("fp32", "int8"))
    cosine = nn.functional.cosine_similarity(torch.tensor(exact), torch.tensor(found))
    assert 0.98 < cosine.item() < 1


def test_a_model_saved_in_eight_bits_answers_as_the_one_it_was_made_of(tmp_path):
    model, texts = model_of(384), texts_of(12)
    saved = load(model.save(tmp_path / "m", precision="int8"))
    assert saved.report is not None and not saved.report.dropped and not saved.report.initialized
    file = load_file(tmp_path / "m" / "model.safetensors")
    codes = [name for name, tensor in file.items() if tensor.dtype is torch.int8]
    # query, key, value and three more maps of each layer
    assert len(codes) == 6 * model.encoder.config.num_hidden_layers
    assert {name.removesuffix("codes") + "scales" for name in codes} <= file.keys()
    rest = [tensor for name, tensor in file.items() if not name.endswith((".codes", ".scales"))]
    assert {tensor.dtype for tensor in rest} == {torch.bfloat16}
    rounded = load(model.save(tmp_path / "b", precision="bf16"))
    layers = {name: part for name, part in model.network.state_dict().items() if ".layers." in name}
    rounded.network.load_state_dict(layers, strict=False)
    for part in rounded.network.modules():  # all but the matrices of layers is in bfloat16
        if isinstance(part, Layer):
            for inner in part.parameters():
                if inner.ndim == 1:
                    inner.data = inner.data.bfloat16().float()
    expected, found = (one.embed(texts, precision="int8") for one in (rounded, saved))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_damaged_codes_are_named(tmp_path):
    directory = model_of(384).save(tmp_path / "m", precision="int8")
    file = directory / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith(".scales"))
    save_file({key: value for key, value in tensors.items() if key != name}, file)
    with pytest.raises(CheckpointError, match=r"has no '\.scales' of its rows"):
        load(directory)
