"""Encoder layers in one call of native code, for inference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..packed import Layout
from ..utils.threads import num_threads
from .library import NORMS_OF_LAYER, Layer, Map, Sequences, empty, library
from .maps import FixedCodes, NativeMap, Parts
from .quantization import to_floats
from .score_bias import NativeBias, can_add

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

ACTIVATION_NUMBERS = {"gelu": 0, "gelu_new": 1, "relu": 2, "silu": 3}
"""The supported activations, and their numbers in activations.h."""

MAPS = (
    *("attention.query_key_value", "attention.output"),
    *("feed_forward.intermediate", "feed_forward.output"),
)
NORMS = ("attention_norm", "feed_forward_norm")
"""The names of a layer's maps and norms, in the order of native.h."""

Arrays = Mapping[str, NDArray[Any]]
Norm: TypeAlias = tuple[NDArray[Any], NDArray[Any] | None]
"""The weight and the bias of a norm, if it has one."""
Rotations: TypeAlias = Sequence[NDArray[np.float32]]
"""Each token's cosines, then its sines, `[tokens, 2, head_size / 2]`: the angles by which queries
and keys are rotated in layers without a window; and in those with one."""


@dataclass(frozen=True)
class LayerGeometry:
    """What distinguishes the layers of encoders.

    Attributes:
        heads: the number of attention heads.
        key_heads: of keys and values, each of which as many heads share.
        activation: a key of `ACTIVATION_NUMBERS`.
        epsilon: of the norms.
        norm_first: whether the inputs of attention and the feed-forward layer are normalised, and
            not the sums with their outputs.
        has_rms_norms: whether norms divide by the root mean square, and subtract no mean.
        is_gated: whether the activation is multiplied by the second half of the first
            feed-forward map.
        is_by_head: whether the rows of the first map are each head's query, key and value, and not
            all queries first.
        rotates_neighbours: whether pairs of numbers that are rotated are neighbours, and not of the
            two halves of a head.
    """

    heads: int
    key_heads: int
    activation: str
    epsilon: float
    norm_first: bool = False
    has_rms_norms: bool = False
    is_gated: bool = False
    is_by_head: bool = False
    rotates_neighbours: bool = False

    @property
    def parts(self) -> tuple[Parts, Parts, Parts, Parts]:
        """The parts of the outputs and inputs of each map; each begins with a panel."""
        all_heads = self.heads + 2 * self.key_heads
        return (all_heads, 1), (1, self.heads), (1 + self.is_gated, 1), (1, 1)

    def row_order(self, rows: int) -> NDArray[np.int64] | None:
        """The rows of the first map in native code's order; None: they are in it.

        Which pairs of a head's numbers are rotated is a matter of their order, which changes no
        product of a query and a key.
        """
        if not self.is_by_head and not self.rotates_neighbours:
            return None
        by_head = np.arange(rows).reshape(self.heads + 2 * self.key_heads, -1)
        if self.is_by_head:
            by_head = by_head.reshape(self.heads, 3, -1).swapaxes(0, 1).reshape(3 * self.heads, -1)
        if self.rotates_neighbours:
            queries_and_keys = by_head[: self.heads + self.key_heads]
            queries_and_keys[:] = np.concatenate(
                (queries_and_keys[:, ::2], queries_and_keys[:, 1::2]), axis=1
            )
        return by_head.ravel()


