"""A simulated CUDA device: its tensors are on "cuda:0" and are computed by the CPU.

Inside `simulated_gpu()`, `torch.device("cuda")` works in a CPU build of PyTorch. An operator raises
if its tensors are on different devices, as CUDA's do; what waits for the device, and copies between
host and device, are counted. Flash attention is computed by its formula, and takes only what the
kernel takes. Speed, rounding and memory are not simulated.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import bertworks
from bertworks.checkpoints import weights as weight_files
from bertworks.nn.encoder_graphs import EncoderGraphs
from bertworks.training import operations

_PACKAGE = Path(bertworks.__file__).parent
_GPU, _CPU = torch.device("cuda:0"), torch.device("cpu")
_aten = torch.ops.aten

_WAITING = {
    *(_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default),
    *(_aten.nonzero.default, _aten.masked_select.default, _aten._unique2.default),
    *(_aten.unique_dim.default, _aten.repeat_interleave.Tensor),
    *(_aten.repeat_interleave.self_Tensor, _aten.segment_reduce.default),
}
"""Operators whose result, or its shape, the host must know before it goes on."""
_PRODUCTS = ("aten.linear.", "aten.mm.", "aten.addmm.", "aten.bmm.", "aten.baddbmm.")
_INDEXING = ("aten.index.", "aten.index_put", "aten._index_put", "aten._unsafe_index")


@dataclasses.dataclass
class Counts:
    """What happened on the device, by operator and by line of the package."""

    operators: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    waits: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    blocking_copies: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter
    )
    attention_dropouts: list[float] = dataclasses.field(default_factory=list)
    # by operator, the largest number of rows of a square matrix that it computed
    square_sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    # PyTorch's setting at each product of float32 matrices
    float32_products: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter
    )

    def clear(self) -> None:
        for field in dataclasses.fields(self):
            getattr(self, field.name).clear()


_counts = Counts()


class GpuTensor(Tensor):
    """A tensor on the simulated device."""

    values: Tensor  # on the CPU

    @staticmethod
    def __new__(cls, values: Tensor, requires_grad: bool = False) -> GpuTensor:
        with torch.inference_mode(False):
            result = Tensor._make_wrapper_subclass(
                cls,
                values.size(),
                strides=values.stride(),
                storage_offset=values.storage_offset(),
                dtype=values.dtype,
                requires_grad=requires_grad,
            )
        result.values = values
        return result

    device = property(lambda _: _GPU)
    is_cuda = property(lambda _: True)
    is_cpu = property(lambda _: False)

    def get_device(self) -> int:
        return 0

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.to("cpu")

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        return self

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        is_copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and device.type == "cpu":
            assert not non_blocking, "the host would read values that have not arrived"
            _counts.waits[f"copy to the host, {_line()}"] += 1
            return _ToHost.apply(self, dtype)
        if dtype is not None and dtype != self.dtype:
            return _aten._to_copy.default(self, dtype=dtype)
        return self.clone() if is_copy else self

    def tolist(self) -> Any:
        _counts.waits[f"tolist, {_line()}"] += 1
        return self.values.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        with torch.no_grad():
            copy = self.detach().clone()
        if isinstance(self, nn.Parameter):
            return nn.Parameter(copy, self.requires_grad)
        return copy.requires_grad_(self.requires_grad)

    def __repr__(self, **_: Any) -> str:
        return f"GpuTensor({self.values!r})"

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _run(func, args, kwargs or {})


class _ToHost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: GpuTensor, dtype: torch.dtype | None) -> Tensor:
        return tensor.values.to(dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return GpuTensor(gradient.clone()), None


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _run(func, args, kwargs or {})


def _line() -> str:
    """The innermost line of the package that is being executed."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if path.is_relative_to(_PACKAGE):
            return f"{path.relative_to(_PACKAGE)}:{frame.lineno}"
    return "outside"


def _values(value: Any) -> Any:
    return value.values if isinstance(value, GpuTensor) else value


