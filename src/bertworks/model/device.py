"""Devices, and networks without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..errors import BertworksError

_DRAWS = frozenset((Tensor.normal_, Tensor.uniform_))


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """The device of a name; "auto" is CUDA if there is one, else the CPU.

    Raises:
        BertworksError: the name is not auto, cpu, cuda or mps, or there is no such device.
    """
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind = name.partition(":")[0]
    if kind not in ("cpu", "cuda", "mps"):
        raise BertworksError(f"no device is called {name!r}", fix="Valid: auto, cpu, cuda, mps.")
    missing = (kind == "cuda" and not torch.cuda.is_available()) or (
        kind == "mps" and not torch.backends.mps.is_available()
    )
    if missing:
        raise BertworksError(f"there is no {kind} device on this machine", fix="Use auto or cpu.")
    return torch.device(name)


@contextmanager
def without_weights() -> Iterator[None]:
    """Build networks with shapes alone (on the device "meta"); their weights are loaded later."""
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    """Skips random draws.

    On the device "meta" they have no effect, but make PyTorch import its compiler: seconds, many
    times what it takes to map a checkpoint.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS:
            return args[0]
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
