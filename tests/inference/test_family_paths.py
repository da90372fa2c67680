"""Every family on every path that computes an encoder: each has the plain module's states.

`tests/checkpoints/test_families.py` compares the plain module with the reference. A path that has
fast code for some parts of a layer must compute a family's other parts too, or leave the whole
layer to the module.
"""

from __future__ import annotations

import copy

import pytest
import torch
from tests.checkpoints.oracles import error, geometry, redraw, sequences
from torch import Tensor, nn

from bertworks.checkpoints.families import FAMILIES
from bertworks.inference.frozen_network import frozen_form
from bertworks.nn.device import autocast_to
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.packed import Packed

# The native kernels of training need heads that are multiples of 32.
SIZES = {
    **{"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96},
    **{"num_hidden_layers": 2, "hidden_act": "gelu"},
}


def run_frozen(precision: str):
    def states(network: BareEncoder, packed: Packed) -> Tensor:
        with torch.inference_mode():
            return frozen_form(network, precision).encoder(packed)

    return states


def trained_in_bfloat16(network: BareEncoder, packed: Packed) -> Tensor:
    with autocast_to(network, torch.bfloat16):
        return network.encoder(packed).detach()


def run_with_checkpointing(network: BareEncoder, packed: Packed) -> Tensor:
    network.encoder.gradient_checkpointing = True
    states: Tensor = network.encoder(packed)
    states.sum().backward()
    return states.detach()


def from_the_first_layer(network: BareEncoder, packed: Packed) -> Tensor:
    _, hidden, *_ = network.encoder.hidden_states(packed)
    *_, last = network.encoder.hidden_states_above(hidden, packed, layer=1)
    return last.detach()


PATHS = {
    "frozen in fp32": (run_frozen("fp32"), 1e-5),
    "frozen in bf16": (run_frozen("bf16"), 0.05),
    "frozen in int8": (run_frozen("int8"), 0.1),
    "trained in bfloat16": (trained_in_bfloat16, 0.05),
    "gradient checkpointing": (run_with_checkpointing, 1e-6),
    "from the first layer": (from_the_first_layer, 1e-6),
}
"""What computes an encoder's last states, and the largest error allowed."""


WITH_CONVOLUTION = "bert with a convolution"
"""Whose layers native code computes one by one."""
GLOBAL_TOKENS = {
    "longformer with a global token": "first",
    "longformer with a global question": "question",
    "longformer with global choices": "choice",
}


@pytest.fixture(scope="module", params=[*FAMILIES, WITH_CONVOLUTION, *GLOBAL_TOKENS])
def plain(request: pytest.FixtureRequest):
    """A family's encoder in evaluation mode, sequences, and the states of the plain module."""
    config = geometry(request.param.split()[0], **SIZES)
    if request.param == WITH_CONVOLUTION:
        config = config.with_values(convolution={"kernel_size": 3, "groups": 2})
    if request.param in GLOBAL_TOKENS:
        config = config.with_global_tokens(GLOBAL_TOKENS[request.param])
    network = BareEncoder(Encoder(config, pooler=False)).eval()
    redraw(network)
    packed = sequences(network.encoder.config)
    return network, packed, network.encoder(packed).detach()


@pytest.mark.long
@pytest.mark.parametrize("path", PATHS)
def test_path_computes_the_family(plain, path) -> None:
    network, packed, states = plain
    compute, tolerance = PATHS[path]
    assert error(compute(copy.deepcopy(network), packed), states) <= tolerance


def test_a_wrong_part_shows(plain) -> None:
    """Another activation, or a norm left out, is far beyond the tolerances."""
    network, packed, states = plain
    wrong_activation, no_norm = copy.deepcopy(network), copy.deepcopy(network)
    for one, other in zip(wrong_activation.encoder.layers, no_norm.encoder.layers, strict=True):
        one.feed_forward.activation = torch.tanh
        other.attention_norm = nn.Identity()
    for changed in (wrong_activation, no_norm):
        assert error(changed.encoder(packed).detach(), states) > 0.15
