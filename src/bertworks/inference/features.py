"""Vectors of texts: one for each text, or for each of its tokens or words (paper §5.3)."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, repeat
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data.rows import chunks
from ..data.text_inputs import Texts
from ..errors import BertworksWarning, DataError, SettingsError
from ..nn.encoder import Encoder, HasEncoder
from ..nn.pooling import modes_of, pool
from ..nn.vector_modules import VectorModules
from ..packed import Packed
from ..text.encoding import Encoding, TokenIds, Truncation, with_marks
from ..text.tokenizer import Tokenizer
from .engine import by_tokens, check_finite, row_name
from .frozen_native import FrozenNativeEncoder
from .frozen_network import frozen_form
from .settings import EmbedSettings, EngineSettings, LayerSettings, TokenSettings

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
        return self.encoding.num_tokens


class HiddenStateExtractor:
    """Selected hidden states of any number of texts.

    Attributes:
        num_texts, num_truncated: the number of texts so far, and of those that were truncated.
        limit: maximum tokens per text.
        may_be_empty: whether a text without tokens has a vector.

    Raises:
        SettingsError: a layer does not exist, or the limit exceeds the encoder's positions.
    """

    may_be_empty = False

    def __init__(
        self,
        network: HasEncoder,
        tokenizer: Tokenizer,
        settings: LayerSettings,
        engine: EngineSettings,
    ) -> None:
        self.network, self.tokenizer = network, tokenizer
        self.device = next(network.parameters()).device
        self.settings, self.engine = settings, engine
        self.config = network.encoder.config
        self.layers = _layers(settings.layers, self.config.num_hidden_layers)
        max_seqlen = self.config.max_seqlen
        self.limit = settings.max_seq_length or max_seqlen
        if self.limit > max_seqlen:
            raise SettingsError(
                f"max_seq_length={self.limit} is more than the encoder's {max_seqlen}"
            )
        self.num_texts = self.num_truncated = 0

    @property
    def width(self) -> int:
        """The length of a token's vector."""
        count = len(self.layers) if self.settings.combine == "concat" else 1
        return count * self.config.hidden_size

    @property
    def _tokenize(self) -> Callable[..., Sequence[Encoding | TokenIds]]:
        return self.tokenizer.encode_batch

    def default_names(self, texts: Sequence[str]) -> list[str]:
        """Return the names of the next texts in errors: their numbers."""
        return [f"text {self.num_texts + index + 1}" for index in range(len(texts))]

    def encode(self, texts: Sequence[str], where: Sequence[str]) -> list[EncodedText]:
        """Tokenise texts.

        Raises:
            DataError: a text has a lone surrogate or no tokens, or is too long and `truncation` is
                "error".
        """
        return self._encode(texts, where, truncation=self.settings.truncation)

    def _encode(
        self, texts: Sequence[Any], where: Sequence[str], **options: Any
    ) -> list[EncodedText]:
        encodings = self._tokenize(texts, max_length=self.limit, where=where, **options)
        for place, encoding in zip(where, encodings, strict=True):
            if not encoding.num_tokens and not self.may_be_empty:
                raise DataError("the text has no tokens", where=place, fix="Leave it out.")
        self.num_truncated += sum(encoding.truncated_tokens > 0 for encoding in encodings)
        self.num_texts += len(texts)
        return [EncodedText(index, encoding) for index, encoding in enumerate(encodings)]

    def batches(self, texts: Sequence[EncodedText]) -> Iterator[tuple[list[EncodedText], Packed]]:
        """Yield packs of texts of similar length, longest first, on the encoder's device."""
        max_tokens = self.engine.batch_tokens
        if self.device.type == "cpu":  # larger batches need more memory, but are not faster
            max_tokens = min(max_tokens, _TOKENS_OF_A_THREAD * torch.get_num_threads())
        for part in by_tokens(texts, max_tokens):
            batch = part[::-1]  # sorted by length, for large groups in attention
            yield (
                batch,
                # Tokens of single texts are of type 0.
                Packed.from_arrays([text.encoding.input_ids for text in batch]).to(self.device),
            )

    def of_tokens(self, packed: Packed) -> Float[Tensor, "tokens width"]:
        """The vector of each token, in the order of the pack."""
        with torch.inference_mode():
            return torch.cat(self.parts(self.frozen_encoder(), packed, lambda hidden: hidden), -1)

    def frozen_encoder(self) -> Encoder:
        """The encoder in its frozen form."""
        engine = self.engine
        return frozen_form(self.network, engine.precision, engine.deterministic).encoder

    @property
    def is_of_last(self) -> bool:
        """Whether only the last layer's states are needed."""
        return self.layers == [self.config.num_hidden_layers]

    def parts(
        self, encoder: Encoder, packed: Packed, reduce: Callable[[Tensor], Tensor]
    ) -> list[Float[Tensor, "vectors width"]]:
        """The vectors to concatenate: of each layer, or of all layers combined, after `reduce`.

        Args:
            encoder: in its frozen form.
        """
        layers, last = self.layers, self.config.num_hidden_layers
        states: Iterable[tuple[int, Tensor]]
        if self.is_of_last:  # a call of the encoder may compute all layers at once
            states = [(last, encoder(packed))]
        else:
            states = enumerate(encoder.hidden_states(packed))
        if self.settings.combine == "concat":
            vectors: dict[int, Tensor] = {}
            for number, hidden in states:
                if number in layers:
                    vectors[number] = reduce(hidden.float())
            return [vectors[layer] for layer in layers]
        weights = dict.fromkeys(layers, 0.0)
        for number, weight in zip(layers, self.settings.layer_weights or repeat(1.0), strict=False):
            weights[number] += weight
        total: Tensor | None = None
        for number, hidden in states:
            if number in layers:
                weighted = weights[number] * hidden.float()
                total = weighted if total is None else total + weighted
        assert total is not None
        is_mean = self.settings.combine == "mean"
        return [reduce(total / sum(weights.values()) if is_mean else total)]


