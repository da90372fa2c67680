"""What every model does that makes vectors of texts, whatever computes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.sentence_settings import SentenceSettings
from ..data.reading import TableOptions
from ..data.rows import chunks
from ..data.text_inputs import (
    Texts,
    as_texts,
    not_empty,
    read_texts,
    texts_or_data,
    warn_of_file,
)
from ..errors import SettingsError
from ..nn.config import EncoderConfig
from ..settings.literals import SimilarityFunction
from ..text.tokenizer import Tokenizer
from .settings import EmbeddingSettings
from .similarity import is_sparse, similarities
from .text_embedding import TextEmbedder
from .token_vectors import TokenVectors
from .vector_codes import vectors_of_codes

if TYPE_CHECKING:
    from ..data.tables import Table
    from ..settings.keywords import EmbedKeywords
    from .vectors import WrittenVectors


class EmbeddingModel(ABC):
    """A model that makes vectors of texts.

    Attributes:
        tokenizer: the model's.
        sentence: how `embed` makes vectors by default.
        query_model: the model of queries; None if this one is also for queries.
        max_seq_length: the most tokens of a text by default, if its files set fewer than the
            positions; a tokenizer's `model_max_length` does.
    """

    tokenizer: Tokenizer
    sentence: SentenceSettings | None
    query_model: EmbeddingModel | None
    max_seq_length: int | None = None

    @property
    def device_type(self) -> str:
        """The kind of device that computes it."""
        return "cpu"

    @property
    @abstractmethod
    def config(self) -> EncoderConfig:
        """The geometry of the encoder."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """The bytes of the weights, with those of the model of queries."""

    def embed(
        self,
        texts: str | Iterable[Any] | None = None,
        *,
        data: Table | Texts | None = None,
        column: str | None = None,
        progress: Callable[[int, int], None] | None = None,
        **settings: Unpack[EmbedKeywords],
    ) -> NDArray[np.float32]:
        """One vector per text, in the order of the texts.

        Args:
            texts: a text (an array of one row is returned), or any number of texts of any length.
            data: a `.txt` file (one text per line) or a table instead.
            column: the text column of a table; detected if omitted.
            progress: called with the number of texts done, and of all texts (0 if unknown).
            settings: settings of `EngineSettings`, such as `precision="bf16"`, and of
                `EmbedSettings`: `pooling` ("mean", "cls", "max", "mean-sqrt", "weighted-mean",
                "sep", "pooler", or several joined by "+"), `layers` (`[-1]`: the last), `combine`
                ("concat", "sum", "mean"), `layer_weights`, `normalize`, `max_seq_length`,
                `prompt`, `include_prompt`, `dimensions`, `quantization`. If omitted, they are read
                from the model's files (sentence-transformers format), or else take their
                defaults. Its modules after pooling are always computed. For a table also those of
                `TableOptions`.

        Returns:
            float32 `[texts, width]`; the width is `hidden_size`, or more if several vectors are
            concatenated, or what the model's modules give. With `quantization="int8"`, int8
            `[texts, width]`; with "binary", uint8 `[texts, width / 8]`: see `vector_codes.py`.
            With a sparse pooling (`splade-max`; or a SPLADE model), a SciPy CSR matrix
            `[texts, vocab_size]`. For late interaction (ColBERT), a list with a matrix
            `[tokens, width]` for each text; `is_query=True` for queries.

        Raises:
            DataError: a text cannot be tokenised.
            SettingsError: a setting is unknown or impossible.
        """
        options, others = TableOptions.split(settings) if settings else ({}, {})
        embedder = self.embedder(**others)
        if data is None and column is None and not options:
            # `read_texts` would take longer than all else around the network.
            items = [texts] if isinstance(texts, str) else texts
            if isinstance(items, list) and items and all(isinstance(one, str) for one in items):
                warn_of_file(items[0])
                return cast("NDArray[np.float32]", embedder.embed_list(items, progress))
        source = texts_or_data(texts, data)
        if data is None:
            source = not_empty(as_texts(source))
            if source is None:
                return cast("NDArray[np.float32]", embedder.concatenate([]))
        rows = read_texts(source, column=column, **options)
        has_total = progress is not None and rows.is_repeatable
        total = sum(1 for _ in rows) if has_total else 0
        windows = chunks(rows, embedder.engine.window_rows)
        texts_and_places = (([text for _, text in w], [place for place, _ in w]) for w in windows)
        vectors = embedder.embed_windows(texts_and_places, total, progress)
        return cast("NDArray[np.float32]", vectors)

    def embed_to(
        self,
        out: str | Path,
        data: Table | Texts | Iterable[str],
        *,
        column: str | None = None,
        part: str | None = None,
        workers: int | None = 1,
        on: str | None = None,
        overwrite: bool = False,
        progress: Callable[[int, int], None] | None = None,
        **settings: Unpack[EmbedKeywords],
    ) -> WrittenVectors:
        """Write one vector per text to a file, in bounded memory; called again, it resumes.

        Args:
            out: the file, its name ending in `.npy` or `.parquet`; for sparse vectors in `.npz`
                (read by `scipy.sparse.load_npz`) or `.parquet`; for late interaction in
                `.safetensors` (read by `inference.token_vectors`) or `.parquet`. On another file
                system, `s3://…`, it is uploaded when complete: an interrupted run starts again.
            data: texts, rows, a `.txt` file (one text per line), or a table.
            column: the text column of a table; detected if omitted.
            part: `I/N`: write only the I-th of N parts of the vectors; `merge` joins them.
            workers, on: number of processes, each with the model, and place; see `Workers`.
            overwrite: delete an existing file, finished or not, and start again.
            progress: called with the number of rows done, and of all rows (0 if unknown).
            settings: as in `embed`.

        Raises:
            DataError: a text is not valid (for a file, this is checked before the first vector is
                computed), or the file has other texts, settings or another model.
            SettingsError: a setting is unknown or impossible.
        """
        from .vectors import write_vectors

        options, others = TableOptions.split(settings)
        embedder = self.embedder(**others)  # what it cannot compute is said before texts are read
        texts = read_texts(data, column=column, **options)
        return write_vectors(
            out,
            texts,
            embedder,
            inputs=[data],
            part=part,
            workers=workers,
            on=on,
            overwrite=overwrite,
            progress=progress,
        )

    def similarity(
        self,
        texts: str | Iterable[str] | NDArray[np.floating[Any]],
        others: str | Iterable[str] | NDArray[np.floating[Any]],
        **settings: Unpack[EmbedKeywords],
    ) -> NDArray[np.float32]:
        """The similarity of each text's vector with each of the other texts' vectors.

        Late interaction, and a model of queries and documents, take `texts` as queries.
        It is the cosine, or the function that the model's files name (`similarity_fn_name` of
        sentence-transformers: `dot`, `euclidean`, `manhattan`; distances are negative).

        Args:
            texts, others: a text, texts, or vectors that `embed` returned, also quantized (bits are
                compared as 1 and -1); for late interaction
                also `TokenVectors`, which a file of `embed_to` holds.
            settings: as in `embed`.

        Returns:
            float32 `[texts, others]`.

        Raises:
            DataError, SettingsError: as in `embed`; or the vectors do not have the same width.
        """
        if self.compares_queries:
            one = self._vectors(texts, {**settings, "is_query": True})
        else:
            one = self._vectors(texts, settings)
        other = self._vectors(others, settings)
        return similarities(one, other, self.similarity_function)

    @property
    def similarity_function(self) -> SimilarityFunction:
        """The function with which `similarity` and `search` compare vectors."""
        return "cosine" if self.sentence is None else self.sentence.similarity_function

    @property
    def compares_queries(self) -> bool:
        """Whether `similarity` takes its first texts as queries: they have vectors of their own."""
        return self.similarity_function == "maxsim" or self.query_model is not None

    def _vectors(
        self, inputs: str | Iterable[str] | NDArray[Any], settings: Mapping[str, Any]
    ) -> NDArray[np.float32]:
        """Return given vectors, or compute those of texts: float32 `[rows, width]`."""
        if isinstance(inputs, list) and inputs and isinstance(inputs[0], np.ndarray):
            if inputs[0].ndim != 1 or len({vector.shape for vector in inputs}) > 1:
                return cast("NDArray[np.float32]", inputs)  # matrices
            inputs = np.stack(inputs)
        if isinstance(inputs, TokenVectors):
            return cast("NDArray[np.float32]", [*inputs])
        if is_sparse(inputs):
            return cast("NDArray[np.float32]", cast("Any", inputs).tocsr())
        if isinstance(inputs, np.ndarray) and inputs.dtype in (np.int8, np.uint8):
            return vectors_of_codes(np.atleast_2d(inputs))
        if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "fiu":
            return np.atleast_2d(inputs).astype(np.float32)
        return self.embed(inputs, **settings)

    @abstractmethod
    def embedder(self, **settings: Unpack[EmbedKeywords]) -> TextEmbedder:
        """The object that computes the vectors of `embed`, with the same settings.

        Raises:
            SettingsError: a setting is unknown or impossible.
        """

    def embed_defaults(self, *, is_query: bool = False) -> dict[str, Any]:
        """The settings of `embed` that the model's files set."""
        limit = {} if self.max_seq_length is None else {"max_seq_length": self.max_seq_length}
        sentence = self.sentence
        return limit if sentence is None else limit | sentence.embed_defaults(is_query=is_query)

    def _embedding_settings(self, settings: Mapping[str, Any]) -> EmbeddingSettings:
        """Return the settings of `embed`, with those of the model's files as defaults."""
        sentence = self.sentence
        defaults = self.embed_defaults(is_query=bool(settings.get("is_query")))
        if settings.keys() & {"layers", "combine"}:
            defaults.pop("layer_weights", None)
        layers = settings.get("layers", ())
        if isinstance(layers, int) or len(layers) == 1:
            defaults.pop("combine", None)
        prompts = {} if sentence is None else sentence.entries.get("prompts") or {}
        name = settings.get("prompt")
        if name and name in prompts and name not in prompts.values():
            raise SettingsError(
                f"prompt={name!r} is the name of a prompt of the model, not a text",
                fix=f"Give its text: prompt={prompts[name]!r}.",
            )
        values = {**defaults, **settings}
        # Checking settings takes longer than embedding a text, so those of plain values are kept.
        if all(isinstance(value, str | int | float | None) for value in values.values()):
            # The type is part of the key, since 1 equals True.
            result = _resolve(tuple((name, type(value), value) for name, value in values.items()))
        else:
            result = EmbeddingSettings.resolve(**values)
        if result.quantization != "none" and self.similarity_function != "cosine":
            what = f"quantization={result.quantization} is for models that use cosines"
            raise SettingsError(f"{what}, and this one uses {self.similarity_function}")
        return result


@lru_cache(maxsize=64)
def _resolve(items: tuple[tuple[str, type, Any], ...]) -> EmbeddingSettings:
    return EmbeddingSettings.resolve(**{name: value for name, _, value in items})
