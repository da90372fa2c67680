"""Numbers for each head and distance, which are added to attention's scores, without PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ..nn.config import EncoderConfig
from ..nn.distance_buckets import buckets_of, slopes_of

if TYPE_CHECKING:
    from jaxtyping import Float

TABLE = "encoder.score_bias.table.weight"


class DistanceNumbers(Protocol):
    """Gives the numbers of the distances of a key from a query, from `1 - length` on."""

    def __call__(self, length: int) -> Float[np.ndarray, "heads distances"]: ...


class BucketNumbers:
    """A number for each head and bucket of distances; see `nn.score_bias.BucketBias`.

    Args:
        table: float32.
        max_distance: from which on all distances are in the last bucket.
    """

    def __init__(self, table: Float[np.ndarray, "buckets heads"], max_distance: int) -> None:
        self._table, self._max_distance = table, max_distance

    def __call__(self, length: int) -> Float[np.ndarray, "heads distances"]:
        numbers: NDArray[np.float32] = self._table[
            buckets_of(length, len(self._table), self._max_distance)
        ].T
        return numbers


class LinearNumbers:
    """Minus the distance times a slope of the head; see `nn.score_bias.LinearBias`."""

    def __init__(self, slopes: list[float]) -> None:
        self._slopes = np.array(slopes, np.float32)

    def __call__(self, length: int) -> Float[np.ndarray, "heads distances"]:
        distances = np.abs(np.arange(1 - length, length)).astype(np.float32)
        numbers: NDArray[np.float32] = -self._slopes[:, None] * distances
        return numbers


def distance_numbers(
    config: EncoderConfig, table: NDArray[np.float32] | None
) -> DistanceNumbers | None:
    """The numbers of an encoder; None if it has none.

    Args:
        table: of buckets, if it has one.
    """
    settings = config.score_bias
    if settings is None:
        return None
    assert settings.has_numbers_only
    if settings.kind == "alibi":
        return LinearNumbers(slopes_of(config.num_attention_heads))
    assert table is not None
    return BucketNumbers(table, settings.max_distance)
