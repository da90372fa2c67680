"""Jina BERT v2 against the formulas of its paper (Günther et al. 2023, §2) in float64."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

import bertworks as bw
from bertworks.checkpoints.families import find_family
from bertworks.checkpoints.network_weights import unique_tensors
from bertworks.errors import CheckpointError
from bertworks.packed import Packed
from bertworks.tasks.pretraining.network import PretrainingNetwork
from bertworks.text.tokenizer import Tokenizer
from tests.checkpoints.journeys import PIECES
from tests.checkpoints.oracles import SMALL, error, redraw

FAMILY = find_family("jina_bert_v2")
PUBLISHED_CONFIG = {  # what jina-embeddings-v2-base-en's config.json says of the computation
    "model_type": "bert",
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    **SMALL,
    "vocab_size": len(PIECES),
}


def states(tensors: Mapping[str, Tensor], ids: Tensor, types: Tensor, heads: int) -> list[Tensor]:
    """The embeddings, and the output of each layer, of one text."""

    def apply_map(x: Tensor, name: str) -> Tensor:
        return F.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def apply_norm(x: Tensor, name: str) -> Tensor:
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, PUBLISHED_CONFIG["layer_norm_eps"])

    words, kinds = (
        tensors[f"bert.embeddings.{name}_embeddings.weight"][index]
        for name, index in (("word", ids), ("token_type", types))
    )
    hidden = apply_norm(words + kinds, "bert.embeddings.LayerNorm")
    places = torch.arange(len(ids))
    distances = (places[None] - places[:, None]).abs()
    result = [hidden]
    for number in range(SMALL["num_hidden_layers"]):
        layer = f"bert.encoder.layer.{number}"
        query, key, value = (
            apply_map(hidden, f"{layer}.attention.self.{name}").chunk(heads, -1)
            for name in ("query", "key", "value")
        )
        contexts = []
        for head in range(heads):
            slope = 2 ** (-8 * (head + 1) / heads)  # Press et al. (2022), §3
            scores = query[head] @ key[head].T / math.sqrt(query[head].shape[-1])
            contexts.append(torch.softmax(scores - slope * distances, -1) @ value[head])
        output = apply_map(torch.cat(contexts, -1), f"{layer}.attention.output.dense")
        hidden = apply_norm(hidden + output, f"{layer}.attention.output.LayerNorm")
        gate, inner = apply_map(hidden, f"{layer}.mlp.gated_layers").chunk(2, -1)
        output = apply_map(F.gelu(gate) * inner, f"{layer}.mlp.wo")
        hidden = apply_norm(hidden + output, f"{layer}.mlp.layernorm")
        result.append(hidden)
    return result


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_every_layer_equals_the_formula(dtype, limit):
    config = FAMILY.read_config(PUBLISHED_CONFIG, where="here")
    assert config.max_seqlen == SMALL["max_position_embeddings"]
    network = PretrainingNetwork(config, next_sentence=False).double().eval()
    redraw(network)
    network = network.to(dtype)
    tensors = FAMILY.keys.export(unique_tensors(network))
    assert "bert.encoder.layer.0.mlp.gated_layers.bias" not in tensors
    random = np.random.default_rng(0)
    ids = [random.integers(2, config.vocab_size, length) for length in (1, 7, 7, 39)]
    types = [np.arange(len(row)) >= len(row) // 2 for row in ids]
    with torch.no_grad():
        own = list(network.encoder.hidden_states(Packed.from_arrays(ids, types).to("cpu")))
        exact = {name: tensor.double() for name, tensor in tensors.items()}
        parts = [
            states(exact, torch.tensor(row), torch.tensor(kind).long(), 4)
            for row, kind in zip(ids, types, strict=True)
        ]
    for number, state in enumerate(own):
        assert error(state, torch.cat([part[number] for part in parts])) < limit


def test_a_model_is_written_as_its_authors_code_reads_it(tmp_path: Path):
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    config = FAMILY.read_config(PUBLISHED_CONFIG, where="here")
    model = bw.Model.fresh(config, tokenizer)
    model.save(tmp_path / "m")
    written = json.loads((tmp_path / "m" / "config.json").read_text())
    assert {name: written[name] for name in PUBLISHED_CONFIG} == PUBLISHED_CONFIG
    assert written["architectures"] == ["JinaBertModel"]
    again = bw.load(tmp_path / "m", device="cpu")
    assert again.encoder.config == config
    again.save(tmp_path / "again")
    first, second = (load_file(tmp_path / one / "model.safetensors") for one in ("m", "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"feed_forward_type": "original"}, "hidden_act='that of original'"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type='absolute'"),
        ({"is_decoder": True}, "is_decoder=True is not supported"),
    ],
)
def test_other_models_are_refused(entry, says):
    with pytest.raises(CheckpointError, match=says):
        FAMILY.read_config({**PUBLISHED_CONFIG, **entry}, where="here")
