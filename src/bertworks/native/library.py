"""Native code: layers in one call, for each instruction set, and parts of training.

For short texts, calling single operators takes longer than computing, and PyTorch needs about
seventeen of them for attention's formula. Products are of float32, bfloat16 or 8-bit integers; all
else is in float32. Native code is optional: without the library PyTorch's kernels are used. The
library is compiled when the package is built (`build_native.py`). It has kernels for several
instruction sets, and takes the best ones that the processor supports.
"""

from __future__ import annotations

import ctypes
import os
import warnings
import weakref
import zlib
from collections.abc import Callable
from contextlib import suppress
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import SettingsError

SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
LIBRARY = Path(__file__).with_name("native.so")
PANEL = 32  # outputs computed together
NORMS_OF_LAYER = 6  # weights and biases of three norms

_LINE = 64  # bytes of a cache line
_BLOCK = 16 * 2**20  # bytes of a block of arrays
_BITS = {"bf16": 1, "int8": 2, "fp32": 4, "training": 8}  # of `bertworks_kernels`
_VARIABLE = "BERTWORKS_NATIVE"


def is_enabled() -> bool:
    """Whether there is native code, for any processor, and the user has not disabled it."""
    return os.environ.get(_VARIABLE) != "0" and library() is not None


Precision: TypeAlias = Literal["fp32", "bf16", "int8"]
"""Of layers in native code."""
Kind: TypeAlias = Literal["fp32", "bf16", "int8", "training"]
"""A precision of layers; or "training", for attention, norms and losses in bfloat16."""


def has_kernels(kind: Kind) -> bool:
    """Whether there is native code that is faster than PyTorch on this processor.

    The environment variable `BERTWORKS_NATIVE=0` disables native code; the name of an instruction
    set, such as `avx2`, chooses its kernels.
    """
    code = library() if is_enabled() else None
    return code is not None and bool(code.bertworks_kernels() & _BITS[kind])


def is_fast_at_bfloat16() -> bool:
    """Whether native code multiplies bfloat16 at least as fast as float32 on this processor.

    AVX-512 on Intel's processors has the instructions, but does half as much with them. The choice
    of `BERTWORKS_NATIVE` counts, not what else the processor has: models without PyTorch and with
    it compute in the same precision.
    """
    is_slow = instruction_set() == "avx512bf16" and processor_vendor() == "GenuineIntel"
    return has_kernels("bf16") and not is_slow


@cache
def processor_vendor() -> str:
    """Return the processor's vendor as Linux names it; empty if unknown."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == "vendor_id":
                return value.strip()
    return ""


def instruction_set() -> str:
    """The instruction set whose kernels are used; empty without native code."""
    return library().bertworks_isa(-1).decode() if is_enabled() else ""


def _choose(code: Any) -> None:
    """Let a library use the instruction set that the environment variable names.

    Raises:
        SettingsError: the processor does not have it.
    """
    value = os.environ.get(_VARIABLE, "")
    name = "" if value in ("0", "1") else value
    if code.bertworks_choose(name.encode()):
        raise SettingsError(
            f"this processor has no kernels for {name}",
            where=f"environment variable {_VARIABLE}",
            fix="Unset it: the best ones are chosen.",
        )


class Map(Structure):
    """The struct `matrix` of native.h."""

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


class Layer(Structure):
    """The struct `layer` of native.h."""

    _fields_ = (
        ("maps", Map * 4),
        ("norms", c_void_p * NORMS_OF_LAYER),
        *((name, c_int64) for name in ("heads", "key_heads", "activation", "precision")),
        *((name, c_int64) for name in ("width", "window")),
        ("epsilon", c_float),
        *((name, c_int32) for name in ("has_norms_first", "has_rms_norms", "is_gated")),
    )


class Sequences(Structure):
    """The struct `sequences` of native.h."""

    _fields_ = (
        ("edges", c_void_p),
        ("sequences", c_int64),
        ("bias", c_void_p),
        ("bias_length", c_int64),
        ("rotations", c_void_p * 2),
    )


class EmbeddingTables(Structure):
    """The struct `embeddings` of native.h."""

    _fields_ = (
        ("tables", c_void_p * 3),
        ("norm", c_void_p * 2),
        ("entries", c_int64 * 3),
        ("width", c_int64),
        ("offset", c_int64),
        ("epsilon", c_float),
        ("is_fp32", c_int32),
        ("has_rms_norm", c_int32),
    )


class Attention(Structure):
    """The struct `attention` of attention.h."""

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
        ("padding", c_int64),
        ("key_heads", c_int64),
        ("window", c_int64),
    )


class AttentionFp32(Structure):
    """The struct `attention_fp32` of native.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("query", "key", "value")),
        ("strides", c_int64 * 3),
        *((name, c_void_p) for name in ("context", "edges", "key_edges")),
        *((name, c_int64) for name in ("sequences", "heads", "size")),
        ("bias", c_void_p),
        ("bias_length", c_int64),
        *((name, c_int64) for name in ("padding", "key_heads", "window")),
    )


class AddAndNorm(Structure):
    """The struct `add_and_norm` of norms_and_losses.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "residual", "sums", "result", "means", "inverses")),
        *((name, c_void_p) for name in ("scale", "shift")),
        ("rows", c_int64),
        ("width", c_int64),
        ("epsilon", c_float),
        ("kept", c_float),
        ("below", c_uint32),
        ("seed", c_uint32),
        *((name, c_void_p) for name in ("gradient", "d_x", "d_residual", "d_scale", "d_shift")),
    )


class Entropy(Structure):
    """The struct `entropy` of norms_and_losses.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("logits", "bias", "labels", "losses", "inverses")),
        *((name, c_int64) for name in ("rows", "labelled", "classes")),
    )


