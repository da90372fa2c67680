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
from collections.abc import Callable, Container, Iterator
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..literals import InferencePrecision
from ..model.cpu import LANES, in_whole_vectors
from ..model.device import dtype_of
from ..model.eight_bits import QuantizedLinear
from ..model.encoder import Encoder, FeedForward, Layer
from ..model.heads import MLMHead
from ..model.layers import ACTIVATIONS, Embeddings, Linear

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_ROWS = 2048  # of a block of the feed-forward layers

# The names that oneDNN's kernels have for activations: the operation and its algorithm.
_FUSED = {
    ACTIVATIONS["gelu"]: ("gelu", "none"),
    ACTIVATIONS["gelu_new"]: ("gelu", "tanh"),
    ACTIVATIONS["relu"]: ("relu", ""),
    ACTIVATIONS["silu"]: ("swish", ""),
    ACTIVATIONS["tanh"]: ("tanh", ""),
}


def frozen_form(network: ModuleT, precision: InferencePrecision = "fp32") -> ModuleT:
    """The network as inference runs it; call it in `torch.inference_mode()`.

    Forms are kept for as long as the network is, one for each precision, until an optimizer's step
    or any other change of the weights. (A change through `.data`, which PyTorch does not follow, is
    seen by one number of each tensor.)

    Args:
        network: any module; neither it nor its modes are changed.
        precision: what its encoders compute in.
    """
    dtype = dtype_of(precision, next(network.parameters()).device)
    kind = dtype, precision == "int8"
    with _lock:
        forms = _forms.setdefault(network, {})
        form = forms.get(kind)
        if form is None or not form.is_current():
            form = forms[kind] = _Form(network, *kind)
    assert isinstance(form.network, type(network))
    return form.network


class FrozenLinear(Linear):
    """`activation(x Wᵀ + b)` with weights that were cast, and packed, once."""

    dtype: torch.dtype
    ready: Tensor
    ready_bias: Tensor | None
    kernel: Any
    activation: Any
    fused: tuple[str, str]

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        if x.dtype is not self.dtype or not x.numel():  # a head may compute in float32
            result = super().forward(x)
        elif self.kernel is not None:
            name, algorithm = self.fused
            packed: Tensor = self.kernel(x, self.ready, self.ready_bias, name, [], algorithm)
            return packed
        else:
            result = F.linear(x, self.ready, self.ready_bias)
        return result if self.activation is None else self.activation(result)


