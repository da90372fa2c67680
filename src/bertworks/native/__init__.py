"""A layer of BERT in one call, by native code (`layer.c`), where the processor has AVX-512.

Operators one by one cost a short text more than its numbers do, and attention's formula takes
PyTorch some seventeen of them. This computes a whole layer: bfloat16 or 8-bit products, all else in
float32. It is an addition: without the library, or on another processor, inference takes PyTorch's
kernels. The library is compiled when the package is built (`build_native.py`).
"""

from __future__ import annotations

import ctypes
import os
import warnings
import zlib
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int64, c_uint32, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from ..packed import Layout

SOURCE = Path(__file__).with_name("layer.c")
LIBRARY = SOURCE.with_suffix(".so")
PANEL = 32  # outputs that are computed together: widths and head sizes are multiples of it

ACTIVATIONS = {"gelu": 0, "gelu_new": 1, "relu": 2}
"""Those that it computes, and their numbers there."""

_BFLOAT16, _EIGHT_BITS = 1, 2


def has_kernels(precision: Literal["bf16", "int8"]) -> bool:
    """Whether there is native code that this processor runs faster than PyTorch's.

    Where it has AMX, PyTorch's products are several times as fast as those of AVX-512. The
    environment variable `BERTWORKS_NATIVE=0` says no everywhere.
    """
    needed = _BFLOAT16 if precision == "bf16" else _EIGHT_BITS
    library = None if os.environ.get("BERTWORKS_NATIVE") == "0" else _library()
    if library is None or torch.cpu._is_amx_tile_supported():
        return False
    return bool(library.bertworks_kernels() & needed)


class _Map(Structure):
    """`matrix` of layer.c."""

    _fields_ = (
        ("packed", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("start", c_void_p),
        ("slope", c_void_p),
    )


class _Layer(Structure):
    """`layer` of layer.c."""

    _fields_ = (
        ("maps", _Map * 4),
        ("norms", c_void_p * 4),
        ("epsilon", c_float * 2),
        ("heads", c_int64),
        ("activation", c_int64),
        ("is_int8", c_int64),
    )


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
    def of_weight(
        weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, " outputs"]
    ) -> NativeMap:
        """A map of bfloat16 products."""
        packed = _packed(weight.detach().to(torch.bfloat16), group=2)
        return NativeMap(packed, _floats(bias), weight.shape[1])

    @staticmethod
    def of_codes(
        codes: Int8[Tensor, "outputs inputs"],
        scales: Float[Tensor, " outputs"],
        bias: Float[Tensor, " outputs"],
        line: tuple[Float[Tensor, " inputs"], Float[Tensor, " inputs"]] | None = None,
    ) -> NativeMap:
        """A map of 8-bit products.

        Args:
            codes, scales: the matrix is `codes · scales`, row by row.
            line: the code of an input `x` is `start + slope · x`; if left out, each row of inputs
                has a scale that is found when it is computed.
        """
        start, slope = (None, None) if line is None else map(_floats, line)
        return NativeMap(
            _packed(codes, group=4),
            _floats(bias),
            codes.shape[1],
            _floats(scales),
            (128 * codes.sum(1)).to(torch.int32),
            start,
            slope,
        )

    def described(self) -> _Map:
        """What the native code is given; this must outlive it."""
        values = (self.scales, self.offsets, self.start, self.slope)
        return _Map(
            self.packed.data_ptr(),
            self.bias.data_ptr(),
            self.inputs,
            len(self.bias),
            *(None if value is None else value.data_ptr() for value in values),
        )


class NativeLayer:
    """A layer: `self(hidden, layout)`.

    Args:
        maps: four: query, key and value; attention's output; the two feed-forward maps.
        norms: weight, bias and epsilon of two: attention's, and the feed-forward layer's.
        heads: attention heads.
        activation: a key of `ACTIVATIONS`.
    """

    def __init__(
        self,
        maps: Sequence[NativeMap],
        norms: Sequence[tuple[Tensor, Tensor, float]],
        heads: int,
        activation: str,
    ) -> None:
        library = _library()
        assert library is not None
        self._run, self._parallel = library.bertworks_layer, _parallel()
        self._norms = [_floats(part) for weight, bias, _ in norms for part in (weight, bias)]
        self._maps = maps
        self._layer = _Layer(
            (_Map * 4)(*(one.described() for one in maps)),
            (c_void_p * 4)(*(part.data_ptr() for part in self._norms)),
            (c_float * 2)(*(epsilon for *_, epsilon in norms)),
            heads,
            ACTIVATIONS[activation],
            maps[0].scales is not None,
        )

    def __call__(
        self, hidden: Float[Tensor, "tokens hidden_size"], layout: Layout
    ) -> Float[Tensor, "tokens hidden_size"]:
        """The layer's output, bfloat16 as `hidden`; rows after the last sequence are zeros.

        Raises:
            MemoryError: there is no room for what lies between.
        """
        assert hidden.dtype is torch.bfloat16 and hidden.is_contiguous()
        edges = layout.cu_seqlens
        last = layout.groups[-1].tokens.stop
        result = torch.empty_like(hidden)
        if last < len(hidden):
            result[last:].zero_()
        threads = torch.get_num_threads()
        failed = self._run(
            byref(self._layer),
            hidden.data_ptr(),
            result.data_ptr(),
            edges.data_ptr(),
            len(edges) - 1,
            threads,
            self._parallel,
        )
        if failed:
            raise MemoryError("no memory for a layer of the encoder")
        return result


@cache
def _library() -> Any:
    """The compiled library, if there is one of this source."""
    if not LIBRARY.exists():
        return None
    library = ctypes.CDLL(str(LIBRARY))
    library.bertworks_source.restype = c_uint32
    if library.bertworks_source() != zlib.crc32(SOURCE.read_bytes()):
        what = f"{LIBRARY} was compiled from another layer.c, and is not used"
        warnings.warn(f"{what}. Run: python build_native.py", RuntimeWarning, stacklevel=2)
        return None
    library.bertworks_kernels.restype = c_int
    library.bertworks_pack.argtypes = (c_void_p, c_int64, c_int64, c_int64, c_void_p)
    library.bertworks_pack.restype = None
    pointers = (POINTER(_Layer), c_void_p, c_void_p, c_void_p)
    library.bertworks_layer.argtypes = (*pointers, c_int64, c_int64, c_void_p)
    library.bertworks_layer.restype = c_int
    return library


@cache
def _parallel() -> int | None:
    """The address of what runs a function in PyTorch's threads, if it has OpenMP's."""
    torch_library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
    try:
        found = torch_library.GOMP_parallel  # of libgomp, or of another that speaks for it
    except AttributeError:
        return None
    return ctypes.cast(found, c_void_p).value


def _packed(rows: Tensor, group: int) -> Tensor:
    """Rows of 2- or 1-byte numbers in panels, `group` of which are one operand of 32 bits."""
    outputs, inputs = rows.shape
    rows = rows.contiguous()
    packed = torch.empty(-(-outputs // PANEL) * PANEL * inputs, dtype=rows.dtype)
    _library().bertworks_pack(
        rows.data_ptr(), outputs, inputs // group, inputs * rows.itemsize, packed.data_ptr()
    )
    return packed


def _floats(values: Tensor) -> Tensor:
    return values.detach().float().contiguous()
