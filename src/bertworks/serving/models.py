"""The models of a server: loaded at the start or on demand, with a runner for each verb."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..checkpoints.locate import locate
from ..checkpoints.weights import read_json
from ..errors import BertworksError, CheckpointError, SettingsError, did_you_mean, truncate_repr
from ..inference.settings import EngineSettings
from ..model import Model, load
from ..tasks.answering.task import AnsweringTask
from ..tasks.classification import ClassificationTask
from ..tasks.pretraining.network import PretrainingNetwork
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.regression import RegressionTask
from ..tasks.tagging.task import TaggingTask
from ..tasks.task import Network, Task
from ..tasks.texts import TextTask
from .logs import log
from .runners import (
    WHOLE,
    EmbedRunner,
    GenerateRunner,
    TaskRunner,
    Text,
    Truncation,
)

RunnerT = TypeVar("RunnerT")
TaskRunnerT = TypeVar("TaskRunnerT", bound=TaskRunner)

_MOST_RUNNERS = 32
"""The most runners of a model, for different settings; the least recently used is dropped."""

_RETRY_SECONDS = 30.0
"""A request for a model that could not be loaded tries again after this time."""


class UnknownModelError(BertworksError):
    """A request names a model that is not served."""


class WrongModelError(BertworksError):
    """A model was not trained for the task of a request."""


class UnavailableModelError(BertworksError):
    """A request names a model that cannot be loaded."""


class Failure(NamedTuple):
    """Why a model could not be loaded, and when, on the monotonic clock."""

    error: BertworksError
    time: float


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
    def read(cls, directory: Path) -> Prompts:
        """Read `config_sentence_transformers.json` and `config.json`."""
        said = directory / "config_sentence_transformers.json"
        sentence = read_json(said) if said.is_file() else {}
        config = read_json(directory / "config.json")
        widths = config.get("matryoshka_dimensions") or sentence.get("matryoshka_dimensions") or ()
        return cls(
            dict(sentence.get("prompts") or {}),
            sentence.get("default_prompt_name"),
            frozenset(widths),
            bool(config.get("is_matryoshka")) and not widths,
        )


class Served:
    """A loaded model.

    Args:
        name: its name in requests.
        source: its directory, or its name on the hub.
        settings: values for `EngineSettings`: precision and determinism.
    """

    def __init__(
        self, name: str, source: str, model: Model, prompts: Prompts, settings: Mapping[str, Any]
    ) -> None:
        self.name, self.source, self.model, self.prompts = name, source, model, prompts
        self._settings = dict(settings)
        self.device = next(model.network.parameters()).device.type
        self.bytes = sum(
            weight.numel() * weight.element_size() for weight in model.network.parameters()
        )
        self._runners: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def task(self) -> Task[Any] | None:
        """The task that it was trained for, if any."""
        return self.model.task

    @property
    def can_score_pairs(self) -> bool:
        """Whether it predicts one number for a pair of texts."""
        task = self.task
        if isinstance(task, ClassificationTask) and len(task.labels) > 1:
            return False
        return isinstance(task, ClassificationTask | RegressionTask) and (
            task.settings.takes_either or task.settings.columns.pair is not None
        )

    @property
    def verbs(self) -> frozenset[str]:
        """The verbs that it can serve, depending on its task."""
        task = self.task
        found = {"embed"}
        if isinstance(task, PretrainingTask):
            if not task.causal:
                found.add("fill-mask")
            elif self.model.encoder.config.continues:
                found.add("generate")
            if task.instances.next_sentence:
                found.add("next-sentence")
        elif task is not None:
            found.add("predict-rows")
        if isinstance(task, TextTask):
            found |= {"classify"} | ({"rerank"} if self.can_score_pairs else set())
        if isinstance(task, TaggingTask):
            found.add("tag")
        if isinstance(task, AnsweringTask):
            found.add("answer")
        return frozenset(found)

    def check(self, verb: str) -> None:
        """Raise `WrongModelError` if the model was not trained for a verb."""
        if verb not in self.verbs:
            trained = "nothing but vectors" if self.task is None else self.task.name
            raise WrongModelError(
                f"the model {self.name!r} was trained for {trained}, not for {verb}",
                fix=f"It can be asked: {', '.join(sorted(self.verbs))}.",
            )

    def warm_up(self) -> None:
        """Embed a text, so that the first request is fast.

        Raises:
            CheckpointError: the model cannot embed any text; for example, its outputs overflow.
        """
        try:
            runner = self.embed()
            runner.run(runner.prepare([Text("text", "a first text")], Truncation("right")))
        except BertworksError as error:
            raise CheckpointError(
                f"it cannot embed a text: {error.what}", where=self.source, fix=error.fix
            ) from None

    def engine(self, precision: str | None = None) -> EngineSettings:
        """Return the settings of the engine, with another precision if one is given."""
        said = {} if precision is None else {"precision": precision}
        return EngineSettings.parse({**self._settings, **said})

    def embed(
        self,
        kind: type[EmbedRunner] = EmbedRunner,
        *,
        precision: str | None = None,
        normalize: bool = False,
        **settings: Any,
    ) -> EmbedRunner:
        """Return a runner that embeds texts; `settings` as in `Model.embed`, lists as tuples."""

        def make() -> EmbedRunner:
            engine = self.engine(precision).with_values(batch_tokens=WHOLE)
            how = {**engine.model_dump(), **settings, "normalize": normalize, "prompt": ""}
            return kind(self.model.embedder(**how))  # prompts belong to the requests

        return self._runner((kind, precision, normalize, *sorted(settings.items())), make)

    @property
    def normalizes(self) -> bool:
        """Whether the model's files say that vectors have length 1."""
        sentence = self.model.sentence
        return sentence is not None and sentence.normalize

    def runner(self, verb: str, kind: type[TaskRunnerT]) -> TaskRunnerT:
        """Return the runner of a verb; raise `WrongModelError` if the model lacks the verb."""
        self.check(verb)
        task, network = self.task, self.model.network
        assert task is not None and isinstance(network, Network)
        return self._runner((kind,), lambda: kind(task, network, self.engine()))

    def generate(self, batch_tokens: int) -> GenerateRunner:
        """Return the runner that continues prompts, for batches of `batch_tokens` tokens."""
        self.check("generate")
        network = self.model.network
        assert isinstance(network, PretrainingNetwork)
        return self._runner(
            GenerateRunner,
            lambda: GenerateRunner(network, self.model.tokenizer, self.engine(), batch_tokens),
        )

    def _runner(self, key: Hashable, make: Callable[[], RunnerT]) -> RunnerT:
        with self._lock:
            if key not in self._runners:
                self._runners[key] = make()
            self._runners.move_to_end(key)
            while len(self._runners) > _MOST_RUNNERS:
                self._runners.popitem(last=False)
            found: RunnerT = self._runners[key]
            return found