class NativeLayer:
    """The weights of a layer, for `NativeLayers`.

    Args:
        maps: four: query, key and value; attention's output; the two feed-forward maps.
        norms: attention's, and the feed-forward layer's; None: there is none (the first, with
            norms first).
        width: of hidden states.
        geometry: of the layer.
        fp32: whether the numbers between products are float32, and bfloat16 otherwise.
    """

    def __init__(
        self,
        maps: Sequence[NativeMap],
        norms: Sequence[Norm | None],
        width: int,
        geometry: LayerGeometry,
        *,
        fp32: bool = False,
    ) -> None:
        self._norms = [norm and _copy_norm(norm) for norm in norms]
        self._maps, self.geometry, self.width = maps, geometry, width
        int8 = maps[0].scales is not None
        self.struct = Layer(
            (Map * 4)(*(native_map.to_struct() for native_map in maps)),
            (c_void_p * NORMS_OF_LAYER)(*map(_address, _parts_of(self._norms))),
            geometry.heads,
            geometry.key_heads,
            ACTIVATION_NUMBERS[geometry.activation],
            int8 + 2 * fp32,  # a `precision` of native.h
            width,
            -1,
            geometry.epsilon,
            geometry.norm_first,
            geometry.has_rms_norms,
            geometry.is_gated,
        )
        self.dtype = np.dtype(np.float32 if fp32 else np.uint16)

    @property
    def num_bytes(self) -> int:
        """The bytes of its weights."""
        return sum(one.num_bytes for one in self._maps) + _num_bytes(self._norms)

    @staticmethod
    def from_arrays(
        arrays: Arrays,
        geometry: LayerGeometry,
        *,
        int8: bool,
        codes: Mapping[str, FixedCodes] | None = None,
        fp32: bool = False,
    ) -> NativeLayer:
        """Pack the weights of a layer.

        Args:
            arrays: by the names of `MAPS` and `NORMS` with `.weight` and `.bias`; a bias that is
                missing is zero.
            geometry: of the layer.
            int8: whether products are of 8-bit integers.
            codes: fixed codes of the inputs of maps, by their names.
            fp32: whether all other numbers are float32.
        """
        _check_shapes(arrays, geometry)
        order = geometry.row_order(len(arrays[f"{MAPS[0]}.weight"]))

        def make_map(name: str, parts: Parts) -> NativeMap:
            weight = arrays[f"{name}.weight"]
            bias = arrays.get(f"{name}.bias", np.zeros(len(weight), np.float32))
            input_codes = (codes or {}).get(name)
            if name == MAPS[0] and order is not None:
                weight, bias = weight[order], bias[order]
                input_codes = input_codes and input_codes._replace(shift=input_codes.shift[order])
            if int8:
                return NativeMap.from_eight_bits(weight, bias, input_codes, parts)
            return NativeMap.from_weight(weight, bias, parts, fp32=fp32)

        norms = [
            (arrays[f"{name}.weight"], arrays.get(f"{name}.bias"))
            if f"{name}.weight" in arrays
            else None
            for name in NORMS
        ]
        maps = [*map(make_map, MAPS, geometry.parts)]
        width = arrays[f"{MAPS[0]}.weight"].shape[1]
        return NativeLayer(maps, norms, width, geometry, fp32=fp32)


