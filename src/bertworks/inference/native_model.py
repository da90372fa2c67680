"""`NativeModel`: a tokenizer and an encoder in native code, which need no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn, Unpack

from ..checkpoints.families import family_of
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
from ..errors import needs_pytorch_error
from ..settings.keywords import EmbedKeywords
from ..text.tokenizer import Tokenizer
from .embedding_model import EmbeddingModel
from .native_embedder import NativeEmbedder, NativeModules
from .native_network import NativeNetwork


class NativeModel(EmbeddingModel):
    """A tokenizer and an encoder in native code; it makes vectors of texts.

    Args:
        tokenizer: the model's.
        network: the encoder.
        sentence: how `embed` makes vectors by default.
        modules: those that follow pooling in a sentence encoder; None if there are none.
        source: the directory or name it was loaded from.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        network: NativeNetwork,
        sentence: SentenceSettings | None,
        modules: NativeModules | None,
        source: str,
    ) -> None:
        self.tokenizer, self.network, self.sentence = tokenizer, network, sentence
        self.modules, self.source, self.query_model = modules, source, None

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
        config, _ = read_config(directory)
        tokenizer = load_tokenizer(directory, config, lowercase=lowers_case(whole_directory))
        encoder = read_sentence_encoder(whole_directory)
        sentence = None if encoder is None else encoder.settings
        modules = None
        if encoder is not None and encoder.modules is not None:
            modules = NativeModules(encoder.modules)
        task = read_task(directory)
        if task is not None and sentence is None and task.task == "retrieval":
            raise needs_pytorch_error("a retrieval model without modules.json", where=source)
        heads = () if task is None else task.heads
        network = NativeNetwork(directory, config, family_of(config), heads)
        limit = read_limit(directory, whole_directory, config)
        sentence = with_limit(sentence, limit, config.max_seqlen, where=source)
        model = NativeModel(tokenizer, network, sentence, modules, source)
        model.embedder()  # an error in the files is shown now
        return model

    def __repr__(self) -> str:
        config = self.network.config
        facts = f"{config.num_hidden_layers} layers, hidden_size {config.hidden_size}"
        return f"<NativeModel {self.source}; {config.family}: {facts}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise needs_pytorch_error(f"{name} of a model")

    def embedder(self, **settings: Unpack[EmbedKeywords]) -> NativeEmbedder:
        """The object that computes the vectors of `embed`, with the same settings.

        Raises:
            SettingsError: a setting is unknown or impossible, or needs PyTorch.
        """
        values = self._embedding_settings(settings)
        return NativeEmbedder(self.network, self.tokenizer, values, values, self.modules)
