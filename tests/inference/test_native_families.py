"""Native code beside transformers: the states of each family that it computes.

In float32 to 1e-5; in bfloat16 and with 8-bit products as close as PyTorch's kernels come.
"""

from __future__ import annotations

import pytest
import torch
from tests.checkpoints import oracles
from tests.native_precisions import PRECISIONS, needs_kernels
from torch import Tensor

from bertworks.inference.frozen_native import FrozenNativeEncoder
from bertworks.inference.frozen_network import frozen_form
from bertworks.nn.encoder import BareEncoder, Encoder

pytestmark = needs_kernels

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
FAMILIES = (
    *("bert", "mpnet", "albert", "electra", "roberta-prelayernorm", "megatron-bert"),
    *("modernbert", "nomic_bert", "gte", "eurobert", "roformer", "jina_embeddings_v3"),
)


def distance(actual: Tensor, expected: Tensor) -> float:
    """The norm of the difference, relative to that of the exact states."""
    expected = expected.double()
    return ((actual.double() - expected).norm() / expected.norm()).item()


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_those_of_transformers(family: str) -> None:
    config = oracles.geometry(family, **SIZES)
    theirs = oracles.theirs_of(config, "encoder", torch.float32)
    ours = BareEncoder(Encoder(config, pooler=False))
    pair = oracles.pair(ours, theirs, config, torch.float32)
    with torch.inference_mode(), oracles.in_float64():
        expected = pair.theirs(**pair.padded).last_hidden_state[pair.mask]
    for precision in PRECISIONS:
        with torch.inference_mode():
            form = frozen_form(pair.ours, precision).encoder
            assert isinstance(form, FrozenNativeEncoder) and form.native is not None
            actual = form(pair.packed)
            by_pytorch = frozen_form(pair.ours, precision, native=False).encoder(pair.packed)
        if precision == "fp32":
            assert oracles.error(actual, expected) < 1e-5
        else:
            error = distance(actual, expected)
            assert error < 1.1 * distance(by_pytorch, expected) < 0.1, precision
