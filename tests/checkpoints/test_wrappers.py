"""Checkpoints that a program saved with a wrapper around the model, or inside other things."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import load_file, save_file

import bertworks as bw
from bertworks.errors import BertworksWarning, CheckpointError
from bertworks.text.tokenizer import Tokenizer
from tests.checkpoints.journeys import PIECES
from tests.checkpoints.oracles import geometry
from tests.checkpoints.test_store import tiny

WRAPPERS = ["module.", "model.", "_orig_mod.", "0.auto_model.", "model.model.", "net.encoder."]


def saved_tensors(model, folder):
    model.save(folder)
    return load_file(folder / "model.safetensors")


def same(one, other) -> bool:
    first, second = one.network.state_dict(), other.network.state_dict()
    return first.keys() == second.keys() and all(
        torch.equal(tensor, second[name]) for name, tensor in first.items()
    )


@pytest.mark.parametrize("wrapper", [*WRAPPERS, "bert.", "_orig_mod.module."])
@pytest.mark.parametrize("task", ["pretraining", "classification"])
def test_wrapped_model_is_read_and_its_prefix_named(tmp_path, wrapper, task):
    model = tiny(task)
    tensors = saved_tensors(model, tmp_path)
    wrapped = {wrapper + name: tensor for name, tensor in tensors.items()}
    save_file(wrapped, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.warns(BertworksWarning, match=r"tensors are read without .*in their names"):
        reloaded = bw.load(tmp_path, device="cpu")
    assert same(model, reloaded)


@pytest.mark.long
@pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", "albert", "electra", "modernbert"]
)
@pytest.mark.parametrize("wrapper", ["module.", "model.", "_orig_mod."])
@pytest.mark.parametrize("bare", [False, True])
def test_wrapped_model_of_each_family_is_read(tmp_path, family, wrapper, bare):
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    torch.manual_seed(0)
    model = bw.Model.fresh(geometry(family, vocab_size=tokenizer.vocab_size), tokenizer)
    tensors = saved_tensors(model, tmp_path)
    plain = bw.load(tmp_path, task="encoder", device="cpu")
    if bare:  # as a class without a head saves the encoder
        prefix = {"modernbert": "model."}.get(family, f"{family}.")
        tensors = {
            name.removeprefix(prefix): one for name, one in tensors.items() if prefix in name
        }
    wrapped = {wrapper + name: tensor for name, tensor in tensors.items()}
    save_file(wrapped, tmp_path / "model.safetensors", {"format": "pt"})
    if bare and family == "modernbert" and wrapper == "model.":  # which is its published name
        reloaded_model = bw.load(tmp_path, task="encoder", device="cpu")
    else:
        with pytest.warns(BertworksWarning, match=re.escape(repr(wrapper))):
            reloaded_model = bw.load(tmp_path, task="encoder", device="cpu")
    assert same(plain, reloaded_model)


def test_names_that_compilation_and_sharding_insert_are_left_out(tmp_path):
    model = tiny()
    tensors = saved_tensors(model, tmp_path)
    names = {
        name.replace("layer.0.", "layer.0._orig_mod._fsdp_wrapped_module."): tensor
        for name, tensor in tensors.items()
    }
    save_file(names, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.warns(BertworksWarning, match="'_fsdp_wrapped_module.', '_orig_mod.'"):
        assert same(model, bw.load(tmp_path, device="cpu"))


def test_head_next_to_a_wrapped_encoder_keeps_its_name(tmp_path):
    model = tiny("classification")
    tensors = saved_tensors(model, tmp_path)
    mixed = {
        name if name.startswith("classifier") else "model." + name.removeprefix("bert."): tensor
        for name, tensor in tensors.items()
    }
    save_file(mixed, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.warns(BertworksWarning, match="'model.'"):
        assert same(model, bw.load(tmp_path, device="cpu"))


@pytest.mark.parametrize(
    "nest",
    [
        lambda state: {"state_dict": state, "epoch": 3, "optimizer": {"state": {}, "groups": []}},
        lambda state: {"model": state, "optimizer": {"state": {0: {"step": 1}}}},
        lambda state: {"model_state_dict": state, "ema": dict(state)},
        lambda state: {"weights": {f"module.{name}": one for name, one in state.items()}},
    ],
)
def test_nested_state_dict_is_read_and_named(tmp_path, nest):
    model = tiny()
    tensors = saved_tensors(model, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(nest(tensors), tmp_path / "pytorch_model.bin")
    with pytest.warns(BertworksWarning) as warnings:
        assert same(model, bw.load(tmp_path, device="cpu"))
    assert "are read, and nothing else" in str(warnings[0].message)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: {"a": dict(state), "b": dict(state)}, "several state_dicts, under 'a', 'b'"),
        (lambda state: {"args": {"lr": 1.0}}, "holds no state_dict"),
        (
            lambda state: {f"{side}.{name}": t for side in "qd" for name, t in state.items()},
            r"holds 2 encoders, under 'd\.', 'q\.'",
        ),
        # Another family's tensors are no wrapped ones of this family.
        *(
            (
                lambda state, start=f"{name}.": {
                    start + n.removeprefix("bert."): t for n, t in state.items()
                },
                "is missing",
            )
            for name in ("roberta", "longformer", "nomic_bert", "new")
        ),
    ],
)
def test_ambiguous_files_are_refused(tmp_path, change, says):
    tensors = saved_tensors(tiny(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(change(tensors), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=says):
        bw.load(tmp_path, device="cpu")
