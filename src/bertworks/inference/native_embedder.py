"""Vectors of texts, or of their tokens, from a model in native code, without PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import needs_pytorch_error, not_finite_error
from ..native.quantization import to_floats
from ..nn.vector_module_settings import output_width
from ..packed import Packed
from ..settings.literals import InferencePrecision
from ..settings.pooling import modes_of
from ..text.tokenizer import Tokenizer
from .native_encoder import NativeParts, layer_vectors, text_vectors, unsupported_pooling
from .native_modules import NativeModules
from .native_network import NativeNetwork, auto_precision
from .settings import EmbedSettings, EngineSettings, TokenSettings
from .text_embedding import EncodedText, TextReader, VectorEmbedder
from .token_features import TokenFeatures

if TYPE_CHECKING:
    from jaxtyping import Float

Vectors = NDArray[np.float32]


class NativeReader(TextReader):
    """Hidden states of texts in native code; see `TextReader`."""

    network: NativeNetwork
    modules: NativeModules | None = None
    uses_pooler = False

    @property
    def auto_precision(self) -> InferencePrecision:
        return auto_precision()

    def _named_arrays(self) -> Iterator[tuple[str, NDArray[Any]]]:
        yield from self.network.named_arrays(with_pooler=self.uses_pooler)
        if self.modules is not None:
            yield from self.modules.named_arrays()

    def for_workers(self, cluster: str | None) -> Self:
        if cluster is not None:  # other machines do not have the files, which a worker reads again
            raise needs_pytorch_error(f"on={cluster}")
        return self

    def token_states(
        self, texts: Sequence[EncodedText], places: Sequence[str]
    ) -> Iterator[tuple[list[EncodedText], Packed, Vectors]]:
        for part, packed in self.packs(texts):
            encoder = self.network.encoder(self.engine.precision)
            vectors = layer_vectors(self, encoder, packed, to_floats)
            is_right = np.isfinite(vectors).all(1)
            if not is_right.all():
                sequence = np.searchsorted(packed.cu_seqlens, is_right.argmin(), side="right") - 1
                raise not_finite_error(places[part[int(sequence)].index])
            yield part, packed, vectors


class NativeEmbedder(NativeReader, VectorEmbedder):
    """Computes a vector of each text in native code; see `VectorEmbedder`.

    Args:
        network: the encoder.
        modules: those of the model that follow pooling; none if omitted.

    Raises:
        NeedsPyTorchError: a setting needs it.
        SettingsError: the pooler is requested, but the model has none, or other layers than the
            last are.
    """

    def __init__(
        self,
        network: NativeNetwork,
        tokenizer: Tokenizer,
        settings: EmbedSettings,
        engine: EngineSettings,
        modules: NativeModules | None = None,
    ) -> None:
        super().__init__(network.config, tokenizer, settings, engine)
        self.network, self.modules = network, modules
        network.resolve_precision(engine.precision)
        self.uses_pooler = self.pooling == "pooler"
        mode = None if self.uses_pooler else unsupported_pooling(self.pooling)
        if mode is not None:
            raise needs_pytorch_error(f"pooling={mode}")
        self._check_pooler(has_pooler=network.has_pooler)
        width = self.token_width * len(modes_of(self.pooling))
        self._set_width(width if modules is None else output_width(modules.settings, width))

    def _vectors(self, packed: Packed, num_excluded: int) -> Float[np.ndarray, "sequences width"]:
        network, precision = self.network, self.engine.precision
        pool = network.with_heads(precision).pool if self.uses_pooler else None
        parts = NativeParts(network.encoder(precision), self.modules, pool)
        return text_vectors(self, parts, packed, num_excluded)


class NativeTokenFeatures(NativeReader, TokenFeatures):
    """Computes vectors of tokens or words in native code; see `TokenFeatures`."""

    def __init__(
        self,
        network: NativeNetwork,
        tokenizer: Tokenizer,
        settings: TokenSettings,
        engine: EngineSettings,
    ) -> None:
        super().__init__(network.config, tokenizer, settings, engine)
        self.network = network
        network.resolve_precision(engine.precision)
