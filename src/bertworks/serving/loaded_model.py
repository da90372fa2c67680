"""A loaded model: what it can be asked for, and its runners."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from ..checkpoints.sentence_directory import transformer_directory
from ..checkpoints.sentence_settings import SentenceSettings
from ..checkpoints.weight_files import read_json
from ..errors import (
    BertworksError,
    CheckpointError,
    NeedsPyTorchError,
    WrongModelError,
    has_pytorch,
)
from ..inference.engine import resolve_precision
from ..inference.native_model import NativeModel
from ..inference.settings import EngineSettings
from ..settings.literals import InferencePrecision
from ..settings.pooling import SPARSE_POOLINGS
from ..tasks.answering.task import AnsweringTask
from ..tasks.classification import TextClassifierTask
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.regression import RegressionTask
from ..tasks.tagging.task import TaggingTask
from ..tasks.task import Task
from ..tasks.texts import TextTask
from .runners import WHOLE, EmbedRunner, TaskRunner, Text

if TYPE_CHECKING:
    from ..model import Model
    from .generation_runner import GenerateRunner

    AnyModel = Model | NativeModel

RunnerT = TypeVar("RunnerT")
TaskRunnerT = TypeVar("TaskRunnerT", bound=TaskRunner)

_MAX_RUNNERS = 32
"""The most runners of a model, for different settings; the least recently used is dropped."""

VectorForm = Literal["vectors", "sparse", "tokens", "matrices"]


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
        file = transformer_directory(directory) / "config.json"
        config = read_json(file) if file.is_file() else {}
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
        device: the kind of device that computes it.
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
        self.device = model.device_type
        self.digest, self.load_time = digest, time.time()
        self._settings = dict(settings)
        self._load_network = load_network
        self._network_model: Model | None = None
        self._runners: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock, self._loading = threading.Lock(), threading.Lock()

    @property
    def num_bytes(self) -> int:
        """The bytes of its weights, also of those that PyTorch has besides native code."""
        network_model = self._network_model
        return self.model.num_bytes + (0 if network_model is None else network_model.num_bytes)

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
            runner.run(runner.prepare([Text("text", "a first text")], truncate=True))
        except BertworksError as error:
            raise CheckpointError(
                f"it cannot embed a text: {error.what}", where=self.source, fix=error.fix
            ) from None

    def make_engine_settings(self, precision: str | None = None) -> EngineSettings:
        """Return the settings of the engine, with another precision if one is given."""
        override = {} if precision is None else {"precision": precision}
        return EngineSettings.parse({**self._settings, **override})

    @property
    def precision(self) -> InferencePrecision:
        """The encoder's precision; "auto" is what it means on the device."""
        return resolve_precision(self.make_engine_settings().precision, self.model.network)

    def get_embed_runner(
        self,
        kind: type[EmbedRunner] = EmbedRunner,
        *,
        precision: str | None = None,
        normalize: bool = False,
        **settings: Any,
    ) -> EmbedRunner:
        """Return a runner that embeds texts; `settings` as in `Model.embed`, lists as tuples.

        Raises:
            NeedsPyTorchError: native code does not compute it, and `network_model` is not loaded.
        """

        def make() -> EmbedRunner:
            engine = self.make_engine_settings(precision).with_values(batch_tokens=WHOLE)
            arguments = {**engine.model_dump(), **settings, "normalize": normalize}
            try:
                return kind(self.model.embedder(**arguments))
            except NeedsPyTorchError:
                if self._network_model is None:
                    raise
            return kind(self._network_model.embedder(**arguments))

        return self._get_runner((kind, precision, normalize, *sorted(settings.items())), make)

    def is_for_queries(self, prompt_name: str | None) -> bool:
        """Whether texts with this prompt have vectors of the model for queries, if there is one."""
        query_model = self.model.query_model
        if query_model is None or prompt_name is None:
            return False
        own, of_documents = (
            None if one.sentence is None else one.sentence.entries.get("default_prompt_name")
            for one in (query_model, self.model)
        )
        return prompt_name == "query" or (prompt_name == own and own != of_documents)

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


def check_native_model(model: AnyModel, precision: InferencePrecision) -> AnyModel:
    """Return the model, unless PyTorch should compute it.

    Raises:
        NeedsPyTorchError: its task needs PyTorch, which is installed; or the precision does.
    """
    if isinstance(model, NativeModel):
        if model.task_error is not None and has_pytorch():
            raise model.task_error
        model.network.resolve_precision(precision)
    return model
