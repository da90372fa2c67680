"""Vectors of texts and of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from ...errors import DataError
from ...inference.engine import check_finite
from ...inference.features import EncodedText, TextEmbedder, exclude_tokens
from ...text.encoding import Segment
from .base import (
    Text,
    Truncation,
    memory_errors,
    text_too_long_error,
)


class EmbedRunner:
    """Computes a vector for each text, list of words, or list of token ids.

    With an embedder of sparse vectors, each is a CSR matrix of one row.
    """

    def __init__(self, embedder: TextEmbedder) -> None:
        self.embedder = embedder
        self.tokenizer = embedder.tokenizer

    def prepare(
        self, items: Sequence[Text], truncation: Truncation | None = None, prompt: str = ""
    ) -> list[EncodedText]:
        """Tokenise items, which are all texts, all lists of words, or all lists of token ids.

        Args:
            prompt: the one that items which are texts begin with.

        Raises:
            LengthError: a text is too long and not to be truncated, or the total is too large.
            DataError: a text cannot be tokenised, no token of it is left beside the prompt, or a
                token id is not in the vocabulary.
        """
        truncation = truncation or Truncation()
        where = [item.where for item in items]
        texts = [item.text for item in items]
        if texts and isinstance(texts[0], list) and texts[0] and isinstance(texts[0][0], int):
            segments = self._segments_of_ids(items)
        else:
            segments = self.tokenizer.segments(texts, where=where)
        limit = self.embedder.limit
        num_special_tokens = self.tokenizer.num_special_tokens(pair=False)
        is_prompted = bool(texts) and isinstance(texts[0], str)
        num_excluded = self.embedder.num_excluded(prompt) if is_prompted else 0
        encoded_texts = []
        for index, segment in enumerate(segments):
            tokens = len(segment) + num_special_tokens
            if tokens > limit and truncation.side is None:
                raise text_too_long_error(tokens, limit, where[index])
            if tokens > limit:
                truncation.truncated += 1
            room = limit - num_special_tokens
            part = segment[:room] if truncation.side == "right" else segment[-room:]
            text = EncodedText(index, self.tokenizer.frame(part))
            if num_excluded:
                # Truncation on the left also cuts tokens of the prompt.
                num_cut = len(segment) - len(part) if truncation.side == "left" else 0
                text = exclude_tokens(text, max(num_excluded - num_cut, 1), where=where[index])
            encoded_texts.append(text)
            truncation.count(encoded_texts[-1].num_tokens)
        return encoded_texts

    def _segments_of_ids(self, items: Sequence[Text]) -> list[Segment]:
        segments = []
        for where, ids in items:
            if min(ids) < 0 or max(ids) >= self.tokenizer.vocab_size:
                raise DataError(
                    f"ids are from 0 to {self.tokenizer.vocab_size - 1}: they are of this model's "
                    "vocabulary",
                    where=where,
                )
            count = len(ids)
            zeros = np.zeros((count, 2), np.int32)
            segments.append(
                Segment(np.array(ids, np.int32), zeros, np.arange(count, dtype=np.int32))
            )
        return segments

    def run(self, examples: Sequence[EncodedText]) -> list[Float[np.ndarray, " width"]]:
        with memory_errors():
            return list(self.embedder.vectors(_number_rows(examples)))


class SparseRunner(EmbedRunner):
    """Computes a sparse vector for each text: a CSR matrix of one row."""


class LateInteractionRunner(EmbedRunner):
    """Computes a matrix for each text: a query's or a document's, as the embedder is made."""

    def prepare(
        self, items: Sequence[Text], truncation: Truncation | None = None, prompt: str = ""
    ) -> list[EncodedText]:
        del prompt
        num_truncated = self.embedder.num_truncated
        encoded_texts = self.embedder.encode(
            [item.text for item in items], [item.where for item in items]
        )
        if truncation is not None:
            truncation.truncated += self.embedder.num_truncated - num_truncated
            for text in encoded_texts:
                truncation.count(text.num_tokens)
        return encoded_texts


class TokenStatesRunner(EmbedRunner):
    """Computes a vector for each token of a text: float32 `[tokens, width]`."""

    def run(self, examples: Sequence[EncodedText]) -> list[Float[np.ndarray, "tokens width"]]:
        results: list[Any] = [None] * len(examples)
        with memory_errors():
            for part, packed in self.embedder.batches(_number_rows(examples)):
                states = self.embedder.of_tokens(packed)
                check_finite(states, lambda _: "a text")
                edges = packed.cu_seqlens.tolist()
                vectors = states.cpu().numpy()
                for index, text in enumerate(part):
                    results[text.index] = vectors[edges[index] : edges[index + 1]]
        return results


def _number_rows(examples: Sequence[EncodedText]) -> list[EncodedText]:
    return [replace(example, index=index) for index, example in enumerate(examples)]
