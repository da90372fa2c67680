"""The frozen form of a network: what inference runs, made once from the module that is trained.

    module (trained, shared, never changed here) ─► frozen form for one precision ─► answers

A form is a second tree of the same modules in evaluation mode. Its linear maps hold their weights
in the form's dtype, laid out for oneDNN's kernels where the processor has them, with the activation
of the feed-forward layers in the same kernel; everything else is shared with the module. Nothing in
a form changes once it is made, so threads may share it, and may use forms of several precisions at
once. A form whose module has other weights by now is replaced at its next use.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from threading import Lock
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..literals import Precision
from ..model.embeddings import Embeddings
from ..model.encoder import Encoder, FeedForward
from ..model.heads import MLMHead
from ..model.layers import ACTIVATIONS, Linear
from ..model.precision import dtype_of

ModuleT = TypeVar("ModuleT", bound=nn.Module)

# The names that oneDNN's kernels have for activations: the operation and its algorithm.
_FUSED = {
    ACTIVATIONS["gelu"]: ("gelu", "none"),
    ACTIVATIONS["gelu_new"]: ("gelu", "tanh"),
    ACTIVATIONS["relu"]: ("relu", ""),
    ACTIVATIONS["silu"]: ("swish", ""),
    ACTIVATIONS["tanh"]: ("tanh", ""),
}


def frozen_form(network: ModuleT, precision: Precision = "fp32") -> ModuleT:
    """The network as inference runs it; call it in `torch.inference_mode()`.

    Forms are kept for as long as the network is, one for each precision. Weights that are changed
    in place, replaced or loaded are seen; a change through `.data` is not, as PyTorch itself does
    not see it.

    Args:
        network: any module; neither it nor its modes are changed.
        precision: what its encoders compute in.
    """
    dtype = dtype_of(precision, next(network.parameters()).device)
    with _lock:
        forms = _forms.setdefault(network, {})
        form = forms.get(dtype)
        if form is None or not form.is_current():
            form = forms[dtype] = _Form.of(network, dtype)
    assert isinstance(form.network, type(network))
    return form.network


def forget_forms(network: nn.Module) -> None:
    """Free the forms of a network whose weights are about to change."""
    with _lock:
        _forms.pop(network, None)


class FrozenLinear(Linear):
    """`activation(x Wᵀ + b)` with weights that were cast, and packed, once."""

    dtype: torch.dtype
    ready: Tensor
    ready_bias: Tensor | None
    is_packed: bool
    activation: Any
    fused: tuple[str, str]

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        if x.dtype is not self.dtype or not x.numel():  # a head may compute in float32
            result = super().forward(x)
        elif self.is_packed:
            name, algorithm = self.fused
            packed: Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self.ready, self.ready_bias, name, [], algorithm
            )
            return packed
        else:
            result = F.linear(x, self.ready, self.ready_bias)
        return result if self.activation is None else self.activation(result)


class _Watched(NamedTuple):
    """A parameter, buffer or submodule as it was, and the table in which its module holds it."""

    table: dict[str, Any]
    name: str
    held: Any
    version: int
    address: int


class _Form(NamedTuple):
    """A frozen form, and what it was made of."""

    network: nn.Module
    made_of: list[_Watched]

    @classmethod
    def of(cls, network: nn.Module, dtype: torch.dtype | None) -> _Form:
        made_of = list(_watched(network))
        with torch.no_grad():
            return cls(_Freezing(network, dtype).twin(network, dtype), made_of)

    def is_current(self) -> bool:
        """Whether the module still holds what the form was made of."""
        return all(
            table.get(name) is held and (version, address) == _state(held)
            for table, name, held, version, address in self.made_of
        )


_forms: WeakKeyDictionary[nn.Module, dict[torch.dtype | None, _Form]] = WeakKeyDictionary()
_lock = Lock()


def _watched(network: nn.Module) -> Iterator[_Watched]:
    for module in network.modules():
        for table in (module._parameters, module._buffers, module._modules):
            for name, held in table.items():
                yield _Watched(table, name, held, *_state(held))


def _state(held: Any) -> tuple[int, int]:
    """What changes when a tensor does; nothing of a module, whose tensors are looked at."""
    if not isinstance(held, Tensor):
        return 0, 0
    return 0 if held.is_inference() else held._version, held.data_ptr()


class _Freezing:
    """Makes the twins of a network's modules, each once."""

    def __init__(self, network: nn.Module, dtype: torch.dtype | None) -> None:
        weight = next(network.parameters())
        self.dtype = dtype
        self.packs = weight.is_cpu and _has_packed_kernels(dtype or weight.dtype)
        self.twins: dict[nn.Module, nn.Module] = {}

    def twin(self, module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
        """A module's twin.

        Args:
            module: of any class.
            dtype: what its linear maps compute in; None for that of their weights.
        """
        if module in self.twins:
            return self.twins[module]
        if isinstance(module, Embeddings):
            dtype = None  # see there
        twin: nn.Module = object.__new__(type(module))
        twin.__dict__.update(module.__dict__, training=False)
        twin.__dict__["_modules"] = {
            name: None if part is None else self.twin(part, dtype)
            for name, part in module._modules.items()
        }
        self.twins[module] = twin
        if isinstance(twin, Encoder):
            twin.compute_dtype = dtype
        elif isinstance(twin, MLMHead) and dtype is not None:
            twin.__dict__["_parameters"] = {
                name: None if part is None else nn.Parameter(part.to(dtype), requires_grad=False)
                for name, part in module._parameters.items()
            }
        elif isinstance(twin, FeedForward):
            self._fuse(twin)
        elif type(module).forward is Linear.forward and (dtype is not None or self.packs):
            self._freeze(twin, dtype)
        return twin

    def _freeze(self, linear: nn.Module, dtype: torch.dtype | None) -> None:
        linear.__class__ = FrozenLinear
        assert isinstance(linear, FrozenLinear)
        weight, bias = linear.weight, linear.bias
        linear.dtype = dtype or weight.dtype
        linear.is_packed = self.packs
        ready = weight.detach().to(linear.dtype)
        if linear.is_packed:
            ready = torch.ops.mkldnn._reorder_linear_weight(ready)
        linear.ready = ready
        linear.ready_bias = None if bias is None else bias.detach().to(linear.dtype)
        linear.activation, linear.fused = None, ("none", "")

    def _fuse(self, twin: FeedForward) -> None:
        """Let the first linear map compute the activation too."""
        first, activation = twin.intermediate, twin.activation
        if isinstance(first, FrozenLinear) and not twin.gated and activation in _FUSED:
            first.activation, first.fused = activation, _FUSED[activation]
            twin.activation = _unchanged


def _unchanged(x: Tensor) -> Tensor:
    return x


def _has_packed_kernels(dtype: torch.dtype) -> bool:
    """Whether oneDNN has kernels for packed weights of a dtype on this processor."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    if not (torch._C._has_mkldnn and torch.backends.mkldnn.enabled):
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32
