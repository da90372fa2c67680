"""Load a model, with a network of PyTorch's or in native code alone."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from .errors import needs_pytorch_error
from .inference.native_model import NativeModel
from .nn.config import Activation
from .settings.literals import Backend

if TYPE_CHECKING:
    import torch

    from .model import Model
    from .tasks.task import Task
else:
    torch = Task = Model = Any  # PyTorch is imported only if it computes


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
    """
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
    defaults = {"device": ("auto", "cpu"), "allow_non_finite": (False,)}
    for key, value in options.items():
        if str(value) not in map(str, defaults.get(key, (None,))):
            raise needs_pytorch_error(f"{key}={value}")
    return NativeModel.load(name)


def has_pytorch() -> bool:
    """Whether PyTorch is installed; it is not imported."""
    if "torch" in sys.modules:
        return True
    try:
        return find_spec("torch") is not None
    except ModuleNotFoundError:  # an import hook says so
        return False
