"""The models of a server: loaded at the start or on demand, each with what it can be asked for."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from ..checkpoints.locate import locate, locate_with_adapter
from ..checkpoints.sentence_directory import transformer_directory
from ..checkpoints.sentence_settings import SentenceSettings
from ..checkpoints.weight_files import digest_weights, read_json
from ..errors import (
    BertworksError,
    CheckpointError,
    NeedsPyTorchError,
    SettingsError,
    WrongModelError,
    did_you_mean,
    has_pytorch,
    truncate_repr,
)
from ..inference.native_model import NativeModel
from ..inference.settings import EngineSettings
from ..loading import use
from ..settings.literals import Backend
from ..settings.pooling import SPARSE_POOLINGS
from ..tasks.answering.task import AnsweringTask
from ..tasks.classification import TextClassifierTask
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.regression import RegressionTask
from ..tasks.tagging.task import TaggingTask
from ..tasks.task import Task
from ..tasks.texts import TextTask
from .logs import log
from .runners import WHOLE, EmbedRunner, TaskRunner, Text

if TYPE_CHECKING:
    from ..model import Model
    from .generation_runner import GenerateRunner

    AnyModel = Model | NativeModel

RunnerT = TypeVar("RunnerT")
TaskRunnerT = TypeVar("TaskRunnerT", bound=TaskRunner)

_MAX_RUNNERS = 32
"""The most runners of a model, for different settings; the least recently used is dropped."""

_ALTERNATING_SECONDS = 60.0
"""A model that is needed again so soon after it was unloaded is reported."""

VectorForm = Literal["vectors", "sparse", "tokens", "matrices"]

_RETRY_SECONDS = 30.0
"""A request for a model that could not be loaded tries again after this time."""


class UnknownModelError(BertworksError):
    """A request names a model that is not served."""


class UnavailableModelError(BertworksError):
    """A request names a model that cannot be loaded."""


class Prompts(NamedTuple):
    """The prompts and the vector lengths that a sentence encoder's files define.

    Attributes:
        texts: the prompts, by name.
        default: name of the prompt for requests that name none.
        dimensions: lengths to which vectors may be shortened (Matryoshka); empty if none are named.
        any_dimensions: whether vectors may be shortened to any length.
    """

    texts: Mapping[str, str]
    default: str | None
    dimensions: frozenset[int]
    any_dimensions: bool

    @classmethod
    def from_directory(cls, directory: Path, sentence: SentenceSettings | None) -> Prompts:
        """Read `config_sentence_transformers.json` and `config.json`.

        Args:
            sentence: the model's settings, which have the same prompts, and those of its adapter.
        """
        path = directory / "config_sentence_transformers.json"
        entries = read_json(path) if path.is_file() else {}
        if sentence is not None:
            entries |= sentence.entries
        config = read_json(transformer_directory(directory) / "config.json")
        widths = config.get("matryoshka_dimensions") or entries.get("matryoshka_dimensions") or ()
        return cls(
            dict(entries.get("prompts") or {}),
            entries.get("default_prompt_name"),
            frozenset(widths),
            bool(config.get("is_matryoshka")) and not widths,
        )


class LoadedModel:
    """A loaded model.

    Args:
        name: its name in requests.
        source: its directory, or its name on the hub.
        settings: values for `EngineSettings`: precision and determinism.
        digest: of its files of weights (`digest_weights`).
        load_network: loads the model with a network of PyTorch's.

    Attributes:
        load_time: when it was loaded, in seconds since 1970.
    """

    def __init__(
        self,
        name: str,
        source: str,
        model: AnyModel,
        prompts: Prompts,
        settings: Mapping[str, Any],
        digest: str,
        load_network: Callable[[], Model],
    ) -> None:
        self.name, self.source, self.model, self.prompts = name, source, model, prompts
        self.digest, self.load_time = digest, time.time()
        self._settings = dict(settings)
        self._load_network = load_network
        self._network_model: Model | None = None
        self._runners: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock, self._loading = threading.Lock(), threading.Lock()

    @property
    def device(self) -> str:
        """The kind of device that computes it."""
        return self.model.device_type

    @property
    def num_bytes(self) -> int:
        """The bytes of its weights."""
        return self.model.num_bytes

    @property
    def network_model(self) -> Model:
        """The model with a network of PyTorch's, for what native code does not compute.

        It is loaded at the first use.

        Raises:
            NeedsPyTorchError: PyTorch is not installed.
        """
        with self._loading:
            if not isinstance(self.model, NativeModel):
                return self.model
            if self._network_model is None:
                self._network_model = self._load_network()
            return self._network_model

    @property
    def task(self) -> Task[Any] | None:
        """The task that it was trained for, if any."""
        return self.model.task

    @property
    def can_score_pairs(self) -> bool:
        """Whether it predicts one number for a pair of texts."""
        task = self.task
        if isinstance(task, TextClassifierTask) and len(task.labels) > 1:
            return False
        return isinstance(task, TextClassifierTask | RegressionTask) and (
            task.settings.is_pair_optional or task.settings.pair_column is not None
        )

    @property
    def capabilities(self) -> frozenset[str]:
        """What it can be asked for, which depends on its task."""
        task = self.task
        capabilities = {"embed"}
        if isinstance(task, PretrainingTask):
            if not task.causal:
                capabilities |= {"fill-mask"} if task.has_masked_lm else set()
            elif self.model.config.can_generate:
                capabilities.add("generate")
            if task.instances.next_sentence:
                capabilities.add("next-sentence")
        elif task is not None:
            capabilities.add("predict-rows")
        if isinstance(task, TextTask):
            capabilities |= {"classify"} | ({"rerank"} if self.can_score_pairs else set())
        if isinstance(task, TaggingTask):
            capabilities.add("tag")
        if isinstance(task, AnsweringTask):
            capabilities.add("answer")
        if self.form == "matrices":
            capabilities.add("rerank")
        if self.form == "sparse":
            capabilities.add("embed-sparse")
        return frozenset(capabilities)

    def check_capability(self, capability: str) -> None:
        """Raise `WrongModelError` if the model lacks a capability."""
        if capability not in self.capabilities:
            trained = "nothing but vectors" if self.task is None else self.task.name
            raise WrongModelError(
                f"the model {self.name!r} was trained for {trained}, not for {capability}",
                fix=f"It supports: {', '.join(sorted(self.capabilities))}.",
            )

    def warm_up(self) -> None:
        """Embed a text, so that the first request is fast.

        Raises:
            CheckpointError: the model cannot embed any text; for example, its outputs overflow.
        """
        try:
            runner = self.get_embed_runner()
            runner.run(runner.prepare([Text("text", "a first text")], side="right"))
        except BertworksError as error:
            raise CheckpointError(
                f"it cannot embed a text: {error.what}", where=self.source, fix=error.fix
            ) from None

    def make_engine_settings(self, precision: str | None = None) -> EngineSettings:
        """Return the settings of the engine, with another precision if one is given."""
        override = {} if precision is None else {"precision": precision}
        return EngineSettings.parse({**self._settings, **override})

    def get_embed_runner(
        self,
        kind: type[EmbedRunner] = EmbedRunner,
        *,
        precision: str | None = None,
        normalize: bool = False,
        **settings: Any,
    ) -> EmbedRunner:
        """Return a runner that embeds texts; `settings` as in `Model.embed`, lists as tuples."""

        def make() -> EmbedRunner:
            engine = self.make_engine_settings(precision).with_values(batch_tokens=WHOLE)
            arguments = {**engine.model_dump(), **settings, "normalize": normalize}
            try:
                return kind(self.model.embedder(**arguments))
            except NeedsPyTorchError:
                if not has_pytorch():
                    raise
            return kind(self.network_model.embedder(**arguments))

        return self._get_runner((kind, precision, normalize, *sorted(settings.items())), make)

    def is_for_queries(self, prompt_name: str | None) -> bool:
        """Whether texts with this prompt have vectors of the model for queries, if there is one."""
        query_model = self.model.query_model
        if query_model is None or prompt_name is None:
            return False
        sentence = query_model.sentence
        own = None if sentence is None else sentence.entries.get("default_prompt_name")
        return prompt_name in ("query", own)

    @property
    def form(self) -> VectorForm:
        """What it makes of a text, unless a request asks for another pooling."""
        if self.model.similarity_function == "maxsim":
            return "matrices"
        pooling = self.get_embed_runner().embedder.pooling
        return "sparse" if pooling in SPARSE_POOLINGS else "vectors"

    @property
    def normalizes(self) -> bool:
        """Whether the model's files say that vectors have length 1."""
        sentence = self.model.sentence
        return sentence is not None and sentence.normalize

    def get_task_runner(self, kind: type[TaskRunnerT]) -> TaskRunnerT:
        """Return a runner of the task that the model was trained for."""
        task: Task[Any] | None = self.task
        network: Any = self.model.network
        assert task is not None
        return self._get_runner((kind,), lambda: kind(task, network, self.make_engine_settings()))

    def get_generation_runner(self, batch_tokens: int) -> GenerateRunner:
        """Return the runner that continues prompts, for batches of `batch_tokens` tokens."""
        from ..tasks.pretraining.network import PretrainingNetwork
        from .generation_runner import GenerateRunner

        network = self.network_model.network
        assert isinstance(network, PretrainingNetwork)
        return self._get_runner(
            GenerateRunner,
            lambda: GenerateRunner(
                network, self.model.tokenizer, self.make_engine_settings(), batch_tokens
            ),
        )

    def _get_runner(self, key: Hashable, make: Callable[[], RunnerT]) -> RunnerT:
        with self._lock:
            if key not in self._runners:
                self._runners[key] = make()
            self._runners.move_to_end(key)
            while len(self._runners) > _MAX_RUNNERS:
                self._runners.popitem(last=False)
            runner: RunnerT = self._runners[key]
            return runner


