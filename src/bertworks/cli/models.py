"""The model that a verb reads: its name, its adapter and its task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..settings import literals
from ..utils.lazy_module import permanent_imports
from .devices import Engine
from .option_groups import OptionGroup

if TYPE_CHECKING:
    from ..model import Model

ResultT = TypeVar("ResultT")

_HELP = (
    "A model directory, a name on the hub, or one of the bundled models mini and mini-sentences."
)
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help=_HELP)]
ModelOption = Annotated[str, typer.Option(metavar="MODEL", help=_HELP)]


@dataclass(frozen=True)
class ModelSource:
    """A model as a command line names it.

    Attributes:
        name: a directory, or a name on the hub.
        base, adapter, task: as in `load`.
    """

    name: str
    base: str | None = None
    adapter: str | None = None
    task: str | None = None

    def load(self, device: literals.Device) -> Model:
        """Load the model with PyTorch, on a device."""
        with permanent_imports():
            from ..network_loading import load_network
        return load_network(self.name, device=device, **self._options)

    def use(self, function: Callable[[Any], ResultT], engine: Engine) -> ResultT:
        """Call a function with the model, in native code if that can compute all of it.

        If not, the function is called again with a network of PyTorch's, if the user permits it.

        Raises:
            NeedsPyTorchError: PyTorch is needed, and not permitted or not installed.
        """
        with permanent_imports():
            from ..loading import use
        return use(self.name, function, engine.device, engine.backend, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        return {"base": self.base, "adapter": self.adapter, "task": self.task}

    def directories(self) -> list[Path]:
        """Return the local directories that are read; none for what is on the hub."""
        from ..checkpoints.locate import local_directory

        names = [name for name in (self.name, self.base) if name is not None]
        return [directory for name in names if (directory := local_directory(name)) is not None]


BM25 = "bm25"
"""Ranks texts as a model does, and is named where one is."""


def use_each(
    models: Sequence[ModelSource], function: Callable[[list[Any]], ResultT], engine: Engine
) -> ResultT:
    """Call a function with several models, as `ModelSource.use` does; with `BM25` for itself."""

    def use(number: int, arguments: list[Any]) -> ResultT:
        if number == len(models):
            return function(arguments)
        if models[number].name == BM25:
            return use(number + 1, [*arguments, BM25])
        return models[number].use(lambda model: use(number + 1, [*arguments, model]), engine)

    return use(0, [])


def _plain(model: ModelName) -> ModelSource:
    return ModelSource(model)


def _adapters(*, base: str | None = None, adapter: str | None = None) -> dict[str, str]:
    """The given options of adapters.

    Args:
        base (MODEL): Base model of an adapter directory; the one that its files name if omitted.
        adapter (NAME): Adapter in the model's directory to merge, such as retrieval.query.
    """
    options = {"base": base, "adapter": adapter}
    return {name: value for name, value in options.items() if value is not None}


Adapters = Annotated[dict[str, str], OptionGroup(_adapters)]
"""The given adapter options, as keyword arguments of `load`."""


def _with_adapter(model: ModelName, *, adapters: Adapters) -> ModelSource:
    return ModelSource(model, **adapters)


PlainModel = Annotated[ModelSource, OptionGroup(_plain)]
AdaptedModel = Annotated[ModelSource, OptionGroup(_with_adapter)]


def _with_task(model: ModelName, *, adapters: Adapters, task: str | None = None) -> ModelSource:
    """A model whose task may be a user's.

    Args:
        task (FILE.py:CLASS): Your own task class, for a model trained with it; `encoder`: load only
            the encoder.
    """
    return ModelSource(model, **adapters, task=task)


TaskModel = Annotated[ModelSource, OptionGroup(_with_task)]
