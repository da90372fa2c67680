"""The models of a server: loaded at the start, on demand, or again."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..checkpoints.locate import check_model, locate_with_adapter
from ..checkpoints.weight_files import (
    digest_weights,
    list_weight_files,
    state_of,
    unchanged_files,
)
from ..errors import (
    BertworksError,
    CheckpointError,
    SettingsError,
    did_you_mean,
    truncate_repr,
)
from ..loading import use
from ..settings.literals import Backend, InferencePrecision
from ..utils.memory import measure_resident_bytes, return_free_memory
from .loaded_model import LoadedModel, Prompts, check_native_model
from .logs import log

if TYPE_CHECKING:
    from ..model import Model

_ALTERNATING_SECONDS = 60.0
"""A model that is needed again so soon after it was unloaded is reported."""

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
        device, backend: what computes the models; see `loading.use`.
        precision: of all models.
        adapters: arguments of `load`: the base model or the adapter of all models.
        deterministic: results are bitwise equal whatever a text is batched with.
        max_memory: maximum bytes of the process (`_measure_memory`); above it, the least recently
            used model is unloaded.

    Attributes:
        failures: the models that could not be loaded, by name. The others are served.
        num_loads, num_unloads: how often each model was loaded, and unloaded for others.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        device: str = "auto",
        backend: Backend = "auto",
        adapters: Mapping[str, Any] | None = None,
        precision: InferencePrecision = "auto",
        deterministic: bool = False,
        max_memory: int | None = None,
    ) -> None:
        self.sources = dict(sources)
        self.default = next(iter(sources))
        self._device, self._backend, self._max_memory = device, backend, max_memory
        self._adapters = dict(adapters or {})
        self._precision: InferencePrecision = precision
        self._settings = {"precision": precision, "deterministic": deterministic}
        self.failures: dict[str, Failure] = {}
        self.num_loads: Counter[str] = Counter()
        self.num_unloads: Counter[str] = Counter()
        self._last_unload_times: dict[str, float] = {}
        self._loaded_models: OrderedDict[str, LoadedModel] = OrderedDict()
        self._loading = {name: threading.Lock() for name in sources}
        self._lock = threading.Lock()
        self._start_bytes = measure_resident_bytes() or 0

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

    @property
    def unloaded_names(self) -> list[str]:
        """The names of the models that are not loaded, but may be."""
        loaded_names = {model.name for model in self.list_loaded()}
        return [name for name in self.available if name not in loaded_names]

    def get(self, name: str | None = None, *, at_start: bool = False) -> LoadedModel:
        """Return a model; load it if necessary.

        Args:
            at_start: log neither that it was loaded (but with `debug`) nor that it cannot be.

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
                    loaded_model = self._open(name)
                except BertworksError as error:
                    failure = self._record_failure(name, error, at_start=at_start)
                else:
                    self._insert([loaded_model], logging.DEBUG if at_start else logging.INFO)
                    return loaded_model
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
                # The first line of the log is that the server listens.
                self.get(name, at_start=True)
            if require_all and name in self.failures:
                raise self.failures[name].error
        self._check_any_is_available()

    def check_all(self) -> None:
        """Check that the files of all models exist; download those of the hub.

        `failures` has those of which files are missing.

        Raises:
            BertworksError: no model has its files.
        """
        for name, source in self.sources.items():
            try:
                self._locate(source)
            except BertworksError as error:
                self._record_failure(name, error, at_start=True)
        self._check_any_is_available()

    def _check_any_is_available(self) -> None:
        """Log what failed at the start; what ends it is raised, and not logged too."""
        end = None if self.available else self.failures[self.default].error
        for name, failure in self.failures.items():
            if failure.error is not end:
                _log_failure(name, failure)
        if end is not None:
            raise end

    def load_again(self) -> list[LoadedModel]:
        """Load all models again that were loaded, or could not be, for `swap_in`.

        A model that could not be loaded before, and cannot now, stays unavailable.

        Raises:
            BertworksError: a model that is served cannot be loaded again.
        """
        new_models = []
        for name in self.sources:
            is_failed = name in self.failures
            if not is_failed and name not in self._loaded_models:
                continue
            with self._loading[name]:
                try:
                    new_models.append(self._open(name))
                except BertworksError as error:
                    if not is_failed:
                        raise
                    self._record_failure(name, error)
        return new_models

    def swap_in(self, new_models: Sequence[LoadedModel]) -> None:
        """Serve models in place of those with their names."""
        self._insert(new_models)

    def _record_failure(
        self, name: str, error: BertworksError, *, at_start: bool = False
    ) -> Failure:
        failure = self.failures[name] = Failure(error, time.monotonic())
        if not at_start:
            _log_failure(name, failure)
        return failure

    def _locate(self, source: str) -> tuple[Path, Path | None]:
        """Return the directories of a model and its adapter, which have the files of a model."""
        model_directory, adapter = locate_with_adapter(source, self._adapters.get("base"))
        check_model(model_directory)
        if not list_weight_files(model_directory):
            raise CheckpointError("there are no weights", where=str(model_directory))
        return model_directory, adapter

    def _open(self, name: str) -> LoadedModel:
        """Load a model, and embed a text with it."""
        source = self.sources[name]
        model_directory, adapter = self._locate(source)
        directories = [model_directory] if adapter is None else [model_directory, adapter]
        check = partial(check_native_model, precision=self._precision)
        open_model: Callable[..., Any] = partial(
            use, adapter or model_directory, check, self._device, **self._adapters
        )
        files = [file for directory in directories for file in list_weight_files(directory)]
        # The files are digested while they are loaded, and are the same for both.
        with unchanged_files(files), ThreadPoolExecutor(1, "digest") as thread:
            digests = thread.map(digest_weights, directories)
            model = open_model(backend=self._backend)
            digest = "+".join(digests)
            states = [*map(state_of, files)]

        def load_network() -> Model:
            with unchanged_files(files):
                if [*map(state_of, files)] != states:
                    what = f"the files of {name!r} have changed since it was loaded"
                    raise CheckpointError(what, fix="Load it again (SIGHUP).")
                network_model: Model = open_model(backend="torch")
                return network_model

        loaded_model = LoadedModel(
            name,
            source,
            model,
            Prompts.from_directory(model_directory, model.sentence),
            self._settings,
            digest,
            load_network,
        )
        self._check_fits(loaded_model)
        loaded_model.warm_up()
        return loaded_model

    def _check_fits(self, loaded_model: LoadedModel) -> None:
        """Raise `CheckpointError` if a model alone needs more than `max_memory`."""
        num_bytes = loaded_model.num_bytes
        if loaded_model.device == "cpu":
            num_bytes += self._start_bytes
        if self._max_memory is not None and num_bytes > self._max_memory:
            raise CheckpointError(
                f"has {loaded_model.num_bytes / 1e6:.3g} MB of weights, and the process "
                f"{self._start_bytes / 1e6:.3g} MB without models: more than "
                f"max_memory={self._max_memory / 1e6:g}",
                where=loaded_model.source,
                fix="Raise max_memory.",
            )

    def _insert(self, new_models: Sequence[LoadedModel], log_level: int = logging.INFO) -> None:
        """Serve loaded models; unload others if there is too little memory."""
        unloaded_names = []
        with self._lock:
            excess_bytes = self._measure_memory(new_models) - (self._max_memory or math.inf)
            has_replaced = False
            for model in new_models:
                old_model = self._loaded_models.pop(model.name, None)
                if old_model is not None:
                    has_replaced = True
                    excess_bytes -= old_model.num_bytes
                self._loaded_models[model.name] = model
                self.failures.pop(model.name, None)
            while excess_bytes > 0 and len(self._loaded_models) > 1:
                name, old_model = self._loaded_models.popitem(last=False)
                unloaded_names.append(name)
                excess_bytes -= old_model.num_bytes
        self.num_loads.update(model.name for model in new_models)
        self.num_unloads.update(unloaded_names)
        for model in new_models:
            log(
                log_level,
                "model loaded",
                model=model.name,
                digest=model.digest,
                unloaded=unloaded_names,
            )
            self._warn_if_models_alternate(model.name, unloaded_names)
        if excess_bytes > 0:
            log(
                logging.WARNING,
                "memory above max_memory",
                megabytes=round((excess_bytes + (self._max_memory or 0)) / 1e6),
                fix="raise max_memory",
            )
        if has_replaced or unloaded_names:
            _free_memory()

    def _measure_memory(self, new_models: Sequence[LoadedModel]) -> int:
        """Return the bytes in memory: of the process, or of the weights, if they are on a GPU."""
        resident_bytes = measure_resident_bytes()
        models = {*self._loaded_models.values(), *new_models}
        if resident_bytes is None or any(model.device != "cpu" for model in models):
            return sum(model.num_bytes for model in models)
        return resident_bytes

    def _warn_if_models_alternate(self, name: str, unloaded_names: Sequence[str]) -> None:
        """Warn if a model is loaded again soon after it was unloaded for others."""
        now = time.monotonic()
        seconds = now - self._last_unload_times.get(name, -math.inf)
        self._last_unload_times.update(dict.fromkeys(unloaded_names, now))
        if unloaded_names and seconds < _ALTERNATING_SECONDS:
            log(
                logging.WARNING,
                "models unload each other",
                model=name,
                unloaded=unloaded_names,
                seconds=round(seconds, 1),
                fix="raise max_memory, or serve fewer models",
            )


def _log_failure(name: str, failure: Failure) -> None:
    log(logging.ERROR, "model unavailable", model=name, reason=str(failure.error))


def _free_memory() -> None:
    """Return the memory of models that nothing refers to any more to the system.

    Models are in no cycles of references. What is collected here are other objects, but not those
    that the server froze at its start: to visit these takes a second in which nothing is answered.
    """
    gc.collect()
    if gc.get_freeze_count():
        gc.freeze()
    return_free_memory()


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
