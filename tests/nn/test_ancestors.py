"""BERT's ancestors as settings: LSTMs, and two causal encoders side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.errors import BertworksError, CheckpointError, SettingsError
from bertworks.explorer import WrongModelError, explain
from bertworks.explorer.available_views import view_error
from bertworks.explorer.comparing import minimal_pair
from bertworks.explorer.inputs import encode_input
from bertworks.loading import load
from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.nn.encoder import Encoder
from bertworks.nn.encoder_layers import Layer, TwoWayLayer
from bertworks.nn.neighbour_attention import initialize_neighbour_attention
from bertworks.packed import Batch, Packed
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.network import PretrainingNetwork
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.operations import flops_of_batch
from bertworks.training.optimizer import parameter_groups
from tests.training.letters import WORD_PIECES

GEOMETRY: Mapping[str, Any] = {
    **{"family": "bertworks", "vocab_size": len(WORD_PIECES), "num_hidden_layers": 2},
    **{"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.5},
}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "lstm": {"mixer": "lstm", "attention": "causal", "positions": "none"},
    "two-way lstm": {"mixer": "lstm", "attention": "two-way", "positions": "none"},
    "two-way attention": {"attention": "two-way", "embedding_size": 4},
}
LENGTHS = (5, 1, 5, 9, 3)


def _config(kind: str, **more: Any) -> EncoderConfig:
    return EncoderConfig.parse({**GEOMETRY, **KINDS[kind], **more})


def _sequences() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(5, len(WORD_PIECES), length) for length in LENGTHS]


def _packed(sequences: list[np.ndarray]) -> Packed:
    return Packed.from_arrays(sequences).to("cpu")


def _cells(lstm: nn.LSTM) -> nn.LSTMCell:
    """PyTorch's cell with the weights of an LSTM."""
    cell = nn.LSTMCell(lstm.input_size, lstm.hidden_size).double()
    cell.load_state_dict({name.removesuffix("_l0"): w for name, w in lstm.state_dict().items()})
    return cell


def _plain(layer: Layer, cell: nn.LSTMCell, hidden: Tensor, norm_first: bool) -> Tensor:
    """A layer of one sequence, token by token."""
    state, outputs = (torch.zeros_like(hidden[:1]), torch.zeros_like(hidden[:1])), []
    for token in layer.attention_norm(hidden) if norm_first else hidden:
        state = cell(token[None], state)
        outputs.append(state[0])
    states = hidden + torch.cat(outputs)
    if norm_first:
        return states + layer.feed_forward(layer.feed_forward_norm(states))
    states = layer.attention_norm(states)
    return layer.feed_forward_norm(states + layer.feed_forward(states))


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_lstm_and_its_gradients_are_those_of_a_plain_loop(norm_first: bool) -> None:
    torch.manual_seed(0)
    encoder = Encoder(_config("lstm", norm_first=norm_first), pooler=False).double()
    sequences = _sequences()
    cells = [_cells(layer.recurrence) for layer in encoder.layers]
    actual = encoder(_packed(sequences))
    expected = []
    for sequence in sequences:
        hidden = encoder.embeddings(_packed([sequence]))
        for layer, cell in zip(encoder.layers, cells, strict=True):
            hidden = _plain(layer, cell, hidden, norm_first)
        expected.append(hidden if encoder.final_norm is None else encoder.final_norm(hidden))
    assert torch.allclose(actual, torch.cat(expected), atol=1e-12)
    weights = torch.randn_like(actual)
    (actual * weights).sum().backward()
    own = [dict(layer.recurrence.named_parameters()) for layer in encoder.layers]
    (torch.cat(expected) * weights).sum().backward()
    for cell, parts in zip(cells, own, strict=True):
        for name, part in cell.named_parameters():
            assert torch.allclose(parts[f"{name}_l0"].grad, part.grad, atol=1e-9), name


