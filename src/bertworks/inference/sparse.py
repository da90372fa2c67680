"""Sparse vectors of texts: a number for each piece of the vocabulary (SPLADE, or fixed weights).

    tokens ─ encoder ─► hidden states ─ masked-language-model head ─► logits of each piece
                        the largest, or the sum, of log(1 + max(0, logit)) over a text's tokens

The logits of a text are computed a few tokens at a time: those of a batch of long texts would take
gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import SettingsError, row_name
from ..nn.encoder import HasEncoder
from ..nn.heads import MLMHead
from ..tasks.retrieval.sparse_network import splade_weights
from ..text.tokenizer import Tokenizer
from .features import NetworkEmbedder
from .frozen_network import inference
from .network_runner import check_finite
from .settings import EmbedSettings, EngineSettings
from .similarity import import_sparse
from .text_embedding import EncodedText

SparseMatrix: TypeAlias = Any
"""A `scipy.sparse.csr_matrix`; SciPy is imported when one is made."""

_CHUNK_TOKENS = 256


class SparseEmbedder(NetworkEmbedder):
    """Computes a sparse vector of each text: a SciPy CSR matrix `[texts, vocab_size]`, float32.

    Raises:
        SettingsError: a setting is for other vectors.
    """

    def __init__(
        self,
        network: HasEncoder,
        tokenizer: Tokenizer,
        settings: EmbedSettings,
        engine: EngineSettings,
    ) -> None:
        super().__init__(network, tokenizer, settings, engine)
        self._check_settings()

    def _check_settings(self) -> None:
        """Raise SettingsError if the settings do not fit the network."""
        import_sparse()
        if not self.is_of_last:
            raise SettingsError(f"pooling={self.pooling!r} uses only the last layer")
        if self.settings.dimensions is not None:
            raise SettingsError(f"dimensions: sparse vectors ({self.pooling}) are not shortened")
        if self.settings.quantization != "none":
            raise SettingsError(f"quantization: sparse vectors ({self.pooling}) are not quantized")
        if not self.settings.include_prompt:
            raise SettingsError(f"pooling={self.pooling!r} includes the prompt")

    def for_workers(self, cluster: str | None) -> Self:
        del cluster
        return self  # its vectors are outputs of a head

    @property
    def width(self) -> int:
        """The length of a text's vector: the number of pieces."""
        return self.config.vocab_size

    def _from_rows(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> SparseMatrix:
        """A matrix of the columns and values of each row."""
        edges = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(columns) for columns, _ in rows], out=edges[1:])
        columns = np.concatenate([np.empty(0, np.int32), *(row for row, _ in rows)])
        values = np.concatenate([np.empty(0, np.float32), *(row for _, row in rows)])
        shape = (len(rows), self.width)
        return import_sparse().csr_matrix(
            (values.astype(np.float32), columns.astype(np.int32), edges), shape=shape
        )

    def concatenate(self, parts: Sequence[SparseMatrix]) -> SparseMatrix:
        if not parts:
            return self._from_rows([])
        return import_sparse().vstack(parts, format="csr")


class SpladeEmbedder(SparseEmbedder):
    """Computes sparse vectors of the logits of a masked-language-model head.

    Raises:
        SettingsError: the model has no such head; or see `SparseEmbedder`.
    """

    def _check_settings(self) -> None:
        super()._check_settings()
        if not isinstance(getattr(self.network, "mlm_head", None), MLMHead):
            raise SettingsError(
                f"pooling={self.pooling!r}: the model has no masked-language-model head"
            )
        if self.config.attention != "bidirectional":
            raise SettingsError(f"pooling={self.pooling!r}: the model's attention is causal")

    @property
    def _is_sum(self) -> bool:
        return self.pooling.startswith("splade-sum")

    def vectors(
        self,
        texts: Sequence[EncodedText],
        place: Callable[[int], str] = row_name,
        progress: Callable[[int], None] | None = None,
    ) -> SparseMatrix:
        rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for part, packed in self.batches(texts):
            with inference(self.network, self.engine) as form:
                hidden = form.encoder(packed)
                for text, tokens in zip(part, packed.slices, strict=True):
                    vector = self._vector(form, hidden[tokens])
                    # The function is called in this turn of the loop.
                    check_finite(vector[None], lambda _: place(text.index))  # noqa: B023
                    (columns,) = vector.nonzero(as_tuple=True)
                    values = vector[columns]
                    rows[text.index] = (columns.cpu().numpy(), values.cpu().numpy())
            if progress is not None:
                progress(len(rows))
        return self._from_rows([rows[index] for index in range(len(texts))])

    def _vector(
        self, form: nn.Module, hidden: Float[Tensor, "tokens hidden_size"]
    ) -> Float[Tensor, " vocab_size"]:
        """The vector of one text, whose bits so depend on this text alone."""
        head: Any = form.mlm_head
        total: Tensor | None = None
        for chunk in torch.split(hidden, _CHUNK_TOKENS):
            logits = head(chunk)
            # The weight of a piece rises with its logit, so the largest logit gives the largest.
            part = splade_weights(logits, self.pooling).sum(0) if self._is_sum else logits.amax(0)
            if total is None:
                total = part
            else:
                total = total + part if self._is_sum else torch.maximum(total, part)
        assert total is not None
        vector = total if self._is_sum else splade_weights(total, self.pooling)
        return nn.functional.normalize(vector, dim=-1) if self.settings.normalize else vector


class PieceWeightEmbedder(SparseEmbedder):
    """Computes sparse vectors of a static model's numbers, one for each piece in a text.

    How often a piece occurs does not matter. Source: Geng et al. (2024), "Towards Competitive
    Search Relevance For Inference-Free Learned Sparse Retrievers", §3.1.

    Raises:
        SettingsError: the model is no such static model; or see `SparseEmbedder`.
    """

    may_be_empty = True

    def _check_settings(self) -> None:
        super()._check_settings()
        if not self.config.is_static or self.config.hidden_size != 1:
            raise SettingsError(f"pooling={self.pooling!r}: the model has no number for each piece")

    def vectors(
        self,
        texts: Sequence[EncodedText],
        place: Callable[[int], str] = row_name,
        progress: Callable[[int], None] | None = None,
    ) -> SparseMatrix:
        table = self.network.encoder.embeddings.word_embeddings.weight.detach().float().reshape(-1)
        check_finite(table[None], lambda _: place(0))
        weights: np.ndarray = table.cpu().numpy()
        rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for text in texts:
            columns = np.unique(text.encoding.input_ids)
            columns = columns[weights[columns] != 0]
            values = weights[columns]
            if self.settings.normalize and len(values):
                values = values / np.linalg.norm(values)
            rows[text.index] = columns, values
        if progress is not None:
            progress(len(rows))
        return self._from_rows([rows[index] for index in range(len(texts))])
