"""An inspection without PyTorch says what one with a network says."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bertworks as bw
from bertworks.analysis import inspection
from bertworks.errors import NeedsPyTorchError
from bertworks.native.library import has_kernels, instruction_set

SAVED_MODELS = Path(__file__).parents[1] / "saved_models"
FORMATS = Path(__file__).parents[1] / "formats" / "0.1.0"


@pytest.fixture
def inspect_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "has_pytorch", lambda: False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("folder", "name"),
    [
        (FORMATS, "int8"),
        *((SAVED_MODELS, name) for name in ("classification", "tagging", "electra")),
        *((SAVED_MODELS, f"{name}-pretraining") for name in ("roberta", "albert")),
        (SAVED_MODELS, "modernbert-classification"),
    ],
)
def test_inspection_of_files_equals_that_of_a_network(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bw.inspect(folder / name)
    monkeypatch.setattr(inspection, "has_pytorch", lambda: False)
    actual = bw.inspect(folder / name)
    assert sorted(actual.used_tensors) == sorted(expected.used_tensors)
    assert replace(actual, used_tensors=expected.used_tensors) == expected


@pytest.mark.skipif(not has_kernels("fp32"), reason="no native code for this processor")
@pytest.mark.usefixtures("inspect_files")
def test_inspection_names_the_engine(tmp_path: Path) -> None:
    assert bw.inspect("mini").engine == f"native code for {instruction_set()}, in fp32"
    engine = bw.inspect(SAVED_MODELS / "modernbert-classification").engine
    assert engine == f"native code for {instruction_set()}, in fp32"
    shutil.copytree(SAVED_MODELS / "classification", tmp_path / "tanh")
    config = tmp_path / "tanh" / "config.json"
    values = {**json.loads(config.read_text(encoding="utf-8")), "hidden_act": "tanh"}
    config.write_text(json.dumps(values), encoding="utf-8")
    engine = bw.inspect(tmp_path / "tanh").engine
    assert engine == "PyTorch: a model with hidden_act=tanh needs PyTorch"


@pytest.mark.usefixtures("inspect_files")
def test_inspection_counts_what_is_not_finite(tmp_path: Path) -> None:
    directory = SAVED_MODELS / "classification"
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(directory / "model.safetensors")
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name] = tensors[name].copy()
    tensors[name][0, :2] = np.inf
    save_file(tensors, tmp_path / "model.safetensors")
    assert bw.inspect(tmp_path).non_finite == {name: 2}


@pytest.mark.parametrize("start", ["---\r\n", "\ufeff---\n", "\n---\n"])
def test_inspection_names_the_license_of_the_card(start: str, tmp_path: Path) -> None:
    shutil.copytree(SAVED_MODELS / "classification", tmp_path / "model")
    text = f"{start}language: en\nlicense: mit\n---\nText\n"
    (tmp_path / "model" / "README.md").write_bytes(text.encode())
    assert bw.inspect(tmp_path / "model").license == "mit"


@pytest.mark.usefixtures("inspect_files")
def test_inspection_without_safetensors_needs_pytorch(tmp_path: Path) -> None:
    for file in (SAVED_MODELS / "classification").glob("[!m]*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(NeedsPyTorchError, match=r"without model\.safetensors"):
        bw.inspect(tmp_path)
