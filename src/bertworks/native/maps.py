"""Linear maps of layers, packed for native code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..utils.threads import num_threads
from .library import PANEL, Blocks, Map, library
from .quantization import quantize_rows, to_floats

if TYPE_CHECKING:
    from jaxtyping import Float, Int8

_BLOCKS = Blocks()  # of packed weights

Parts: TypeAlias = tuple[int, int]
"""Of how many equal parts the outputs and the inputs of a map are, such as those of heads."""


class FixedCodes(NamedTuple):
    """Fixed codes of a map's inputs: see `nn.quantization.InputCodes`."""

    steps: Float[np.ndarray, " inputs"]
    start: Float[np.ndarray, " inputs"]  # the code of an input `x` is `start + slope · x`
    slope: Float[np.ndarray, " inputs"]
    shift: Float[np.ndarray, " outputs"]


@dataclass(frozen=True, eq=False)
class NativeMap:
    """The weights of a linear map, packed for the kernels.

    Inputs and outputs are filled with zeros to whole panels: all together, or each of the equal
    parts that `Parts` counts, which then begins with a panel.
    """

    packed: NDArray[Any]
    bias: Float[np.ndarray, " outputs"]
    inputs: int
    scales: Float[np.ndarray, " outputs"] | None = None
    offsets: NDArray[np.int32] | None = None
    start: Float[np.ndarray, " inputs"] | None = None
    slope: Float[np.ndarray, " inputs"] | None = None

    @staticmethod
    def from_weight(
        weight: NDArray[Any], bias: NDArray[Any], parts: Parts = (1, 1), *, fp32: bool = False
    ) -> NativeMap:
        """A map with products of bfloat16 or float32 numbers.

        Args:
            weight: `[outputs, inputs]`; numbers, or the bits of bfloat16 numbers (uint16).
            bias: `[outputs]`.
            fp32: whether products are of float32 numbers.
        """
        assert len(weight) == len(bias)
        rows = weight if weight.dtype == np.uint16 and not fp32 else to_floats(weight)
        rows = _pad_matrix(rows, parts)
        packed = _pack(rows, group=1 if fp32 else 2)
        return NativeMap(packed, _pad(to_floats(bias), parts[0]), rows.shape[1])

    @staticmethod
    def from_eight_bits(
        weight: NDArray[Any],
        bias: NDArray[Any],
        codes: FixedCodes | None = None,
        parts: Parts = (1, 1),
    ) -> NativeMap:
        """A map with 8-bit products.

        Args:
            weight, bias: as for `from_weight`.
            codes: of the inputs; if omitted, the scale of each row of inputs is computed when
                needed.
        """
        weight = to_floats(weight)
        if codes is None:
            return NativeMap.from_codes(*quantize_rows(weight), bias, parts=parts)
        rows, scales = quantize_rows(weight * codes.steps)
        shift = to_floats(bias) + codes.shift
        return NativeMap.from_codes(rows, scales, shift, (codes.start, codes.slope), parts)

    @staticmethod
    def from_codes(
        codes: Int8[np.ndarray, "outputs inputs"],
        scales: Float[np.ndarray, " outputs"],
        bias: NDArray[Any],
        line: tuple[Float[np.ndarray, " inputs"], Float[np.ndarray, " inputs"]] | None = None,
        parts: Parts = (1, 1),
    ) -> NativeMap:
        """A map with 8-bit products.

        Args:
            codes, scales: the matrix is `codes · scales`, row by row.
            line: start and slope: the code of an input `x` is `start + slope · x`; if omitted, the
                scale of each row of inputs is computed when needed.
        """
        assert len(scales) == len(bias) == len(codes)
        assert line is None or {len(one) for one in line} == {codes.shape[1]}
        codes = _pad_matrix(codes, parts)
        start, slope = (None, None) if line is None else (_pad(one, parts[1]) for one in line)
        return NativeMap(
            _pack(codes, group=4),
            _pad(to_floats(bias), parts[0]),
            codes.shape[1],
            _pad(scales, parts[0]),
            (128 * codes.sum(1, dtype=np.int64)).astype(np.int32),
            start,
            slope,
        )

    @property
    def outputs(self) -> int:
        """The number of outputs, with those that fill panels."""
        return len(self.bias)

    @property
    def num_bytes(self) -> int:
        """The bytes of its arrays."""
        values = (self.packed, self.bias, self.scales, self.offsets, self.start, self.slope)
        return sum(value.nbytes for value in values if value is not None)

    def to_struct(self) -> Map:
        """Return the struct for native code; this object owns its memory and must outlive it."""
        values = (self.scales, self.offsets, self.start, self.slope)
        return Map(
            self.packed.ctypes.data,
            self.bias.ctypes.data,
            self.inputs,
            self.outputs,
            *(None if value is None else value.ctypes.data for value in values),
        )


def _pack(rows: NDArray[Any], group: int) -> NDArray[Any]:
    """Pack rows of numbers into panels; see kernels.h.

    Args:
        rows: int8, the bits of bfloat16 (uint16), or float32, which is rounded to bfloat16 if the
            group is of two.
        group: how many numbers of a row make one operand of 32 bits.
    """
    outputs, inputs = rows.shape
    rows = np.ascontiguousarray(rows)
    rounds = rows.dtype == np.float32 and group == 2
    packed_type = np.dtype(np.uint16) if rounds else rows.dtype
    packed = _BLOCKS.empty(-(-outputs // PANEL) * PANEL * inputs, packed_type)
    library().bertworks_pack(
        *(rows.ctypes.data, outputs, inputs // group, rows.strides[0], rounds),
        packed.ctypes.data,
        num_threads(),
    )
    return packed


def _pad(values: NDArray[Any], parts: int, axis: int = 0) -> NDArray[Any]:
    """A copy with zeros after each of several equal parts, so that these are whole panels."""
    size = values.shape[axis] // parts
    shape = (*values.shape[:axis], parts, size, *values.shape[axis + 1 :])
    zeros = [(0, 0)] * len(shape)
    zeros[axis + 1] = (0, -size % PANEL)
    padded = np.pad(values.reshape(shape), zeros)
    return padded.reshape(*values.shape[:axis], -1, *values.shape[axis + 1 :])


def _pad_matrix(rows: NDArray[Any], parts: Parts) -> NDArray[Any]:
    for axis, count in enumerate(parts):
        if rows.shape[axis] // count % PANEL:  # otherwise it is large, and not copied
            rows = _pad(rows, count, axis)
    return rows
