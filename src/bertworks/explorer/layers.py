"""One layer of the network, number by number, down to its trained weights.

    input ─► query · key ─► softmax ─► weighted values ─► output map ─► + ─► norm
                                  ─► feed-forward ─► activation ─► output map ─► + ─► norm

A view has the numbers that need the weights, for all tokens. The page computes the other steps
(`static/layer/steps.js`): products, softmax, sums, norms and the activation need no large matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError, did_you_mean, truncate_repr
from ..inference.layer_steps import layer_steps, matrices_of, norms_of, rope_theta
from ..model import Model
from ..nn.encoder import Encoder
from .available_views import check
from .inputs import EncodedInput, as_floats, as_shorts, encode_input
from .limits import Matrix

Coding = Callable[[Tensor], dict[str, Any]]

_STEPS = (
    *("input", "query", "key", "value", "rotated_query", "rotated_key", "score_bias"),
    "attention_output",
    *("intermediate", "gate", "feed_forward_output", "convolution", "output"),
)
"""The steps that a view has; the others follow from them, the norms' parameters and the config."""


def layer(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    words: Sequence[int] = (),
    layer: int = 0,
) -> dict[str, Any]:
    """One layer's numbers for a text: queries, keys, values, the output of each map, the norms.

    Raises:
        WrongModelError: the model has no attention heads.
        DataError: a text cannot be tokenised, or is too long, or there is no such layer.
    """
    check(model, "layer")
    inputs = encode_input(model, text, pair, words=words)
    _check_layer(model.encoder, layer)
    states = inputs.activations().states
    return {"pieces": inputs.pieces} | _describe(inputs, states, layer, as_floats)


def weights(model: Model, layer: int, matrix: Matrix, row: int) -> dict[str, Any]:
    """One row of a weight matrix: an output of the map is its product with the input, plus a bias.

    Args:
        model: any with attention heads.
        layer: the layer's number, from 0.
        matrix: the map, by the step that it computes.
        row: the number of the output, from 0; heads follow each other.

    Raises:
        WrongModelError: the model has no attention heads.
        DataError: there is no such layer, matrix or row.
    """
    check(model, "weights")
    _check_layer(model.encoder, layer)
    return _row(model.encoder, layer, matrix, row, as_floats)


def layers_for_file(
    inputs: EncodedInput, max_numbers: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The first layers' numbers, and for each map the weights of a head's first output.

    Numbers have 16 bits. At least one layer is returned; the others must fit in `max_numbers`.
    """
    encoder = inputs.model.encoder
    states = inputs.activations().states
    layers: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    size = 0
    for number in range(encoder.config.num_hidden_layers):
        description = _describe(inputs, states, number, as_shorts)
        of_layer = [
            _row(encoder, number, name, row, as_shorts) for name, row in _first_rows(encoder)
        ]
        arrays = [*description["numbers"].values(), *(one["weights"] for one in of_layer)]
        size += sum(torch.Size(one["shape"]).numel() for one in arrays)
        if layers and size > max_numbers:
            break
        layers.append(description)
        rows += of_layer
    return layers, rows


def _first_rows(encoder: Encoder) -> list[tuple[str, int]]:
    """The rows of each matrix that a file has: those of each head's first number, or the first."""
    config = encoder.config
    heads = range(0, config.hidden_size, config.head_size)
    return [
        (name, row)
        for name in matrices_of(encoder, 0)
        for row in (heads if name in ("query", "key", "value") else [0])
    ]


def _describe(
    inputs: EncodedInput, states: Sequence[Tensor], number: int, coding: Coding
) -> dict[str, Any]:
    encoder = inputs.model.encoder
    config = encoder.config
    steps = layer_steps(encoder, inputs.pack(), number, states[number][0])
    steps["output"] = states[number + 1][0]  # the network's own: the page compares its result
    groups = config.layer_groups
    rotary = config.positions == "rotary"
    return {
        "layer": number,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "head_size": config.head_size,
        "score_divisor": config.score_divisor,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "activation": config.hidden_act,
        "gated": config.gated,
        "biased": [
            name for name, (_, bias) in matrices_of(encoder, number).items() if bias is not None
        ],
        "norm_first": config.norm_first,
        "causal": config.attention == "causal",
        "window": config.window(number),
        "rope_theta": rope_theta(encoder, number) if rotary else None,
        "rope_neighbours": config.rotary.rotates_neighbours,
        "same_weights": [at for at, group in enumerate(groups) if group == groups[number]],
        "numbers": {name: coding(steps[name].flatten(1)) for name in _STEPS if name in steps},
        "norms": {
            name: {
                "kind": config.norm,
                "eps": norm.eps,
                "weight": coding(norm.weight.detach()),
                "bias": None if norm.bias is None else coding(norm.bias.detach()),
            }
            for name, norm in norms_of(encoder, number).items()
        },
    }


def _row(encoder: Encoder, layer: int, matrix: str, row: int, coding: Coding) -> dict[str, Any]:
    maps = matrices_of(encoder, layer)
    if matrix not in maps:
        raise DataError(
            f"the layers have no matrix {truncate_repr(matrix)}",
            where="matrix",
            fix=f"{did_you_mean(matrix, maps)}.",
        )
    weight, bias = maps[matrix]
    if not 0 <= row < len(weight):
        raise DataError(
            f"{matrix} has no row {row}", where="row", fix=f"It has {len(weight)}, from 0."
        )
    return {
        "layer": layer,
        "matrix": matrix,
        "row": row,
        "shape": list(weight.shape),
        "weights": coding(weight[row]),
        "bias": None if bias is None else float(bias[row]),
    }


def _check_layer(encoder: Encoder, number: int) -> None:
    count = encoder.config.num_hidden_layers
    if not 0 <= number < count:
        raise DataError(
            f"there is no layer {number}", where="layer", fix=f"There are {count}, from 0."
        )
