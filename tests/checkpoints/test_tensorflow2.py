"""A checkpoint that TensorFlow 2 wrote: the paper's forward pass, and the unused tensors."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.checkpoints import tensorflow2
from bertworks.checkpoints.bundle import read_bundle, read_text
from bertworks.errors import CheckpointError
from bertworks.packed import Packed
from tests.checkpoints.paper_forward import PaperBert
from tests.checkpoints.tensorflow2_file import DIRECTORY, HEADS, LAYERS, original_variables, write

PREFIX = DIRECTORY / "bert_model.ckpt-1"


def check(directory):
    model = bw.load(directory, device="cpu")
    model.network.double()
    paper = PaperBert(original_variables(), LAYERS, HEADS)
    ids = np.array([2, 5, 6, 7, 3, 8, 3])
    types = np.array([0, 0, 0, 0, 0, 1, 1])
    packed = Packed.from_arrays([ids], [types]).to("cpu")
    with torch.no_grad():
        states = list(model.encoder.hidden_states(packed))
        pooled = model.encoder.pool(states[-1], packed)
        logits, nsp = model.network.mlm_head(states[-1]), model.network.nsp_head(pooled)
    expected = paper.hidden_states(ids, types)
    for state, theirs in zip(states, expected, strict=True):
        np.testing.assert_allclose(state.numpy(), theirs, rtol=0, atol=1e-10)
    vector = paper.pooled(expected[-1])
    np.testing.assert_allclose(pooled[0].numpy(), vector, atol=1e-10)
    np.testing.assert_allclose(logits.numpy(), paper.mlm_logits(expected[-1]), atol=1e-10)
    np.testing.assert_allclose(nsp[0].numpy(), paper.nsp_logits(vector), atol=1e-10)
    return model


def test_a_checkpoint_of_objects_gives_what_the_paper_says():
    dropped = check(DIRECTORY).report.dropped_tensors
    assert {name.partition("/.")[0]: reason for name, reason in dropped.items()} == {
        "model/layer_with_weights-0/embeddings": "optimizer state, which training starts anew",
        "save_counter": "a counter of the finished training",
    }


def test_a_file_written_by_tensorflow_is_read(tmp_path):
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed; it is no dependency")
    write(tmp_path / "m")
    check(tmp_path / "m")


def test_a_bundle_without_objects_has_none(data_dir):
    prefix = data_dir / "tf1-checkpoint" / "bert_model.ckpt"
    assert tensorflow2.variable_names(prefix) is None
    assert read_text(PREFIX, "save_counter/.ATTRIBUTES/VARIABLE_VALUE") is None
    assert "_CHECKPOINTABLE_OBJECT_GRAPH" not in read_bundle(PREFIX)


@pytest.mark.parametrize(
    ("name", "hf_name"),
    [
        (
            "encoder/transformer/layer_11/self_attention/key/bias:0",
            "layer.11.attention.self.k",
        ),
        ("transformer/layer_0/self_attention_output/kernel", "attention.output.dense.weight"),
        ("position_embedding/position_embeddings", "bert.embeddings.position_embeddings.weight"),
        ("cls/predictions/output_bias", "cls.predictions.bias"),
        ("transformer/layer_0/self_attention/query/gamma_2", None),
        ("dense/kernel", None),
        ("", None),
    ],
)
def test_names_are_those_of_hugging_face(name, hf_name):
    found = tensorflow2.hf_name_of(name)
    assert found is None if hf_name is None else hf_name in found


def test_unknown_tensors_are_named(monkeypatch):
    names = tensorflow2.variable_names(PREFIX)
    key = "model/layer_with_weights-6/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    with pytest.raises(CheckpointError, match=r"layer_with_weights-6\S+ \(dense_7/kernel\) is not"):
        tensorflow2.read_objects(PREFIX, {**names, key: "dense_7/kernel"})
    with pytest.raises(CheckpointError, match="two tensors for"):
        tensorflow2.read_objects(PREFIX, {**names, key: "pooler_transform/bias"})


def test_a_damaged_graph_is_refused(tmp_path, monkeypatch):
    shutil.copytree(DIRECTORY, tmp_path / "m")
    file = tmp_path / "m" / "bert_model.ckpt-1.data-00000-of-00001"
    content = file.read_bytes()
    graph = read_text(PREFIX, "_CHECKPOINTABLE_OBJECT_GRAPH")
    position = content.index(graph)
    file.write_bytes(content[:position] + b"\xff" + content[position + 1 :])
    with pytest.raises(CheckpointError, match="GRAPH' does not match its checksum"):
        bw.load(tmp_path / "m", device="cpu")
    file.write_bytes(content[: position - 5] + b"\x01" + content[position - 4 :])
    with pytest.raises(CheckpointError, match="GRAPH' cannot be read"):
        bw.load(tmp_path / "m", device="cpu")
    monkeypatch.setattr(tensorflow2, "read_text", lambda *_: b"\xff" * len(graph))
    with pytest.raises(CheckpointError, match="graph of objects cannot be read"):
        tensorflow2.variable_names(PREFIX)
