"""Initialisation of an encoder's attention so that it attends to neighbouring tokens.

With random weights, attention is nearly uniform, and a masked language model predicts little more
than word frequencies for a long time: its loss stays on a plateau until a head attends to the
tokens next to the mask. Here position embeddings are initialised as sinusoids (Vaswani et al. 2017,
§3.5, with other frequencies), and the first layer's heads as maps of positions that attend to the
tokens one and two before and after. Training then changes all of these weights. Source for the
structured initialisation of attention: Trockman and Kolter (2023), "Mimetic Initialization of
Self-Attention Layers".
"""

from __future__ import annotations

import math

import torch

from ..errors import SettingsError
from .encoder import Encoder
from .encoder_layers import Layer, TwoWayLayer
from .layers import Linear

_PEAK = 6.0
"""Score, before the softmax, of the token that a head attends to; the others have about 0."""

_GOLDEN = (math.sqrt(5) - 1) / 2
_REMAINDER = 0.3
"""Factor of the random weights of these heads' queries and keys."""


@torch.no_grad()
def initialize_neighbour_attention(encoder: Encoder) -> None:
    """Initialise a new encoder's positions and its first layer's heads.

    The heads of a causal encoder attend to the tokens one to four before; those of a two-way
    encoder to the tokens one to four before in one direction, and after in the other.

    Raises:
        SettingsError: the encoder has no layers, no learned positions of the layers' width, fewer
            than two heads per layer, a hidden size that 4 does not divide, or an odd head size.
    """
    config, table = encoder.config.per_direction_config, encoder.embeddings.position_embeddings
    width, size = config.hidden_size, config.head_size
    is_supported = width % 4 == 0 and size % 2 == 0 and config.num_attention_heads > 1
    is_supported = is_supported and config.mixer == "attention" and config.embedding_size is None
    is_supported = is_supported and config.num_key_heads == config.num_attention_heads
    is_supported = is_supported and config.query_key_value_order == "part"
    is_supported = is_supported and config.linear_groups is None
    is_supported = is_supported and config.bottleneck is None
    if table is None or not is_supported or not encoder.layers:
        raise SettingsError(
            "initial_attention=neighbours needs learned positions as wide as the layers, and two "
            "heads in a layer",
            fix="Leave it out.",
        )
    pairs = width // 4
    # Spread evenly from 0 to π for any number of them, and not multiples of each other, so that
    # heads do not also attend to more distant positions.
    fast = math.pi * (torch.arange(1, pairs + 1, dtype=torch.float64) * _GOLDEN % 1)
    slow = math.pi * config.max_position_embeddings ** -(torch.arange(1, pairs + 1) / pairs)
    frequency = torch.cat([fast, slow])
    angle = torch.arange(table.num_embeddings)[:, None] * frequency
    table.weight.copy_(torch.cat([angle.sin(), angle.cos()], 1))
    table.weight.mul_(math.sqrt(2) * config.initializer_range)

    # Each of size / 2 fast frequencies has two rows of a head, for sine and cosine. After the norm,
    # half of the variance of a token's vector comes from its position.
    scale = math.sqrt(_PEAK * math.sqrt(size) / (size / 2))
    fast_indices = torch.arange(size // 2)
    sine, cosine = fast_indices, fast_indices + 2 * pairs
    even, odd = torch.arange(0, size, 2), torch.arange(1, size, 2)
    offsets = (-1, -2, -3, -4) if config.attention == "causal" else (-1, 1, -2, 2)
    first, sides = encoder.layers[0], [(encoder.layers[0], 1)]
    if isinstance(first, TwoWayLayer):  # its second half reads from right to left
        sides = [(first.forwards, 1), (first.backwards, -1)]
    head_offsets = []
    for layer, sign in sides:
        assert isinstance(layer, Layer) and layer.attention is not None
        matrix = layer.attention.query_key_value
        assert isinstance(matrix, Linear)
        heads = matrix.weight.view(3, -1, size, width).unbind(1)
        head_offsets += [
            (head, sign * offset) for head, offset in zip(heads, offsets, strict=False)
        ]
    for (query, key, _), offset in head_offsets:
        angles = offset * frequency[fast_indices]
        sine_of_angle, cosine_of_angle = angles.sin(), angles.cos()
        query.mul_(_REMAINDER)
        key.mul_(_REMAINDER)
        key[even, sine] += scale
        key[odd, cosine] += scale
        query[even, sine] += scale * cosine_of_angle  # sin(a + b) = sin a cos b + cos a sin b
        query[even, cosine] += scale * sine_of_angle
        query[odd, cosine] += scale * cosine_of_angle  # cos(a + b) = cos a cos b - sin a sin b
        query[odd, sine] -= scale * sine_of_angle
