"""Encoder layers in one call of native code, for inference."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_void_p
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from ..packed import Layout
from .library import PANEL, Layer, Map, library, parallel
from .score_bias import NativeBias, can_add

ACTIVATIONS = {"gelu": 0, "gelu_new": 1, "relu": 2}
"""The supported activations, and their numbers in layer.c."""


@dataclass(frozen=True, eq=False)
class NativeMap:
    """The weights of a linear map, packed for the kernels."""

    packed: Tensor
    bias: Float[Tensor, " outputs"]
    inputs: int
    scales: Float[Tensor, " outputs"] | None = None
    offsets: Tensor | None = None
    start: Float[Tensor, " inputs"] | None = None
    slope: Float[Tensor, " inputs"] | None = None

    @staticmethod
    def from_weight(
        weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, " outputs"]
    ) -> NativeMap:
        """A map with bfloat16 products."""
        return NativeMap(_pack(weight.detach(), group=2), _floats(bias), weight.shape[1])

    @staticmethod
    def from_codes(
        codes: Int8[Tensor, "outputs inputs"],
        scales: Float[Tensor, " outputs"],
        bias: Float[Tensor, " outputs"],
        line: tuple[Float[Tensor, " inputs"], Float[Tensor, " inputs"]] | None = None,
    ) -> NativeMap:
        """A map with 8-bit products.

        Args:
            codes, scales: the matrix is `codes · scales`, row by row.
            line: start and slope: the code of an input `x` is `start + slope · x`; if omitted, the
                scale of each row of inputs is computed when needed.
        """
        start, slope = (None, None) if line is None else map(_floats, line)
        return NativeMap(
            _pack(codes, group=4),
            _floats(bias),
            codes.shape[1],
            _floats(scales),
            (128 * codes.sum(1)).to(torch.int32),
            start,
            slope,
        )

    def to_struct(self) -> Map:
        """Return the struct for native code; this object owns its memory and must outlive it."""
        values = (self.scales, self.offsets, self.start, self.slope)
        return Map(
            self.packed.data_ptr(),
            self.bias.data_ptr(),
            self.inputs,
            len(self.bias),
            *(None if value is None else value.data_ptr() for value in values),
        )


class NativeLayer:
    """The weights of a layer, for `NativeLayers`.

    Args:
        maps: four: query, key and value; attention's output; the two feed-forward maps.
        norms: weight, bias and epsilon of two norms: attention's, and the feed-forward layer's.
        heads: the number of attention heads.
        activation: a key of `ACTIVATIONS`.
    """

    def __init__(
        self,
        maps: Sequence[NativeMap],
        norms: Sequence[tuple[Tensor, Tensor, float]],
        heads: int,
        activation: str,
    ) -> None:
        self._norms = [_floats(part) for weight, bias, _ in norms for part in (weight, bias)]
        self._maps = maps
        self.struct = Layer(
            (Map * 4)(*(native_map.to_struct() for native_map in maps)),
            (c_void_p * 4)(*(part.data_ptr() for part in self._norms)),
            (c_float * 2)(*(epsilon for *_, epsilon in norms)),
            heads,
            ACTIVATIONS[activation],
            maps[0].scales is not None,
        )


class NativeLayers:
    """A stack of layers with the same geometry: `self(hidden, layout, bias)`."""

    def __init__(self, layers: Sequence[NativeLayer]) -> None:
        self._run, self._parallel = library().bertworks_layers, parallel()
        self._layers = layers
        self._structs = (Layer * len(layers))(*(layer.struct for layer in layers))

    def __call__(
        self,
        hidden: Float[Tensor, "tokens hidden_size"],
        layout: Layout,
        bias: Float[Tensor, "heads distances"] | None = None,
    ) -> Float[Tensor, "tokens hidden_size"]:
        """The last layer's output, bfloat16 like `hidden`; rows after the last sequence are zeros.

        Args:
            hidden: the input of the first layer.
            layout: the positions of the sequences.
            bias: numbers that all layers add to the scores of attention, as for `NativeBias`.

        Raises:
            MemoryError: there is no memory for intermediate results.
        """
        assert hidden.dtype is torch.bfloat16 and hidden.is_contiguous()
        assert can_add(bias, layout, self._structs[0].heads)
        native_bias = NativeBias(bias)
        edges = layout.cu_seqlens
        last = layout.groups[-1].tokens.stop
        result = torch.empty_like(hidden)
        if last < len(hidden):
            result[last:].zero_()
        error_code = self._run(
            self._structs,
            len(self._layers),
            hidden.data_ptr(),
            result.data_ptr(),
            edges.data_ptr(),
            len(edges) - 1,
            *native_bias.arguments,
            torch.get_num_threads(),
            self._parallel,
        )
        if error_code:
            raise MemoryError("no memory for a layer of the encoder")
        return result


def _pack(rows: Tensor, group: int) -> Tensor:
    """Pack rows of 8-bit integers, or of other numbers as bfloat16, into panels; see kernels.h.

    Args:
        group: how many numbers of a row make one operand of 32 bits.
    """
    outputs, inputs = rows.shape
    packed_dtype = rows.dtype if rows.dtype is torch.int8 else torch.bfloat16
    are_floats = rows.dtype is torch.float32
    rows = rows.contiguous() if are_floats else rows.to(packed_dtype).contiguous()
    packed = torch.empty(-(-outputs // PANEL) * PANEL * inputs, dtype=packed_dtype, device="cpu")
    library().bertworks_pack(
        *(rows.data_ptr(), outputs, inputs // group, inputs * rows.itemsize, are_floats),
        packed.data_ptr(),
        torch.get_num_threads(),
        parallel(),
    )
    return packed


def _floats(values: Tensor) -> Tensor:
    # A copy, whose address stays valid if the parameter's memory changes.
    return values.detach().to(torch.float32, copy=True, memory_format=torch.contiguous_format)
