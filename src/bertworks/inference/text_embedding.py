"""Vectors of texts, whatever computes them: tokenising, batches, windows and counts."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import BertworksWarning, DataError, SettingsError, not_finite_error, row_name
from ..nn.config import EncoderConfig
from ..packed import Packed, by_tokens
from ..settings.literals import InferencePrecision
from ..text.definition import Side
from ..text.encoding import Encoding, TokenIds, Truncation
from ..text.tokenizer import Tokenizer
from ..utils.threads import num_threads
from .fingerprints import fingerprint_of_arrays
from .settings import EmbedSettings, EngineSettings, LayerSettings
from .similarity import of_unit_length
from .vector_codes import CODE_TYPES, code_width, fills_bytes, quantize_vectors

if TYPE_CHECKING:
    from jaxtyping import Float

    from ..nn.vector_modules import VectorModules
    from .native_modules import NativeModules

_TOKENS_OF_A_THREAD = 2048


@dataclass(frozen=True)
class EncodedText:
    """A tokenised text and its index, for batching.

    Attributes:
        num_excluded: the number of tokens at its start, a prompt's, that pooling leaves out.
    """

    index: int
    encoding: Encoding | TokenIds
    num_excluded: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.encoding.input_ids)


class TextReader(ABC):
    """Tokenises texts, counts them, and lays them end to end in packs.

    Args:
        config: the encoder's.

    Attributes:
        num_texts, num_truncated: the number of texts so far, and of those that were truncated.
        limit: maximum tokens per text.
        may_be_empty: whether a text without tokens has a vector.
        device_type: the kind of device that computes vectors.
        modules: those of the model that follow pooling; None: there are none.

    Raises:
        SettingsError: a layer does not exist, or the limit exceeds the encoder's positions.
    """

    modules: VectorModules | NativeModules | None = None
    may_be_empty = False
    device_type = "cpu"
    num_gpus = 0

    def __init__(
        self,
        config: EncoderConfig,
        tokenizer: Tokenizer,
        settings: LayerSettings,
        engine: EngineSettings,
    ) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.settings, self.engine = settings, engine
        self.layers = _layers(settings.layers, self.config.num_hidden_layers)
        self.limit = settings.max_seq_length or config.max_seqlen
        config.check_length(self.limit)
        self._max_tokens = engine.max_batch_tokens(self.device_type)
        self.num_texts = self.num_truncated = 0

    @property
    def width(self) -> int:
        """The length of a vector."""
        return self.token_width

    @property
    def token_width(self) -> int:
        """The length of a token's vector."""
        count = len(self.layers) if self.settings.combine == "concat" else 1
        return count * self.config.hidden_size

    def _tokenize(self, texts: Sequence[Any], **options: Any) -> Sequence[Encoding | TokenIds]:
        return self.tokenizer.encode_batch(texts, **options)

    def default_names(self, texts: Sequence[str]) -> list[str]:
        """Return the names of the next texts in errors: their numbers."""
        return [f"text {self.num_texts + index + 1}" for index in range(len(texts))]

    def encode(self, texts: Sequence[str], where: Sequence[str]) -> list[EncodedText]:
        """Tokenise texts.

        Raises:
            DataError: a text has a lone surrogate or no tokens, or is too long and `truncation` is
                "error".
        """
        return self._encode(texts, where, self.settings.truncation)

    def _encode(
        self, texts: Sequence[Any], where: Sequence[str], truncation: Truncation, **options: Any
    ) -> list[EncodedText]:
        options |= {"max_length": self.limit, "where": where, "truncation": truncation}
        encodings = self._tokenize(texts, **options)
        encoded_texts = [EncodedText(index, one) for index, one in enumerate(encodings)]
        for place, text in zip(where, encoded_texts, strict=True):
            if not text.num_tokens and not self.may_be_empty:
                raise DataError("the text has no tokens", where=place, fix="Leave it out.")
        self.num_truncated += sum(encoding.truncated_tokens > 0 for encoding in encodings)
        self.num_texts += len(texts)
        return encoded_texts

    def packs(self, texts: Sequence[EncodedText]) -> Iterator[tuple[list[EncodedText], Packed]]:
        """Yield packs of texts of similar length, longest first."""
        max_tokens = self._max_tokens
        if self.device_type == "cpu":  # larger batches need more memory, but are not faster
            max_tokens = min(max_tokens, _TOKENS_OF_A_THREAD * num_threads())
        for part in by_tokens(texts, max_tokens):
            batch = part[::-1]  # sorted by length, for large groups in attention
            # Tokens of single texts are of type 0.
            yield batch, Packed.from_arrays([text.encoding.input_ids for text in batch])

    @property
    @abstractmethod
    def auto_precision(self) -> InferencePrecision:
        """The precision that "auto" means here."""

    def fingerprint(self) -> str:
        """A digest that identifies the model; see `fingerprints`."""
        settings = () if self.modules is None else self.modules.settings
        return fingerprint_of_arrays(self.config, self.tokenizer, self._named_arrays(), settings)

    @abstractmethod
    def _named_arrays(self) -> Iterable[tuple[str, NDArray[Any]]]:
        """Yield the arrays of the encoder and of the modules, in order, with their names."""

    @abstractmethod
    def for_workers(self, cluster: str | None) -> Self:
        """Return a reader for other processes, without what it does not need.

        Args:
            cluster: where the processes run; see `Workers`.
        """

    def provenance(self) -> dict[str, Any]:
        """Everything that the vectors depend on except the texts, as JSON values."""
        return {
            "model": self.fingerprint(),
            **self.settings.model_dump(mode="json"),
            **self.engine.model_dump(mode="json"),
        }

    @abstractmethod
    def embed(
        self,
        texts: Sequence[str],
        where: Sequence[str] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Any:
        """Return what is computed for texts, all in memory at once.

        Args:
            where: the name of each text in errors; if omitted, its number.
            progress: called after each batch with the number of texts done.

        Raises:
            DataError: see `encode`.
            CheckpointError: a vector is not finite.
        """

    @abstractmethod
    def token_states(
        self, texts: Sequence[EncodedText], places: Sequence[str]
    ) -> Iterator[tuple[list[EncodedText], Packed, NDArray[np.float32]]]:
        """Yield packs of texts, with the vector of each token.

        Args:
            places: the names of the texts in errors.

        Raises:
            CheckpointError: a vector is not finite.
        """

    @property
    def is_of_last(self) -> bool:
        """Whether only the last layer's states are needed."""
        return self.layers == [self.config.num_hidden_layers]


class TextEmbedder(TextReader):
    """Computes something for each text: a vector, a sparse vector, or a matrix."""

    settings: EmbedSettings

    def provenance(self) -> dict[str, Any]:
        provenance = super().provenance()
        if self.settings.quantization == "none":
            del provenance["quantization"]  # files of float32 vectors may be older than codes
        return provenance

    @property
    def pooling(self) -> str:
        """How the vectors of tokens become that of a text."""
        return self.settings.pooling

    def _tokenize(self, texts: Sequence[Any], **options: Any) -> Sequence[Encoding | TokenIds]:
        # Without offsets, which vectors of texts do not need.
        return self.tokenizer.sequences(texts, **options)

    def encode(
        self,
        texts: Sequence[Any],
        where: Sequence[str],
        *,
        prompt: str | None = None,
        truncation: Truncation | None = None,
        side: Side | None = None,
    ) -> list[EncodedText]:
        """Tokenise texts, each with the prompt before it; see `TextReader.encode`.

        Args:
            texts: may also be lists of words, or of ids of pieces, which have no prompt.
            prompt, truncation: instead of the settings.
            side: the side at which texts are truncated; the tokenizer's if omitted.
        """
        prompt = self.settings.prompt if prompt is None else prompt
        side = side or self.tokenizer.truncation_side
        if prompt and texts and isinstance(texts[0], str):
            texts = [prompt + text for text in texts]
        else:
            prompt = ""
        truncation = truncation or self.settings.truncation
        encoded_texts = self._encode(texts, where, truncation, side=side)
        num_excluded = self._num_excluded(prompt)
        if not num_excluded:
            return encoded_texts
        results: list[EncodedText] = []
        for text, place in zip(encoded_texts, where, strict=True):
            # Truncation on the left also cuts tokens of the prompt.
            count = max(num_excluded - text.encoding.truncated_tokens * (side == "left"), 1)
            if text.num_tokens <= count:
                what = f"the prompt has {count} tokens, and no token of the text fits next to it"
                fix = "Raise max_seq_length, or give a shorter prompt."
                raise DataError(what, where=place, fix=fix)
            results.append(replace(text, num_excluded=count))
        return results

    def _num_excluded(self, prompt: str) -> int:
        """The number of tokens of texts with this prompt that pooling leaves out.

        As in sentence-transformers, these are the special tokens at the start and the tokens of
        the prompt alone.
        """
        if not prompt or self.settings.include_prompt:
            return 0
        (ids,) = self.tokenizer.piece_ids([prompt], where=["the prompt"])
        return len(self.tokenizer.definition.frame.start) + len(ids)

    def embed(
        self,
        texts: Sequence[str],
        where: Sequence[str] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Any:
        """Return the vectors of texts: see `vectors`, and `TextReader.embed`."""
        where = where or self.default_names(texts)
        return self.vectors(self.encode(texts, where), where.__getitem__, progress)

    @abstractmethod
    def vectors(
        self,
        texts: Sequence[EncodedText],
        place: Callable[[int], str] = row_name,
        progress: Callable[[int], None] | None = None,
    ) -> Any:
        """Return the vectors of tokenised texts, whose indices count from 0.

        Args:
            place: returns the name in errors of the text with an index.
            progress: called after each batch with the number of texts done.

        Raises:
            CheckpointError: a vector is not finite.
        """

    @abstractmethod
    def concatenate(self, parts: Sequence[Any]) -> Any:
        """Return the vectors of all parts, in order; there may be none."""

    def embed_list(
        self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> Any:
        """Return the vectors of texts in memory; see `embed_windows`."""
        size = self.engine.window_rows
        windows = ((texts[start : start + size], None) for start in range(0, len(texts), size))
        return self.embed_windows(windows, len(texts), progress)

    def embed_windows(
        self,
        windows: Iterable[tuple[Sequence[str], Sequence[str] | None]],
        total: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> Any:
        """Return the vectors of all texts, computed window by window; warn of truncated ones.

        Args:
            windows: texts, and the name of each in errors.
            total: the number of texts; 0 if unknown.
            progress: called with the number of texts done, and the total.

        Raises:
            DataError, CheckpointError: see `embed`.
        """
        parts: list[Any] = []
        first = self.num_texts
        for texts, places in windows:
            parts.append(self.embed(texts, places))
            if progress is not None:
                progress(self.num_texts - first, total)
        self.warn_of_truncation()
        return parts[0] if len(parts) == 1 else self.concatenate(parts)

    def warn_of_truncation(self) -> None:
        """Warn if texts were truncated, with their number."""
        if self.num_truncated:
            counts = f"{self.num_truncated} of {self.num_texts}"
            what = f"{counts} texts were truncated to {self.limit} tokens"
            warnings.warn(what, BertworksWarning, stacklevel=3)


class VectorEmbedder(TextEmbedder):
    """Computes a vector of each text: float32 `[texts, width]`, or its code."""

    _width: int

    @property
    def width(self) -> int:
        """The length of a text's vector, or of its code."""
        width, quantization = self._shorten(self._width), self.settings.quantization
        return width if quantization == "none" else code_width(width, quantization)

    def _shorten(self, width: int) -> int:
        return min(width, self.settings.dimensions or width)

    def _set_width(self, full_width: int) -> None:
        """Set the length of a vector before it is shortened to `dimensions`."""
        self._width, width = full_width, self._shorten(full_width)
        quantization = self.settings.quantization
        if quantization != "none" and not fills_bytes(width, quantization):
            what = f"quantization={quantization} needs a multiple of 8 numbers, not {width}"
            raise SettingsError(what, fix="Choose dimensions, or quantization=int8.")

    def with_dimensions(self, dimensions: int | str | None) -> Self:
        """Check the dimensions that a user asks for, if any.

        More in a model's files (`truncate_dim`) have no effect, as in sentence-transformers.

        Raises:
            SettingsError: there are more than a vector has numbers.
        """
        number = None if dimensions is None else self.settings.dimensions  # a text is parsed there
        if number is not None and number > self._width:
            what = f"dimensions={number} is more than the {self._width} numbers of a vector"
            raise SettingsError(what)
        return self

    def _finish(self, vectors: NDArray[np.float32]) -> NDArray[Any]:
        """Return vectors of `dimensions` numbers, at length 1 if they have that; or their codes."""
        if self.settings.dimensions is not None:
            vectors = vectors[:, : self.settings.dimensions]
            is_scaled = self.settings.normalize
            vectors = of_unit_length(vectors) if is_scaled else np.ascontiguousarray(vectors)
        quantization = self.settings.quantization
        return vectors if quantization == "none" else quantize_vectors(vectors, quantization)

    def _check_pooler(self, *, has_pooler: bool) -> None:
        """Raise `SettingsError` if the pooler is requested and cannot be used."""
        if self.pooling != "pooler":
            return
        if not has_pooler:
            raise SettingsError("pooling='pooler': the model has no pooler")
        if not self.is_of_last:
            raise SettingsError("pooling='pooler' uses only the last layer")
        if not self.settings.include_prompt:
            raise SettingsError("pooling='pooler' includes the prompt")

    def vectors(
        self,
        texts: Sequence[EncodedText],
        place: Callable[[int], str] = row_name,
        progress: Callable[[int], None] | None = None,
    ) -> Float[np.ndarray, "texts width"]:
        result = np.empty((len(texts), self._width), np.float32)
        num_done = 0
        # Texts of one server's request may have another prompt than the others.
        get_excluded = attrgetter("num_excluded")
        for num_excluded, group in groupby(sorted(texts, key=get_excluded), get_excluded):
            for part, packed in self.packs(list(group)):
                vectors = self._vectors(packed, num_excluded)
                with np.errstate(over="ignore", invalid="ignore"):
                    total = vectors.sum()  # a sum of finite numbers may overflow
                if not np.isfinite(total):
                    is_finite = np.isfinite(vectors).all(1)
                    if not is_finite.all():
                        raise not_finite_error(place(part[int(is_finite.argmin())].index))
                result[[text.index for text in part]] = vectors
                num_done += len(part)
                if progress is not None:
                    progress(num_done)
        return self._finish(result)

    def concatenate(self, parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        dtype = CODE_TYPES[self.settings.quantization]
        return np.concatenate([np.empty((0, self.width), dtype), *parts])

    @abstractmethod
    def _vectors(self, packed: Packed, num_excluded: int) -> Float[np.ndarray, "sequences width"]:
        """Return the vectors of a pack of texts, without their first tokens in the pooling."""


def _layers(layers: Sequence[int], count: int) -> list[int]:
    """Numbers of hidden states: 0 for the embeddings, up to `count` for the last layer."""
    for layer in layers:
        if not -count - 1 <= layer <= count:
            raise SettingsError(f"there is no layer {layer}: the encoder has {count}")
    return [layer % (count + 1) for layer in layers]
