"""Load a model, with a network of PyTorch's or in native code alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

from .data.lines import StandardInput
from .errors import (
    NeedsPyTorchError,
    SettingsError,
    did_you_mean,
    has_pytorch,
    needs_pytorch_error,
)
from .inference.native_model import NativeModel
from .nn.part_settings import Activation
from .settings.literals import Backend

if TYPE_CHECKING:
    import torch

    from .model import Model
    from .tasks.task import Task
else:
    torch = Task = Model = Any  # PyTorch is imported only if it computes

ResultT = TypeVar("ResultT")

_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files that Linux has if there is a GPU of NVIDIA, a GPU under Windows, or one of AMD."""


@overload
def load(name: str | Path, *, backend: Literal["native"]) -> NativeModel: ...


@overload
def load(
    name: str | Path,
    *,
    task: str | type[Task[Any]] | None = None,
    device: torch.device | str = "auto",
    hidden_act: Activation | None = None,
    allow_non_finite: bool = False,
    base: str | Path | None = None,
    adapter: str | None = None,
    backend: Literal["auto", "torch"] = "auto",
) -> Model: ...


def load(
    name: str | Path,
    *,
    task: str | type[Task[Any]] | None = None,
    device: torch.device | str = "auto",
    hidden_act: Activation | None = None,
    allow_non_finite: bool = False,
    base: str | Path | None = None,
    adapter: str | None = None,
    backend: Backend = "auto",
) -> Model | NativeModel:
    """Load a model.

    Without PyTorch, the result is a `NativeModel`.

    Args:
        name: a model directory (including the original TensorFlow release's), a run directory, or
            a name on the Hugging Face hub.
        task: your own task class, or `path/to/file.py:Class`, for a model trained with it; a
            model's files never cause an import. "encoder" loads neither task nor head.
        device: device to load the network to.
        hidden_act: the activation, overriding the files: the original release's "gelu" was the
            erf form until February 2019 (`gelu`, the default reading), and the tanh form since
            (`gelu_new`).
        allow_non_finite: also load weights with NaN or infinity; `report.non_finite_tensors` names
            the tensors.
        base: the base model of an adapter that the `peft` library saved; the one that its files
            name if omitted. The adapter is merged into it.
        adapter: the name of an adapter in the model's own directory, such as "retrieval.query" of
            Jina embeddings v3, which is merged; its prompt is used by default. "retrieval" loads
            "retrieval.passage", and "retrieval.query" as the model of queries: twice the memory.
            Without it, the base weights are loaded, and a warning names the adapters.
        backend: what computes. `torch`: a network of PyTorch's, with every method; its frozen form
            uses native code where that is faster. `native`: native code alone, which computes
            vectors of texts (`embed`, `similarity`) for BERT's kind of encoder; PyTorch is not
            imported. `auto`: `torch` if it is installed.

    Raises:
        CheckpointError: there is no such model, it is damaged or of an unsupported architecture;
            or a weight is not finite; or there is no adapter of that name.
        NeedsPyTorchError: the model cannot be used without PyTorch.
        SettingsError: there is no such backend.
    """
    if backend not in get_args(Backend):
        fix = f"{did_you_mean(backend, get_args(Backend))}."
        raise SettingsError(f"unknown backend {backend!r}", fix=fix)
    options: dict[str, Any] = {
        "task": task,
        "device": device,
        "hidden_act": hidden_act,
        "allow_non_finite": allow_non_finite,
        "base": base,
        "adapter": adapter,
    }
    if backend == "torch" or (backend == "auto" and has_pytorch()):
        if not has_pytorch():
            raise needs_pytorch_error("backend=torch")
        from .network_loading import load_network

        return load_network(name, **options)
    return _load_native(name, options)


def _load_native(name: str | Path, options: Mapping[str, Any]) -> NativeModel:
    """Load a model in native code; all options of `load` but the defaults are errors."""
    defaults = {"device": ("auto", "cpu"), "allow_non_finite": (False,)}
    for key, value in options.items():
        if str(value) not in map(str, defaults.get(key, (None,))):
            raise needs_pytorch_error(f"{key}={value}")
    return NativeModel.load(name)


def use(
    name: str | Path,
    function: Callable[[Any], ResultT],
    device: str = "auto",
    backend: Backend = "auto",
    **options: Any,
) -> ResultT:
    """Call a function with a model that it does not change, with what computes it best.

    That is native code if it can compute the model and all that the function asks for. If it
    cannot, the function is called again, with a network of PyTorch's.

    Args:
        device: "auto": a GPU if there is one, with PyTorch.
        backend: `native` or `torch`: only that.
        options: of `load`.

    Raises:
        NeedsPyTorchError: PyTorch is needed, and not permitted or not installed; or the function
            had read standard input before it needed PyTorch.
    """
    if backend != "torch" and not (backend == "auto" and device == "auto" and _may_have_gpu()):
        num_reads = StandardInput.num_reads
        try:
            model = _load_native(name, {"device": device, **options})
            return function(model)
        except NeedsPyTorchError as error:
            if backend == "native" or not has_pytorch():
                raise
            if StandardInput.num_reads > num_reads:  # whose first rows are lost for a second call
                fix = "Give --backend torch, or a file instead of standard input."
                raise NeedsPyTorchError(error.what, where=error.where, fix=fix) from None
    return function(load(name, device=device, backend="torch", **options))


def _may_have_gpu() -> bool:
    """Whether PyTorch should be asked for a GPU, which takes a second."""
    return has_pytorch() and any(map(os.path.exists, _GPU_DEVICES))
