"""The frozen form of a network, which inference runs; made once from the trainable module.

    module (trainable, shared, never changed here) ─► frozen form for one precision ─► outputs

A form is a second tree of the same modules, in evaluation mode. Native code computes its layers
where possible (`inference/native.py`). Otherwise its linear maps hold their weights in the form's
dtype, packed for oneDNN's kernels if the processor supports these, with the activation of the
feed-forward layers in the same kernel. Everything else is shared with the module. A form never
changes, so threads may share it, and may use forms of several precisions at the same time. If the
weights of the module have changed, the form is replaced at its next use.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Container, Iterator, Mapping
from itertools import chain
from operator import attrgetter, is_
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from numpy import ndarray
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..nn.cpu import VECTOR_LENGTH, apply_in_whole_vectors
from ..nn.device import dtype_of
from ..nn.embeddings import Embeddings
from ..nn.encoder import Encoder
from ..nn.encoder_layers import AttentionScope, FeedForward, Layer, SelfAttention
from ..nn.heads import MLMHead
from ..nn.layers import ACTIVATIONS, Linear, OutputLinear, promote_to_float32
from ..nn.quantized import CalibratedLinear, QuantizedLinear
from ..settings.literals import InferencePrecision
from .native import FrozenNativeEncoder, FrozenNativeLayer, native_layers

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_version = attrgetter("_version")
_END = object()

_ROWS = 2048  # per block of the feed-forward layers
_FIXED_ROWS = 1024  # per product, if results must not depend on the batch; divides _ROWS
_ONE_SUM = 384  # AMX's bfloat16 kernels add up to this many products in a fixed order

# oneDNN's names of activations: the operation and its algorithm.
FUSED = {
    ACTIVATIONS["gelu"]: ("gelu", "none"),
    ACTIVATIONS["gelu_new"]: ("gelu", "tanh"),
    ACTIVATIONS["relu"]: ("relu", ""),
    ACTIVATIONS["silu"]: ("swish", ""),
    ACTIVATIONS["tanh"]: ("tanh", ""),
}


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
    kind = dtype, precision == "int8", deterministic and torch.cpu._is_amx_tile_supported()
    with _lock:
        forms = _forms.setdefault(network, {})
        form = forms.get(kind)
        if form is None or not form.is_current():
            form = forms[kind] = _Form(network, *kind)
    assert isinstance(form.network, type(network))
    return form.network


class FrozenLinear(Linear):
    """`activation(x Wᵀ + b)` with weights that were cast and packed once."""

    dtype: torch.dtype
    ready: Tensor
    ready_bias: Tensor | None
    kernel: Any
    adding: Any  # the kernel that adds a residual
    activation: Any
    fused: tuple[str, str]
    fixed_rows = False  # whether each product has `_FIXED_ROWS` rows

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        if x.dtype is not self.dtype or not x.numel():  # a head may compute in float32
            result = super().forward(x)
        elif self.kernel is not None:
            name, algorithm = self.fused
            weight, bias = self.ready, self.ready_bias
            return self._by_rows(lambda x: self.kernel(x, weight, bias, name, [], algorithm), x)
        else:
            result = self._by_rows(lambda x: F.linear(x, self.ready, self.ready_bias), x)
        return result if self.activation is None else self.activation(result)

    def plus(
        self, x: Float[Tensor, "*batch inputs"], residual: Float[Tensor, "*batch outputs"]
    ) -> Float[Tensor, "*batch outputs"]:
        if self.kernel is None or not x.dtype is residual.dtype is self.dtype or not x.numel():
            return super().plus(x, residual)
        weight, bias = self.ready, self.ready_bias
        return self._by_rows(lambda x, y: self.adding(x, y, weight, bias, "add"), x, residual)

    def _by_rows(self, compute: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        return _by_fixed_rows(compute, *tensors) if self.fixed_rows else compute(*tensors)


class FrozenOutputLinear(FrozenLinear):
    """The last map of a head, in float32 at least, whatever the form's precision."""

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        return super().forward(promote_to_float32(x))


