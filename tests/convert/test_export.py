"""A sentence encoder's vector in a padded batch: pads do not count, and ONNX Runtime agrees."""

from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling as PeerPooling

import bertworks as bw
from bertworks.checkpoints.sentence_settings import SentenceSettings
from bertworks.convert.export import PaddedNetwork, write_onnx
from bertworks.errors import CheckpointError
from bertworks.nn.config import EncoderConfig
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.nn.pooling import pool
from bertworks.packed import Packed, Padded
from bertworks.settings.literals import PoolingMode
from bertworks.text.tokenizer import Tokenizer
from tests.checkpoints.journeys import PIECES
from tests.checkpoints.oracles import geometry

POOLINGS = [mode for mode in get_args(PoolingMode) if mode != "pooler"]
TEXTS = ["a", "a b c", "c d e f g h a b", "b a"]
# Our names of poolings that sentence-transformers names otherwise.
PEERS = {"mean-sqrt": "mean_sqrt_len_tokens", "weighted-mean": "weightedmean", "sep": "lasttoken"}


# The exporter takes more than a second for each layer.
ONE_LAYER = geometry("bert", vocab_size=len(PIECES), num_hidden_layers=1)


def encoder(config: EncoderConfig | None = None, **sentence) -> bw.Model:
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    torch.manual_seed(0)
    bare = bw.Model.fresh(config or geometry("bert", vocab_size=len(PIECES)), tokenizer)
    network = BareEncoder(Encoder(bare.encoder.config, pooler=False))
    network.encoder.load_state_dict(bare.encoder.state_dict(), strict=False)
    return bw.Model(tokenizer, None, network.eval(), sentence=SentenceSettings(**sentence))


def padded_inputs(model: bw.Model) -> dict[str, torch.Tensor]:
    """The texts as other tools give them: padded to the longest."""
    rows = [model.tokenizer.encode(text).input_ids for text in TEXTS]
    length = max(map(len, rows))
    ids = np.array([np.pad(row, (0, length - len(row))) for row in rows], np.int64)
    mask = np.array([np.arange(length) < len(row) for row in rows], np.int64)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@pytest.mark.parametrize("pooling", [*POOLINGS, "mean+max"])
def test_pads_change_no_pooled_vector(pooling: str) -> None:
    random = np.random.default_rng(0)
    lengths = [1, 2, 3, 3, 7, 5]
    packed = Packed.from_arrays([random.integers(0, 9, length) for length in lengths]).to("cpu")
    hidden = torch.from_numpy(random.normal(size=(sum(lengths), 6)).astype(np.float32))
    mask = torch.from_numpy(np.arange(9) < np.array(lengths)[:, None])
    rows = torch.full((len(lengths), 9, 6), 1e3)  # pads have large values, of which none may count
    rows[mask] = hidden
    padded = Padded.from_tensors(mask.long(), mask)
    vectors = pool(rows.flatten(0, 1), padded, pooling)
    # The pack's order is that of the arrays: groups are runs of equal length.
    torch.testing.assert_close(vectors, pool(hidden, packed, pooling))
    if pooling in POOLINGS:
        peer = PeerPooling(6, pooling_mode=PEERS.get(pooling, pooling))
        features = {"token_embeddings": rows, "attention_mask": mask.long()}
        torch.testing.assert_close(vectors, peer(features)["sentence_embedding"])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_padded_network_gives_the_vectors_of_embed(pooling: str, normalize: bool) -> None:
    model = encoder(pooling=pooling, normalize=normalize)
    network = PaddedNetwork(model.network, model.sentence).eval()
    with torch.no_grad():
        vectors = network.outputs_by_name(**padded_inputs(model))["sentence_embedding"]
    expected = model.embed(TEXTS, precision="fp32")
    np.testing.assert_allclose(vectors.numpy(), expected, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("pooling", "normalize"),
    [
        ("mean", True),
        pytest.param("sep", True, marks=pytest.mark.slow),
        # The first token is also written by `journeys.onnx`.
        pytest.param("cls", False, marks=pytest.mark.slow),
    ],
)
def test_onnx_runtime_gives_the_vectors_of_embed(tmp_path, pooling: str, normalize: bool) -> None:
    import onnxruntime

    model = encoder(ONE_LAYER, pooling=pooling, normalize=normalize)
    write_onnx(model, tmp_path / "onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    names = [output.name for output in session.get_outputs()]
    assert names == ["last_hidden_state", "sentence_embedding"]
    inputs = {name: tensor.numpy() for name, tensor in padded_inputs(model).items()}
    expected = model.embed(TEXTS, precision="fp32")
    for rows in (slice(None), slice(0, 1), slice(1, 4)):
        part = {name: array[rows] for name, array in inputs.items()}
        (vectors,) = session.run(["sentence_embedding"], part)
        np.testing.assert_allclose(vectors, expected[rows], atol=1e-4)
    modules = json.loads((tmp_path / "onnx" / "modules.json").read_text())
    assert len(modules) == 2 + normalize


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        "disentangled",  # adds terms of keys and of queries
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("buckets", "alibi", "transformer-xl")
        ),
    ],
)
def test_onnx_runtime_adds_terms_of_distances(tmp_path, kind: str) -> None:
    import onnxruntime

    values = {"family": "bertworks", "vocab_size": len(PIECES), "initializer_range": 0.3}
    config = geometry("bert").with_values(**values, score_bias={"kind": kind}, num_hidden_layers=1)
    model = encoder(config, pooling="mean")
    write_onnx(model, tmp_path / "onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    inputs = {name: tensor.numpy() for name, tensor in padded_inputs(model).items()}
    (vectors,) = session.run(["sentence_embedding"], inputs)
    np.testing.assert_allclose(vectors, model.embed(TEXTS, precision="fp32"), atol=1e-4)
    plain = encoder(config.with_values(score_bias=None), pooling="mean")
    assert np.abs(vectors - plain.embed(TEXTS, precision="fp32")).max() > 0.01


@pytest.mark.parametrize("pooling", ["none", "splade-max", "piece-weights"])
def test_other_forms_of_vectors_are_not_written_as_onnx(tmp_path, pooling: str) -> None:
    with pytest.raises(CheckpointError, match=f"with pooling={pooling} cannot be written as ONNX"):
        write_onnx(encoder(ONE_LAYER, pooling=pooling), tmp_path / "onnx")
