"""Native code for processors with AVX-512: a layer in one call, and attention in training.

Operators one by one cost a short text more than its numbers do, and attention's formula takes
PyTorch some seventeen of them. Products are of bfloat16 or of 8-bit numbers, all else is in
float32. It is an addition: without the library, or on another processor, PyTorch's kernels compute.
The library is compiled when the package is built (`build_native.py`).
"""

from __future__ import annotations

import ctypes
import os
import warnings
import zlib
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int8
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..packed import Layout

SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
LIBRARY = Path(__file__).with_name("native.so")
PANEL = 32  # outputs that are computed together: widths and head sizes are multiples of it

ACTIVATIONS = {"gelu": 0, "gelu_new": 1, "relu": 2}
"""Those that it computes, and their numbers there."""

_BFLOAT16, _EIGHT_BITS = 1, 2
_MOST_TOKENS = 1 << 16  # of a sequence: dropout numbers a token by 16 bits


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


def can_attend(head_size: int, longest: int) -> bool:
    """Whether `attention` computes heads of a size for sequences of up to so many tokens."""
    return head_size % PANEL == 0 and longest < _MOST_TOKENS and has_kernels("bf16")


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


class _Attention(Structure):
    """`attention` of attention.h."""

    _fields_ = (
        ("qkv", c_void_p),
        ("context", c_void_p),
        ("heads", c_int64),
        ("size", c_int64),
        ("logs", c_void_p),
        ("tokens", c_int64),
        ("below", c_uint32),
        ("kept", c_float),
        ("seed", c_uint64),
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


class _AttentionFunction(torch.autograd.Function):
    """Attention of sequences laid end to end; backward computes the weights again."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, layout: Layout, heads: int, dropout: float) -> Tensor:
        rows, width = len(qkv), qkv.shape[1] // 3
        context = qkv.new_empty(rows, width)
        logs = torch.empty(heads, rows)
        seed = int(torch.empty((), dtype=torch.int64).random_()) if dropout else 0
        # Dropout is rounded to 2**-32 of itself.
        below, kept = round(dropout * 2**32), 1 / (1 - dropout)
        ctx.settings = heads, width // heads, logs.data_ptr(), rows, below, kept, seed
        ctx.layout, ctx.logs = layout, logs
        _attend(qkv, context, ctx.settings, layout, None, context)
        ctx.save_for_backward(qkv, context)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, context = ctx.saved_tensors
        result = torch.empty_like(qkv)
        _attend(qkv, context, ctx.settings, ctx.layout, gradient.contiguous(), result)
        return result, None, None, None


_attention: Callable[..., Tensor] = _AttentionFunction.apply


def attention(
    qkv: Float[Tensor, "tokens three_hidden_sizes"], layout: Layout, heads: int, dropout: float
) -> Float[Tensor, "tokens hidden_size"]:
    """Each token's context: softmax(Q Kᵀ / √d) V within its sequence, head by head.

    Args:
        qkv: bfloat16 queries, then keys, then values of all heads; rows after the last sequence
            give zeros.
        layout: where the sequences are, of fewer than 65,536 tokens each.
        heads: how many; their size is a multiple of `PANEL`.
        dropout: the probability that a weight is dropped, drawn from PyTorch's generator.

    Raises:
        MemoryError: there is no room for what lies between.
    """
    return _attention(qkv, layout, heads, dropout)


def _attend(
    qkv: Tensor,
    context: Tensor,
    settings: tuple[Any, ...],
    layout: Layout,
    gradient: Tensor | None,
    result: Tensor,
) -> None:
    """Fill `result`: the context or, given its gradient, the gradient of `qkv`."""
    assert qkv.dtype is torch.bfloat16 and qkv.is_contiguous()
    result[layout.groups[-1].tokens.stop :].zero_()
    failed = _library().bertworks_attention(
        _Attention(qkv.data_ptr(), context.data_ptr(), *settings),
        layout.cu_seqlens.data_ptr(),
        len(layout.cu_seqlens) - 1,
        None if gradient is None else gradient.data_ptr(),
        result.data_ptr(),
        torch.get_num_threads(),
        _parallel(),
    )
    if failed:
        raise MemoryError("no memory for the attention of a layer")


@cache
def _library() -> Any:
    """The compiled library, if there is one of this source."""
    if not LIBRARY.exists():
        return None
    library = ctypes.CDLL(str(LIBRARY))
    library.bertworks_source.restype = c_uint32
    if library.bertworks_source() != zlib.crc32(b"".join(map(Path.read_bytes, SOURCES))):
        what = f"{LIBRARY} was compiled from other files than are here, and is not used"
        warnings.warn(f"{what}. Run: python build_native.py", RuntimeWarning, stacklevel=2)
        return None
    library.bertworks_kernels.restype = c_int
    library.bertworks_pack.argtypes = (c_void_p, c_int64, c_int64, c_int64, c_void_p)
    library.bertworks_pack.restype = None
    library.bertworks_layer.argtypes = (
        *(POINTER(_Layer), c_void_p, c_void_p, c_void_p, c_int64),
        *(c_int64, c_void_p),
    )
    library.bertworks_layer.restype = c_int
    library.bertworks_attention.argtypes = (
        *(POINTER(_Attention), c_void_p, c_int64, c_void_p, c_void_p),
        *(c_int64, c_void_p),
    )
    library.bertworks_attention.restype = c_int
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
