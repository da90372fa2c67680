"""BERT's tokenizer in native code, for texts in ASCII; the library splits all other texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import byref, c_void_p

import numpy as np
from numpy.typing import NDArray

from ..utils.threads import num_threads
from .library import PiecesTable, WordPiece, library

MAX_WORD_CHARACTERS = 256
"""The highest limit on the characters of a word."""


class NativeWordPiece:
    """Splits texts into ids as the library's WordPiece does after BERT's clean-up.

    Args:
        ids: the ids of pieces; those that continue a word begin with `##`.
        unknown_id: the id of a word that has no pieces.
        drops_unknown: leave such words out instead.
        lowercase: whether texts are lower-cased.
        max_word_characters: a longer word is unknown; at most `MAX_WORD_CHARACTERS`.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        unknown_id: int,
        *,
        drops_unknown: bool,
        lowercase: bool,
        max_word_characters: int,
    ) -> None:
        assert max_word_characters <= MAX_WORD_CHARACTERS
        ascii_ids = {piece: number for piece, number in ids.items() if piece and piece.isascii()}
        starts = {piece: n for piece, n in ascii_ids.items() if not piece.startswith("##")}
        # A word is a single "#", or has none, since it is punctuation.
        continuations = {p[2:]: n for p, n in ascii_ids.items() if p.startswith("##") and p != "##"}
        self._arrays: list[NDArray[np.generic]] = []  # to which the structures point
        self._struct = WordPiece(
            self._table(starts),
            self._table(continuations),
            unknown_id,
            drops_unknown,
            lowercase,
            max_word_characters,
        )

    def __call__(
        self, texts: Sequence[str], limit: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the ids of texts in ASCII.

        Args:
            limit: how many ids of a text are returned; the others are truncated.

        Returns:
            int32 `[tokens]`, the ids of all texts, laid end to end; and int64 `[texts]`, the number
            of ids of each text before it was truncated.
        """
        data = "".join(texts).encode("ascii")
        starts = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=starts[1:])
        assert starts[-1] == len(data)
        ids, counts = np.empty(len(data), np.int32), np.empty(len(texts), np.int64)
        total = library().bertworks_wordpiece(
            byref(self._struct),
            data,
            starts.ctypes.data,
            len(texts),
            limit,
            ids.ctypes.data,
            counts.ctypes.data,
            num_threads(),
        )
        return ids[:total], counts

    def _table(self, ids: Mapping[str, int]) -> PiecesTable:
        parts = [piece.encode("ascii") for piece in ids]
        data = np.frombuffer(b"".join(parts) or b"\0", np.uint8)
        starts = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=starts[1:])
        numbers = np.array([*ids.values()], np.int32)
        slots = np.full(1 << (2 * len(parts) + 1).bit_length(), -1, np.int32)
        arrays = (data, starts, numbers, slots)
        self._arrays += arrays
        table = PiecesTable(
            *(c_void_p(array.ctypes.data) for array in arrays),
            len(slots) - 1,
            len(parts),
            max(map(len, parts), default=0),
        )
        library().bertworks_wordpiece_fill(byref(table))
        return table