class TextEmbedder(HiddenStateExtractor, ABC):
    """Computes something for each text: a vector, a sparse vector, or a matrix.

    See `HiddenStateExtractor` for the arguments, and `EmbedSettings`.
    """

    settings: EmbedSettings

    def __init__(
        self,
        network: HasEncoder,
        tokenizer: Tokenizer,
        settings: EmbedSettings,
        engine: EngineSettings,
    ) -> None:
        super().__init__(network, tokenizer, settings, engine)
        self.pooling, self.normalize = settings.pooling, settings.normalize
        self.prompt = settings.prompt
        self._check_settings()

    def _check_settings(self) -> None:
        """Raise SettingsError if the settings do not fit the network."""

    @property
    def _tokenize(self) -> Callable[..., Sequence[Encoding | TokenIds]]:
        return self.tokenizer.sequences  # without offsets, which vectors of texts do not need

    def encode(
        self,
        texts: Sequence[Any],
        where: Sequence[str],
        *,
        prompt: str | None = None,
        truncation: Truncation | None = None,
        side: Literal["left", "right"] = "right",
    ) -> list[EncodedText]:
        """Tokenise texts, each with the prompt before it; see `HiddenStateExtractor.encode`.

        Args:
            texts: may also be lists of words, or of ids of pieces, which have no prompt.
            prompt, truncation: instead of the settings.
            side: the side at which texts are truncated.
        """
        prompt = self.prompt if prompt is None else prompt
        if prompt and texts and isinstance(texts[0], str):
            texts = [prompt + text for text in texts]
        else:
            prompt = ""
        encoded_texts = self._encode(
            texts, where, truncation=truncation or self.settings.truncation, side=side
        )
        num_excluded = self._num_excluded(prompt)
        if not num_excluded:
            return encoded_texts
        return [
            _exclude_tokens(
                text,
                # Truncation on the left also cuts tokens of the prompt.
                max(num_excluded - text.encoding.truncated_tokens * (side == "left"), 1),
                where=place,
            )
            for text, place in zip(encoded_texts, where, strict=True)
        ]

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
        """Return the vectors of texts, all in memory at once: see `vectors`.

        Args:
            where: the name of each text in errors; if omitted, its number.
            progress: called after each batch with the number of texts done.

        Raises:
            DataError: see `encode`.
            CheckpointError: a vector is not finite.
        """
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


