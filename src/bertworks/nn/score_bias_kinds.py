"""The kinds of score biases: what all layers share of each, and what each layer has."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from .config import EncoderConfig
from .part_settings import ScoreBiasSettings
from .score_bias import BucketBias, DistanceMaps, LinearBias, RelativePositions
from .transformer_xl import DistanceSinusoids, TransformerXLTerms

_KINDS: dict[str, Callable[[EncoderConfig, ScoreBiasSettings], nn.Module]] = {
    "buckets": BucketBias,
    "alibi": LinearBias,
    "disentangled": RelativePositions,
    "transformer-xl": DistanceSinusoids,
}
"""What layers share of each kind: `forward` takes a length, and a tensor of the dtype and device,
and returns a `ScoreBias` or `DistanceVectors`."""


def make_score_bias(config: EncoderConfig) -> nn.Module | None:
    """Return what an encoder's layers share of its score bias; None if it has none."""
    settings = config.score_bias
    return None if settings is None else _KINDS[settings.kind](config, settings)


def make_distance_maps(config: EncoderConfig) -> DistanceMaps | TransformerXLTerms | None:
    """Return a layer's own part of the score bias; None if it has none."""
    settings = config.score_bias
    if settings is not None and settings.kind == "disentangled":
        return DistanceMaps(config, settings)
    return TransformerXLTerms(config) if config.is_transformer_xl else None