def _is_on_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    name = str(func)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    on_gpu = [tensor for tensor in tensors if isinstance(tensor, GpuTensor)]
    on_host = [tensor for tensor in tensors if not isinstance(tensor, GpuTensor)]
    to_gpu = _is_on_gpu(kwargs.get("device"))
    if on_gpu or to_gpu:
        _counts.operators[name] += 1
    if on_gpu and name.startswith(_PRODUCTS) and on_gpu[0].dtype is torch.float32:
        _counts.float32_products[torch.backends.cuda.matmul.fp32_precision] += 1
    if func in _ATTENTION:
        assert not [tensor for tensor in on_host if tensor.dim()], name
        return _on_gpu(_ATTENTION[func](*tree_map(_values, args), **tree_map(_values, kwargs)))
    plain_kwargs = {**tree_map(_values, kwargs), **({"device": _CPU} if to_gpu else {})}
    plain_args = tree_map(_values, args)
    if func is _aten._to_copy.default:
        if to_gpu and not on_gpu and not kwargs.get("non_blocking"):
            _counts.blocking_copies[_line()] += 1
        for key in ("non_blocking", "pin_memory", "device"):
            plain_kwargs.pop(key, None)
        result = func(*plain_args, **plain_kwargs)
        return GpuTensor(result) if to_gpu or on_gpu else result
    if func is _aten.copy_.default:
        target, source = args[:2]
        if isinstance(target, GpuTensor) != isinstance(source, GpuTensor):
            _counts.blocking_copies[f"{_line()} (copy_)"] += 1
        plain_args[0].copy_(plain_args[1])
        return target
    if on_gpu:
        _check_and_count(func, on_gpu, on_host, kwargs)
    result = func(*plain_args, **plain_kwargs)
    if func is _aten._local_scalar_dense.default or not (on_gpu or to_gpu):
        return result
    for tensor in tree_leaves(result):
        if isinstance(tensor, Tensor) and tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2]:
            _counts.square_sizes[name] = max(_counts.square_sizes.get(name, 0), tensor.shape[-1])
    by_values = {id(tensor.values): tensor for tensor in on_gpu}  # results of in-place operators
    return tree_map(
        lambda leaf: by_values.get(id(leaf), leaf) if id(leaf) in by_values else _on_gpu(leaf),
        result,
    )


def _check_and_count(
    func: Any, on_gpu: Sequence[Tensor], on_host: Sequence[Tensor], kwargs: Mapping[str, Any]
) -> None:
    """Count what waits, and raise as CUDA does if tensors are on different devices."""
    name = str(func)
    is_index = name.startswith(_INDEXING)
    is_known = kwargs.get("unsafe") or kwargs.get("output_size") is not None
    if func in _WAITING and not is_known:
        _counts.waits[f"{name}, {_line()}"] += 1
    if is_index and any(tensor.dtype in (torch.bool, torch.uint8) for tensor in on_gpu[1:]):
        _counts.waits[f"boolean index, {_line()}"] += 1
    if is_index and on_host:
        _counts.blocking_copies[f"{_line()} (index)"] += 1
    # A number, which is a tensor without dimensions, and zeros of an unused gradient may be on the
    # host.
    others = [tensor for tensor in on_host if tensor.dim() and not is_index and bool(tensor.any())]
    if others:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in others)
        raise RuntimeError(f"Expected all tensors on the same device: {name} {shapes}")


def _on_gpu(value: Any) -> Any:
    return tree_map(
        lambda leaf: (
            GpuTensor(leaf)
            if isinstance(leaf, Tensor) and not isinstance(leaf, GpuTensor)
            else leaf
        ),
        value,
    )


# ---------------------------------------------------------------------------------- flash attention


_HALF = (torch.bfloat16, torch.float16)


def _check_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edges: Sequence[Tensor],
    dtypes: Sequence[torch.dtype],
) -> None:
    for tensor in (query, key, value):
        assert tensor.dtype in dtypes, tensor.dtype
        assert tensor.shape[-1] % 8 == 0 and tensor.shape[-1] <= 256, tensor.shape
        assert tensor.shape[-1] == query.shape[-1] and tensor.stride(-1) == 1
    for one in edges:
        assert one.dtype == torch.int32 and one.is_contiguous()
    assert query.shape[0] == int(edges[0][-1]) and key.shape[0] == int(edges[1][-1])