def _check_task(model: AnyModel) -> AnyModel:
    """Return a model; prefer a network of PyTorch's to native code for vectors alone.

    Raises:
        NeedsPyTorchError: its task needs PyTorch, which is installed.
    """
    if isinstance(model, NativeModel) and model.task_error is not None and has_pytorch():
        raise model.task_error
    return model


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
        max_memory: maximum bytes of weights; above it, the least recently used model is unloaded.

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
        precision: str = "auto",
        deterministic: bool = False,
        max_memory: int | None = None,
    ) -> None:
        self.sources = dict(sources)
        self.default = next(iter(sources))
        self._device, self._backend, self._max_memory = device, backend, max_memory
        self._adapters = dict(adapters or {})
        self._settings = {"precision": precision, "deterministic": deterministic}
        self.failures: dict[str, Failure] = {}
        self.num_loads: Counter[str] = Counter()
        self.num_unloads: Counter[str] = Counter()
        self._last_unload_times: dict[str, float] = {}
        self._is_starting = False
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
                    loaded_model = self._open(name)
                except BertworksError as error:
                    failure = self._record_failure(name, error)
                else:
                    self._insert(loaded_model)
                    return loaded_model
            raise UnavailableModelError(
                f"the model {name!r} cannot be loaded: {failure.error}"
            ) from None

    def load_all(self, *, require_all: bool = False) -> None:
        """Load all models. `failures` has those that cannot be loaded.

        Raises:
            BertworksError: no model can be loaded, or, with `require_all`, one cannot.
        """
        self._is_starting = True  # the log's first line is that the server listens
        for name in self.sources:
            with suppress(UnavailableModelError):
                self.get(name)
            if require_all and name in self.failures:
                raise self.failures[name].error
        self._is_starting = False
        if not self.available:
            raise self.failures[self.default].error

    def load_again(self) -> list[LoadedModel]:
        """Load all models again that were loaded, or could not be, for `swap_in`.

        A model that could not be loaded before, and cannot now, stays unavailable.

        Raises:
            BertworksError: a model that is served cannot be loaded again.
        """
        new_models = []
        for name in self.sources:
            is_failed = name in self.failures
            if not is_failed and not self._is_loaded(name):
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
        for model in new_models:
            self._insert(model)

    def _is_loaded(self, name: str) -> bool:
        return any(loaded_model.name == name for loaded_model in self.list_loaded())

    def _record_failure(self, name: str, error: BertworksError) -> Failure:
        failure = self.failures[name] = Failure(error, time.monotonic())
        log(logging.ERROR, "model unavailable", model=name, reason=str(error))
        return failure

    def _open(self, name: str) -> LoadedModel:
        """Load a model, and embed a text with it."""
        directory = locate(self.sources[name])
        model_directory, adapter = locate_with_adapter(directory, self._adapters.get("base"))
        digest = digest_weights(model_directory)
        if adapter is not None:
            digest = f"{digest}+{digest_weights(adapter)}"
        open_model: Callable[..., Any] = partial(
            use, directory, _check_task, self._device, **self._adapters
        )
        model = open_model(backend=self._backend)
        loaded_model = LoadedModel(
            name,
            self.sources[name],
            model,
            Prompts.from_directory(model_directory, model.sentence),
            self._settings,
            digest,
            partial(open_model, backend="torch"),
        )
        if self._max_memory is not None and loaded_model.num_bytes > self._max_memory:
            raise CheckpointError(
                f"has {loaded_model.num_bytes / 1e6:.3g} MB of weights, more than "
                f"max_memory={self._max_memory / 1e6:g}",
                where=self.sources[name],
                fix="Raise max_memory.",
            )
        loaded_model.warm_up()
        return loaded_model

    def _insert(self, loaded_model: LoadedModel) -> None:
        """Serve a model; unload others if there is too little memory."""
        name = loaded_model.name
        self.failures.pop(name, None)
        unloaded_names = []
        with self._lock:
            is_freed = name in self._loaded_models
            self._loaded_models[name] = loaded_model
            self._loaded_models.move_to_end(name)
            while self._max_memory is not None and len(self._loaded_models) > 1:
                if sum(each.num_bytes for each in self._loaded_models.values()) <= self._max_memory:
                    break
                unloaded_names.append(self._loaded_models.popitem(last=False)[0])
        self.num_loads[name] += 1
        self.num_unloads.update(unloaded_names)
        log(
            logging.DEBUG if self._is_starting else logging.INFO,
            "model loaded",
            model=name,
            digest=loaded_model.digest,
            unloaded=unloaded_names,
        )
        self._warn_if_models_alternate(name, unloaded_names)
        if (is_freed or unloaded_names) and gc.get_freeze_count():  # `Server.startup` froze objects
            gc.unfreeze()
            gc.collect()
            gc.freeze()

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
