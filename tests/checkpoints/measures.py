"""Differences between our networks and Hugging Face's, for tests and `docs/families.md`.

An error is the largest difference of two tensors as a share of the reference's largest value. The
reference computes in float64, with the very weights that ours has.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertworks.checkpoints.families import FAMILIES
from bertworks.nn.device import autocast_to
from bertworks.packed import Batch
from bertworks.tasks.classification import ClassificationSettings
from bertworks.tasks.pretraining.network import PretrainingNetwork
from bertworks.tasks.text_network import ClassificationNetwork

from . import oracles
from .oracles import Pair, error, geometry

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}

# In bfloat16 it cannot be said how far from the truth is right: that depends on the network's depth
# and weights. The reference, computing in bfloat16 too, tells what its rounding costs on the same
# network. Two computations that round in different places are not wrong at the same elements: the
# root mean square over a tensor's thousands of elements is what they have in common, and ours may
# not be a tenth above theirs. The largest of all those errors is luck as well; it may be half as
# large again, and a unit in the last place of the tensor's largest value (2⁻⁸) on top.
RMS_LIMIT = 1.1
LARGEST_LIMIT, LAST_PLACE = 1.5, 2.0**-8

GEOMETRIES: dict[str, dict[str, Any]] = {
    "small": {},
    "one-head-one-layer": {
        "hidden_size": 32,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "vocab_size": 50,
        "hidden_act": "gelu",
    },
    "large-vocabulary-relu": {"vocab_size": 60_000, "hidden_act": "relu"},
    "17-positions-silu": {"max_position_embeddings": 19, "hidden_act": "silu"},
    "tanh-gelu-four-layers": {"hidden_act": "gelu_new", "num_hidden_layers": 4},
    "tanh": {"hidden_act": "tanh"},
}
POSITIONS = torch.tensor([0, 2, 5, 11, 30, 50, 60, 61, 88, 90])


class Rough(NamedTuple):
    """Errors in bfloat16: ours, the reference's own, and by the root mean square their ratio."""

    ours: float
    theirs: float
    ratio: float

    @property
    def is_good(self) -> bool:
        small = self.ours <= LARGEST_LIMIT * self.theirs + LAST_PLACE
        return small and self.ratio <= RMS_LIMIT


def geometries_of(family: str) -> dict[str, dict[str, Any]]:
    """Those that the reference has: the first GPT's activations are relu, silu and tanh-GELU."""
    if family == "esm":  # which has one activation, and two kinds of positions
        gelu = {k: v for k, v in GEOMETRIES.items() if v.get("hidden_act", "gelu") == "gelu"}
        absolute = {"positions": "learned", "zeroed_token_id": None}
        return {**gelu, "learned-positions": {**absolute, "embedding_norm": True}}
    if family != "openai-gpt":
        return GEOMETRIES
    geometries = {name: values for name, values in GEOMETRIES.items() if name != "tanh"}
    return {
        name: {**values, "hidden_act": "gelu_new"} if values.get("hidden_act") == "gelu" else values
        for name, values in geometries.items()
    }


def masked_lm(family: str, dtype: torch.dtype, **values: Any) -> Pair:
    """The network of pre-training, without next sentences."""
    config = geometry(family, **values)
    theirs = oracles.theirs_of(config, "masked-lm", dtype)
    ours = PretrainingNetwork(config, next_sentence=False)
    return oracles.pair(ours, theirs, config, dtype)


def classifier(family: str, dtype: torch.dtype, **values: Any) -> Pair:
    config = geometry(family, **values)
    theirs = oracles.theirs_of(config, "classification", dtype, num_labels=3)
    return oracles.pair(
        ClassificationNetwork(config, ClassificationSettings(labels=("a", "b", "c"))),
        theirs,
        config,
        dtype,
    )


def outputs(family: str, dtype: torch.dtype, **values: Any) -> float:
    """The error of the hidden states of every layer, and of the logits."""
    pair = masked_lm(family, dtype, **values)
    with torch.no_grad():
        expected = _their_states(pair, pair.theirs)
        return max(map(error, _our_states(pair), expected))


def outputs_in_bfloat16(family: str, **values: Any) -> Rough:
    """The same in bfloat16, of weights that are kept in float32."""
    pair = masked_lm(family, torch.float32, **values)
    with torch.no_grad():
        expected = _their_states(pair, pair.theirs)
        # Their rotation is computed in float32, as ours by default: theirs is the reference here.
        rough = _their_states(pair, copy.deepcopy(pair.theirs).bfloat16(), exact=False)
        with autocast_to(pair.ours, torch.bfloat16):
            ours = _our_states(pair)
    assert {state.dtype for state in (*ours[:-1], *rough)} == {torch.bfloat16}
    assert ours[-1].dtype == torch.float32, "logits have float32's resolution"
    return Rough(
        max(map(error, ours, expected)),
        max(map(error, rough, expected)),
        max(
            _rms_error(own, right) / _rms_error(other, right)
            for own, other, right in zip(ours, rough, expected, strict=True)
        ),
    )


def classifier_logits(family: str, dtype: torch.dtype, **values: Any) -> float:
    """The error of a classifier's logits."""
    pair = classifier(family, dtype, **values)
    with torch.no_grad(), oracles.in_float64():
        own = pair.ours.predict(_classifier_batch(pair))["logits"]
        return error(own, pair.theirs(**pair.padded).logits)