def _weights(
    query: Tensor,
    key: Tensor,
    edges: Sequence[Tensor],
    window: tuple[int, int],
    dropout: float,
    scale: float | None,
    seed: int,
) -> Iterator[tuple[slice, slice, Tensor, Tensor, Tensor]]:
    """For each sequence: its queries, its keys, log-sums, probabilities and factors of dropout."""
    generator = torch.Generator().manual_seed(seed)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    for (a, b), (c, d) in zip(*(_pairs(one) for one in edges), strict=True):
        scores = torch.einsum("qhd,khd->hqk", query[a:b].float(), key[c:d].float()) * scale
        distances = torch.arange(d - c) - torch.arange(d - c - (b - a), d - c)[:, None]
        left, right = window
        is_masked = (distances < -left) & (left >= 0) | (distances > right) & (right >= 0)
        scores = scores.masked_fill(is_masked, -torch.inf)
        factors = torch.rand(scores.shape, generator=generator) >= dropout
        yield (
            slice(a, b),
            slice(c, d),
            scores.logsumexp(-1),
            scores.softmax(-1),
            factors / (1 - dropout),
        )


def _pairs(edges: Tensor) -> list[tuple[int, int]]:
    return list(itertools.pairwise(edges.tolist()))


def _window(is_causal: bool, left: int | None, right: int | None) -> tuple[int, int]:
    left, right = (-1 if side is None else side for side in (left, right))
    return left, 0 if is_causal else right


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_edges: Tensor,
    key_edges: Tensor,
    max_query: int,
    max_key: int,
    dropout: float,
    is_causal: bool,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    dtypes: Sequence[torch.dtype] = _HALF,
) -> tuple[Tensor, ...]:
    edges = (query_edges, key_edges)
    _check_inputs(query, key, value, edges, dtypes)
    for longest, one in ((max_query, query_edges), (max_key, key_edges)):
        assert longest == int(one.diff().max())
    _counts.attention_dropouts.append(dropout)
    seed = int(torch.randint(2**31, ())) if dropout else 0
    window = _window(is_causal, window_size_left, window_size_right)
    result, sums = torch.zeros(query.shape), []
    for queries, keys, log_sums, weights, factors in _weights(
        query, key, edges, window, dropout, scale, seed
    ):
        result[queries] = torch.einsum("hqk,khd->qhd", weights * factors, value[keys].float())
        sums.append(log_sums)
    state = torch.tensor([seed, 0], dtype=torch.uint64)
    return result.to(query.dtype), torch.cat(sums, 1), state, torch.empty(0), torch.empty(0)


def _backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    result: Tensor,
    sums: Tensor,
    query_edges: Tensor,
    key_edges: Tensor,
    max_query: int,
    max_key: int,
    dropout: float,
    is_causal: bool,
    state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, ...]:
    edges = (query_edges, key_edges)
    window = _window(is_causal, window_size_left, window_size_right)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    inputs = query.float(), key.float(), value.float()
    results = tuple(torch.zeros(part.shape) for part in inputs)
    for queries, keys, _, weights, factors in _weights(
        query, key, edges, window, dropout, scale, int(state[0])
    ):
        one = gradient[queries].float()
        results[2][keys] = torch.einsum("hqk,qhd->khd", weights * factors, one)
        of_weights = torch.einsum("qhd,khd->hqk", one, inputs[2][keys]) * factors
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * scale
        results[0][queries] = torch.einsum("hqk,khd->qhd", of_scores, inputs[1][keys])
        results[1][keys] = torch.einsum("hqk,qhd->khd", of_scores, inputs[0][queries])
    return tuple(one.to(query.dtype) for one in results)


def _efficient_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    query_edges: Tensor,
    key_edges: Tensor,
    max_query: int,
    max_key: int,
    dropout: float,
    mask: int,
    compute_log_sumexp: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    assert bias is None and mask in (0, 2)
    inputs = [part.squeeze(0) for part in (query, key, value)]
    for part in inputs:
        assert part.dtype in (torch.float32, torch.float16) and part.shape[-1] % 8 == 0
    result, sums, state, *_ = _forward(
        *inputs,
        query_edges,
        key_edges,
        max_query,
        max_key,
        dropout,
        mask == 2,
        scale=scale,
        dtypes=(torch.float32, torch.float16),
    )
    return result[None], sums, state[0], state[1], max_query, max_key


