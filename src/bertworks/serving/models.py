"""The models of a server: loaded at the start or on demand."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..checkpoints.locate import locate, locate_with_adapter
from ..errors import BertworksError, SettingsError, did_you_mean, truncate_repr
from ..loading import load
from .loaded_model import LoadedModel, Prompts
from .logs import log

_RETRY_SECONDS = 30.0
"""A request for a model that could not be loaded tries again after this time."""


class UnknownModelError(BertworksError):
    """A request names a model that is not served."""


class UnavailableModelError(BertworksError):
    """A request names a model that cannot be loaded."""


class Failure(NamedTuple):
    """Why a model could not be loaded, and when, on the monotonic clock."""

    error: BertworksError
    time: float


class Models:
    """The models of a server, the first of which is the default.

    Args:
        sources: each model's directory or name on the hub, by its name in requests.
        device, precision: the device and precision of all models.
        adapters: arguments of `load`: the base model or the adapter of all models.
        deterministic: results are bitwise equal whatever a text is batched with.
        max_memory: maximum bytes of weights; above it, the least recently used model is unloaded.

    Attributes:
        failures: the models that could not be loaded, by name. The others are served.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        device: str = "auto",
        adapters: Mapping[str, Any] | None = None,
        precision: str = "auto",
        deterministic: bool = False,
        max_memory: int | None = None,
    ) -> None:
        self.sources = dict(sources)
        self.default = next(iter(sources))
        self._device, self._max_memory = device, max_memory
        self._adapters = dict(adapters or {})
        self._settings = {"precision": precision, "deterministic": deterministic}
        self.failures: dict[str, Failure] = {}
        self._loaded_models: OrderedDict[str, LoadedModel] = OrderedDict()
        self._loading = {name: threading.Lock() for name in sources}
        self._lock = threading.Lock()

    def resolve_name(self, name: str | None) -> str:
        """Return the name of a served model; the default model's for None.

        Raises:
            UnknownModelError: no model has that name.
        """
        name = name or self.default
        if name not in self.sources:
            raise UnknownModelError(
                f"unknown model {name[:100]!r}", fix=f"{did_you_mean(name, self.sources)}."
            )
        return name

    def get_loaded(self, name: str | None = None) -> LoadedModel | None:
        """Return a model if it is loaded, and mark it as the most recently used."""
        with self._lock:
            loaded_model = self._loaded_models.get(self.resolve_name(name))
            if loaded_model is not None:
                self._loaded_models.move_to_end(loaded_model.name)
            return loaded_model

    def list_loaded(self) -> list[LoadedModel]:
        """Return the loaded models, in the order of `sources`."""
        with self._lock:
            return [
                self._loaded_models[name] for name in self.sources if name in self._loaded_models
            ]

    @property
    def available(self) -> list[str]:
        """The names of the models that are loaded, or may be."""
        return [name for name in self.sources if name not in self.failures]

    def get(self, name: str | None = None) -> LoadedModel:
        """Return a model; load it if necessary.

        Raises:
            UnknownModelError: no model has that name.
            UnavailableModelError: the model cannot be loaded.
        """
        name = self.resolve_name(name)
        with self._loading[name]:
            loaded_model = self.get_loaded(name)
            if loaded_model is not None:
                return loaded_model
            failure = self.failures.get(name)
            if failure is None or time.monotonic() - failure.time > _RETRY_SECONDS:
                try:
                    return self._load(name)
                except BertworksError as error:
                    failure = self.failures[name] = Failure(error, time.monotonic())
                    log(logging.ERROR, "model unavailable", model=name, reason=str(error))
            raise UnavailableModelError(
                f"the model {name!r} cannot be loaded: {failure.error}"
            ) from None

    def load_all(self, *, require_all: bool = False) -> None:
        """Load all models. `failures` has those that cannot be loaded.

        Raises:
            BertworksError: no model can be loaded, or, with `require_all`, one cannot.
        """
        for name in self.sources:
            with suppress(UnavailableModelError):
                self.get(name)
            if require_all and name in self.failures:
                raise self.failures[name].error
        if not self.available:
            raise self.failures[self.default].error

    def reload(self) -> list[str]:
        """Load all models again that were loaded, or could not be; return their names.

        A model that cannot be loaded stays as it was; the first such error is raised at the end.
        """
        names = [name for name in self.sources if name in self.failures or self._is_loaded(name)]
        errors: list[BertworksError] = []
        for name in names:
            with self._loading[name]:
                try:
                    self._load(name)
                except BertworksError as error:
                    errors.append(error)
        if errors:
            raise errors[0]
        return names

    def _is_loaded(self, name: str) -> bool:
        return any(loaded_model.name == name for loaded_model in self.list_loaded())

    def _load(self, name: str) -> LoadedModel:
        directory = locate(self.sources[name])
        model = load(directory, device=self._device, **self._adapters)
        model_directory, _ = locate_with_adapter(directory, self._adapters.get("base"))
        prompts = Prompts.from_directory(model_directory, model.sentence)
        loaded_model = LoadedModel(name, self.sources[name], model, prompts, self._settings)
        loaded_model.warm_up()
        self.failures.pop(name, None)
        with self._lock:
            is_freed = name in self._loaded_models
            self._loaded_models[name] = loaded_model
            self._loaded_models.move_to_end(name)
            while self._max_memory is not None and len(self._loaded_models) > 1:
                if sum(each.num_bytes for each in self._loaded_models.values()) <= self._max_memory:
                    break
                self._loaded_models.popitem(last=False)
                is_freed = True
        if is_freed and gc.get_freeze_count():  # `Server.startup` froze objects
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        return loaded_model


def parse_sources(models: Sequence[str]) -> dict[str, str]:
    """Return the models of a command line by name: of `NAME=MODEL`, or the last part of a path.

    A model on the hub keeps its full name.

    Raises:
        SettingsError: two models have the same name, a name or model is empty, or there are no
            models.
    """
    sources: dict[str, str] = {}
    for word in models:
        name, equals, source = word.partition("=")
        if word and Path(word).exists():
            name, source = Path(word).resolve().name, word
        elif not equals:
            name = source = word
        if not source or not name or name != name.strip() or not name.isprintable():
            part = "model" if not source else "name" if not name else "printable name"
            raise SettingsError(
                f"{truncate_repr(word)} has no {part}", fix="Give MODEL or NAME=MODEL."
            )
        if name in sources:
            raise SettingsError(f"two models are called {name!r}", fix="Name one: NAME=MODEL.")
        sources[name] = source
    if not sources:
        raise SettingsError("there are no models to serve")
    return sources