class FrozenFeedForward(FeedForward):
    """Computes in blocks of rows, which bounds the memory between the two maps."""

    is_apart = False  # whether the activation is separate from the first map

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"]
    ) -> Float[Tensor, "tokens hidden_size"]:
        return _in_blocks(super().forward, hidden)

    def inner(
        self, hidden: Float[Tensor, "tokens hidden_size"]
    ) -> Num[Tensor, "tokens intermediate_size"]:
        if self.is_apart:
            return apply_in_whole_vectors(self.activation, self.intermediate(hidden))
        return super().inner(hidden)

    def plus(
        self,
        hidden: Float[Tensor, "tokens hidden_size"],
        residual: Float[Tensor, "tokens hidden_size"],
    ) -> Float[Tensor, "tokens hidden_size"]:
        """The output of the feed-forward layer plus a residual."""
        output = self.output.plus
        return _in_blocks(lambda rows, before: output(self.inner(rows), before), hidden, residual)


class FrozenLayer(Layer):
    """A layer without dropout, whose linear maps add the residuals."""

    attention: SelfAttention
    feed_forward: FrozenFeedForward

    @staticmethod
    def can_be(layer: Layer) -> bool:
        """Whether a layer has the submodules that this class calls."""
        mix, fed = layer.attention, layer.feed_forward
        return (
            isinstance(mix, SelfAttention)
            and isinstance(fed, FrozenFeedForward)
            and isinstance(mix.output, Linear)
            and isinstance(fed.output, Linear)
        )

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], scope: AttentionScope
    ) -> Float[Tensor, "tokens hidden_size"]:
        attention, first, second = self.attention, self.attention_norm, self.feed_forward_norm
        if self.norm_first:
            hidden = attention.output.plus(attention.context(first(hidden), scope), hidden)
            return self.feed_forward.plus(second(hidden), hidden)
        hidden = first(attention.output.plus(attention.context(hidden, scope), hidden))
        result: Tensor = second(self.feed_forward.plus(hidden, hidden))
        return result


class FrozenMLMHead(MLMHead):
    """An MLM head whose decoder is packed for bfloat16, with logits in float32."""

    ready: Tensor
    fixed_rows = False

    def logits(self, transformed: Float[Tensor, "masked width"]) -> Float[Tensor, "masked vocab"]:
        if transformed.dtype is not torch.bfloat16 or not transformed.numel():
            return super().logits(transformed)
        if self.fixed_rows:
            return _by_fixed_rows(self._logits, transformed)
        return self._logits(transformed)

    def _logits(self, transformed: Float[Tensor, "masked width"]) -> Float[Tensor, "masked vocab"]:
        """Compute the product, then what rounding it left out, which the kernel has in float32.

        The sum has 16 bits instead of 8. A product in float32 takes twice as long as these two.
        """
        kernels, weight = torch.ops.mkldnn._linear_pointwise, self.ready
        product = kernels.default(transformed, weight, None, "none", [], "")
        rest = kernels.binary(transformed, -product, weight, None, "add")
        logits = promote_to_float32(product).add_(rest)
        return logits if self.bias is None else logits.add_(self.bias)


def _in_blocks(compute: Callable[..., Tensor], *tensors: Tensor, most_rows: int = _ROWS) -> Tensor:
    """Apply a function of rows to blocks of at most `most_rows` rows."""
    if len(tensors[0]) <= most_rows:
        return compute(*tensors)
    blocks = zip(*(torch.split(tensor, most_rows) for tensor in tensors), strict=True)
    return torch.cat([compute(*block) for block in blocks])