@pytest.mark.parametrize("kind", ["two-way lstm", "two-way attention"])
def test_a_two_way_encoder_is_two_causal_ones(kind: str) -> None:
    torch.manual_seed(0)
    two = Encoder(_config(kind), pooler=False).double()
    halves = []
    for side in ("forwards", "backwards"):
        one = Encoder(two.config.per_direction_config, pooler=False).double()
        state = {name: part for name, part in two.state_dict().items() if "layers." not in name}
        for number, layer in enumerate(two.layers):
            assert isinstance(layer, TwoWayLayer)
            own = getattr(layer, side).state_dict()
            state |= {f"layers.{number}.{name}": part for name, part in own.items()}
        one.load_state_dict(state)
        halves.append(one)
    sequences = _sequences()
    left = halves[0](_packed(sequences)).split(list(LENGTHS))
    turned = _packed([sequence[::-1].copy() for sequence in sequences])
    places = torch.cat([torch.arange(length - 1, -1, -1) for length in LENGTHS])
    right = halves[1](replace(turned, position_ids=places)).split(list(LENGTHS))
    for actual, forward, backward in zip(
        two(_packed(sequences)).split(list(LENGTHS)), left, right, strict=True
    ):
        assert torch.allclose(actual, torch.cat([forward, backward.flip(0)], 1), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_each_half_sees_one_side(kind: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder(_config(kind), pooler=False).double()
    ids = _sequences()[3]
    other = ids.copy()
    other[4] = ids[4] % 20 + 6
    reversed_states = (encoder(_packed([ids])) - encoder(_packed([other]))).abs().amax(-1) > 0
    halves = (encoder(_packed([ids])) - encoder(_packed([other]))).unflatten(1, (2, 8)).abs()
    if kind == "lstm":
        assert reversed_states.tolist() == [False] * 4 + [True] * 5
    else:
        assert (halves.amax(-1)[:, 0] > 0).tolist() == [False] * 4 + [True] * 5
        assert (halves.amax(-1)[:, 1] > 0).tolist() == [True] * 5 + [False] * 4


@pytest.mark.long
@pytest.mark.parametrize("kind", ["two-way lstm", "two-way attention"])
def test_a_two_way_loss_is_that_of_both_directions(kind: str) -> None:
    torch.manual_seed(0)
    network = PretrainingNetwork(_config(kind), next_sentence=False).double()
    packed = _packed(_sequences())
    hidden = network.encoder(packed)
    head, total, places = network.mlm_head, torch.zeros(()).double(), []
    for start, end in pairwise(packed.cu_seqlens.tolist()):
        for at in range(start, end - 1):
            places.append(at)
            for row, target in ((hidden[at, :8], at + 1), (hidden[at + 1, 8:], at)):
                logits = F.linear(head.compute(row[None])[0], head.decoder, head.bias)
                total = total + F.cross_entropy(logits, packed.input_ids[target])
    messages = torch.tensor(places)
    targets = {"masked_positions": messages, "masked_labels": packed.input_ids[messages + 1]}
    actual = network(Batch(packed, targets, {"lm": len(places)}))
    assert actual["lm"].item() == pytest.approx(total.item(), abs=1e-9)
    next_ones = network.predict(Batch(packed, targets))["mlm_logits"]
    assert torch.allclose(next_ones, head(hidden[messages, :8]))


def test_two_way_initialization_attends_to_both_neighbours() -> None:
    torch.manual_seed(0)
    config = _config(
        "two-way attention", embedding_size=None, hidden_size=256, initializer_range=0.05
    )
    encoder = Encoder(config, pooler=False)
    initialize_neighbour_attention(encoder)
    parts, layer = encoder.embeddings, encoder.layers[0]
    assert isinstance(layer, TwoWayLayer)
    assert parts.position_embeddings is not None and parts.norm is not None
    words = parts.word_embeddings(torch.randint(len(WORD_PIECES), (64,)))
    hidden = parts.norm(words + parts.position_embeddings.weight[:64])
    middle = torch.arange(4, 60)
    for side, sign in ((layer.forwards, -1), (layer.backwards, 1)):
        assert side.attention is not None
        query, key, _ = side.attention.query_key_value(hidden).view(64, 3, 2, 64).unbind(1)
        scores = torch.einsum("qhd,khd->hqk", query, key)
        for head in range(2):
            best = scores[head, middle].argmax(-1) == middle + sign * (head + 1)
            assert best.float().mean() > 0.7


def test_biases_do_not_decay_and_operations_are_counted() -> None:
    encoder = Encoder(_config("lstm"), pooler=False)
    _, plain = parameter_groups(encoder, 0.1)
    assert all(part.ndim == 1 for part in plain["params"])
    assert sum(part.ndim == 1 for part in encoder.parameters()) == len(plain["params"])
    batch = Batch(_packed(_sequences()))
    matrices = 2 * (8 * 16 * 16 + 2 * 16 * 24)
    assert flops_of_batch(encoder, batch) == 3 * 2 * sum(LENGTHS) * matrices


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixer": "lstm"}, "mixer=lstm needs attention=causal"),
        ({"mixer": "lstm", "attention": "causal", "positions": "rotary"}, "positions=rotary"),
        ({"attention": "two-way", "norm_first": True}, "norm_first=false"),
        ({"attention": "two-way", "num_attention_heads": 1}, "even hidden_size"),
    ],
)
def test_impossible_geometries_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        EncoderConfig.parse({**GEOMETRY, **changes})


