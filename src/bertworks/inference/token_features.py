"""Vectors of the tokens or words of texts (paper §5.3), whatever computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..text.encoding import Encoding, with_marks
from .settings import TokenSettings
from .text_embedding import TextReader

Vectors = NDArray[np.float32]


class Features(NamedTuple):
    """Vectors of the tokens or words of texts, in order."""

    rows: NDArray[np.int64]  # int64 `[features]`: the index of the text
    names: list[str]  # each token as in the vocabulary, or each word as in the text
    # int32 `[features, 2]`: the first character in the text, and the one after the last
    spans: NDArray[np.int32]
    vectors: Vectors  # float32 `[features, width]`


class TokenFeatures(TextReader):
    """Computes vectors of tokens or words; see `TextReader` for the arguments."""

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
            DataError: see `TextReader.encode`.
            CheckpointError: a vector is not finite.
        """
        where = where or self.default_names(texts)
        features: dict[int, list[tuple[str, tuple[int, int], Vectors]]] = {}
        for part, packed, hidden in self.token_states(self.encode(texts, where), where):
            for text, tokens in zip(part, packed.slices, strict=True):
                assert isinstance(text.encoding, Encoding)
                parts = self._parts(texts[text.index], text.encoding, hidden[tokens])
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