class NativeLayers:
    """A stack of layers with the same geometry: `self(hidden, layout, bias, rotations)`.

    Args:
        layers: from the lowest up.
        windows: of each layer: the largest distance at which tokens attend to each other; None:
            any. If omitted, no layer has one.
        final_norm: after the last layer, if norms are first.
    """

    def __init__(
        self,
        layers: Sequence[NativeLayer],
        windows: Sequence[int | None] | None = None,
        final_norm: Norm | None = None,
    ) -> None:
        self._run = library().bertworks_layers
        self.layers, self._windows = layers, windows or [None] * len(layers)
        self._final_norm = final_norm and _copy_norm(final_norm)
        first = layers[0]
        for layer in layers:  # what native code reads of the first alone
            assert layer.width == first.width and layer.dtype == first.dtype
            assert layer.geometry == first.geometry
        self._structs = (Layer * len(layers))(*(layer.struct for layer in layers))
        for struct, window in zip(self._structs, self._windows, strict=True):
            struct.window = -1 if window is None else window
        if self._final_norm is not None:
            assert first.geometry.norm_first and len(self._final_norm[0]) == first.width
            self._structs[-1].norms[4:] = [*map(_address, _parts_of([self._final_norm]))]

    @property
    def num_bytes(self) -> int:
        """The bytes of the weights; layers that share theirs are one object."""
        layers = sum(layer.num_bytes for layer in set(self.layers))
        return layers + _num_bytes([self._final_norm])

    def __call__(
        self,
        hidden: Shaped[np.ndarray, "tokens hidden_size"],
        layout: Layout,
        bias: Float[np.ndarray, "heads distances"] | None = None,
        rotations: Rotations | None = None,
    ) -> Shaped[np.ndarray, "tokens hidden_size"]:
        """The last layer's output; rows after the last sequence are zeros.

        Args:
            hidden: the input of the first layer: float32, or the bits of bfloat16 numbers (uint16),
                as in the result.
            layout: the positions of the sequences: an array, or a tensor on the CPU.
            bias: numbers that all layers add to the scores of attention, as for `NativeBias`.
            rotations: of queries and keys; None: positions are not rotary.

        Raises:
            MemoryError: there is no memory for intermediate results.
        """
        first, last = self.layers[0], layout.groups[-1].tokens.stop
        edges = np.asarray(layout.cu_seqlens)
        assert hidden.flags.c_contiguous and hidden.dtype == first.dtype
        assert last <= len(hidden) and hidden.shape[1] == first.width
        assert edges.dtype == np.int32 and edges.flags.c_contiguous
        assert can_add(bias, layout, first.geometry.heads)
        native_bias = NativeBias(bias)
        result = empty(hidden.shape, hidden.dtype)
        result[last:] = 0
        error_code = self._run(
            self._structs,
            len(self.layers),
            hidden.ctypes.data,
            result.ctypes.data,
            byref(
                Sequences(
                    edges.ctypes.data,
                    len(edges) - 1,
                    *native_bias.arguments,
                    (c_void_p * 2)(*self._rotation_addresses(rotations, last)),
                )
            ),
            num_threads(),
        )
        if error_code:
            raise MemoryError("no memory for a layer of the encoder")
        return result

    def _rotation_addresses(self, rotations: Rotations | None, tokens: int) -> list[int | None]:
        if rotations is None:
            return [None, None]
        first = self.layers[0]
        shape = 2, first.width // first.geometry.heads // 2
        for one in rotations:
            assert one.dtype == np.float32 and one.flags.c_contiguous
            assert one.shape[1:] == shape and tokens <= len(one)
        return [one.ctypes.data for one in rotations]

    def states(
        self,
        hidden: Shaped[np.ndarray, "tokens hidden_size"],
        layout: Layout,
        bias: Float[np.ndarray, "heads distances"] | None = None,
        rotations: Rotations | None = None,
    ) -> Iterator[Shaped[np.ndarray, "tokens hidden_size"]]:
        """Yield the output of each layer, computed singly; the final norm is part of the last."""
        for number, layer in enumerate(self.layers, 1):
            norm = self._final_norm if number == len(self.layers) else None
            one = NativeLayers([layer], self._windows[number - 1 : number], norm)
            hidden = one(hidden, layout, bias, rotations)
            yield hidden


def _check_shapes(arrays: Arrays, geometry: LayerGeometry) -> None:
    """Check what native code assumes of the arrays, whose sizes it cannot see."""
    shapes = [arrays[f"{name}.weight"].shape for name in MAPS]
    (rows, width), _, _, (_, inner) = shapes
    heads, key_heads = geometry.heads, geometry.key_heads
    assert width % heads == 0 and heads % key_heads == 0
    assert rows == (heads + 2 * key_heads) * (width // heads)
    assert shapes[1:] == [(width, width), (inner * (1 + geometry.is_gated), width), (width, inner)]
    assert f"{NORMS[1]}.weight" in arrays
    assert f"{NORMS[0]}.weight" in arrays or geometry.norm_first
    for name in (*MAPS, *NORMS):
        for part in (f"{name}.weight", f"{name}.bias"):
            size = len(arrays[f"{name}.weight"]) if name in MAPS else width
            assert part not in arrays or len(arrays[part]) == size


def _copy_norm(norm: Norm) -> Norm:
    """A copy of the arrays, whose addresses stay valid if a parameter's memory changes."""
    weight, bias = norm
    return _copy(weight), None if bias is None else _copy(bias)


def _copy(values: NDArray[Any]) -> NDArray[np.float32]:
    return np.array(to_floats(values), np.float32, order="C")


def _parts_of(norms: Sequence[Norm | None]) -> list[NDArray[Any] | None]:
    return [part for norm in norms for part in norm or (None, None)]


def _num_bytes(norms: Sequence[Norm | None]) -> int:
    return sum(part.nbytes for part in _parts_of(norms) if part is not None)


def _address(values: NDArray[Any] | None) -> int | None:
    return None if values is None else values.ctypes.data
