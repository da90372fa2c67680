"""Vectors of texts of a static model: means of rows of its table.

    texts in ASCII ─► native WordPiece ─┐
    other texts ────► the library ──────┴─► ids, laid end to end ─► means of rows, in one operation

No object is made for each text. The library needs some 25 µs for a short text; native code and the
means together need a few.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import nn

from ..errors import BertworksWarning, row_name
from ..native.library import is_enabled
from ..native.mean_of_rows import write_means_of_rows
from ..native.wordpiece import MAX_WORD_CHARACTERS, NativeWordPiece
from ..nn.vector_modules import VectorModules
from ..text.definition import UNK, Definition
from ..text.tokenizer import Tokenizer
from ..text.tree import TreeDefinition
from ..text.wordpiece import CONTINUATION, WordPieceDefinition
from .features import Embedder
from .network_runner import check_finite
from .settings import EmbedSettings
from .text_embedding import EncodedText

_WINDOW = 1 << 14  # texts whose ids and vectors are computed at a time
_natives: WeakKeyDictionary[Tokenizer, NativeWordPiece | None] = WeakKeyDictionary()


class StaticEmbedder(Embedder):
    """Computes vectors of texts of a static model; see `Embedder`.

    They are computed in float32, whatever the precision. The vector of a text without known pieces
    is zero, and a warning counts such texts.
    """

    may_be_empty = True

    @staticmethod
    def can_compute(settings: EmbedSettings, modules: VectorModules | None) -> bool:
        """Whether vectors with these settings are means of rows of a static model's table."""
        is_mean = settings.pooling == "mean" and len(settings.layers) == 1 and modules is None
        return is_mean and (settings.include_prompt or not settings.prompt)

    @property
    def _native(self) -> NativeWordPiece | None:
        if self.tokenizer not in _natives:
            _natives[self.tokenizer] = native_wordpiece(self.tokenizer.definition)
        return _natives[self.tokenizer]

    def embed(
        self,
        texts: Sequence[str],
        where: Sequence[str] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        """Return the vectors of texts; see `Embedder.embed`."""
        first = self.num_texts
        result = np.empty((len(texts), self._width), np.float32)
        for start in range(0, len(texts), _WINDOW):
            window = texts[start : start + _WINDOW]
            names = None if where is None else where[start : start + _WINDOW]
            ids, lengths = self.piece_ids(window, names)

            def place(index: int, start: int = start) -> str:
                row = start + index
                return f"text {first + row + 1}" if where is None else where[row]

            self._write_means(ids, lengths, result[start : start + _WINDOW], place)
            if progress is not None:
                progress(start + len(window))
        return self._finish(result)

    def embed_list(
        self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> NDArray[np.float32]:
        total = len(texts)
        vectors = self.embed(texts, None, progress and (lambda done: progress(done, total)))
        self.warn_of_truncation()
        return vectors

    def vectors(
        self,
        texts: Sequence[EncodedText],
        place: Callable[[int], str] = row_name,
        progress: Callable[[int], None] | None = None,
    ) -> Float[np.ndarray, "texts width"]:
        lengths = np.fromiter((text.num_tokens for text in texts), np.int64, len(texts))
        ids = [text.encoding.input_ids for text in texts]
        vectors = np.empty((len(texts), self._width), np.float32)
        self._write_means(
            np.concatenate([*ids, np.empty(0, np.int32)]),
            lengths,
            vectors,
            lambda at: place(texts[at].index),
        )
        result = np.empty_like(vectors)
        result[[text.index for text in texts]] = vectors
        if progress is not None:
            progress(len(texts))
        return self._finish(result)

    def piece_ids(
        self, texts: Sequence[str], where: Sequence[str] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids of texts, laid end to end, and how many each text has.

        Raises:
            DataError: a text is not valid, or too long and `truncation` is "error".
        """
        native = self._native if self.settings.truncation != "error" else None
        if native is None or set(map(type, texts)) - {str}:
            return self._ids_of_library(texts, where)
        is_ascii = [*map(str.isascii, (self.settings.prompt, *texts))]
        if not is_ascii[0] or not any(is_ascii[1:]):
            return self._ids_of_library(texts, where)
        if not all(is_ascii):
            return self._mixed_ids(texts, where, np.array(is_ascii[1:]))
        if self.settings.prompt:
            texts = [self.settings.prompt + text for text in texts]
        ids, counts = native(texts, self.limit)
        self.num_texts += len(texts)
        self.num_truncated += int((counts > self.limit).sum())
        return ids, np.minimum(counts, self.limit)

    def _mixed_ids(
        self, texts: Sequence[str], where: Sequence[str] | None, is_native: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The same for texts of which native code splits some."""
        names = self.default_names(texts) if where is None else where
        lengths = np.empty(len(texts), np.int64)
        parts: list[tuple[NDArray[np.bool_], NDArray[np.int32]]] = []
        for mask in (is_native, ~is_native):
            rows = np.flatnonzero(mask).tolist()
            part_names = [names[row] for row in rows]
            ids, lengths[mask] = self.piece_ids([texts[row] for row in rows], part_names)
            parts.append((mask, ids))
        result = np.empty(lengths.sum(), np.int32)
        for mask, ids in parts:
            result[np.repeat(mask, lengths)] = ids
        return result, lengths

    def _ids_of_library(
        self, texts: Sequence[str], where: Sequence[str] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        encoded = self.encode(texts, self.default_names(texts) if where is None else where)
        lengths = np.fromiter((text.num_tokens for text in encoded), np.int64, len(encoded))
        ids = [text.encoding.input_ids for text in encoded]
        return np.concatenate([*ids, np.empty(0, np.int32)]), lengths

    def _write_means(
        self,
        ids: NDArray[np.int32],
        lengths: NDArray[np.int64],
        result: NDArray[np.float32],
        place: Callable[[int], str],
    ) -> None:
        """Write the mean of each text's rows of the table, in one operation.

        Raises:
            CheckpointError: a vector is not finite.
        """
        if num_empty := int((lengths == 0).sum()):
            count = f"{num_empty:,} of {len(lengths):,} texts"
            what = f"{count} have no known piece; their vectors are 0"
            warnings.warn(what, BertworksWarning, stacklevel=4)
        table = self.network.encoder.embeddings.word_embeddings.weight.detach().float()
        if is_enabled() and table.is_cpu and table.is_contiguous():
            write_means_of_rows(
                table.numpy(), ids, lengths, result, unit_length=self.settings.normalize
            )
        else:
            starts = (np.cumsum(lengths) - lengths).astype(np.int32)
            with torch.inference_mode():
                indices, offsets = (torch.from_numpy(a).to(table.device) for a in (ids, starts))
                vectors = nn.functional.embedding_bag(indices, table, offsets, mode="mean")
                if self.settings.normalize:
                    vectors = nn.functional.normalize(vectors, dim=-1)
            result[:] = vectors.cpu().numpy()
        check_finite(torch.from_numpy(result), place)


def native_wordpiece(definition: Definition) -> NativeWordPiece | None:
    """Return native code that gives texts in ASCII the ids that a tokenizer gives them.

    None: there is no native code, or the tokenizer is not BERT's kind, or puts special pieces
    around a text.
    """
    if not is_enabled() or definition.frame.start or definition.frame.end:
        return None
    if isinstance(definition, WordPieceDefinition):
        is_plain = definition.normalization.clean_text and not definition.added
        ids, limit = definition.ids, definition.max_word_characters
        unknown_id, lowercase = definition.ids[UNK], definition.lowercase
    else:
        assert isinstance(definition, TreeDefinition)
        model: Any = definition.tree["model"]
        is_plain = _is_plain_bert(definition)
        if not is_plain:
            return None
        ids, limit = model["vocab"], model["max_input_chars_per_word"]
        unknown_id, lowercase = definition.ids[model["unk_token"]], definition.lowercase
    if not is_plain or limit > MAX_WORD_CHARACTERS:
        return None
    return NativeWordPiece(
        ids,
        unknown_id,
        drops_unknown=definition.unknown_id is not None,
        lowercase=lowercase,
        max_word_characters=limit,
    )


def _is_plain_bert(definition: TreeDefinition) -> bool:
    """Whether a tree describes BERT's tokenizer, and no piece is searched for before it."""
    tree = definition.tree
    model, normalizer, splitter = (tree[part] or {} for part in _PARTS)
    return (
        model.get("type") == "WordPiece"
        and model.get("continuing_subword_prefix") == CONTINUATION
        and normalizer.get("type") == "BertNormalizer"
        and bool(normalizer.get("clean_text"))
        and splitter.get("type") == "BertPreTokenizer"
        and definition.added.keys() <= definition.special
    )


_PARTS = ("model", "normalizer", "pre_tokenizer")