class PiecesTable(Structure):
    """The struct `pieces_table` of wordpiece.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("bytes", "starts", "ids", "slots")),
        *((name, c_int64) for name in ("mask", "pieces", "longest")),
    )


class WordPiece(Structure):
    """The struct `wordpiece` of wordpiece.c."""

    _fields_ = (
        ("first", PiecesTable),
        ("later", PiecesTable),
        *((name, c_int64) for name in ("unknown", "drops_unknown", "lowercase", "longest_word")),
    )


@cache
def library() -> Any:
    """Return the compiled library; None if it is missing or was compiled from other sources."""
    if not LIBRARY.exists():
        return None
    try:
        code = ctypes.CDLL(str(LIBRARY))
    except OSError as error:  # for another kind of machine, or not executable there
        warnings.warn(f"native code cannot be loaded: {error}", RuntimeWarning, stacklevel=2)
        return None
    code.bertworks_source.restype = c_uint32
    if code.bertworks_source() != zlib.crc32(b"".join(map(Path.read_bytes, SOURCES))):
        what = f"{LIBRARY} was compiled from other source files, and is not used"
        warnings.warn(f"{what}. Run: python build_native.py", RuntimeWarning, stacklevel=2)
        return None
    code.bertworks_choose.argtypes = (c_char_p,)
    code.bertworks_choose.restype = c_int
    code.bertworks_isa.argtypes = (c_int64,)
    code.bertworks_isa.restype = c_char_p
    _choose(code)
    code.bertworks_kernels.restype = c_int
    code.bertworks_pack.argtypes = (
        *(c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p, c_int64),
    )
    code.bertworks_pack.restype = None
    code.bertworks_layers.argtypes = (
        *(POINTER(Layer), c_int64, c_void_p, c_void_p, POINTER(Sequences), c_int64),
    )
    code.bertworks_layers.restype = c_int
    code.bertworks_embeddings.argtypes = (
        *(POINTER(EmbeddingTables), c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int64),
    )
    code.bertworks_embeddings.restype = c_int
    for means in (code.bertworks_means, code.bertworks_means_fp32):
        means.argtypes = (c_void_p, c_void_p, *(c_int64,) * 3, c_void_p, c_int64)
        means.restype = None
    code.bertworks_attention_fp32.argtypes = (POINTER(AttentionFp32), c_int64)
    code.bertworks_attention_fp32.restype = c_int
    code.bertworks_linear.argtypes = (
        *(c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64),
    )
    code.bertworks_linear.restype = None
    code.bertworks_function.argtypes = (c_void_p, c_int64, c_int64, c_int64, c_void_p)
    code.bertworks_function.restype = None
    code.bertworks_wordpiece_fill.argtypes = (POINTER(PiecesTable),)
    code.bertworks_wordpiece_fill.restype = None
    code.bertworks_wordpiece.argtypes = (
        *(POINTER(WordPiece), c_char_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p),
        c_int64,
    )
    code.bertworks_wordpiece.restype = c_int64
    code.bertworks_mean_of_rows.argtypes = (
        *(c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_void_p),
        c_int64,
    )
    code.bertworks_mean_of_rows.restype = c_int
    if hasattr(code, "bertworks_attention"):  # not compiled for ARM64
        _declare_training(code)
    return code


def _declare_training(code: Any) -> None:
    code.bertworks_attention.argtypes = (
        *(POINTER(Attention), c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p),
    )
    code.bertworks_attention.restype = c_int
    code.bertworks_add_and_norm_items.argtypes = (c_int64,)
    code.bertworks_add_and_norm_items.restype = c_int64
    code.bertworks_add_and_norm.argtypes = (POINTER(AddAndNorm), c_int64, c_void_p)
    code.bertworks_add_and_norm.restype = None
    code.bertworks_entropy.argtypes = (POINTER(Entropy), c_int64, c_void_p)
    code.bertworks_entropy.restype = None
    three = (c_void_p, c_void_p, c_void_p)
    code.bertworks_gelu.argtypes = (*three, c_int64, c_int64, c_void_p)
    code.bertworks_gelu.restype = None


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return a new array that begins where a cache line does."""
    count = np.dtype(dtype).itemsize
    for size in shape:
        count *= size
    memory = np.empty(count + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + count].view(dtype).reshape(shape)


class Blocks:
    """Memory for arrays that are kept: parts of blocks; a block is freed with its last array.

    NumPy asks the system to map blocks in huge pages. To map the weights of a network page by page
    takes as long as to pack them.
    """

    def __init__(self) -> None:
        self._lock, self._end = Lock(), 0
        self._block: Callable[[], NDArray[np.uint8] | None] = lambda: None

    def empty(self, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return a new vector that begins where a cache line does."""
        count = np.dtype(dtype).itemsize * size
        with self._lock:
            block = self._block()
            if block is None or self._end + count > len(block):
                block = np.empty(max(count, _BLOCK) + _LINE, np.uint8)
                self._block, self._end = weakref.ref(block), -block.ctypes.data % _LINE
            start = self._end
            self._end = start + -(-count // _LINE) * _LINE
        return block[start : start + count].view(dtype)