class Embedder(TextEmbedder):
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
        if self.pooling == "pooler":
            if network.encoder.pooler is None:
                raise SettingsError("pooling='pooler': the model has no pooler")
            if not self.is_of_last:
                raise SettingsError("pooling='pooler' uses only the last layer")
            if not settings.include_prompt:
                raise SettingsError("pooling='pooler' includes the prompt")
        pooled_width = super().width * len(modes_of(self.pooling))
        self._width = pooled_width if modules is None else modules.output_width(pooled_width)

    @property
    def width(self) -> int:
        """The length of a text's vector."""
        return self._width

    def vectors(
        self,
        texts: Sequence[EncodedText],
        place: Callable[[int], str] = row_name,
        progress: Callable[[int], None] | None = None,
    ) -> Float[np.ndarray, "texts width"]:
        result = np.empty((len(texts), self.width), np.float32)
        num_done = 0
        # Texts of one server's request may have another prompt than the others.
        get_excluded = attrgetter("num_excluded")
        for num_excluded, group in groupby(sorted(texts, key=get_excluded), get_excluded):
            for part, packed in self.batches(list(group)):
                with torch.inference_mode():
                    vectors = self._vectors(packed, num_excluded)
                check_finite(vectors, lambda at: place(part[at].index))  # noqa: B023
                result[[text.index for text in part]] = vectors.cpu().numpy()
                num_done += len(part)
                if progress is not None:
                    progress(num_done)
        return result

    def concatenate(self, parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        return np.concatenate([np.empty((0, self.width), np.float32), *parts])

    def _vectors(self, packed: Packed, num_excluded: int) -> Float[Tensor, "sequences width"]:
        encoder, modules = self.frozen_encoder(), self.modules
        is_mean = self.pooling == "mean" and self.is_of_last and not num_excluded
        if is_mean and isinstance(encoder, FrozenNativeEncoder):
            vectors = encoder.means(packed, unit_length=self.normalize and modules is None)
            if modules is None:
                return vectors
        elif self.pooling == "pooler":
            vectors = encoder.pool(encoder(packed), packed).float()
        else:
            parts = self.parts(
                encoder,
                packed,
                lambda hidden: pool(hidden, packed, self.pooling, first=num_excluded),
            )
            vectors = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        if modules is not None:
            vectors = frozen_form(modules, "fp32", self.engine.deterministic)(vectors)
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors


def _exclude_tokens(text: EncodedText, num_excluded: int, *, where: str) -> EncodedText:
    """Return a text with the number of its tokens that pooling leaves out.

    Raises:
        DataError: no token would be left.
    """
    if text.num_tokens <= num_excluded:
        raise DataError(
            f"the prompt has {num_excluded} tokens, and no token of the text fits beside it",
            where=where,
            fix="Raise max_seq_length, or give a shorter prompt.",
        )
    return replace(text, num_excluded=num_excluded)


def embed(embedder: TextEmbedder, texts: Iterable[tuple[str, str]]) -> Iterator[Any]:
    """Yield the vectors of texts, window by window, in the order of the texts.

    Args:
        texts: the name in errors and the text of each.

    Yields:
        The vectors of up to `window_rows` texts at a time: see `TextEmbedder.vectors`.

    Raises:
        DataError: a text has a lone surrogate or no tokens, or is too long and `truncation` is
            "error".
    """
    for window in chunks(texts, embedder.engine.window_rows):
        places, encodings = zip(*window, strict=True)
        yield embedder.embed(encodings, places)
    warn_of_truncation(embedder)


def warn_of_truncation(embedder: TextEmbedder) -> None:
    """Warn if texts were truncated, with their number."""
    if embedder.num_truncated:
        counts = f"{embedder.num_truncated} of {embedder.num_texts}"
        what = f"{counts} texts were truncated to {embedder.limit} tokens"
        warnings.warn(what, BertworksWarning, stacklevel=3)


def embed_all(
    embedder: TextEmbedder, texts: Texts, progress: Callable[[int, int], None] | None
) -> Any:
    """Return the vectors of texts: see `TextEmbedder.vectors`.

    Args:
        progress: called with the number of texts done, and of all texts (0 if unknown).

    Raises:
        DataError: see `embed`.
    """
    total = sum(1 for _ in texts) if progress is not None and texts.is_repeatable else 0
    parts: list[Any] = []
    first = embedder.num_texts
    for part in embed(embedder, texts):
        parts.append(part)
        if progress is not None:
            progress(embedder.num_texts - first, total)
    return embedder.concatenate(parts)


def _layers(layers: Sequence[int], count: int) -> list[int]:
    """Numbers of hidden states: 0 for the embeddings, up to `count` for the last layer."""
    for layer in layers:
        if not -count - 1 <= layer <= count:
            raise SettingsError(f"there is no layer {layer}: the encoder has {count}")
    return [layer % (count + 1) for layer in layers]


Vectors = NDArray[np.float32]


class Features(NamedTuple):
    """Vectors of the tokens or words of texts, in order."""

    rows: NDArray[np.int64]  # int64 `[features]`: the index of the text
    names: list[str]  # each token as in the vocabulary, or each word as in the text
    # int32 `[features, 2]`: the first character in the text, and the one after the last
    spans: NDArray[np.int32]
    vectors: Vectors  # float32 `[features, width]`


class TokenFeatures(HiddenStateExtractor):
    """Computes vectors of tokens or words; see `HiddenStateExtractor` for the arguments."""

    settings: TokenSettings

    def embed(
        self,
        texts: Sequence[str],
        where: Sequence[str] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Features:
        """Return the vectors of some texts, all in memory at once.

        Args:
            where: the name of each text in errors; if omitted, its number.
            progress: called after each batch with the number of texts done.

        Raises:
            DataError: see `HiddenStateExtractor.encode`.
            CheckpointError: a vector is not finite.
        """
        where = where or self.default_names(texts)
        features: dict[int, list[tuple[str, tuple[int, int], Vectors]]] = {}
        for part, packed in self.batches(self.encode(texts, where)):
            states = self.of_tokens(packed)
            edges = packed.cu_seqlens.tolist()
            owners = [where[text.index] for text in part]
            check_finite(states, lambda at: owners[bisect_right(edges, at) - 1])  # noqa: B023
            hidden = states.cpu().numpy()
            for text, start, end in zip(part, edges, edges[1:], strict=False):
                assert isinstance(text.encoding, Encoding)
                parts = self._parts(texts[text.index], text.encoding, hidden[start:end])
                features[text.index] = list(parts)
            if progress is not None:
                progress(len(features))
        flat = [(row, *one) for row in range(len(texts)) for one in features[row]]
        return Features(
            np.array([row for row, *_ in flat], np.int64),
            [name for _, name, *_ in flat],
            np.array([span for *_, span, _ in flat], np.int32).reshape(-1, 2),
            np.array([vector for *_, vector in flat], np.float32).reshape(-1, self.width),
        )

    def _parts(
        self, text: str, encoding: Encoding, hidden: Vectors
    ) -> Iterator[tuple[str, tuple[int, int], Vectors]]:
        """Yield the name, the span and the vector of each token or word."""
        indices = np.flatnonzero(~encoding.special_tokens_mask)
        if self.settings.unit == "tokens":
            names = self.tokenizer.tokens(encoding.input_ids[indices])
            for name, index in zip(names, indices, strict=True):
                start, end = encoding.offsets[index].tolist()
                yield name, (start, end), hidden[index]
            return
        offsets = with_marks(encoding.offsets[indices], text)
        edges = np.flatnonzero(np.diff(encoding.word_ids[indices])) + 1
        for word in np.split(np.arange(len(indices)), edges) if len(indices) else []:
            start, end = int(offsets[word[0], 0]), int(offsets[word[-1], 1])
            pieces = hidden[indices[word]]
            vector = pieces[0] if self.settings.pieces == "first" else pieces.mean(0)
            yield text[start:end], (start, end), vector
