"""Gradient checkpointing: the same bits, with less memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.training.precision import activation_checkpointing

from .letters import TASK, equal, fit_letters, letters_network, weights_of

GEOMETRIES: list[dict[str, Any]] = [
    {},
    {"num_hidden_groups": 2},  # shared weights, as in ALBERT
    {"norm_first": True, "positions": "rotary"},
]


@pytest.mark.long
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_recomputing_changes_no_bit(tmp_path: Path, geometry: dict[str, Any]) -> None:
    first_network, second_network = letters_network(**geometry), letters_network(**geometry)
    assert first_network.encoder.config.hidden_dropout_prob > 0
    initial_weights = weights_of(first_network)
    for network, wanted in ((first_network, False), (second_network, True)):
        options = {"gradient_checkpointing": wanted, "micro_batch_size": 3}
        fit_letters(tmp_path / str(wanted), network, steps=4, **options)
    assert equal(weights_of(first_network), weights_of(second_network))
    assert not equal(weights_of(first_network), initial_weights)


def kept_bytes(network: torch.nn.Module, *, recomputes: bool) -> int:
    """What a forward pass keeps for the backward pass."""
    batch = TASK.collate(TASK.examples([{"text": "a b c d e x", "label": "yes"}] * 50, 0))
    parameters = {own.data_ptr() for own in network.parameters()}
    counts: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in parameters:
            counts[tensor.data_ptr()] = tensor.nbytes
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with activation_checkpointing(network, recomputes), hooks:
        loss = network(batch.to("cpu"))["classification"]
    assert loss.requires_grad
    return sum(counts.values())


def test_recomputing_keeps_a_fraction() -> None:
    network = letters_network(num_hidden_layers=6)
    assert kept_bytes(network, recomputes=True) < kept_bytes(network, recomputes=False) / 5
    assert not network.encoder.gradient_checkpointing
