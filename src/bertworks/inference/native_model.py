"""`NativeModel`: a tokenizer, and an encoder with heads in native code, which need no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from ..checkpoints.families import family_of
from ..checkpoints.heads import POOLER, PublishedCheckpoint
from ..checkpoints.late_interaction import ORIGINAL_CLASS
from ..checkpoints.locate import is_adapter, locate
from ..checkpoints.sentence import read_sentence_encoder
from ..checkpoints.sentence_directory import (
    has_query_route,
    lowers_case,
    transformer_directory,
    with_limit,
)
from ..checkpoints.sentence_settings import SentenceSettings
from ..checkpoints.static import static_directory
from ..checkpoints.store import load_tokenizer, read_config, read_limit, read_task
from ..errors import CheckpointError, NeedsPyTorchError, SettingsError, needs_pytorch_error
from ..nn.config import EncoderConfig
from ..nn.head_layouts import HeadLayout, pooler_layout
from ..tasks.saved_task import find_task
from ..tasks.task import Task
from ..text.tokenizer import Tokenizer
from ..utils.formatting import format_count
from .engine import AnyNetwork
from .fingerprints import fingerprint_of_arrays
from .native_embedder import NativeEmbedder, NativeTokenFeatures
from .native_modules import NativeModules
from .native_network import NativeNetwork, unsupported_network
from .native_weights import NativeWeights
from .settings import FeatureSettings
from .task_model import TaskModel

if TYPE_CHECKING:
    from ..settings.keywords import EmbedKeywords


class NativeModel(TaskModel):
    """A tokenizer, a task, and an encoder with heads in native code.

    Args:
        tokenizer: the model's.
        task: what the network was trained for; None for a bare encoder.
        network: the encoder, with the task's heads.
        sentence: how `embed` makes vectors by default; if omitted, as the task defines.
        modules: those that follow pooling in a sentence encoder; None if there are none.
        source: the directory or name it was loaded from.

    Attributes:
        task_error: why its task needs PyTorch; None if it does not.
    """

    network: NativeNetwork

    def __init__(
        self,
        tokenizer: Tokenizer,
        task: Task[Any] | None,
        network: NativeNetwork,
        sentence: SentenceSettings | None,
        modules: NativeModules | None,
        source: str,
    ) -> None:
        self.tokenizer, self.task, self.network = tokenizer, task, network
        self.sentence = sentence or (None if task is None else task.sentence)
        self.modules, self.source, self.query_model = modules, source, None
        self.task_error: NeedsPyTorchError | None = None

    @staticmethod
    def load(name: str | Path) -> NativeModel:
        """Load a model whose encoder native code can compute; see `loading.load`.

        Raises:
            CheckpointError: there is no such model, or it is damaged.
            NeedsPyTorchError: it cannot be used without PyTorch.
        """
        whole_directory, source = locate(name), str(name)
        if is_adapter(whole_directory):
            raise needs_pytorch_error("an adapter", where=source)
        if has_query_route(whole_directory):
            raise needs_pytorch_error("a model with other modules for queries", where=source)
        directory = transformer_directory(whole_directory)
        if static_directory(directory) is not None:
            raise needs_pytorch_error("a static model", where=source)
        config, raw = read_config(directory)
        if ORIGINAL_CLASS in (raw.get("architectures") or []):
            raise needs_pytorch_error("late interaction", where=source)
        tokenizer = load_tokenizer(directory, config, lowercase=lowers_case(whole_directory))
        encoder = read_sentence_encoder(whole_directory)
        sentence = None if encoder is None else encoder.settings
        modules = None
        if encoder is not None and encoder.modules is not None:
            modules = NativeModules.from_files(encoder.modules)
        task_file = read_task(directory)
        limit = read_limit(directory, whole_directory, config)
        if (part := unsupported_network(config)) is not None:
            raise needs_pytorch_error(f"a model with {part}", where=source)
        weights = NativeWeights(directory, config)
        checkpoint = PublishedCheckpoint(
            raw, config, family_of(config), weights.arrays, tokenizer, limit
        )
        task: Task[Any] | None = None
        missing: NeedsPyTorchError | None = None
        try:
            task = find_task(None, task_file, checkpoint, directory, whole_directory, where=source)
        except NeedsPyTorchError as error:
            missing = error
        try:
            layouts = _layouts_of(task, checkpoint)
        except SettingsError as error:  # the task and the encoder do not fit together
            raise CheckpointError(error.what, where=source, fix=error.fix) from None
        if layouts is None:
            assert task is not None, "an encoder has layouts"
            missing = needs_pytorch_error(f"the task {task.name} of a {config.family} model")
        heads = () if task_file is None else task_file.heads
        network = NativeNetwork(weights, layouts or {}, heads)
        sentence = with_limit(sentence, limit, config.max_seqlen, where=source)
        model = NativeModel(tokenizer, task, network, sentence, modules, source)
        model.max_seq_length = limit if limit < config.max_seqlen else None
        model.task_error = missing
        model.embedder()  # an error in the files is shown now
        return model

    def __repr__(self) -> str:
        config = self.network.config
        layers = format_count(config.num_hidden_layers, "layer")
        facts = f"{layers}, hidden_size {config.hidden_size}"
        task = "bare encoder" if self.task is None else self.task.name
        return f"<NativeModel {self.source}; {config.family}: {facts}; {task}>"

    if not TYPE_CHECKING:  # a type checker would find every name

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise needs_pytorch_error(f"{name} of a model")

    @property
    def config(self) -> EncoderConfig:
        """The geometry of the encoder."""
        return self.network.config

    @property
    def num_parameters(self) -> int:
        """The number of weights in the files of weights."""
        return self.network.num_parameters

    @property
    def num_bytes(self) -> int:
        """The bytes of the packed weights."""
        modules = 0 if self.modules is None else self.modules.num_bytes
        return self.network.num_bytes + modules

    def embedder(self, **settings: Unpack[EmbedKeywords]) -> NativeEmbedder:
        """The object that computes the vectors of `embed`, with the same settings.

        Raises:
            SettingsError: a setting is unknown or impossible, or needs PyTorch.
        """
        values = self._embedding_settings(settings)
        embedder = NativeEmbedder(self.network, self.tokenizer, values, values, self.modules)
        return embedder.with_dimensions(settings.get("dimensions"))

    def _token_features(self, settings: FeatureSettings) -> NativeTokenFeatures:
        return NativeTokenFeatures(self.network, self.tokenizer, settings, settings)

    def fingerprint(self) -> str:
        arrays, config = self.network.all_named_arrays(), self.network.config
        if self.modules is None:
            return fingerprint_of_arrays(config, self.tokenizer, arrays)
        all_arrays = chain(arrays, self.modules.named_arrays())
        return fingerprint_of_arrays(config, self.tokenizer, all_arrays, self.modules.settings)

    def _task_and_network(self) -> tuple[Task[Any], AnyNetwork]:
        if self.task_error is not None:
            raise self.task_error
        return super()._task_and_network()


def _layouts_of(
    task: Task[Any] | None, checkpoint: PublishedCheckpoint
) -> Mapping[str, HeadLayout] | None:
    """The layouts of a task's heads; of the pooler, if a bare encoder has one."""
    if task is not None:
        return task.head_layouts(checkpoint.config)
    has_pooler = checkpoint.family.has(f"{POOLER.name}.dense.weight", checkpoint.tensors)
    return {POOLER.name: pooler_layout(checkpoint.config)} if has_pooler else {}