def _language_model(kind: str, **more: Any) -> Model:
    tokenizer = Tokenizer.from_vocabulary(WORD_PIECES)
    task = PretrainingTask(tokenizer, InstanceSettings(format="full-sentences"), causal=True)
    torch.manual_seed(0)
    return Model(tokenizer, task, task.network(_config(kind, **more)))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_gives_the_same_vectors(kind: str, tmp_path: Path) -> None:
    model = _language_model(kind)
    reloaded_model = load(model.save(tmp_path / "model"))
    texts = ["a b c", "x", "d e f g"]
    for layers in ([-1], [0, 1, 2]):
        expected = model.embed(texts, layers=layers, precision="fp32")
        assert np.array_equal(
            reloaded_model.embed(texts, layers=layers, precision="fp32"), expected
        )
    alone = np.concatenate([model.embed([text], precision="fp32") for text in texts])
    assert np.allclose(alone, model.embed(texts, precision="fp32"), atol=1e-6)
    near = model.embed(texts, precision="bf16")
    assert np.allclose(near, model.embed(texts, precision="fp32"), atol=0.1)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_impossible_settings_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    model = _language_model(kind)
    setting = "mixer='lstm'" if "lstm" in kind else "attention='two-way'"
    other = model.encoder.config.with_values(
        family="bert", embedding_size=None, positions="learned"
    )
    with pytest.raises(CheckpointError, match=f"'bert' has no {setting}"):
        Model.fresh(other, model.tokenizer).save(tmp_path / "bert")
    with pytest.raises(BertworksError, match=r"(LSTMs|both sides of a token), and cannot"):
        model.generate(["a b"])
    with pytest.raises(WrongModelError, match="with LSTMs or with two encoders side by side"):
        encode_input(model, "a b c").attention()
    assert view_error(model, "heads") and view_error(model, "generate")
    actual = explain(model, "a b c")
    assert actual["attention"] is None and actual["heads"] is None
    assert actual["steps"]["states"][2]["shape"] == [3, 16]
    assert len(actual["fill"]["blanks"]) == 1
    assert not minimal_pair(model, "a b c", "a b d")["attention"]
    pytest.importorskip("onnxscript")
    from bertworks.convert.export import write_onnx

    with pytest.raises(CheckpointError, match="cannot be written as ONNX"):
        write_onnx(model, tmp_path / "onnx")
