"""Numbers for each head and distance, which are added to attention's scores, without PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..nn.config import EncoderConfig
from ..nn.distance_buckets import buckets_of, slopes_of

if TYPE_CHECKING:
    from jaxtyping import Float

TABLE = "encoder.score_bias.table.weight"


DistanceNumbers = Callable[[int], "Float[np.ndarray, 'heads distances']"]
"""Returns the numbers of the distances of a key from a query, from `1 - length` on."""


def distance_numbers(
    config: EncoderConfig, table: Float[np.ndarray, "buckets heads"] | None
) -> DistanceNumbers | None:
    """The numbers of an encoder; None if it has none. See `nn.score_bias`.

    Args:
        table: of buckets, if it has one: float32.
    """
    settings = config.score_bias
    if settings is None:
        return None
    assert settings.has_numbers_only
    if settings.kind == "alibi":
        slopes = np.array(slopes_of(config.num_attention_heads), np.float32)[:, None]
        return lambda length: -slopes * np.abs(np.arange(1 - length, length, dtype=np.float32))
    assert table is not None
    numbers, last = table, settings.max_distance
    return lambda length: numbers[buckets_of(length, len(numbers), last)].T
