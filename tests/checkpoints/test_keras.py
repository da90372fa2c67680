"""Keras weights: files in the published layout equal the same weights in safetensors."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.errors import BertworksError, CheckpointError
from tests.checkpoints.journeys import saved_by_them

KINDS = [
    ("bert", "masked-lm"),
    ("bert", "pretraining"),
    ("bert", "classification"),
    ("roberta", "classification"),
    ("distilbert", "masked-lm"),
    ("electra", "replaced-tokens"),
    ("albert", "encoder"),
]


def keras_name(name: str, tensor: torch.Tensor) -> tuple[str, str, np.ndarray]:
    """The layer, the weight's name and its numbers, as transformers 4 wrote them."""
    *levels, last = re.sub(r"/(\d+)/", r"_._\1/", name.replace(".", "/")).split("/")
    values, owner = tensor.numpy(), levels[-1]
    if last == "weight":
        if owner == "word_embeddings":
            last = "weight"
        elif owner.endswith("_embeddings"):
            last = "embeddings"
        elif re.search("norm", owner, re.IGNORECASE):
            last = "gamma"
        else:
            last, values = "kernel", values.T
    elif re.search("norm", owner, re.IGNORECASE):
        last = "beta"
    if levels[0] == "cls":
        levels[0] = "nsp___cls" if levels[1] == "seq_relationship" else "mlm___cls"
    return levels[0], "/".join(["tf_bert_model_2", *levels, f"{last}:0"]), values


def write_keras(
    path: Path, tensors: dict[str, torch.Tensor], *, flat: bool = False, chunk: int = 10**6
) -> None:
    """Write a file; a shard is flat. Attributes of more than `chunk` names are in several parts."""
    h5py = pytest.importorskip("h5py")
    layers: dict[str, list[str]] = {"dropout_37": []}

    def write_names(node: Any, key: str, names: list[str]) -> None:
        parts = [names[at : at + chunk] for at in range(0, len(names), chunk)] or [[]]
        for number, part in enumerate(parts):
            values = np.array([name.encode() for name in part], "S")
            node.attrs[key if len(parts) == 1 else f"{key}{number}"] = values

    with h5py.File(path, "w") as file:
        for name, tensor in tensors.items():
            layer, weight, values = keras_name(name, tensor)
            if flat:
                weight = layer = weight.partition("/")[2]
                file.create_dataset(weight, data=values)
            else:
                file.require_group(layer).create_dataset(weight, data=values)
            layers.setdefault(layer, []).append(weight)
        write_names(file, "layer_names", list(layers)[flat:])
        for layer, names in layers.items() if not flat else ():
            write_names(file.require_group(layer), "weight_names", names)


def in_keras(family: str, kind: str, folder: Path) -> dict[str, torch.Tensor]:
    """Their model, saved with its tokenizer; its tensors but those that are tied."""
    pytest.importorskip("h5py")
    theirs = saved_by_them(family, kind, folder)
    tied = theirs.all_tied_weights_keys.keys()
    tensors = {name: value for name, value in theirs.state_dict().items() if name not in tied}
    return {name: value for name, value in tensors.items() if not name.endswith("_ids")}


def same_tensors(one: bw.Model, other: bw.Model) -> bool:
    states = one.network.state_dict(), other.network.state_dict()
    assert states[0].keys() == states[1].keys()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.long
@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_keras_weights_are_those_of_safetensors(family: str, kind: str, tmp_path: Path) -> None:
    tensors = in_keras(family, kind, tmp_path)
    expected = bw.load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    write_keras(tmp_path / "tf_model.h5", tensors, chunk=3)
    model = bw.load(tmp_path)
    assert type(model.network) is type(expected.network)
    assert same_tensors(model, expected)


def test_shards_of_keras_weights_are_read(tmp_path: Path) -> None:
    tensors = in_keras("bert", "masked-lm", tmp_path)
    expected = bw.load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"tf_model-00001-of-00002.h5": names[:9], "tf_model-00002-of-00002.h5": names[9:]}
    for shard, part in shards.items():
        write_keras(tmp_path / shard, {name: tensors[name] for name in part}, flat=True)
    weight_map = {name: shard for shard, part in shards.items() for name in part}
    index = tmp_path / "tf_model.h5.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert same_tensors(bw.load(tmp_path), expected)
    (tmp_path / "tf_model-00002-of-00002.h5").unlink()
    with pytest.raises(CheckpointError, match=r"-00002-of-00002\.h5', which is missing"):
        bw.load(tmp_path)


def test_damaged_keras_weights_are_named(tmp_path: Path) -> None:
    import h5py

    tensors = in_keras("bert", "encoder", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    path = tmp_path / "tf_model.h5"
    write_keras(path, tensors)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"tf_model.h5: cannot be read"):
        bw.load(tmp_path)
    with h5py.File(path, "w") as file:
        file["x"] = [1.0]
    with pytest.raises(CheckpointError, match="holds no weights of Keras layers"):
        bw.load(tmp_path)
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = np.array([b"huge"])
        file.create_dataset("huge", shape=(2**40,), dtype="f4", chunks=(2**20,))
    with pytest.raises(CheckpointError, match="'huge' is not stored as plain numbers"):
        bw.load(tmp_path)
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = np.array([b"query/kernel"])
        file["query/kernel"] = np.zeros((2, 3, 4), np.float32)
    with pytest.raises(CheckpointError, match=r"'query/kernel' has shape \(2, 3, 4\)"):
        bw.load(tmp_path)
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = np.array([b"query/bias"])
        file["query/bias"] = np.zeros(4, np.int32)
    with pytest.raises(CheckpointError, match=r"'query/bias' is of type int32"):
        bw.load(tmp_path)


def test_missing_h5py_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_by_them("bert", "encoder", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "tf_model.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(BertworksError, match=r'needs the package .h5py.*"bertworks\[keras\]"'):
        bw.load(tmp_path)
