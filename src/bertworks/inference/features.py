"""Vectors of texts from a network of PyTorch's: of each text, or of its tokens (paper §5.3)."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from ..native.quantization import to_floats
from ..nn.encoder import BareEncoder, Encoder, HasEncoder
from ..nn.pooling import pool
from ..nn.vector_modules import VectorModules
from ..packed import Packed
from ..settings.literals import InferencePrecision
from ..settings.pooling import modes_of
from ..text.tokenizer import Tokenizer
from .engine import resolve_precision
from .fingerprints import MODULES_PREFIX, POOLER_PREFIX, arrays_of
from .frozen_native import FrozenNativeEncoder, native_parts
from .frozen_network import frozen_form, inference
from .native_encoder import combine_layers, layer_vectors, text_vectors
from .network_runner import check_finite
from .settings import EmbedSettings, EngineSettings, LayerSettings
from .text_embedding import EncodedText, TextEmbedder, TextReader, VectorEmbedder
from .token_features import TokenFeatures


class HiddenStateExtractor(TextReader):
    """Selected hidden states of any number of texts; see `TextReader`."""

    network: HasEncoder
    modules: VectorModules | None = None
    uses_pooler = False

    def __init__(
        self,
        network: HasEncoder,
        tokenizer: Tokenizer,
        settings: LayerSettings,
        engine: EngineSettings,
    ) -> None:
        self.network = network
        self.device = next(network.parameters()).device
        self.device_type = self.device.type
        self.num_gpus = int(self.device_type == "cuda")
        super().__init__(network.encoder.config, tokenizer, settings, engine)

    @property
    def auto_precision(self) -> InferencePrecision:
        return resolve_precision("auto", self.network)

    def _named_arrays(self) -> Iterator[tuple[str, NDArray[np.uint8]]]:
        pooler = None if self.uses_pooler else POOLER_PREFIX
        yield from arrays_of(self.network.encoder, skipped_prefix=pooler)
        if self.modules is not None:
            yield from arrays_of(self.modules, MODULES_PREFIX)

    def for_workers(self, cluster: str | None) -> Self:
        del cluster
        lean = copy.copy(self)
        lean.network = BareEncoder(self.network.encoder)
        return lean

    def batches(self, texts: Sequence[EncodedText]) -> Iterator[tuple[list[EncodedText], Packed]]:
        """Yield packs of texts of similar length, longest first, on the encoder's device."""
        for batch, packed in self.packs(texts):
            yield batch, packed.to(self.device)

    def of_tokens(self, packed: Packed) -> Float[Tensor, "tokens width"]:
        """The vector of each token, in the order of the pack."""
        with inference(self.network, self.engine) as form:
            parts = native_parts(form.encoder, None, None)
            if parts is not None:
                return torch.from_numpy(layer_vectors(self, parts.encoder, packed, to_floats))
            return self.layer_vectors(form.encoder, packed, Tensor.float)

    def token_states(
        self, texts: Sequence[EncodedText], places: Sequence[str]
    ) -> Iterator[tuple[list[EncodedText], Packed, NDArray[np.float32]]]:
        for part, packed in self.batches(texts):
            states = self.of_tokens(packed)
            edges = packed.on_host.cu_seqlens.tolist()
            owners = [places[text.index] for text in part]
            check_finite(
                states,
                lambda at: owners[bisect_right(edges, at) - 1],  # noqa: B023  called in this turn
            )
            yield part, packed, states.cpu().numpy()

    def layer_vectors(
        self, encoder: Encoder, packed: Packed, reduce: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "vectors width"]:
        """The vectors of each layer, or of all layers combined, after `reduce`, side by side.

        Args:
            encoder: in its frozen form.
        """
        if self.is_of_last:  # a call of the encoder may compute all layers at once
            return reduce(encoder(packed))
        parts = combine_layers(self, encoder.hidden_states(packed), reduce, Tensor.float)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class NetworkEmbedder(TextEmbedder, HiddenStateExtractor):
    """Computes something for each text with a network; see `HiddenStateExtractor`."""


class Embedder(NetworkEmbedder, VectorEmbedder):
    """Computes a vector of each text: float32 `[texts, width]`.

    Args:
        modules: those of the model that follow pooling; none if omitted.

    Raises:
        SettingsError: the pooler is requested, but the model has none, or other layers than the
            last are; or the modules do not take the pooled vectors.
    """

    def __init__(
        self,
        network: HasEncoder,
        tokenizer: Tokenizer,
        settings: EmbedSettings,
        engine: EngineSettings,
        modules: VectorModules | None = None,
    ) -> None:
        super().__init__(network, tokenizer, settings, engine)
        self.modules = modules
        self.uses_pooler = self.pooling == "pooler"
        self._check_pooler(has_pooler=network.encoder.pooler is not None)
        pooled_width = self.token_width * len(modes_of(self.pooling))
        self._set_width(pooled_width if modules is None else modules.output_width(pooled_width))

    def _vectors(self, packed: Packed, num_excluded: int) -> Float[np.ndarray, "sequences width"]:
        modules = self.modules
        with inference(self.network, self.engine) as form:
            encoder = form.encoder
            pooler = self.network.encoder.pooler if self.uses_pooler else None
            parts = native_parts(encoder, pooler, modules)
            if parts is not None:
                return text_vectors(self, parts, packed, num_excluded)
            has_unit_length = self.settings.normalize
            is_mean = self.pooling == "mean" and self.is_of_last and not num_excluded
            if is_mean and isinstance(encoder, FrozenNativeEncoder):
                means = encoder.means(packed, unit_length=has_unit_length and modules is None)
                if modules is None:
                    return means
                vectors = torch.from_numpy(means)
            else:
                vectors = self._pooled(encoder, packed.to(self.device), num_excluded)
            if modules is not None:
                vectors = frozen_form(modules, "fp32", self.engine.deterministic)(vectors)
            if has_unit_length:
                vectors = nn.functional.normalize(vectors, dim=-1)
            return vectors.cpu().numpy()

    def _pooled(
        self, encoder: Encoder, packed: Packed, num_excluded: int
    ) -> Float[Tensor, "sequences width"]:
        if self.pooling == "pooler":
            return encoder.pool(encoder(packed), packed).float()
        return self.layer_vectors(
            encoder,
            packed,
            lambda hidden: pool(hidden.float(), packed, self.pooling, first=num_excluded),
        )


class NetworkTokenFeatures(HiddenStateExtractor, TokenFeatures):
    """Computes vectors of tokens or words with a network; see `HiddenStateExtractor`."""
