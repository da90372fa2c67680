"""The angles of rotary positions, by which native code rotates queries and keys, without PyTorch.

See `nn.rotary` for the formulas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..native.layer import Rotations
from ..nn.config import EncoderConfig

if TYPE_CHECKING:
    from jaxtyping import Float, Int64

_TENSORS = {"frequencies": "encoder.rotary.frequencies", "table": "encoder.rotary.weight"}
_MIN_POSITIONS = 512


def rotary_tensor(config: EncoderConfig) -> tuple[str, tuple[int, ...]] | None:
    """The name and shape of the tensor that says how positions are rotated; None: there is none."""
    kind = config.rotary.kind
    if config.positions != "rotary" or kind not in _TENSORS:
        return None
    size = config.head_size
    shape = (config.max_position_embeddings, size) if kind == "table" else (size // 2,)
    return _TENSORS[kind], shape


class RotaryAngles:
    """Gives each token's cosines and sines, in layers without and with a window.

    Sines and cosines are of float64, of angles in float32, as in the training of the published
    weights. Those of positions are computed when they are first needed.

    Args:
        config: with rotary positions.
        tensor: that of `rotary_tensor`, if there is one, in float32.
    """

    def __init__(self, config: EncoderConfig, tensor: NDArray[np.float32] | None) -> None:
        self._table = None
        if config.rotary.kind == "table":
            assert tensor is not None
            sines, cosines = np.split(tensor, 2, axis=1)
            self._table = np.stack((cosines, sines), axis=1)
        elif tensor is not None:
            self._frequencies = [tensor]
        else:
            is_local = {config.is_local(layer) for layer in range(config.num_hidden_layers)}
            self._frequencies = [_frequencies(config, is_local=False)]
            if True in is_local:
                self._frequencies.append(_frequencies(config, is_local=True))
        self._tables: list[NDArray[np.float32]] = []

    def __call__(self, position_ids: Int64[np.ndarray, " tokens"]) -> Rotations:
        """Return the rotations of tokens.

        Raises:
            IndexError: a position is not in the table.
        """
        if self._table is not None:
            tables = [self._table]
        else:
            tables = self._tables_of(int(position_ids.max()) + 1)
        if int(position_ids.min()) < 0:
            raise IndexError("a position is less than 0")
        rotations = [np.ascontiguousarray(table[position_ids]) for table in tables]
        return rotations if len(rotations) == 2 else rotations * 2

    def _tables_of(self, positions: int) -> list[NDArray[np.float32]]:
        """The tables of at least so many positions; a longer one replaces a shorter one."""
        tables = self._tables
        if not tables or len(tables[0]) < positions:
            length = max(_MIN_POSITIONS, 1 << (positions - 1).bit_length())
            tables = self._tables = [_rotations(one, length) for one in self._frequencies]
        return tables


def rotary_angles(config: EncoderConfig, tensor: NDArray[np.float32] | None) -> RotaryAngles | None:
    """The angles of an encoder; None if its positions are not rotary; see `RotaryAngles`."""
    return RotaryAngles(config, tensor) if config.positions == "rotary" else None


def _frequencies(config: EncoderConfig, *, is_local: bool) -> Float[np.ndarray, " pairs"]:
    """The angle of each pair of features at position 1; see `nn.rotary.make_frequencies`."""
    theta = config.rotary.local_theta if is_local else config.rotary.theta
    size, factor = config.head_size, config.rotary.factor
    if config.rotary.scaling == "ntk":
        theta, factor = theta * factor, factor ** (2 / size)
    pairs = np.arange(0, size, 2)
    return (1.0 / theta ** (pairs / size) / factor).astype(np.float32)


def _rotations(
    frequencies: Float[np.ndarray, " pairs"], length: int
) -> Float[np.ndarray, "positions 2 pairs"]:
    angles = np.outer(np.arange(length, dtype=np.float32), frequencies).astype(np.float64)
    return np.stack((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32)