def _efficient_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    result: Tensor,
    query_edges: Tensor,
    key_edges: Tensor,
    max_query: int,
    max_key: int,
    sums: Tensor,
    dropout: float,
    seed: Tensor,
    offset: Tensor,
    mask: int,
    bias_requires_grad: bool,
    *,
    scale: float | None = None,
    **_: Any,
) -> tuple[Any, ...]:
    parts = [part.squeeze(0) for part in (gradient, query, key, value, result)]
    edges = (query_edges, key_edges, max_query, max_key)
    state = torch.stack((seed, offset))
    gradients = _backward(*parts, sums, *edges, dropout, mask == 2, state, state, scale=scale)
    return (*(one[None] for one in gradients), None)


_ATTENTION: dict[Any, Callable[..., tuple[Any, ...]]] = {
    _aten._flash_attention_forward.default: _forward,
    _aten._flash_attention_backward.default: _backward,
    _aten._efficient_attention_forward.default: _efficient_forward,
    _aten._efficient_attention_backward.default: _efficient_backward,
}


# ------------------------------------------------------------------------------------- the machine


@contextlib.contextmanager
def simulated_gpu(capability: tuple[int, int] = (9, 0)) -> Iterator[Counts]:
    """Run the body on a machine with one simulated GPU; yields the counts of its work."""
    _counts.clear()
    # The random numbers of the device are the CPU's.
    patches = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "_lazy_init": lambda: None,
        "get_device_capability": lambda *_: capability,
        "get_device_name": lambda *_: "simulated",
        "is_bf16_supported": lambda **_: capability >= (8, 0),
        "synchronize": lambda *_: None,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "manual_seed_all": lambda *_: None,
    }
    with contextlib.ExitStack() as stack:
        for name, function in patches.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, function))
        stack.enter_context(mock.patch.object(nn.Module, "to", _module_to))
        # Graphs need a card: operators are launched one by one.
        stack.enter_context(mock.patch.object(EncoderGraphs, "can_compute", return_value=False))
        stack.enter_context(mock.patch.object(Tensor, "pin_memory", lambda self: self))
        stack.enter_context(mock.patch.object(weight_files, "save_file", _save_file))
        stack.enter_context(mock.patch.object(operations, "_measure_peak", return_value=1e12))
        stack.enter_context(mock.patch.object(clip_grad, *_grouping()))
        stack.enter_context(_Mode())
        yield _counts


def _grouping() -> tuple[str, Callable[..., Any]]:
    """PyTorch's grouping of gradients by their device, which would find the CPU."""
    name = "_group_tensors_by_device_and_dtype"
    group = getattr(clip_grad, name)

    def group_by_device(lists: list[list[Tensor]]) -> Any:
        is_gpu = isinstance(lists[0][0], GpuTensor)
        device = _GPU if is_gpu else _CPU
        return {(device, dtype): value for (_, dtype), value in group(lists).items()}

    return name, group_by_device


def _save_file(tensors: Mapping[str, Tensor], *args: Any) -> None:
    safetensors.torch.save_file({name: _values(one) for name, one in tensors.items()}, *args)


def _module_to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    new: dict[int, Tensor] = {}

    def is_gpu(tensor: Tensor) -> bool:
        return isinstance(tensor, GpuTensor) if device is None else device.type == "cuda"

    def convert(tensor: Tensor) -> Tensor:
        is_float = tensor.is_floating_point()
        values = _values(tensor.detach()).to(dtype=dtype if is_float else None)
        return GpuTensor(values.clone()) if is_gpu(tensor) else values

    with torch.no_grad():
        for module in self.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    is_same = isinstance(parameter, GpuTensor) == is_gpu(parameter)
                    if is_same and dtype in (None, parameter.dtype):
                        continue
                    if id(parameter) not in new:
                        new[id(parameter)] = nn.Parameter(
                            convert(parameter), parameter.requires_grad
                        )
                    module._parameters[name] = new[id(parameter)]
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = convert(buffer)
    return self
