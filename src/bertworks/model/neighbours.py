"""An encoder that begins by attending to neighbouring tokens.

From random weights, attention is nearly uniform, and a masked language model long predicts little
more than the frequency of words: its loss stays on a plateau until a head finds the tokens beside
the mask. Here position embeddings begin as sinusoids (Vaswani et al. 2017, §3.5, with other
frequencies), and the first layer's heads begin as maps of positions that find the tokens one and
two before and after. All of it is learned from there on. Structured beginnings of attention are
those of Trockman and Kolter (2023), "Mimetic Initialization of Self-Attention Layers".
"""

from __future__ import annotations

import math

import torch

from ..errors import SettingsError
from .encoder import Encoder, Layer, TwoWayLayer

_PEAK = 6.0
"""The score, before the softmax, of the token that a head attends to; others' are about 0."""

_GOLDEN = (math.sqrt(5) - 1) / 2
_LEFT = 0.3
"""What is left of the random weights of these heads' queries and keys."""


@torch.no_grad()
def attend_to_neighbours(encoder: Encoder) -> None:
    """Give a fresh encoder its structured beginning.

    Of a causal encoder, the heads find the one to four tokens before; of a two-way one, those
    before and those after.

    Raises:
        SettingsError: the encoder has no learned positions in its layers' width, or has no heads
            or a single one in a layer.
    """
    config, table = encoder.config.one_way, encoder.embeddings.position_embeddings
    width, size = config.hidden_size, config.head_size
    fits = width % 4 == 0 and size % 2 == 0 and config.num_attention_heads > 1
    fits = fits and config.mixer == "attention" and config.embedding_size is None
    if table is None or not fits or not encoder.layers:
        raise SettingsError(
            "initial_attention=neighbours needs learned positions as wide as the layers, and two "
            "heads in a layer",
            fix="Leave it out.",
        )
    pairs = width // 4
    # Spread evenly from 0 to π however many are taken, and no multiples of one another, so that
    # heads find no other places, farther away.
    fast = math.pi * (torch.arange(1, pairs + 1, dtype=torch.float64) * _GOLDEN % 1)
    slow = math.pi * config.max_position_embeddings ** -(torch.arange(1, pairs + 1) / pairs)
    frequency = torch.cat([fast, slow])
    angle = torch.arange(table.num_embeddings)[:, None] * frequency
    table.weight.copy_(torch.cat([angle.sin(), angle.cos()], 1))
    table.weight.mul_(math.sqrt(2) * config.initializer_range)

    # Two rows of a head for each of size / 2 fast frequencies: its sine and its cosine. After the
    # norm, half of the variance of a token's vector is its position's.
    scale = math.sqrt(_PEAK * math.sqrt(size) / (size / 2))
    chosen = torch.arange(size // 2)
    sine, cosine = chosen, chosen + 2 * pairs
    even, odd = torch.arange(0, size, 2), torch.arange(1, size, 2)
    offsets = (-1, -2, -3, -4) if config.attention == "causal" else (-1, 1, -2, 2)
    first, sides = encoder.layers[0], [(encoder.layers[0], 1)]
    if isinstance(first, TwoWayLayer):  # its second half meets greater positions first
        sides = [(first.forwards, 1), (first.backwards, -1)]
    of_heads = []
    for layer, sign in sides:
        assert isinstance(layer, Layer) and layer.attention is not None
        heads = layer.attention.query_key_value.weight.view(3, -1, size, width).unbind(1)
        of_heads += [(head, sign * offset) for head, offset in zip(heads, offsets, strict=False)]
    for (query, key, _), offset in of_heads:
        turned, kept = (offset * frequency[chosen]).sin(), (offset * frequency[chosen]).cos()
        query.mul_(_LEFT)
        key.mul_(_LEFT)
        key[even, sine] += scale
        key[odd, cosine] += scale
        query[even, sine] += scale * kept  # sin(a + b) = sin a cos b + cos a sin b
        query[even, cosine] += scale * turned
        query[odd, cosine] += scale * kept  # cos(a + b) = cos a cos b - sin a sin b
        query[odd, sine] -= scale * turned