def _by_fixed_rows(compute: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply a function of rows to blocks of exactly `_FIXED_ROWS` rows, padded with zeros."""
    *batch, _ = tensors[0].shape
    rows = [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]
    count = len(rows[0])
    filled = [F.pad(part, (0, 0, 0, -count % _FIXED_ROWS)) for part in rows]
    found = _in_blocks(compute, *filled, most_rows=_FIXED_ROWS)
    return found[:count].reshape(*batch, -1)


class _Form:
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
        self._held = [*chain.from_iterable(map(dict.values, self._tables)), _END]
        tensors = [held for held in self._held if isinstance(held, Tensor)]
        # Inference tensors have no version.
        self._tensors = [tensor for tensor in tensors if not tensor.is_inference()]
        self._versions = [*map(_version, self._tensors)]
        self._addresses = [*map(Tensor.data_ptr, self._tensors)]
        self._views = [view for tensor in tensors for view in _one_number(tensor)]
        self._numbers = [*map(ndarray.tobytes, self._views)]
        with torch.no_grad():
            self.network = _Freezing(network, dtype, int8, fixed_rows).twin(network, dtype)

    def is_current(self) -> bool:
        """Whether the module still has the state from which the form was made."""
        # No loop in Python: this runs at each call, even for a single short text.
        return (
            not any(self._empty)
            and all(map(is_, chain(*map(dict.values, self._tables), (_END,)), self._held))
            and [*map(_version, self._tensors)] == self._versions
            and [*map(Tensor.data_ptr, self._tensors)] == self._addresses
            and [*map(ndarray.tobytes, self._views)] == self._numbers
        )

    def is_of(self, tensors: Container[int]) -> bool:
        """Whether the module has a tensor with one of these ids."""
        return any(id(tensor) in tensors for tensor in self._tensors)


def _one_number(tensor: Tensor) -> Iterator[NDArray[Any]]:
    """Yield a view of a number in the middle of a tensor's memory, if NumPy can read it."""
    known = tensor.is_cpu and tensor.dtype in (torch.float32, torch.float64)
    if known and tensor.is_contiguous() and tensor.numel():
        yield tensor.detach().view(-1)[tensor.numel() // 2 :][:1].numpy()


def forget(network: nn.Module) -> None:
    """Drop a network's forms, after a change of something other than its tensors."""
    with _lock:
        _forms.pop(network, None)


_forms: WeakKeyDictionary[nn.Module, dict[tuple[torch.dtype | None, bool, bool], _Form]] = (
    WeakKeyDictionary()
)
_lock = Lock()


def _forget(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Drop the forms of networks that an optimizer changed: fused steps do not raise versions."""
    if not _forms:
        return
    changed = {id(part) for group in optimizer.param_groups for part in group["params"]}
    with _lock:
        for network, forms in list(_forms.items()):
            if any(form.is_of(changed) for form in forms.values()):
                del _forms[network]


register_optimizer_step_post_hook(_forget)


class _Freezing:
    """Makes the frozen twins of a network's modules, each once."""

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
        self.twins: dict[nn.Module, nn.Module] = {}

    def twin(self, module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
        """A module's twin.

        Args:
            dtype: the compute dtype of its linear maps; None: the dtype of their weights.
        """
        if module in self.twins:
            return self.twins[module]
        if isinstance(module, Embeddings):
            dtype = None  # embeddings are computed in the precision of the parameters
        if isinstance(module, Layer) and module in self.native:
            native = self.twins[module] = twin_of(module, module._modules)
            FrozenNativeLayer.prepare(native, self.native[module], bool(self.quantized))
            return native
        twin = twin_of(
            module,
            {
                name: None if part is None else self.twin(part, dtype)
                for name, part in module._modules.items()
            },
        )
        twin.training = False
        self.twins[module] = twin
        if isinstance(twin, Encoder):
            twin.compute_dtype = dtype
            FrozenNativeEncoder.prepare(twin)
        elif isinstance(twin, MLMHead) and dtype is torch.bfloat16 and self.packs:
            twin.__class__ = FrozenMLMHead
            assert isinstance(twin, FrozenMLMHead)
            twin.ready = torch.ops.mkldnn._reorder_linear_weight(twin.decoder.detach().to(dtype))
            twin.fixed_rows = self._needs_fixed_rows(dtype, twin.decoder.shape[-1])
        elif isinstance(twin, FeedForward):
            self._fuse(twin)
        elif type(twin) is Layer and FrozenLayer.can_be(twin):
            twin.__class__ = FrozenLayer
        elif type(module).forward is Linear.forward and module in self.quantized:
            QuantizedLinear.prepare(twin, dtype)
        elif type(module).forward is OutputLinear.forward and self.packs:
            self._freeze(twin, None, FrozenOutputLinear)
        elif type(module).forward is Linear.forward and (dtype is not None or self.packs):
            self._freeze(twin, dtype, FrozenLinear)
        return twin

    def _freeze(
        self, linear: nn.Module, dtype: torch.dtype | None, kind: type[FrozenLinear]
    ) -> None:
        linear.__class__ = kind
        assert isinstance(linear, FrozenLinear)
        weight, bias = linear.weight, linear.bias
        linear.dtype = dtype or weight.dtype
        linear.ready, linear.kernel = weight.detach().to(linear.dtype), None
        if self.packs:
            linear.ready = torch.ops.mkldnn._reorder_linear_weight(linear.ready)
            linear.kernel = torch.ops.mkldnn._linear_pointwise.default
            linear.adding = torch.ops.mkldnn._linear_pointwise.binary
        linear.ready_bias = None if bias is None else bias.detach().to(linear.dtype)
        linear.activation, linear.fused = None, ("none", "")
        linear.fixed_rows = self._needs_fixed_rows(linear.dtype, linear.in_features)

    def _needs_fixed_rows(self, dtype: torch.dtype, inputs: int) -> bool:
        """Whether the order of a product's sums would depend on its rows, and must not."""
        return self.fixed_rows and dtype is torch.bfloat16 and inputs > _ONE_SUM

    def _fuse(self, twin: FeedForward) -> None:
        """Let the first linear map also compute the activation."""
        first, activation = twin.intermediate, twin.activation
        if self.packs:
            twin.__class__ = FrozenFeedForward
        if twin.gated or activation not in FUSED:
            return
        if isinstance(first, FrozenLinear) and first.kernel and _is_faster_alone(first, activation):
            assert isinstance(twin, FrozenFeedForward)
            twin.is_apart = True
            return
        if isinstance(first, FrozenLinear | QuantizedLinear):
            first.activation, twin.activation = activation, _unchanged
        if isinstance(first, FrozenLinear | CalibratedLinear):
            first.fused = FUSED[activation]
        if isinstance(first, CalibratedLinear) and first.kernel is not None:
            second = twin.output
            if isinstance(second, CalibratedLinear) and second.input_codes is not None:
                first.output_codes = second.input_codes.step_and_zero_point


def twin_of(module: ModuleT, parts: Mapping[str, nn.Module | None]) -> ModuleT:
    """A module with the same parameters and attributes, but other submodules."""
    twin = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    twin.__dict__["_modules"] = dict(parts)
    # As plain attributes these are found at once; `nn.Module` would search several tables.
    twin.__dict__.update(module._parameters)
    twin.__dict__.update(parts)
    return twin


def twins_of(network: ModuleT, change: Callable[[nn.Module, nn.Module], None]) -> ModuleT:
    """Make a twin of each module of a network; the twins share its tensors.

    Args:
        change: called with each module and its twin; may change the twin.
    """
    twins: dict[nn.Module, nn.Module] = {}

    def twin(module: nn.Module) -> nn.Module:
        if module not in twins:
            parts = module._modules.items()
            made = {name: None if part is None else twin(part) for name, part in parts}
            twins[module] = twin_of(module, made)
            change(module, twins[module])
        return twins[module]

    made = twin(network)
    assert isinstance(made, type(network))
    return made


def _unchanged(x: Tensor) -> Tensor:
    return x


def _is_faster_alone(first: Linear, activation: Callable[[Tensor], Tensor]) -> bool:
    """Whether an activation is faster after a map than in its kernel (docs/decisions.md)."""
    looked_up = activation is not ACTIVATIONS["relu"]  # oneDNN computes all others with tables
    whole = first.out_features % VECTOR_LENGTH == 0
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
