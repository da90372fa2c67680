"""Vectors of texts from an encoder in native code, and the modules after it, without PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.sentence_modules import ModuleFiles
from ..checkpoints.weight_files import PYTORCH, SAFETENSORS, find_weight_files, list_arrays
from ..errors import CheckpointError, needs_pytorch_error
from ..native.quantization import to_floats
from ..nn.vector_module_settings import (
    DenseActivation,
    DenseSettings,
    DropoutSettings,
    ModuleSettings,
    NormalizeSettings,
    output_width,
)
from ..packed import Packed
from ..settings.literals import InferencePrecision
from ..settings.pooling import modes_of
from ..text.tokenizer import Tokenizer
from .batching import not_finite_error
from .fingerprints import fingerprint_of_arrays
from .native_encoder import NativeEncoder, of_unit_length, unsupported_pooling
from .native_heads import POOLER
from .native_network import NativeNetwork, auto_precision
from .settings import EmbedSettings, EngineSettings, TokenSettings
from .text_embedding import EncodedText, TextReader, VectorEmbedder
from .token_features import TokenFeatures

if TYPE_CHECKING:
    from jaxtyping import Float

Vectors = NDArray[np.float32]
Arrays = Mapping[str, Vectors]

_ACTIVATIONS: Mapping[DenseActivation, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: np.reciprocal(1 + np.exp(-x)),
}


class NativeModules:
    """The modules of a sentence encoder after pooling: vectors in, vectors out.

    Args:
        files: their settings and directories.

    Raises:
        CheckpointError: the weights of a module are missing, or of another shape; or a module
            needs PyTorch.
    """

    def __init__(self, files: ModuleFiles) -> None:
        self.settings = files.settings
        self._weights: list[Arrays] = []
        for settings, directory in zip(files.settings, files.directories, strict=True):
            where = str(directory)
            shapes = _shapes_of(settings, where)
            weight_files = find_weight_files(directory, SAFETENSORS) if shapes else []
            if shapes and not weight_files and find_weight_files(directory, PYTORCH):
                raise needs_pytorch_error(f"a module without {SAFETENSORS}", where=where)
            arrays = list_arrays(weight_files)
            if {name: one.shape for name, one in arrays.items()} != shapes:
                expected = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
                raise CheckpointError(
                    f"the weights of the module in {SAFETENSORS} are not {expected}", where=where
                )
            weights = {name: to_floats(one.read()) for name, one in arrays.items()}
            for name, weight in weights.items():
                if not np.isfinite(weight).all():
                    raise CheckpointError(f"the tensor {name!r} is not finite", where=where)
            self._weights.append(weights)

    def named_arrays(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the weights, with the names that a network of them has, in their order."""
        names = {
            f"modules.steps.{number}.{name}": weight
            for number, weights in enumerate(self._weights)
            for name, weight in weights.items()
        }
        yield from sorted(names.items(), key=itemgetter(0))

    def __call__(
        self, vectors: Float[np.ndarray, "texts inputs"]
    ) -> Float[np.ndarray, "texts outputs"]:
        for settings, weights in zip(self.settings, self._weights, strict=True):
            if isinstance(settings, DenseSettings):
                vectors = _dense(settings, weights, vectors)
            elif isinstance(settings, NormalizeSettings):
                vectors = of_unit_length(vectors)
        return vectors


def _dense(
    settings: DenseSettings, weights: Arrays, vectors: Float[np.ndarray, "texts inputs"]
) -> Float[np.ndarray, "texts outputs"]:
    # Row by row: the bits of a product of matrices depend on the number of rows.
    result = np.stack([weights["linear.weight"] @ vector for vector in vectors])
    if settings.bias:
        result += weights["linear.bias"]
    return _ACTIVATIONS[settings.activation](result)


def _shapes_of(settings: ModuleSettings, where: str) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a module's weights."""
    if isinstance(settings, NormalizeSettings | DropoutSettings):
        return {}
    if not isinstance(settings, DenseSettings):
        raise needs_pytorch_error(f"the module {settings.kind}", where=where)
    if settings.use_residual or settings.activation not in _ACTIVATIONS:
        what = "use_residual" if settings.use_residual else f"activation {settings.activation}"
        raise needs_pytorch_error(f"the module Dense with {what}", where=where)
    outputs = settings.out_features
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (outputs, settings.in_features)}
    return {**shapes, "linear.bias": (outputs,)} if settings.bias else shapes


