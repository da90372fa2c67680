"""Scores of Transformer-XL and XLNet: relative positions and segments, with learned biases.

    score(i, j) = scale · ((q_i + w) · k_j + (q_i + p) · r(i - j) + (q_i + s) · e(i, j))

For each head, `w`, `p` and `s` are learned vectors, `r` is a map of sinusoids of the distance, and
`e` one of two learned vectors: that of tokens of one segment, or that of tokens of two.

This is the form of `ScoreBias`, with a few more features in queries and keys:

    scale · [q_i + w, -u_i · z_i, 1] · ([k_j, z_j, 0] + [r, 0, (p - w) · r])

`z` is the one-hot vector of a token's segment, and `u_i = (q_i + s) · (e_other - e_same)`. The term
`(q_i + s) · e_other` is left out: it is the same for all keys of a query, and the softmax does not
depend on it.

Source: Dai et al. (2019), "Transformer-XL", §3.3; Yang et al. (2019), "XLNet", §2.5.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from .config import EncoderConfig
from .layers import Dropout, Linear, draw_weight
from .part_settings import ScoreBiasSettings
from .score_bias import DistanceVectors, ScoreBias, distances_up_to

_NUM_SEGMENTS = 4  # the first text, the second one, [CLS], and padding


class DistanceSinusoids(nn.Module):
    """Sines and cosines of each distance, without weights."""

    def __init__(self, config: EncoderConfig, _: ScoreBiasSettings) -> None:
        super().__init__()
        self.size = config.hidden_size

    def forward(self, length: int, template: Tensor) -> DistanceVectors:
        """Return the vectors of distances in sequences of up to `length` tokens."""
        distances = distances_up_to(length, template.device)
        # In float32, as in the training of the published weights.
        exponents = torch.arange(0, self.size, 2, device=template.device).float() / self.size
        angles = -distances.float()[:, None] * (1 / torch.pow(10_000, exponents))
        vectors = torch.cat([angles.sin(), angles.cos()], -1).to(template.dtype)
        return DistanceVectors(length, vectors, distances + length - 1)


class TransformerXLTerms(nn.Module):
    """A layer's map of distances, and its vectors of biases and segments."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        heads, size = config.num_attention_heads, config.head_size
        self.num_heads, self.scale = heads, 1 / math.sqrt(size)
        self.position = Linear(config.hidden_size, config.hidden_size, bias=False)  # r
        self.content_bias = nn.Parameter(torch.empty(heads, size))  # w
        self.position_bias = nn.Parameter(torch.empty(heads, size))  # p
        self.segment_bias = nn.Parameter(torch.empty(heads, size))  # s
        self.segments = nn.Parameter(torch.empty(2, heads, size))  # e: of the same, of another
        self.dropout = Dropout(config.hidden_dropout_prob)
        for weight in self.parameters():
            draw_weight(weight, config.initializer_range)

    def forward(
        self, distances: DistanceVectors, query_key_value: nn.Module, dtype: torch.dtype
    ) -> ScoreBias:
        """Return the layer's bias; see `DistanceMaps`."""
        del query_key_value  # the map of distances is a separate one
        vectors = self.position(self.dropout(distances.vectors.to(dtype)))
        keys = vectors.view(vectors.shape[0], self.num_heads, -1).transpose(0, 1)
        difference = (self.position_bias - self.content_bias).to(dtype)
        of_bias = (keys * difference[:, None]).sum(-1, keepdim=True)
        of_segments = keys.new_zeros(*keys.shape[:2], _NUM_SEGMENTS)
        more_keys = torch.cat([keys, of_segments, of_bias], -1)
        return ScoreBias(distances.length, keys=more_keys, scale=self.scale)

    def add_features(
        self,
        query: Float[Tensor, "rows heads head_size"],
        key: Float[Tensor, "rows heads head_size"],
        token_type_ids: Int64[Tensor, " tokens"],
    ) -> tuple[Float[Tensor, "rows heads features"], Float[Tensor, "rows heads features"]]:
        """Return the queries and keys that belong to the bias.

        Args:
            query: there may be more rows after those of the tokens.
            key: likewise.
            token_type_ids: the tokens' segments, from 0 to 3.
        """
        dtype = query.dtype
        one_hot = torch.eye(_NUM_SEGMENTS, dtype=dtype, device=query.device)[token_type_ids]
        num_rows = query.shape[0]
        if isinstance(num_rows, int) and num_rows > one_hot.shape[0]:
            one_hot = F.pad(one_hot, (0, 0, 0, num_rows - one_hot.shape[0]))
        one_hot = one_hot[:, None]
        difference = (self.segments[1] - self.segments[0]).to(dtype)
        other = ((query + self.segment_bias.to(dtype)) * difference).sum(-1, keepdim=True)
        ones, zeros = torch.ones_like(other), torch.zeros_like(other)
        content = query + self.content_bias.to(dtype)
        return (
            torch.cat([content, -other * one_hot, ones], -1),
            torch.cat([key, one_hot.expand(-1, self.num_heads, -1), zeros], -1),
        )
