"""The normalisation of characters that a SentencePiece model holds, exactly.

The library's `Precompiled` looks up whole grapheme clusters of up to five bytes, and single
characters in longer ones; Google's code takes the longest known sequence everywhere. So decomposed
Korean and Japanese (`か` and a separate `゛`), and kana of half width, stayed decomposed.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import tokenizers
from tokenizers import normalizers

from .aligned_text import AlignedText
from .definition import Origin

# A character and those that may continue it: marks, sound marks of half width, vowels and finals
# of Hangul. Other signs are included, which changes nothing.
_CLUSTER = re.compile(r"\S(?:[^\w\s\x00-\x7f]|[\uff9e-\uffdc\u1160-\u11ff\u3131-\u318e])+")


class CharacterMap:
    """The table of replacements: a double-array trie of byte sequences (Aoe 1989), as in Darts.

    Args:
        content: the trie's size in bytes, its 32-bit units, and the replacements, each ended by 0.
    """

    def __init__(self, content: bytes) -> None:
        (size,) = struct.unpack_from("<I", content)
        self.units = np.frombuffer(content, "<u4", size // 4, 4).tolist()
        self.replacements = content[4 + size :]

    def normalize(self, text: str) -> str:
        """Replace, from the left, the longest known sequence of bytes."""
        data = text.encode()
        parts: list[bytes] = []
        start = 0
        while start < len(data):
            length, replacement = self._longest(data, start)
            if not length:
                length = _width(data[start])
                replacement = data[start : start + length]
            parts.append(replacement)
            start += length
        return b"".join(parts).decode()

    def _longest(self, data: bytes, start: int) -> tuple[int, bytes]:
        """The length of the longest known sequence at a position, and its replacement."""
        # Bits of a unit: 0-7 the byte that leads to it, 8 "a value follows", 9 "the offset is times
        # 256", 10-30 the offset, 31 "is a value". Children are at `node ^ offset ^ byte`.
        node = _offset(self.units[0])
        longest, value = 0, 0
        for place in range(start, len(data)):
            node ^= data[place]
            unit = self.units[node]
            if unit & 0x800000FF != data[place]:
                break
            node ^= _offset(unit)
            if unit & 0x100:  # a sequence ends here
                longest, value = place + 1 - start, self.units[node] & 0x7FFFFFFF
        return longest, self.replacements[value : self.replacements.index(0, value)]


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)


def _width(byte: int) -> int:
    """The number of bytes of the character that begins with this one."""
    return 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4


class ClusterCorrection:
    """Composes what a `Precompiled` does not; applied before it.

    Args:
        charsmap: the content of the model's table, in base 64.
    """

    def __init__(self, charsmap: str) -> None:
        self.charsmap = charsmap
        content = base64.b64decode(charsmap)
        characters, library = CharacterMap(content), normalizers.Precompiled(content)

        @lru_cache(10_000)
        def correct(cluster: str) -> str:
            """The cluster as Google's code normalises it, if the library does not."""
            normalized = characters.normalize(cluster)
            if library.normalize_str(cluster) == normalized:
                return cluster
            return normalized if library.normalize_str(normalized) == normalized else cluster

        self._correct = correct

    def __reduce__(self) -> tuple[type[ClusterCorrection], tuple[str]]:
        return ClusterCorrection, (self.charsmap,)  # without the cache

    def correct_text(self, text: str) -> tuple[str, Origin]:
        """The corrected text, and the original positions of its characters."""
        clusters = [] if text.isascii() else _CLUSTER.findall(text)
        if all(self._correct(cluster) == cluster for cluster in set(clusters)):
            return text, None
        aligned = AlignedText(text)
        aligned.replace_matches(_CLUSTER, lambda match: self._correct(match[0]))
        return aligned.text, aligned.origin

    def normalize(self, text: tokenizers.NormalizedString) -> None:
        """Correct a text of the library, which calls this."""
        clusters = [] if text.normalized.isascii() else _CLUSTER.findall(text.normalized)
        for cluster in sorted(set(clusters), key=len, reverse=True):
            corrected = self._correct(cluster)
            if corrected != cluster:
                text.replace(cluster, corrected)


def find_charsmap(step: Mapping[str, Any] | None) -> str | None:
    """The table in a tree's normaliser, in base 64; None if it has none."""
    if step is None:
        return None
    if step["type"] == "Sequence":
        charsmaps = (find_charsmap(part) for part in step["normalizers"])
        return next((charsmap for charsmap in charsmaps if charsmap is not None), None)
    return (step["precompiled_charsmap"] or None) if step["type"] == "Precompiled" else None
