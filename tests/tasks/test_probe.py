"""The network of a probe: its sum of layers by the formula, its BiLSTM sentence by sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertworks.lab.tagging_probe import LayerChoice, LstmSettings, ProbeNetwork, ScalarMix
from bertworks.packed import Batch, Packed


def test_the_mix_is_the_formula():
    random = np.random.default_rng(0)
    states = random.normal(size=(4, 7, 5))
    mix = ScalarMix(4).double()
    torch.testing.assert_close(mix(torch.tensor(states)), torch.tensor(states.mean(0)))
    scores, scale = random.normal(size=4), 1.7
    with torch.no_grad():
        mix.scores.copy_(torch.tensor(scores))
        mix.scale.fill_(scale)
    shares = np.exp(scores) / np.exp(scores).sum()
    expected = scale * sum(share * layer for share, layer in zip(shares, states, strict=True))
    np.testing.assert_allclose(mix(torch.tensor(states)).detach(), expected, atol=1e-12)
    np.testing.assert_allclose(mix.weights.detach(), shares, atol=1e-12)


def batch_of(states: torch.Tensor, lengths: list[int]) -> Batch:
    """A batch as `ProbeTask.collate` makes it; the network does not look at the pack."""
    targets = {
        "states": states,
        "lengths": torch.tensor(lengths),
        "labels": torch.zeros(sum(lengths), dtype=torch.long),
    }
    return Batch(Packed.from_arrays([np.array([2, 3])]).to("cpu"), targets)


@pytest.mark.parametrize(
    "choice", [LayerChoice((0, 2)), LayerChoice((1,)), LayerChoice((0, 1, 2), mixed=True)]
)
@pytest.mark.parametrize("layers", [1, 2])
def test_a_batch_is_its_sentences_one_by_one(choice, layers):
    torch.manual_seed(0)
    settings = LstmSettings(lstm_hidden_size=6, lstm_layers=layers, dropout=0.5)
    network = ProbeNetwork(5, 3, choice, settings).double().eval()
    lengths = [3, 0, 1, 6, 3, 0, 2]
    states = torch.randn(len(choice.layers), sum(lengths), 5, dtype=torch.float64)
    logits = network.predict(batch_of(states, lengths))["logits"]
    assert logits.shape == (15, 3)
    start = 0
    for length in filter(None, lengths):
        own = states[:, start : start + length]
        vectors = network.mix(own) if network.mix is not None else torch.cat(list(own), -1)
        expected = network.output(network.lstm(vectors)[0])
        torch.testing.assert_close(logits[start : start + length], expected)
        start += length
    # What is behind a word matters to it, and what is in another sentence does not.
    changed = states.clone()
    changed[:, 2] += 1
    other = network.predict(batch_of(changed, lengths))["logits"]
    is_same = (other == logits).all(-1).tolist()
    assert is_same == [False] * 3 + [True] * 12


def test_rows_without_a_word_have_no_logits():
    network = ProbeNetwork(5, 3, LayerChoice((0,)), LstmSettings(lstm_hidden_size=4))
    batch = batch_of(torch.empty(1, 0, 5), [0, 0])
    assert network.predict(batch)["logits"].shape == (0, 3)


def test_dropout_is_only_for_training():
    torch.manual_seed(0)
    settings = LstmSettings(lstm_hidden_size=4, dropout=0.5)
    network = ProbeNetwork(5, 3, LayerChoice((0,)), settings)
    batch = batch_of(torch.randn(1, 4, 5), [4])
    losses = {network(batch)["tagging"].item() for _ in range(3)}
    assert len(losses) == 3
    network.eval()
    assert len({network(batch)["tagging"].item() for _ in range(3)}) == 1
