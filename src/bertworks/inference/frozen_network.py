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

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter, is_
from threading import Lock
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
from numpy import ndarray
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..errors import SettingsError
from ..nn.device import dtype_of, tf32_products
from ..nn.embeddings import Embeddings
from ..nn.encoder import Encoder
from ..nn.encoder_graphs import InferenceGraphs
from ..nn.encoder_layers import FeedForward, Layer
from ..nn.heads import MLMHead
from ..nn.layers import GroupedLinear, Linear, OutputLinear
from ..nn.module_copies import copy_module
from ..nn.quantized import CalibratedLinear, QuantizedLinear
from ..settings.literals import InferencePrecision
from .frozen_layers import (
    FUSED_ACTIVATIONS,
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
from .frozen_native import FrozenNativeEncoder
from .frozen_native_layers import FrozenNativeLayer, native_layers
from .settings import EngineSettings

ModuleT = TypeVar("ModuleT", bound=nn.Module)
_version = attrgetter("_version")
_END = object()
_Key: TypeAlias = tuple[torch.dtype | None, bool, bool, bool]
"""The compute dtype, and the other arguments of `FrozenNetworkBuilder`, of a form."""


def frozen_form(
    network: ModuleT,
    precision: InferencePrecision = "fp32",
    deterministic: bool = False,
    *,
    native: bool = True,
) -> ModuleT:
    """Return the frozen form of a network; call it in `torch.inference_mode()`.

    Forms are kept as long as the network exists, one for each precision, until an optimizer step or
    any other change of the weights. (PyTorch does not track changes through `.data`; they are
    detected by comparing one number of each tensor; on a GPU these are read together, with one wait
    for the device.)

    Args:
        network: any module; neither its weights nor its modes change.
        precision: the precision of its encoders.
        deterministic: compute the same bits for a row whatever the other rows are, even if the
            bfloat16 kernels need a fixed number of rows for that.
        native: whether native code may compute layers; without it, modules inside them run.

    Raises:
        SettingsError: `deterministic` on another device than the CPU.
    """
    device = _first_weight(network).device
    if deterministic and device.type != "cpu":
        raise SettingsError(
            f"deterministic=true: on {device.type} a text's result depends on its batch",
            fix="Leave it out, or use device=cpu.",
        )
    dtype = dtype_of(precision, device)
    has_fixed_rows = deterministic and torch.cpu._is_amx_tile_supported()
    key = dtype, precision == "int8", has_fixed_rows, native
    with _lock:
        lock, forms = _forms.setdefault(network, (Lock(), {}))
    with lock:  # not `_lock`: other networks do not wait for this one
        form = forms.get(key)
        if form is None or not form.is_up_to_date():
            form = forms[key] = FrozenNetwork(network, key)
    assert isinstance(form.network, type(network))
    return form.network


@contextmanager
def inference(network: ModuleT, engine: EngineSettings) -> Iterator[ModuleT]:
    """Provide a network's frozen form, and the precision of the engine's settings for the block.

    Raises:
        SettingsError: the device cannot compute with these settings.
    """
    with torch.inference_mode(), tf32_products(engine.precision == "tf32"):
        yield frozen_form(network, engine.precision, engine.deterministic)


class FrozenNetwork:
    """A frozen form, and the state of the module when it was made."""

    def __init__(self, network: nn.Module, key: _Key) -> None:
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
        self._device_views = [
            view for tensor in tensors for view in _middle_number_on_device(tensor)
        ]
        self._device_numbers = self._read_device_numbers()
        with torch.no_grad():
            self.network = FrozenNetworkBuilder(network, *key).copy(network, dtype=key[0])

    def is_up_to_date(self) -> bool:
        """Whether the module still has the state from which the form was made."""
        # No loop in Python: this runs at each call, even for a single short text.
        return (
            not any(self._empty)
            and all(map(is_, chain(*map(dict.values, self._tables), (_END,)), self._entries))
            and [*map(_version, self._tensors)] == self._versions
            and [*map(Tensor.data_ptr, self._tensors)] == self._addresses
            and [*map(ndarray.tobytes, self._views)] == self._numbers
            and self._read_device_numbers() == self._device_numbers
        )

    def _read_device_numbers(self) -> bytes:
        """The numbers of tensors that are not on the CPU, which are read together: one wait."""
        if not self._device_views:
            return b""
        return torch.cat(self._device_views).cpu().numpy().tobytes()

    def has_tensor(self, ids: Container[int]) -> bool:
        """Whether the module has a tensor with one of these ids."""
        return any(id(tensor) in ids for tensor in self._tensors)


def _first_weight(network: nn.Module) -> Tensor:
    """A network's first parameter; an empty tensor for a network without any, as `Normalize`."""
    return next(network.parameters(), torch.empty(0))


def _middle_number(tensor: Tensor) -> Iterator[NDArray[Any]]:
    """Yield a view of a number in the middle of a tensor's memory, if NumPy can read it."""
    known = tensor.is_cpu and tensor.dtype in (torch.float32, torch.float64)
    if known and tensor.is_contiguous() and tensor.numel():
        yield tensor.detach().view(-1)[tensor.numel() // 2 :][:1].numpy()


def _middle_number_on_device(tensor: Tensor) -> Iterator[Tensor]:
    """Yield a view of a number in the middle of a tensor's memory, if it is not on the CPU."""
    known = tensor.device.type not in ("cpu", "meta") and tensor.is_floating_point()
    if known and tensor.is_contiguous() and tensor.numel():
        yield tensor.detach().view(-1)[tensor.numel() // 2 :][:1]


def invalidate(network: nn.Module) -> None:
    """Drop a network's forms, after a change of something other than its tensors."""
    with _lock:
        _forms.pop(network, None)


_Forms: TypeAlias = tuple[Lock, dict[_Key, FrozenNetwork]]
_forms: WeakKeyDictionary[nn.Module, _Forms] = WeakKeyDictionary()
"""The forms of each network, and the lock under which they are made."""
_lock = Lock()
"""That of `_forms`; it is held for a moment only."""


def _invalidate_changed(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Drop the forms of networks that an optimizer changed: fused steps do not raise versions."""
    if not _forms:
        return
    tensor_ids = {id(part) for group in optimizer.param_groups for part in group["params"]}
    with _lock:
        items = list(_forms.items())
    for network, (lock, forms) in items:
        with lock:
            is_changed = any(form.has_tensor(tensor_ids) for form in forms.values())
        if is_changed:
            invalidate(network)


register_optimizer_step_post_hook(_invalidate_changed)


class FrozenNetworkBuilder:
    """Makes the frozen copies of a network's modules, each once."""

    def __init__(
        self,
        network: nn.Module,
        dtype: torch.dtype | None,
        int8: bool,
        fixed_rows: bool,
        native: bool,
    ) -> None:
        weight = _first_weight(network)
        self.quantized = {
            part
            for module in network.modules()
            if int8 and isinstance(module, Layer)
            for part in module.modules()
        }
        self.fixed_rows = weight.is_cpu and fixed_rows
        self.packs = weight.is_cpu and has_packed_kernels(dtype or weight.dtype)
        self.native = {
            layer: terms
            for module in network.modules()
            if native and isinstance(module, Encoder)
            for layer, terms in native_layers(module, dtype, int8).items()
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
            copy: nn.Module = FrozenNativeLayer.from_layer(
                module, self.native[module], dtype, bool(self.quantized)
            )
        else:
            submodules = {
                name: None if part is None else self.copy(part, dtype)
                for name, part in module._modules.items()
            }
            copy = self._make(module, submodules, dtype)
        self.copies[module] = copy
        return copy

    def _make(
        self,
        module: nn.Module,
        submodules: Mapping[str, nn.Module | None],
        dtype: torch.dtype | None,
    ) -> nn.Module:
        """Return a module's frozen copy, with frozen submodules; see `copy`."""
        kind: type[nn.Module] = type(module)
        if isinstance(module, Encoder):
            return FrozenNativeEncoder.from_encoder(module, submodules, dtype) or (
                self._encoder(module, submodules, dtype)
            )
        if isinstance(module, FeedForward) and kind.forward is FeedForward.forward:
            return self._feed_forward(module, submodules)
        if isinstance(module, Linear):
            return self._linear(module, submodules, dtype)
        if isinstance(module, MLMHead) and dtype is torch.bfloat16 and self.packs:
            return FrozenMLMHead.from_head(module, submodules, fixed_rows=self.fixed_rows)
        attributes: dict[str, Any] = {"training": False}
        if isinstance(module, GroupedLinear) and (dtype is not None or self.packs):
            kind = FrozenGroupedLinear
            attributes["linears"] = [
                self._linear_of_group(weight, dtype) for weight in module.group_weights
            ]
        elif kind is Layer and FrozenLayer.can_compute(
            submodules.get("attention"), submodules.get("feed_forward")
        ):
            kind = FrozenLayer
        return copy_module(module, submodules, kind, **attributes)

    def _encoder(
        self,
        encoder: Encoder,
        submodules: Mapping[str, nn.Module | None],
        dtype: torch.dtype | None,
    ) -> Encoder:
        """Return an encoder whose parts are modules; on CUDA with graphs, if it can have them."""
        attributes = {"training": False, "compute_dtype": dtype, "graphs": None}
        copy = copy_module(encoder, submodules, type(encoder), **attributes)
        if _first_weight(encoder).is_cuda and copy.can_be_recorded:
            copy.graphs = InferenceGraphs(copy.config.max_seqlen)
        return copy

    def _linear(
        self,
        linear: Linear,
        submodules: Mapping[str, nn.Module | None],
        dtype: torch.dtype | None,
    ) -> Linear:
        forward = type(linear).forward
        if forward is Linear.forward and linear in self.quantized:
            return QuantizedLinear.from_linear(linear, dtype)
        if forward is Linear.forward and (dtype is not None or self.packs):
            return self._copy_weights(linear, dtype, FrozenLinear)
        if forward is OutputLinear.forward and self.packs:
            return self._copy_weights(linear, None, FrozenOutputLinear)
        return copy_module(linear, submodules, type(linear), training=False)

    def _copy_weights(
        self, linear: Linear, dtype: torch.dtype | None, frozen_class: type[FrozenLinear]
    ) -> FrozenLinear:
        return frozen_class.from_linear(
            linear, dtype, is_packed=self.packs, fixed_rows=self.fixed_rows
        )

    def _linear_of_group(self, weight: torch.Tensor, dtype: torch.dtype | None) -> FrozenLinear:
        outputs, inputs = weight.shape
        linear = Linear(inputs, outputs, bias=False, device="meta")
        linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
        return self._copy_weights(linear, dtype, FrozenLinear)

    def _feed_forward(
        self, module: FeedForward, submodules: Mapping[str, nn.Module | None]
    ) -> FeedForward:
        """Return a feed-forward layer whose first map also computes the activation, if it can."""
        copy = copy_module(
            module, submodules, FrozenFeedForward if self.packs else type(module), training=False
        )
        first, activation = copy.intermediate, copy.activation
        if copy.gated or activation not in FUSED_ACTIVATIONS:
            return copy
        if (
            isinstance(first, FrozenLinear)
            and first.kernel
            and is_faster_separate(first, activation)
        ):
            assert isinstance(copy, FrozenFeedForward)
            copy.has_separate_activation = True
            return copy
        if isinstance(first, FrozenLinear | QuantizedLinear):
            first.activation, copy.activation = activation, identity
        if isinstance(first, FrozenLinear | CalibratedLinear):
            first.fused = FUSED_ACTIVATIONS[activation]
        if isinstance(first, CalibratedLinear) and first.kernel is not None:
            second = copy.output
            if isinstance(second, CalibratedLinear) and second.input_codes is not None:
                first.output_codes = second.input_codes.step_and_zero_point
        return copy
