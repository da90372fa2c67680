"""Weights that are not finite are refused, or named; a model with such weights is not saved."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import bertworks as bw
from bertworks.analysis.inspection import inspect
from bertworks.errors import CheckpointError
from bertworks.nn.device import is_finite
from tests.checkpoints import journeys
from tests.checkpoints.test_store import tiny

KEY = "bert.encoder.layer.1.attention.self.key.weight"
DENSE = "bert.pooler.dense.bias"


def save_with_values(
    directory: Path, values: dict[str, float], dtype: torch.dtype = torch.float32
) -> Path:
    """A saved model, one number of each of some tensors replaced."""
    tiny().save(directory)
    file = directory / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    for name, value in values.items():
        tensors[name].view(-1)[5] = value
    save_file(tensors, file)
    return directory


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", [KEY, DENSE, "bert.embeddings.word_embeddings.weight"])
def test_one_number_is_found(tmp_path: Path, name: str, value: float) -> None:
    with pytest.raises(CheckpointError, match=f"tensor '{name}' holds a number that is not finite"):
        bw.load(save_with_values(tmp_path / "m", {name: value}), device="cpu")


def test_a_number_that_float32_has_no_room_for_is_found(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"'{KEY}' holds a number"):
        bw.load(save_with_values(tmp_path / "m", {KEY: 1e300}, torch.float64), device="cpu")


def test_allowed_non_finite_tensors_are_named(tmp_path: Path) -> None:
    directory = save_with_values(tmp_path / "m", {KEY: math.nan, DENSE: math.inf})
    with pytest.raises(CheckpointError, match=r"the first of 2 such tensors.*`bertworks inspect`"):
        bw.load(directory, device="cpu")
    model = bw.load(directory, device="cpu", allow_non_finite=True)
    assert model.report is not None
    assert model.report.non_finite_tensors == {KEY: 1, DENSE: 1}
    assert inspect(directory).non_finite == {KEY: 1, DENSE: 1}
    assert inspect(save_with_values(tmp_path / "whole", {})).non_finite == {}


def test_tied_matrices_may_hold_the_same_nan(tmp_path: Path) -> None:
    """NaN is not itself, and yet they are not two matrices."""
    words = "bert.embeddings.word_embeddings.weight"
    directory = save_with_values(tmp_path / "m", {words: math.nan})
    file = directory / "model.safetensors"
    tensors = load_file(file)
    decoder = tensors[words].clone()
    save_file({**tensors, "cls.predictions.decoder.weight": decoder}, file)
    model = bw.load(directory, device="cpu", allow_non_finite=True)
    assert model.report is not None
    assert set(model.report.non_finite_tensors) == {words}
    decoder[0, 0] += 1
    save_file({**tensors, "cls.predictions.decoder.weight": decoder}, file)
    with pytest.raises(CheckpointError, match=r"to which config\.json ties it"):
        bw.load(directory, device="cpu", allow_non_finite=True)


@pytest.mark.parametrize("family", ["albert", "openai-gpt", "modernbert"])
def test_the_name_is_that_of_the_family(family: str, tmp_path: Path) -> None:
    journeys.saved_by_them(family, "masked-lm", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "attn" in name or "attention.key" in name)
    tensors[name].view(-1)[-1] = math.nan
    save_file(tensors, file)
    assert list(inspect(tmp_path).non_finite) == [name]


def test_a_model_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    model = tiny("classification")
    model.save(tmp_path / "m")
    content = (tmp_path / "m" / "model.safetensors").read_bytes()
    with torch.no_grad():
        model.network.head.linear.bias[0] = math.inf
    with pytest.raises(CheckpointError, match=r"not saved: the tensor 'classifier\.bias'"):
        model.save(tmp_path / "m")
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    shutil.rmtree(tmp_path / "m")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_sums_that_overflow_are_looked_at_closely(dtype: torch.dtype) -> None:
    large = torch.full((3, 100), torch.finfo(dtype).max, dtype=dtype)
    assert not math.isfinite(large.sum().item())
    assert is_finite(large)
    large[1, 7] = math.nan
    assert not is_finite(large)
    assert is_finite(torch.empty(0))
    assert is_finite(torch.tensor([1, 2]))
