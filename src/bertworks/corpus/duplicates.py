"""Which texts have come before, in little memory."""

from __future__ import annotations

import hashlib

import numpy as np

_FEW = 1 << 16


class SeenTexts:
    """A growing set of texts, kept as digests of 128 bits.

    Most lie in one sorted array, 16 bytes each; the newest (a quarter of them at most) in a
    Python set, until they are merged into it.
    """

    def __init__(self) -> None:
        self._sorted = np.empty(0, "S16")
        self._newest: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._newest)

    def add(self, text: str) -> bool:
        """Add a text; tells whether it is new."""
        # NumPy's byte strings of fixed length have no zeros at their end.
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest().rstrip(b"\0")
        if digest in self._newest:
            return False
        at = int(np.searchsorted(self._sorted, np.bytes_(digest)))
        if at < len(self._sorted) and self._sorted[at] == digest:
            return False
        self._newest.add(digest)
        if len(self._newest) > max(_FEW, len(self._sorted) // 4):
            newest = np.fromiter(self._newest, "S16", len(self._newest))
            self._sorted = np.sort(np.concatenate((self._sorted, newest)))
            self._newest = set()
        return True