class Models:
    """The models of a server, the first of which is the default.

    Args:
        sources: each model's directory or name on the hub, by its name in requests.
        device, precision: the device and precision of all models.
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
        precision: str = "auto",
        deterministic: bool = False,
        max_memory: int | None = None,
    ) -> None:
        self.sources = dict(sources)
        self.default = next(iter(sources))
        self._device, self._max_memory = device, max_memory
        self._settings = {"precision": precision, "deterministic": deterministic}
        self.failures: dict[str, Failure] = {}
        self._loaded: OrderedDict[str, Served] = OrderedDict()
        self._loading = {name: threading.Lock() for name in sources}
        self._lock = threading.Lock()

    def name(self, name: str | None) -> str:
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

    def loaded(self, name: str | None = None) -> Served | None:
        """Return a model if it is loaded, and mark it as the most recently used."""
        with self._lock:
            found = self._loaded.get(self.name(name))
            if found is not None:
                self._loaded.move_to_end(found.name)
            return found

    def all_loaded(self) -> list[Served]:
        """Return the loaded models, in the order of `sources`."""
        with self._lock:
            return [self._loaded[name] for name in self.sources if name in self._loaded]

    @property
    def available(self) -> list[str]:
        """The names of the models that are loaded, or may be."""
        return [name for name in self.sources if name not in self.failures]

    def get(self, name: str | None = None) -> Served:
        """Return a model; load it if necessary.

        Raises:
            UnknownModelError: no model has that name.
            UnavailableModelError: the model cannot be loaded.
        """
        name = self.name(name)
        with self._loading[name]:
            served = self.loaded(name)
            if served is not None:
                return served
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
        return any(served.name == name for served in self.all_loaded())

    def _load(self, name: str) -> Served:
        directory = locate(self.sources[name])
        model = load(directory, device=self._device)
        served = Served(name, self.sources[name], model, Prompts.read(directory), self._settings)
        served.warm_up()
        self.failures.pop(name, None)
        with self._lock:
            is_freed = name in self._loaded
            self._loaded[name] = served
            self._loaded.move_to_end(name)
            while self._max_memory is not None and len(self._loaded) > 1:
                if sum(one.bytes for one in self._loaded.values()) <= self._max_memory:
                    break
                self._loaded.popitem(last=False)
                is_freed = True
        if is_freed and gc.get_freeze_count():  # `Server.startup` froze objects
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        return served


def named_sources(models: Sequence[str]) -> dict[str, str]:
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