class FeedForwardInBlocks(FeedForward):
    """The same in blocks of rows, which the activation finds in the cache."""

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"]
    ) -> Float[Tensor, "tokens hidden_size"]:
        parts = [self._of_rows(rows) for rows in torch.split(hidden, _ROWS)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _of_rows(self, rows: Tensor) -> Tensor:
        inner = self.intermediate(rows)
        result: Tensor = self.output(in_whole_vectors(self.activation, inner))
        return result


class _Form:
    """A frozen form, and what it was made of."""

    def __init__(self, network: nn.Module, dtype: torch.dtype | None, int8: bool) -> None:
        # The tables in which modules hold their parameters, buffers and submodules.
        self._held = [
            (table, name, held)
            for module in network.modules()
            for table in (module._parameters, module._buffers, module._modules)
            for name, held in table.items()
        ]
        tensors = [held for *_, held in self._held if isinstance(held, Tensor)]
        tracked = (tensor for tensor in tensors if not tensor.is_inference())  # has a version
        self._tensors = [(tensor, tensor._version, tensor.data_ptr()) for tensor in tracked]
        self._numbers = [(view, view[0]) for tensor in tensors for view in _one_number(tensor)]
        with torch.no_grad():
            self.network = _Freezing(network, dtype, int8).twin(network, dtype)

    def is_current(self) -> bool:
        """Whether the module still holds what the form was made of."""
        # Plain loops: this is done at each call, of a single short text too.
        for table, name, held in self._held:
            if table.get(name) is not held:
                return False
        for tensor, version, address in self._tensors:
            if tensor._version != version or tensor.data_ptr() != address:
                return False
        return all(view[0] == number for view, number in self._numbers)

    def is_of(self, tensors: Container[int]) -> bool:
        """Whether it was made of a tensor that is among those with these identities."""
        return any(id(tensor) in tensors for tensor, *_ in self._tensors)


def _one_number(tensor: Tensor) -> Iterator[NDArray[Any]]:
    """A view of a number in the middle of a tensor's memory, where NumPy can look into it."""
    known = tensor.is_cpu and tensor.dtype in (torch.float32, torch.float64)
    if known and tensor.is_contiguous() and tensor.numel():
        yield tensor.detach().view(-1)[tensor.numel() // 2 :][:1].numpy()


_forms: WeakKeyDictionary[nn.Module, dict[tuple[torch.dtype | None, bool], _Form]] = (
    WeakKeyDictionary()
)
_lock = Lock()


def _forget(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Drop the forms of what an optimizer has changed: its fused step raises no version."""
    if not _forms:
        return
    changed = {id(part) for group in optimizer.param_groups for part in group["params"]}
    with _lock:
        for network, forms in list(_forms.items()):
            if any(form.is_of(changed) for form in forms.values()):
                del _forms[network]


register_optimizer_step_post_hook(_forget)


class _Freezing:
    """Makes the twins of a network's modules, each once."""

    def __init__(self, network: nn.Module, dtype: torch.dtype | None, int8: bool) -> None:
        weight = next(network.parameters())
        self.quantized = {
            part
            for module in network.modules()
            if int8 and isinstance(module, Layer)
            for part in module.modules()
        }
        self.packs = weight.is_cpu and has_packed_kernels(dtype or weight.dtype)
        self.twins: dict[nn.Module, nn.Module] = {}

    def twin(self, module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
        """A module's twin.

        Args:
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
        elif type(module).forward is Linear.forward and module in self.quantized:
            QuantizedLinear.prepare(twin)
        elif type(module).forward is Linear.forward and (dtype is not None or self.packs):
            self._freeze(twin, dtype)
        return twin

    def _freeze(self, linear: nn.Module, dtype: torch.dtype | None) -> None:
        linear.__class__ = FrozenLinear
        assert isinstance(linear, FrozenLinear)
        weight, bias = linear.weight, linear.bias
        linear.dtype = dtype or weight.dtype
        linear.ready, linear.kernel = weight.detach().to(linear.dtype), None
        if self.packs:
            linear.ready = torch.ops.mkldnn._reorder_linear_weight(linear.ready)
            linear.kernel = torch.ops.mkldnn._linear_pointwise.default
        linear.ready_bias = None if bias is None else bias.detach().to(linear.dtype)
        linear.activation, linear.fused = None, ("none", "")

    def _fuse(self, twin: FeedForward) -> None:
        """Let the first linear map compute the activation too."""
        first, activation = twin.intermediate, twin.activation
        if twin.gated or activation not in _FUSED:
            return
        if isinstance(first, FrozenLinear) and first.kernel and _is_faster_alone(first, activation):
            twin.__class__ = FeedForwardInBlocks
            return
        if isinstance(first, FrozenLinear | QuantizedLinear):
            first.activation, twin.activation = activation, _unchanged
        if isinstance(first, FrozenLinear):
            first.fused = _FUSED[activation]


def _unchanged(x: Tensor) -> Tensor:
    return x


def _is_faster_alone(first: Linear, activation: Callable[[Tensor], Tensor]) -> bool:
    """Whether an activation takes less time after a map than in its kernel (docs/decisions.md)."""
    looked_up = activation is not ACTIVATIONS["relu"]  # by oneDNN, in tables
    whole = first.out_features % LANES == 0
    return looked_up and whole and not torch.cpu._is_avx512_supported()


def has_packed_kernels(dtype: torch.dtype) -> bool:
    """Whether oneDNN has kernels for packed weights of a dtype on this processor."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    if not (torch._C._has_mkldnn and torch.backends.mkldnn.enabled):
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32
