"""Models in the layouts of their authors' own code equal the classes of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import bertworks as bw
from bertworks.checkpoints.families import find_family
from bertworks.errors import CheckpointError
from bertworks.packed import Batch, Packed
from tests.checkpoints import journeys
from tests.checkpoints.oracles import error

NOMIC = {  # the entries of nomic-ai/nomic-bert-2048's config.json that say what is computed
    "model_type": "nomic_bert",
    "activation_function": "swiglu",
    "attn_pdrop": 0.0,
    "causal": False,
    "dense_seq_output": True,
    "embd_pdrop": 0.0,
    "fused_bias_fc": True,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 20,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 48,
    "n_head": 4,
    "n_inner": 256,
    "n_layer": 3,
    "n_positions": 40,
    "pad_vocab_size_multiple": 4,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": len(journeys.PIECES),
}
GTE = {  # of Alibaba-NLP/gte-multilingual-base's
    "model_type": "new",
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 48,
    "intermediate_size": 80,
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "max_position_embeddings": 40,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "rope_theta": 20000,
    "type_vocab_size": 1,
    "unpad_inputs": True,
    "vocab_size": len(journeys.PIECES),
}


def rewrite(folder: Path, config: dict[str, Any], old: str, new: str, *missing: str) -> None:
    """Give a saved model another config.json and other names, without some tensors."""
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "model.safetensors"
    tensors = load_file(file)
    names = {name: name.replace(old, new, 1) if name.startswith(old) else name for name in tensors}
    save_file({names[name]: one for name, one in tensors.items() if name not in missing}, file)


def states_error(model: bw.Model, theirs: Any) -> float:
    packed, inputs, mask = journeys.batch_of(model)
    with torch.no_grad():
        return error(model.encoder(packed), theirs(**inputs).last_hidden_state[mask])


def test_nomics_encoder_and_config_are_read_and_written_back(tmp_path):
    theirs = journeys.saved_by_them("nomic_bert", "encoder", tmp_path / "m", intermediate_size=256)
    rewrite(tmp_path / "m", NOMIC, "nomic_bert.", "")
    model = bw.load(tmp_path / "m", device="cpu")
    assert model.encoder.config.max_seqlen == 40
    assert states_error(model, theirs) < 1e-5
    model.save(tmp_path / "again")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    lacking = {"dense_seq_output", "fused_bias_fc", "pad_vocab_size_multiple"}
    for key in NOMIC.keys() - lacking - {"max_trained_positions"}:
        assert config[key] == NOMIC[key], key
    first, second = (load_file(tmp_path / one / "model.safetensors") for one in ("m", "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("entries", "vocab_size", "intermediate_size"),
    [
        ({"vocab_size": 30522, "pad_vocab_size_multiple": 64, "n_inner": None}, 30528, 256),
        ({"vocab_size": 30528, "pad_vocab_size_multiple": 64, "n_inner": 300}, 30528, 512),
        ({"vocab_size": 30522, "pad_vocab_size_multiple": 1, "n_inner": 512}, 30522, 512),
    ],
)
def test_nomics_sizes_are_rounded_up(entries, vocab_size, intermediate_size):
    """To multiples of `pad_vocab_size_multiple`, and of 256: four times the width of 48 is 192."""
    config = find_family("nomic_bert").read_config({**NOMIC, **entries}, where="here")
    assert (config.vocab_size, config.intermediate_size) == (vocab_size, intermediate_size)


def test_nomics_masked_words_have_no_biases(tmp_path):
    theirs = journeys.saved_by_them("nomic_bert", "masked-lm", tmp_path, intermediate_size=256)
    head = theirs.cls.predictions
    with torch.no_grad():
        for bias in (head.bias, head.decoder.bias, head.transform.dense.bias):
            bias.zero_()
    missing = ("bias", "decoder.bias", "transform.dense.bias")
    rewrite(
        tmp_path, NOMIC, "nomic_bert.", "bert.", *(f"cls.predictions.{name}" for name in missing)
    )
    model = bw.load(tmp_path, device="cpu")
    assert not model.report.new_tensors
    packed, inputs, mask = journeys.batch_of(model)
    with torch.no_grad():
        own = model.network.mlm_head(model.encoder(packed))
        assert error(own, theirs(**inputs).logits[mask]) < 1e-5
    model.save(tmp_path / "again")
    assert bw.load(tmp_path / "again", device="cpu").encoder.config == model.encoder.config


def test_gte_scales_rotations_in_its_own_layout(tmp_path):
    theirs = journeys.saved_by_them("gte", "encoder", tmp_path / "m", hidden_act="gelu")
    rewrite(tmp_path / "m", GTE, "gte.", "new.")
    model = bw.load(tmp_path / "m", device="cpu")
    assert states_error(model, theirs) > 0.01, "without the scaling"
    pairs = torch.arange(6) / 6  # heads of 12 features
    theirs.rotary_emb.inv_freq = (20000 * 8.0) ** -pairs / 8.0 ** (1 / 6)
    assert states_error(model, theirs) < 1e-5
    model.save(tmp_path / "again")
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    for key in GTE.keys() - {"logn_attention_clip1", "unpad_inputs"}:
        assert written[key] == GTE[key], key
    first, second = (load_file(tmp_path / one / "model.safetensors") for one in ("m", "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


FLASH_NAMES = {  # of the tensors of XLM-RoBERTa, in the order of replacement
    "encoder.layer.": "encoder.layers.",
    "embeddings.LayerNorm": "emb_ln",
    "attention.output.dense": "mixer.out_proj",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "output.LayerNorm": "norm2",
}


def test_xlm_roberta_for_jinas_code_is_read_and_written_back(tmp_path: Path) -> None:
    """As jina-reranker-v2: no `model_type`, and query, key and value in one tensor."""
    theirs = journeys.saved_by_them("xlm-roberta", "classification", tmp_path, num_labels=1)
    file = tmp_path / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(file).items():
        new_name = name
        for old, new in FLASH_NAMES.items():
            new_name = new_name.replace(old, new)
        tensors[new_name] = tensor
    for part in ("weight", "bias"):
        for number in range(theirs.config.num_hidden_layers):
            layer = f"roberta.encoder.layers.{number}"
            rows = [
                tensors.pop(f"{layer}.attention.self.{one}.{part}")
                for one in ("query", "key", "value")
            ]
            tensors[f"{layer}.mixer.Wqkv.{part}"] = torch.cat(rows)
    save_file(tensors, file)
    config = json.loads((tmp_path / "config.json").read_text())
    code = "configuration_xlm_roberta.XLMRobertaFlashConfig"
    config |= {"auto_map": {"AutoConfig": code}, "use_flash_attn": True, "emb_pooler": None}
    del config["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    texts = [np.random.default_rng(length).integers(5, 60, length) for length in (1, 9, 38)]
    for folder in (tmp_path, tmp_path / "again"):
        model = bw.load(folder, device="cpu")
        assert not (model.report.new_tensors or model.report.dropped_tensors)
        with torch.no_grad():
            values = model.network.predict(Batch(Packed.from_arrays(texts).to("cpu")))["values"]
            expected = [theirs(torch.tensor(text)[None]).logits.squeeze() for text in texts]
        assert error(values, torch.stack(expected)) < 1e-5
        model.save(tmp_path / "again", overwrite=True)
    written = load_file(tmp_path / "again" / "model.safetensors")
    assert written.keys() == tensors.keys()
    assert all(torch.equal(written[name], tensors[name]) for name in tensors)
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    assert again["architectures"] == ["XLMRobertaForSequenceClassification"]
    assert again["auto_map"]["AutoConfig"].endswith(code)


@pytest.mark.parametrize(
    ("config", "entries", "says"),
    [
        (NOMIC, {"rotary_scaling_factor": 2}, "rotary_scaling_factor=2"),
        (NOMIC, {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction=0.5"),
        (NOMIC, {"moe_every_n_layers": 2, "num_experts": 8}, "moe_every_n_layers=2"),
        (NOMIC, {"activation_function": "gelu"}, "activation_function='gelu'"),
        (NOMIC, {"embd_pdrop": 0.1}, "embd_pdrop=0.1"),
        (GTE, {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}}, "rope_scaling="),
        (GTE, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling="),
        (
            {"model_type": "gte"},
            {"rope_parameters": {"rope_type": "ntk", "factor": 2.0}},
            "rope_parameters=",
        ),
        (
            {"model_type": "eurobert"},
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "rope_scaling=",
        ),
        (
            {"model_type": "eurobert"},
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "rope_parameters=",
        ),
        ({"model_type": "eurobert"}, {"head_dim": 32}, "head_dim=32"),
        ({"model_type": "neobert"}, {"rms_norm": False}, "rms_norm=False"),
        (GTE, {"logn_attention_scale": True}, "logn_attention_scale=True"),
        (GTE, {"position_embedding_type": "absolute"}, "position_embedding_type='absolute'"),
    ],
)
def test_unsupported_settings_are_refused_by_name(config, entries, says):
    family = find_family(config["model_type"])
    family.read_config(config, where="here")
    with pytest.raises(CheckpointError, match=f"{says}.*is not supported"):
        family.read_config({**config, **entries}, where="here")
