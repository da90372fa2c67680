"""Frozen weights do not change by a bit; unfrozen ones learn from their step on."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.errors import SettingsError
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.training.freezing import frozen_parameters, unfreeze
from bertworks.training.settings import FreezingSettings

from .letters import TASK, StopError, equal, fit_letters, letters_network, weights_of

PARTS = ["encoder.embeddings", *(f"encoder.layers.{number}" for number in range(3))]


def part_of(name: str) -> int:
    """0 for the embeddings, then the layers, 4 for what stands on them."""
    return next((at for at, part in enumerate(PARTS) if name.startswith(part + ".")), len(PARTS))


@pytest.mark.parametrize(
    ("settings", "lowest"),
    [
        ({"freeze_embeddings": True}, 1),
        ({"freeze_layers": 1}, 2),
        ({"freeze_layers": 3}, 4),
        ({}, 0),
    ],
)
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_frozen_parts_keep_every_bit(
    tmp_path: Path, settings: dict[str, Any], lowest: int, optimizer: str
) -> None:
    network = letters_network()
    initial_weights = weights_of(network)
    options = {"optimizer": optimizer, "learning_rate": 0.01, "warmup": 0, "weight_decay": 0.1}
    fit_letters(tmp_path / "run", network, steps=3, **settings, **options)
    for name, now in weights_of(network).items():
        assert torch.equal(now, initial_weights[name]) == (part_of(name) < lowest), name
    assert all(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "unfreeze_steps"),
    [({}, [8, 6, 4, 2, 0]), ({"freeze_layers": 1}, [99, 99, 4, 2, 0])],
)
def test_a_layer_more_learns_each_time(
    tmp_path: Path, more: dict[str, int], unfreeze_steps: list[int]
) -> None:
    network = letters_network()
    weights_by_step = [weights_of(network)]
    weights_by_step += fit_letters(tmp_path / "run", network, unfreeze_every=2, **more)[0]
    for name in weights_by_step[0]:
        changes = [not torch.equal(a[name], b[name]) for a, b in pairwise(weights_by_step)]
        start = unfreeze_steps[part_of(name)]
        assert changes == [step >= start for step in range(10)], name


@pytest.mark.long
@pytest.mark.parametrize("stop_at", [4, 7, 9])
def test_a_resumed_run_unfreezes_on_time(tmp_path: Path, stop_at: int) -> None:
    options: dict[str, Any] = {
        "unfreeze_every": 2,
        "learning_rate": 0.01,
        "warmup": 0,
        "bias_correction": False,
        "layer_decay": 0.9,
    }
    whole = letters_network()
    fit_letters(tmp_path / "whole", whole, **options)
    with pytest.raises(StopError):
        fit_letters(tmp_path / "broken", letters_network(), stop_at=stop_at, **options)
    resumed_network = letters_network()
    _, result = fit_letters(tmp_path / "broken", resumed_network, **options)
    assert result.resumed_step == (stop_at - 1) // 3 * 3
    assert equal(weights_of(whole), weights_of(resumed_network))


def test_frozen_layers_store_no_activations() -> None:
    network = letters_network()
    batch = TASK.collate(TASK.examples([{"text": "a b x", "label": "yes"}], 0)).to("cpu")
    with frozen_parameters(network, FreezingSettings(freeze_layers=2)):
        needs = [hidden.requires_grad for hidden in network.encoder.hidden_states(batch.packed)]
    assert needs == [False, False, False, True]


def test_parameters_without_gradient_are_not_unfrozen() -> None:
    network = letters_network()
    network.encoder.embeddings.requires_grad_(False)
    with frozen_parameters(network, FreezingSettings(unfreeze_every=2)) as unfreeze_steps:
        unfreeze(unfreeze_steps, 100)
        assert not network.encoder.embeddings.word_embeddings.weight.requires_grad
        assert network.encoder.layers[0].attention.output.weight.requires_grad
        unfreeze(unfreeze_steps, 1)
        assert not network.encoder.layers[2].attention.output.weight.requires_grad
        assert network.encoder.pooler.dense.weight.requires_grad
    assert not network.encoder.embeddings.word_embeddings.weight.requires_grad
    assert network.encoder.layers[2].attention.output.weight.requires_grad


def test_impossible_freezing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"freeze_layers=4: the encoder has 3 layers"):
        fit_letters(tmp_path / "run", letters_network(), freeze_layers=4)
    bare = BareEncoder(Encoder(letters_network().encoder.config, pooler=False))
    for settings in (FreezingSettings(freeze_layers=3), FreezingSettings(unfreeze_every=1)):
        with (
            pytest.raises(SettingsError, match="the whole network is frozen"),
            frozen_parameters(bare, settings),
        ):
            raise AssertionError("not reached")