def gradients(family: str, dtype: torch.dtype, **values: Any) -> dict[str, float]:
    """The errors of the loss of masked language modelling, and of every gradient of it."""
    pair = masked_lm(family, dtype, **values)
    return compare(pair, _train_masked_lm(pair), _train_theirs(pair, pair.theirs), family)


def classifier_gradients(family: str, dtype: torch.dtype, **values: Any) -> dict[str, float]:
    """The errors of a classifier's loss, and of every gradient of it."""
    pair = classifier(family, dtype, **values)
    batch = _classifier_batch(pair)
    loss = pair.ours(batch)["classification"] / pair.packed.num_sequences
    loss.backward()
    with oracles.in_float64():
        expected = F.cross_entropy(pair.theirs(**pair.padded).logits, batch.targets["labels"])
        expected.backward()
    return compare(pair, loss, expected, family)


def gradients_in_bfloat16(family: str) -> Rough:
    """The same in bfloat16; the ratio is that of all gradients together."""
    pair = masked_lm(family, torch.float32)
    _train_theirs(pair, pair.theirs)
    rough = copy.deepcopy(pair.theirs).bfloat16()
    rough.zero_grad()
    _train_theirs(pair, rough, exact=False)
    with autocast_to(pair.ours, torch.bfloat16):
        _train_masked_lm(pair)
    own, right = _gradients(pair, pair.theirs, family)
    other = _gradients(pair, rough, family)[1]
    scale = _scales(right)
    return Rough(
        max(_difference(own[name], right[name]) / scale[name] for name in right),
        max(_difference(other[name], right[name]) / scale[name] for name in right),
        _distance(own, right) / _distance(other, right),
    )


# ------------------------------------------------------------------------------------------- parts


def _our_states(pair: Pair) -> list[Tensor]:
    states = list(pair.ours.encoder.hidden_states(pair.packed))
    return [*states, pair.ours.mlm_head(states[-1])]


def _their_states(pair: Pair, theirs: Any, *, exact: bool = True) -> list[Tensor]:
    with oracles.in_float64(exact):
        found = theirs(**pair.padded, output_hidden_states=True)
    assert len(found.hidden_states) == pair.ours.encoder.config.num_hidden_layers + 1
    return [state[pair.mask] for state in (*found.hidden_states, found.logits)]


def _labels(pair: Pair) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    vocab_size = pair.ours.encoder.config.vocab_size
    return torch.randint(0, vocab_size, POSITIONS.shape, generator=generator)


def _train_masked_lm(pair: Pair) -> Tensor:
    targets = {"masked_positions": POSITIONS, "masked_labels": _labels(pair)}
    loss = sum(pair.ours(Batch(pair.packed, targets)).values()) / len(POSITIONS)
    assert isinstance(loss, Tensor)
    loss.backward()
    return loss.detach()


def _train_theirs(pair: Pair, theirs: Any, *, exact: bool = True) -> Tensor:
    with oracles.in_float64(exact):
        logits = theirs(**pair.padded).logits[pair.mask][POSITIONS]
        sums = torch.promote_types(logits.dtype, torch.float32)
        loss = F.cross_entropy(logits.to(sums), _labels(pair))
        loss.backward()
    return loss.detach()


def _classifier_batch(pair: Pair) -> Batch:
    return Batch(pair.packed, {"labels": torch.arange(pair.packed.num_sequences) % 3})


def _gradients(
    pair: Pair, theirs: nn.Module, family: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Ours and theirs, under their names; each of their parameters is among them."""
    gradients = {n: p.grad for n, p in pair.ours.named_parameters() if p.grad is not None}
    own = FAMILIES[family].keys_for(pair.ours.encoder.config).export(gradients)
    # A tied parameter of theirs has two names.
    parameters = theirs.named_parameters(remove_duplicate=False)
    trained = {name: p.grad for name, p in parameters if p.grad is not None}
    is_same = own.keys() <= trained.keys()
    saved_gradients = trained if is_same else oracles.saved_tensors(theirs, trained)
    others = {name: saved_gradients[name] for name in own}
    addresses = {gradient.data_ptr() for gradient in others.values()}
    unreached = {name for name, one in saved_gradients.items() if one.data_ptr() not in addresses}
    assert not unreached
    return own, others


def compare(pair: Pair, loss: Tensor, expected: Tensor, family: str) -> dict[str, float]:
    """The errors of a loss and of every gradient of it, after both went backward."""
    own, others = _gradients(pair, pair.theirs, family)
    scale = _scales(others)
    shares = {name: _difference(own[name], others[name]) / scale[name] for name in others}
    return {"loss": error(loss.detach(), expected.detach()), **shares}


def _scales(gradients: Mapping[str, Tensor]) -> dict[str, float]:
    """What an error of each is a share of: its largest value, or a tenth of the largest of all.

    A bias of the keys moves all scores of a query alike: its gradient is truly zero.
    """
    largest = {name: gradient.abs().max().item() for name, gradient in gradients.items()}
    return {name: max(value, 0.1 * max(largest.values())) for name, value in largest.items()}


def _difference(one: Tensor, other: Tensor) -> float:
    return (one.double() - other.double()).abs().max().item()


def _rms_error(rough: Tensor, right: Tensor) -> float:
    return (rough.double() - right).square().mean().sqrt().item()


def _distance(rough: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    squares: Iterator[float] = (
        (rough[name].double() - right[name]).square().sum().item() for name in right
    )
    return sum(squares) ** 0.5
