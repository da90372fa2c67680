"""Every family by every path of inference: a path computes a family fully, or declines it."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tests.checkpoints.journeys import PIECES
from tests.checkpoints.oracles import geometry, redraw

from bertworks.checkpoints.families import FAMILIES
from bertworks.inference.calibration import calibrate
from bertworks.inference.frozen_network import frozen_form
from bertworks.loading import load
from bertworks.model import Model
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.packed import Packed
from bertworks.text.tokenizer import Tokenizer

# The error's root mean square as a share of the states'. A part that is computed as another one,
# such as an RMS norm as a layer norm, makes it about 1.
LIMITS = {"fp32": 1e-5, "bf16": 0.03, "int8": 0.06}
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}
LENGTHS = (1, 7, 7, 12, 38)


@pytest.fixture(params=[*FAMILIES, "neobert"])
def encoder(request: pytest.FixtureRequest) -> BareEncoder:
    """One whose widths native code could compute."""
    values = {**SIZES, "num_hidden_layers": 2, "embedding_size": None}
    if request.param in ("albert", "mobilebert"):
        values["embedding_size"] = 32
    if request.param == "openai-gpt":
        values["intermediate_size"] = 4 * values["hidden_size"]
    if request.param == "eurobert":
        values["num_key_value_heads"] = 1
    own = BareEncoder(Encoder(geometry(request.param, **values), pooler=False)).eval()
    redraw(own)
    return own


def sequences(vocab_size: int, *lengths: int) -> list[Packed]:
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(5, vocab_size, (n,), generator=generator).numpy() for n in lengths]
    return [Packed.from_arrays(part).to("cpu") for part in (rows, *([row] for row in rows))]


@pytest.mark.long
@pytest.mark.parametrize("precision", LIMITS)
def test_a_form_computes_what_the_module_does(encoder, precision) -> None:
    packed, *single = sequences(encoder.encoder.config.vocab_size, *LENGTHS)
    with torch.inference_mode():
        form = frozen_form(encoder, precision, deterministic=True).encoder
        states = form(packed)
        # The sums do not depend on a sequence's neighbours.
        assert torch.equal(states, torch.cat([form(one) for one in single]))
        expected = encoder.double().encoder(packed)
    assert _error(states, expected) < LIMITS[precision]


@pytest.mark.long
def test_a_calibrated_form_is_close(encoder) -> None:
    packed, *_ = sequences(encoder.encoder.config.vocab_size, *LENGTHS)
    with torch.inference_mode():
        expected = encoder.encoder(packed)
        calibrate(encoder, lambda copy: copy.encoder(packed))
        states = frozen_form(encoder, "int8").encoder(packed)
    assert _error(states, expected) < LIMITS["int8"]


def _error(states: torch.Tensor, expected: torch.Tensor) -> float:
    difference = states.double() - expected.double()
    return (difference.square().mean() / expected.double().square().mean()).sqrt().item()


@pytest.mark.long
@pytest.mark.parametrize("family", ["eurobert", "gte", "nomic_bert"])
def test_eight_bits_are_saved_in_the_order_of_a_familys_tensors(family, tmp_path) -> None:
    """Of maps that are several tensors of unequal height, or are stored with halves swapped."""
    values = {**SIZES, "num_hidden_layers": 2, "vocab_size": len(PIECES)}
    values["num_key_value_heads"] = 1 if family == "eurobert" else None
    model = Model.fresh(geometry(family, **values), Tokenizer.from_vocabulary(PIECES))
    redraw(model.network)
    texts = ["a b c d e f", "c a d", "f e g h"]
    model.calibrate(texts)
    exact, vectors = (torch.from_numpy(model.embed(texts, precision=p)) for p in ("fp32", "int8"))
    reloaded_model = load(model.save(tmp_path / "m", precision="int8"), device="cpu")
    file = load_file(tmp_path / "m" / "model.safetensors")
    assert sum(name.endswith(".calibrated_shift") for name in file) >= 8
    assert _error(torch.from_numpy(reloaded_model.embed(texts, precision="int8")), vectors) < 0.02
    assert (
        _error(torch.from_numpy(reloaded_model.embed(texts, precision="fp32")), exact)
        < LIMITS["int8"]
    )
