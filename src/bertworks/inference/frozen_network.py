"""The frozen form of a network, which inference runs; made once from the trainable module.

    module (trainable, shared, never changed here) ─► frozen form for one precision ─► outputs

A form is a second tree of the same modules, in evaluation mode. Native code computes its layers
where possible (`frozen_native.py`). Otherwise its linear maps hold their weights in the form's
dtype, packed for oneDNN's kernels if the processor supports these, with the activation of the
feed-forward layers in the same kernel. Everything else is shared with the module. A form never
changes, so threads may share it, and may use forms of several precisions at the same time. If the
weights of the module have changed, the form is replaced at its next use.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import chain
from operator import attrgetter, is_
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from numpy import ndarray
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..nn.device import dtype_of
from ..nn.embeddings import Embeddings
from ..nn.encoder import Encoder
from ..nn.encoder_layers import FeedForward, Layer
from ..nn.heads import MLMHead
from ..nn.layers import GroupedLinear, Linear, OutputLinear
from ..nn.quantized import CalibratedLinear, QuantizedLinear
from ..settings.literals import InferencePrecision
from .frozen_layers import (
    FUSED_ACTIVATIONS,
    ORDERED_SUMS,
    FrozenFeedForward,
    FrozenGroupedLinear,
    FrozenLayer,
    FrozenLinear,
    FrozenMLMHead,
    FrozenOutputLinear,
    has_packed_kernels,
    identity,
    is_faster_separate,
)
from .frozen_native import FrozenNativeEncoder, FrozenNativeLayer, native_layers
from .module_copies import copy_module

ModuleT = TypeVar("ModuleT", bound=nn.Module)
_version = attrgetter("_version")
_END = object()


def frozen_form(
    network: ModuleT, precision: InferencePrecision = "fp32", deterministic: bool = False
) -> ModuleT:
    """Return the frozen form of a network; call it in `torch.inference_mode()`.

    Forms are kept as long as the network exists, one for each precision, until an optimizer step or
    any other change of the weights. (PyTorch does not track changes through `.data`; they are
    detected by comparing one number of each tensor.)

    Args:
        network: any module; neither its weights nor its modes change.
        precision: the precision of its encoders.
        deterministic: compute the same bits for a row whatever the other rows are, even if the
            bfloat16 kernels need a fixed number of rows for that.
    """
    dtype = dtype_of(precision, next(network.parameters()).device)
    key = dtype, precision == "int8", deterministic and torch.cpu._is_amx_tile_supported()
    with _lock:
        forms = _forms.setdefault(network, {})
        form = forms.get(key)
        if form is None or not form.is_up_to_date():
            form = forms[key] = FrozenNetwork(network, *key)
    assert isinstance(form.network, type(network))
    return form.network


class FrozenNetwork:
    """A frozen form, and the state of the module when it was made."""

    def __init__(
        self, network: nn.Module, dtype: torch.dtype | None, int8: bool, fixed_rows: bool
    ) -> None:
        # The tables in which modules hold their parameters, buffers and submodules.
        tables: list[dict[str, Any]] = [
            table
            for module in network.modules()
            for table in (module._parameters, module._buffers, module._modules)
        ]
        self._empty = [table for table in tables if not table]
        self._tables = [table for table in tables if table]
        self._entries = [*chain.from_iterable(map(dict.values, self._tables)), _END]
        tensors = [entry for entry in self._entries if isinstance(entry, Tensor)]
        # Inference tensors have no version.
        self._tensors = [tensor for tensor in tensors if not tensor.is_inference()]
        self._versions = [*map(_version, self._tensors)]
        self._addresses = [*map(Tensor.data_ptr, self._tensors)]
        self._views = [view for tensor in tensors for view in _middle_number(tensor)]
        self._numbers = [*map(ndarray.tobytes, self._views)]
        with torch.no_grad():
            self.network = FrozenNetworkBuilder(network, dtype, int8, fixed_rows).copy(
                network, dtype
            )

    def is_up_to_date(self) -> bool:
        """Whether the module still has the state from which the form was made."""
        # No loop in Python: this runs at each call, even for a single short text.
        return (
            not any(self._empty)
            and all(map(is_, chain(*map(dict.values, self._tables), (_END,)), self._entries))
            and [*map(_version, self._tensors)] == self._versions
            and [*map(Tensor.data_ptr, self._tensors)] == self._addresses
            and [*map(ndarray.tobytes, self._views)] == self._numbers
        )

    def has_tensor(self, ids: Container[int]) -> bool:
        """Whether the module has a tensor with one of these ids."""
        return any(id(tensor) in ids for tensor in self._tensors)


def _middle_number(tensor: Tensor) -> Iterator[NDArray[Any]]:
    """Yield a view of a number in the middle of a tensor's memory, if NumPy can read it."""
    known = tensor.is_cpu and tensor.dtype in (torch.float32, torch.float64)
    if known and tensor.is_contiguous() and tensor.numel():
        yield tensor.detach().view(-1)[tensor.numel() // 2 :][:1].numpy()


def invalidate(network: nn.Module) -> None:
    """Drop a network's forms, after a change of something other than its tensors."""
    with _lock:
        _forms.pop(network, None)


_forms: WeakKeyDictionary[nn.Module, dict[tuple[torch.dtype | None, bool, bool], FrozenNetwork]] = (
    WeakKeyDictionary()
)
_lock = Lock()


def _invalidate_changed(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Drop the forms of networks that an optimizer changed: fused steps do not raise versions."""
    if not _forms:
        return
    tensor_ids = {id(part) for group in optimizer.param_groups for part in group["params"]}
    with _lock:
        for network, forms in list(_forms.items()):
            if any(form.has_tensor(tensor_ids) for form in forms.values()):
                del _forms[network]


register_optimizer_step_post_hook(_invalidate_changed)


class FrozenNetworkBuilder:
    """Makes the frozen copies of a network's modules, each once."""

    def __init__(
        self, network: nn.Module, dtype: torch.dtype | None, int8: bool, fixed_rows: bool
    ) -> None:
        weight = next(network.parameters())
        self.quantized = {
            part
            for module in network.modules()
            if int8 and isinstance(module, Layer)
            for part in module.modules()
        }
        self.fixed_rows = weight.is_cpu and fixed_rows
        self.packs = weight.is_cpu and has_packed_kernels(dtype or weight.dtype)
        self.native = {
            layer: module.config
            for module in network.modules()
            if isinstance(module, Encoder)
            for layer in native_layers(module, dtype, int8)
        }
        self.copies: dict[nn.Module, nn.Module] = {}

    def copy(self, module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
        """Return a module's frozen copy.

        Args:
            dtype: the compute dtype of its linear maps; None: the dtype of their weights.
        """
        if module in self.copies:
            return self.copies[module]
        if isinstance(module, Embeddings):
            dtype = None  # embeddings are computed in the precision of the parameters
        if isinstance(module, Layer) and module in self.native:
            native = self.copies[module] = copy_module(module, module._modules)
            FrozenNativeLayer.prepare(native, self.native[module], bool(self.quantized))
            return native
        copy = copy_module(
            module,
            {
                name: None if part is None else self.copy(part, dtype)
                for name, part in module._modules.items()
            },
        )
        copy.training = False
        self.copies[module] = copy
        if isinstance(copy, Encoder):
            copy.compute_dtype = dtype
            FrozenNativeEncoder.prepare(copy)
        elif isinstance(copy, MLMHead) and dtype is torch.bfloat16 and self.packs:
            copy.__class__ = FrozenMLMHead
            assert isinstance(copy, FrozenMLMHead)
            copy.packed_weight = torch.ops.mkldnn._reorder_linear_weight(
                copy.decoder_weight.detach().to(dtype)
            )
            copy.fixed_rows = self._needs_fixed_rows(dtype, copy.decoder_weight.shape[-1])
        elif isinstance(copy, FeedForward):
            self._fuse(copy)
        elif type(copy) is Layer and FrozenLayer.can_compute(copy):
            copy.__class__ = FrozenLayer
        elif type(module).forward is Linear.forward and module in self.quantized:
            QuantizedLinear.prepare(copy, dtype)
        elif type(module).forward is OutputLinear.forward and self.packs:
            self._freeze(copy, None, FrozenOutputLinear)
        elif type(module).forward is Linear.forward and (dtype is not None or self.packs):
            self._freeze(copy, dtype, FrozenLinear)
        elif isinstance(copy, GroupedLinear) and (dtype is not None or self.packs):
            copy.__class__ = FrozenGroupedLinear
            assert isinstance(copy, FrozenGroupedLinear)
            copy.linears = [self._freeze_group(weight, dtype) for weight in copy.group_weights]
        return copy

    def _freeze_group(self, weight: torch.Tensor, dtype: torch.dtype | None) -> FrozenLinear:
        outputs, inputs = weight.shape
        linear = Linear(inputs, outputs, bias=False, device="meta")
        linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self._freeze(linear, dtype, FrozenLinear)
        assert isinstance(linear, FrozenLinear)
        return linear

    def _freeze(
        self, linear: nn.Module, dtype: torch.dtype | None, frozen_class: type[FrozenLinear]
    ) -> None:
        linear.__class__ = frozen_class
        assert isinstance(linear, FrozenLinear)
        weight, bias = linear.weight, linear.bias
        linear.dtype = dtype or weight.dtype
        linear.packed_weight, linear.kernel = weight.detach().to(linear.dtype), None
        if self.packs:
            linear.packed_weight = torch.ops.mkldnn._reorder_linear_weight(linear.packed_weight)
            linear.kernel = torch.ops.mkldnn._linear_pointwise.default
            linear.residual_kernel = torch.ops.mkldnn._linear_pointwise.binary
        linear.cast_bias = None if bias is None else bias.detach().to(linear.dtype)
        linear.activation, linear.fused = None, ("none", "")
        linear.fixed_rows = self._needs_fixed_rows(linear.dtype, linear.in_features)

    def _needs_fixed_rows(self, dtype: torch.dtype, inputs: int) -> bool:
        """Whether the order of a product's sums would depend on its rows, and must not."""
        return self.fixed_rows and dtype is torch.bfloat16 and inputs > ORDERED_SUMS

    def _fuse(self, copy: FeedForward) -> None:
        """Let the first linear map also compute the activation."""
        first, activation = copy.intermediate, copy.activation
        if self.packs:
            copy.__class__ = FrozenFeedForward
        if copy.gated or activation not in FUSED_ACTIVATIONS:
            return
        if (
            isinstance(first, FrozenLinear)
            and first.kernel
            and is_faster_separate(first, activation)
        ):
            assert isinstance(copy, FrozenFeedForward)
            copy.has_separate_activation = True
            return
        if isinstance(first, FrozenLinear | QuantizedLinear):
            first.activation, copy.activation = activation, identity
        if isinstance(first, FrozenLinear | CalibratedLinear):
            first.fused = FUSED_ACTIVATIONS[activation]
        if isinstance(first, CalibratedLinear) and first.kernel is not None:
            second = copy.output
            if isinstance(second, CalibratedLinear) and second.input_codes is not None:
                first.output_codes = second.input_codes.step_and_zero_point
