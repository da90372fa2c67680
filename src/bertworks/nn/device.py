"""Devices, and the precision to compute in: float32, or bfloat16 if the device is fast at it."""

from __future__ import annotations

import math
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import BertworksError, BertworksWarning, SettingsError
from ..native import library
from ..settings.literals import InferencePrecision
from .encoder import Encoder

_FIRST_FLOAT16_CAPABILITY = (7, 0)  # Volta: the first with fast products of matrices
_FIRST_TF32_CAPABILITY = (8, 0)  # Ampere
_RANDOM_INITIALIZERS = frozenset((Tensor.normal_, Tensor.uniform_))


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """Return the device with this name; "auto" is CUDA if available, else the CPU.

    Raises:
        BertworksError: the name is not auto, cpu, cuda, cuda:1, … or mps, or there is no such
            device.
    """
    if name == "auto":
        return fastest_device()
    kind, _, index = str(name).partition(":")
    is_known = kind in ("cpu", "cuda", "mps") and (not index or index.isdecimal())
    if not is_known and isinstance(name, str):
        raise BertworksError(f"unknown device {name!r}", fix="Valid: auto, cpu, cuda, mps.")
    missing = (kind == "cuda" and not torch.cuda.is_available()) or (
        kind == "mps" and not torch.backends.mps.is_available()
    )
    if missing:
        raise BertworksError(f"there is no {kind} device on this machine", fix="Use auto or cpu.")
    if kind == "cuda" and index and int(index) >= (count := torch.cuda.device_count()):
        raise BertworksError(
            f"there is no device {name} on this machine",
            fix=f"It has {count}, counted from cuda:0.",
        )
    return torch.device(name)


def fastest_device() -> torch.device:
    """Return the device that "auto" means: CUDA if available, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def without_weights() -> Iterator[None]:
    """Build networks without weights (on the device "meta"), which are loaded later."""
    with torch.device("meta"), _WithoutInitialization():
        yield


class _WithoutInitialization(TorchFunctionMode):
    """Skip random initialisation.

    On the device "meta" it has no effect, but makes PyTorch import its compiler. This takes
    seconds, much longer than mapping a checkpoint.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RANDOM_INITIALIZERS:
            return args[0]
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def has_bfloat16(device: torch.device | str) -> bool:
    """Whether a device has bfloat16 instructions; without them, bfloat16 is twenty times slower."""
    if torch.device(device).type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if torch.device(device).type != "cpu":
        return False
    if platform.machine().lower() in ("x86_64", "amd64"):
        supported = (torch.cpu._is_avx512_bf16_supported(), torch.cpu._is_amx_tile_supported())
        return any(supported)
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def is_fast_at_bfloat16(device: torch.device | str) -> bool:
    """Whether a device multiplies bfloat16 matrices at least as fast as float32 ones.

    On a CPU native code decides, if there is any; if not, it is as `library.is_fast_at_bfloat16`
    says of PyTorch's kernels.
    """
    if torch.device(device).type == "cpu":
        if library.has_kernels("fp32"):
            return library.is_fast_at_bfloat16()
        if library.processor_vendor() == "GenuineIntel":
            return torch.cpu._is_amx_tile_supported()
    return has_bfloat16(device)


def dtype_of(precision: InferencePrecision, device: torch.device | str) -> torch.dtype | None:
    """Return the dtype to compute in; None: the dtype of the parameters.

    With int8, it is the dtype of everything that is not computed in int8.

    Raises:
        SettingsError: the device cannot compute in this precision.
    """
    check_precision(precision, device)
    if precision == "fp16":
        return torch.float16
    is_automatic = precision in ("auto", "int8")
    if precision in ("fp32", "tf32") or (is_automatic and not is_fast_at_bfloat16(device)):
        return None
    if not has_bfloat16(device):
        warnings.warn(
            "precision=bf16: this device has no bfloat16 instructions, and is many times "
            "slower than with fp32; precision=auto chooses",
            BertworksWarning,
            stacklevel=2,
        )
    return torch.bfloat16


def check_precision(precision: InferencePrecision, device: torch.device | str) -> None:
    """Raise `SettingsError` if a device cannot compute in a precision, or only by emulation."""
    is_cuda = torch.device(device).type == "cuda"
    if precision == "int8" and torch.device(device).type != "cpu":
        raise SettingsError(
            f"precision=int8 is for CPUs, not for {torch.device(device).type}",
            fix="Use auto, which is bf16 on most cards; or device=cpu.",
        )
    if precision in ("fp16", "tf32") and not is_cuda:
        raise SettingsError(
            f"precision={precision} is for CUDA, not for {torch.device(device).type}",
            fix="Use precision=bf16 or fp32, or auto, which chooses.",
        )
    if precision == "bf16" and is_cuda and not has_bfloat16(device):
        raise SettingsError(
            "precision=bf16: this card has no bfloat16 (cards since NVIDIA's Ampere do)",
            fix="Use precision=fp16 or fp32; auto chooses.",
        )
    if precision == "tf32" and torch.cuda.get_device_capability(device) < _FIRST_TF32_CAPABILITY:
        raise SettingsError(
            "precision=tf32: this card has no TF32 (cards since NVIDIA's Ampere do)",
            fix="Use precision=fp32 or fp16.",
        )


def resolve_auto(
    device: torch.device | str, *, training: bool = False
) -> Literal["fp32", "bf16", "fp16"]:
    """Return the precision that "auto" means on a device.

    Args:
        training: whether a network is trained: then float16, with a scaled loss, is chosen on cards
            that multiply it fast and have no bfloat16. In inference a network may overflow.
    """
    if dtype_of("auto", device) is not None:
        return "bf16"
    is_cuda = training and torch.device(device).type == "cuda"
    is_fast = is_cuda and torch.cuda.get_device_capability(device) >= _FIRST_FLOAT16_CAPABILITY
    return "fp16" if is_fast else "fp32"


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity.

    A sum of finite numbers is finite unless it overflows, and takes one pass without a copy. Only
    if it is not finite, each number is checked.
    """
    if not tensor.is_floating_point():
        return True
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


class _Tf32Products:
    """PyTorch's setting of float32 products on CUDA, which all threads share."""

    def __init__(self) -> None:
        self._lock, self._num_blocks, self._usual = Lock(), 0, ""

    def __enter__(self) -> None:
        matmul = torch.backends.cuda.matmul
        with self._lock:
            if not self._num_blocks:
                self._usual, matmul.fp32_precision = matmul.fp32_precision, "tf32"
            self._num_blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_blocks -= 1
            if not self._num_blocks:
                torch.backends.cuda.matmul.fp32_precision = self._usual


_tf32_products = _Tf32Products()


def tf32_products(is_on: bool) -> AbstractContextManager[None]:
    """If `is_on`, let products of float32 matrices on CUDA round their factors to TF32.

    PyTorch has one setting for all threads: while the block of one runs, products of the others
    are rounded too. After the last block the setting is what it was before the first.
    """
    return _tf32_products if is_on else nullcontext()


@contextmanager
def autocast_to(network: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Make every encoder compute in a dtype until the block ends; parameters keep their dtype."""
    encoders = [module for module in network.modules() if isinstance(module, Encoder)]
    previous_dtypes = [encoder.compute_dtype for encoder in encoders]
    for encoder in encoders:
        encoder.compute_dtype = dtype
    try:
        yield
    finally:
        for encoder, previous in zip(encoders, previous_dtypes, strict=True):
            encoder.compute_dtype = previous
