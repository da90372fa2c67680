"""Encoder layers in one call of native code, for inference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_float, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..packed import Layout
from .library import PANEL, Layer, Map, empty, library, num_threads
from .quantization import quantize_rows, to_floats
from .score_bias import NativeBias, can_add

if TYPE_CHECKING:
    from jaxtyping import Float, Int8, Shaped

ACTIVATIONS = {"gelu": 0, "gelu_new": 1, "relu": 2}
"""The supported activations, and their numbers in layer.c."""

MAPS = (
    *("attention.query_key_value", "attention.output"),
    *("feed_forward.intermediate", "feed_forward.output"),
)
NORMS = ("attention_norm", "feed_forward_norm")
"""The names of a layer's maps and norms, in the order of layer.c."""

Arrays = Mapping[str, NDArray[Any]]
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
            len(self.bias),
            *(None if value is None else value.ctypes.data for value in values),
        )


class NativeLayer:
    """The weights of a layer, for `NativeLayers`.

    Args:
        maps: four: query, key and value; attention's output; the two feed-forward maps.
        norms: weight and bias of two norms: attention's, and the feed-forward layer's.
        epsilons: of the norms.
        heads: the number of attention heads.
        activation: a key of `ACTIVATIONS`.
        fp32: whether the numbers between products are float32, and bfloat16 otherwise.
    """

    def __init__(
        self,
        maps: Sequence[NativeMap],
        norms: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        epsilons: tuple[float, float],
        heads: int,
        activation: str,
        *,
        fp32: bool = False,
    ) -> None:
        self._norms = [_copy(part) for norm in norms for part in norm]
        self._maps = maps
        self.struct = Layer(
            (Map * 4)(*(native_map.to_struct() for native_map in maps)),
            (c_void_p * 4)(*(part.ctypes.data for part in self._norms)),
            (c_float * 2)(*epsilons),
            heads,
            ACTIVATIONS[activation],
            (maps[0].scales is not None) + 2 * fp32,  # a `precision` of native.h
            len(self._norms[0]),
        )
        self.dtype = np.dtype(np.float32 if fp32 else np.uint16)

    @property
    def num_bytes(self) -> int:
        """The bytes of its weights."""
        return sum(one.num_bytes for one in self._maps) + sum(one.nbytes for one in self._norms)

    @staticmethod
    def from_arrays(
        arrays: Arrays,
        *,
        int8: bool,
        epsilons: tuple[float, float],
        heads: int,
        activation: str,
        codes: Mapping[str, FixedCodes] | None = None,
        fp32: bool = False,
    ) -> NativeLayer:
        """Pack the weights of a layer.

        Args:
            arrays: by the names of `MAPS` and `NORMS` with `.weight` and `.bias`; a bias that is
                missing is zero.
            int8: whether products are of 8-bit integers.
            codes: fixed codes of the inputs of maps, by their names.
            fp32: whether all other numbers are float32.
        """

        def bias_of(name: str) -> NDArray[Any]:
            width = len(arrays[f"{name}.weight"])
            return arrays.get(f"{name}.bias", np.zeros(width, np.float32))

        def make_map(name: str, parts: Parts) -> NativeMap:
            weight, bias = arrays[f"{name}.weight"], bias_of(name)
            if int8:
                return NativeMap.from_eight_bits(weight, bias, (codes or {}).get(name), parts)
            return NativeMap.from_weight(weight, bias, parts, fp32=fp32)

        norms = [(arrays[f"{name}.weight"], bias_of(name)) for name in NORMS]
        parts_of_maps = ((3 * heads, 1), (1, heads), (1, 1), (1, 1))
        maps = [*map(make_map, MAPS, parts_of_maps)]
        return NativeLayer(maps, norms, epsilons, heads, activation, fp32=fp32)


class NativeLayers:
    """A stack of layers with the same geometry: `self(hidden, layout, bias)`."""

    def __init__(self, layers: Sequence[NativeLayer]) -> None:
        self._run = library().bertworks_layers
        self.layers = layers
        self._structs = (Layer * len(layers))(*(layer.struct for layer in layers))

    @property
    def num_bytes(self) -> int:
        """The bytes of the weights; layers that share theirs are one object."""
        return sum(layer.num_bytes for layer in set(self.layers))

    def __call__(
        self,
        hidden: Shaped[np.ndarray, "tokens hidden_size"],
        layout: Layout,
        bias: Float[np.ndarray, "heads distances"] | None = None,
    ) -> Shaped[np.ndarray, "tokens hidden_size"]:
        """The last layer's output; rows after the last sequence are zeros.

        Args:
            hidden: the input of the first layer: float32, or the bits of bfloat16 numbers (uint16),
                as in the result.
            layout: the positions of the sequences: an array, or a tensor on the CPU.
            bias: numbers that all layers add to the scores of attention, as for `NativeBias`.

        Raises:
            MemoryError: there is no memory for intermediate results.
        """
        assert hidden.flags.c_contiguous and hidden.dtype == self.layers[0].dtype
        assert can_add(bias, layout, self._structs[0].heads)
        native_bias = NativeBias(bias)
        edges = np.asarray(layout.cu_seqlens)
        last = layout.groups[-1].tokens.stop
        result = empty(hidden.shape, hidden.dtype)
        result[last:] = 0
        error_code = self._run(
            self._structs,
            len(self.layers),
            hidden.ctypes.data,
            result.ctypes.data,
            edges.ctypes.data,
            len(edges) - 1,
            *native_bias.arguments,
            num_threads(),
        )
        if error_code:
            raise MemoryError("no memory for a layer of the encoder")
        return result

    def states(
        self,
        hidden: Shaped[np.ndarray, "tokens hidden_size"],
        layout: Layout,
        bias: Float[np.ndarray, "heads distances"] | None = None,
    ) -> Iterator[Shaped[np.ndarray, "tokens hidden_size"]]:
        """Yield the output of each layer, computed singly."""
        for layer in self.layers:
            hidden = NativeLayers([layer])(hidden, layout, bias)
            yield hidden


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
    packed = empty((-(-outputs // PANEL) * PANEL * inputs,), packed_type)
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


def _copy(values: NDArray[Any]) -> NDArray[np.float32]:
    # A copy, whose address stays valid if the parameter's memory changes.
    return np.array(to_floats(values), np.float32, order="C")