class NativeReader(TextReader):
    """Hidden states of texts in native code; see `TextReader`."""

    network: NativeNetwork
    modules: NativeModules | None = None
    uses_pooler = False

    @property
    def auto_precision(self) -> InferencePrecision:
        return auto_precision()

    def fingerprint(self) -> str:
        arrays = self.network.named_arrays(with_pooler=self.uses_pooler)
        modules = self.modules
        if modules is None:
            return fingerprint_of_arrays(self.config, self.tokenizer, arrays)
        all_arrays = chain(arrays, modules.named_arrays())
        return fingerprint_of_arrays(self.config, self.tokenizer, all_arrays, modules.settings)

    def for_workers(self, cluster: str | None) -> Self:
        if cluster is not None:  # other machines do not have the files, which a worker reads again
            raise needs_pytorch_error(f"on={cluster}")
        return self

    def token_states(
        self, texts: Sequence[EncodedText], places: Sequence[str]
    ) -> Iterator[tuple[list[EncodedText], Packed, Vectors]]:
        for part, packed in self.packs(texts):
            vectors = np.concatenate(self.parts(packed, to_floats), axis=1)
            is_right = np.isfinite(vectors).all(1)
            if not is_right.all():
                sequence = np.searchsorted(packed.cu_seqlens, is_right.argmin(), side="right") - 1
                raise not_finite_error(places[part[int(sequence)].index])
            yield part, packed, vectors

    def parts(
        self, packed: Packed, reduce: Callable[[NDArray[Any]], Vectors]
    ) -> list[Float[np.ndarray, "vectors width"]]:
        """The vectors to concatenate: of each layer, or of all layers combined, after `reduce`."""
        encoder = self.network.encoder(self.engine.precision)
        if self.is_of_last:
            return [reduce(encoder(packed))]
        counts = Counter(self.layers)
        weights: dict[int, float] = dict.fromkeys(self.layers, 0.0)
        for number, weight in zip(
            self.layers, self.settings.layer_weights or repeat(1.0), strict=False
        ):
            weights[number] += weight
        states = enumerate(encoder.states(packed))
        if self.settings.combine == "concat":
            vectors = {number: reduce(hidden) for number, hidden in states if number in counts}
            return [vectors[layer] for layer in self.layers]
        total: Vectors | None = None
        for number, hidden in states:
            if number in counts:
                weighted = np.float32(weights[number]) * to_floats(hidden)
                total = weighted if total is None else total + weighted
        assert total is not None
        if self.settings.combine == "mean":
            total /= np.float32(sum(weights.values()))
        return [reduce(total)]


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
        self.uses_pooler = self.pooling == "pooler"
        mode = None if self.uses_pooler else unsupported_pooling(self.pooling)
        if mode is not None:
            raise needs_pytorch_error(f"pooling={mode}")
        self._check_pooler(has_pooler=network.has_pooler)
        width = self.token_width * len(modes_of(self.pooling))
        self._width = width if modules is None else output_width(modules.settings, width)

    def _vectors(self, packed: Packed, num_excluded: int) -> Float[np.ndarray, "sequences width"]:
        encoder, modules = self.network.encoder(self.engine.precision), self.modules
        if self.pooling == "mean" and not num_excluded and self.is_of_last:
            vectors = encoder.means(packed, unit_length=self.normalize and modules is None)
            if modules is None:
                return vectors
        else:
            vectors = self._pooled(packed, num_excluded)
        if modules is not None:
            vectors = modules(vectors)
        return of_unit_length(vectors) if self.normalize else vectors

    def _pooled(self, packed: Packed, num_excluded: int) -> Float[np.ndarray, "sequences width"]:
        if self.uses_pooler:
            network = self.network.with_heads(self.engine.precision)
            return network.head(POOLER, network.hidden(packed), packed)

        def reduce(hidden: NDArray[Any]) -> Vectors:
            return NativeEncoder.pool(hidden, packed, self.pooling, first=num_excluded)

        parts = self.parts(packed, reduce)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


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
