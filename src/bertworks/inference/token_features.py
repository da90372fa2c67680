"""Vectors of tokens or of words, as the paper's feature-based approach (§5.3) takes them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..text.encoding import Encoding
from .engine import check_finite
from .features import States
from .settings import TokenSettings

Vectors = NDArray[np.float32]


class Features(NamedTuple):
    """Tokens or words of some texts, in order.

    Attributes:
        rows: int64 `[features]`: the text's place among those given.
        names: each token or word, as the tokenizer or the text has it.
        spans: int32 `[features, 2]`: its first and past-the-last character in the text.
        vectors: float32 `[features, width]`.
    """

    rows: NDArray[np.int64]
    names: list[str]
    spans: NDArray[np.int32]
    vectors: Vectors


class TokenFeatures(States):
    """Makes vectors of tokens or words; see `States`, whose arguments it takes."""

    settings: TokenSettings

    def embed(
        self,
        texts: Sequence[str],
        where: Sequence[str] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Features:
        """The vectors of some texts, all of which are held at once.

        Args:
            texts: the next ones.
            where: what to call each in an error; if left out, by its number.
            progress: called with how many of them are done, batch by batch.

        Raises:
            DataError: see `States.encode`.
            CheckpointError: a vector is not finite.
        """
        where = where or self.places(texts)
        found: dict[int, list[tuple[str, tuple[int, int], Vectors]]] = {}
        for part, packed in self.batches(self.encode(texts, where)):
            states = self.of_tokens(packed)
            edges = packed.cu_seqlens.tolist()
            owners = [where[text.index] for text in part]
            check_finite(states, lambda at: owners[bisect_right(edges, at) - 1])  # noqa: B023
            hidden = states.cpu().numpy()
            for text, start, end in zip(part, edges, edges[1:], strict=False):
                own = self._parts(texts[text.index], text.encoding, hidden[start:end])
                found[text.index] = list(own)
            if progress is not None:
                progress(len(found))
        flat = [(row, *one) for row in range(len(texts)) for one in found[row]]
        return Features(
            np.array([row for row, *_ in flat], np.int64),
            [name for _, name, *_ in flat],
            np.array([span for *_, span, _ in flat], np.int32).reshape(-1, 2),
            np.array([vector for *_, vector in flat], np.float32).reshape(-1, self.width),
        )

    def _parts(
        self, text: str, encoding: Encoding, hidden: Vectors
    ) -> Iterator[tuple[str, tuple[int, int], Vectors]]:
        """Each token or word: its name, its place, and its vector."""
        kept = np.flatnonzero(~encoding.special_tokens_mask)
        if self.settings.of == "tokens":
            names = self.tokenizer.tokens(encoding.input_ids[kept])
            for name, at in zip(names, kept, strict=True):
                start, end = encoding.offsets[at].tolist()
                yield name, (start, end), hidden[at]
            return
        edges = np.flatnonzero(np.diff(encoding.word_ids[kept])) + 1
        for own in np.split(kept, edges) if len(kept) else []:
            start, end = int(encoding.offsets[own[0], 0]), int(encoding.offsets[own[-1], 1])
            vector = hidden[own[0]] if self.settings.pieces == "first" else hidden[own].mean(0)
            yield text[start:end], (start, end), vector
