"""An independent BERT tokenizer in pure Python, and where it is known to differ.

It is the class that Hugging Face took from BERT's original code before the Rust library existed.
Since then a step was added there which the original never had, composing characters (NFC) before
the words are split; it is switched off here unless asked for.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from unittest import mock

from transformers.models.bert import tokenization_bert_legacy as legacy

# Where the library's Unicode tables, of about 2014, differ from Unicode 14.0 (Python 3.11), by
# today's category. Whatever was assigned since then is unknown to the library:
UNICODE_VERSION = "14.0.0"
DIFFERENCES = {
    # Format characters: kept by the library, removed by the oracle.
    "Cf": "890-891 8E2 110CD 13430-13438",
    # Spacing marks: a nonspacing one of old (and so stripped), and a new decomposition.
    "Mc": "1734 11938",
    # Nonspacing marks: kept, not stripped as accents. U+111C9 was punctuation.
    "Mn": (
        "7FD 898-89F 8CA-8E1 9FE AFA-AFF B55 C04 C3C D00 D3B-D3C D81 EBA 180F 1885-1886 1ABF-1ACE "
        "1DF6-1DFB A82C A8C5 A8FF A9BD 10D24-10D27 10EAB-10EAC 10F46-10F50 10F82-10F85 11070 "
        "11073-11074 110C2 111C9 111CF 1123E 1133B 11438-1143F 11442-11444 11446 1145E 1182F-11837 "
        "11839-1183A 1193B-1193C 1193E 11943 119D4-119D7 119DA-119DB 119E0 11A01-11A0A 11A33-11A38 "
        "11A3B-11A3E 11A47 11A51-11A56 11A59-11A5B 11A8A-11A96 11A98-11A99 11C30-11C36 11C38-11C3D "
        "11C3F 11C92-11CA7 11CAA-11CB0 11CB2-11CB3 11CB5-11CB6 11D31-11D36 11D3A 11D3C-11D3D "
        "11D3F-11D45 11D47 11D90-11D91 11D95 11D97 11EF3-11EF4 16F4F 16FE4 1CF00-1CF2D 1CF30-1CF46 "
        "1E000-1E006 1E008-1E018 1E01B-1E021 1E023-1E024 1E026-1E02A 1E130-1E136 1E2AE 1E2EC-1E2EF "
        "1E944-1E94A"
    ),
    # Punctuation: not split off.
    "Pd": "2E5D 10EAD",
    "Pe": "2E56 2E58 2E5A 2E5C",
    "Po": (
        "61D 9FD A76 C77 C84 1B7D-1B7E 2E43-2E4F 2E52-2E54 10F55-10F59 10F86-10F89 1144B-1144F "
        "1145A-1145B 1145D 11660-1166C 116B9 1183B 11944-11946 119E2 11A3F-11A46 11A9A-11A9C "
        "11A9E-11AA2 11C41-11C45 11C70-11C71 11EF7-11EF8 11FFF 12FF1-12FF2 16E97-16E9A 16FE2 "
        "1E95E-1E95F"
    ),
    "Ps": "2E55 2E57 2E59 2E5B",
    # A symbol: punctuation of old.
    "So": "166D",
}
# Unassigned characters (Cn) are all kept by the library, which cannot know what is unassigned, and
# all removed by the oracle. (BERT's original code keeps them too since 2019.)


def code_points(ranges: str) -> set[int]:
    """The numbers in a text like `61D 1B7D-1B7E`."""
    numbers: set[int] = set()
    for part in ranges.split():
        first, _, last = part.partition("-")
        numbers.update(range(int(first, 16), int(last or first, 16) + 1))
    return numbers


DIFFERING = "".join(chr(c) for ranges in DIFFERENCES.values() for c in code_points(ranges))


class _WithoutNFC:
    """`unicodedata`, but composing is left out."""

    category = staticmethod(unicodedata.category)

    @staticmethod
    def normalize(form: Any, text: str) -> str:
        return text if form == "NFC" else unicodedata.normalize(form, text)


class Oracle:
    """The oracle for one vocabulary."""

    def __init__(
        self,
        pieces: Sequence[str] = (),
        *,
        lowercase: bool,
        strip_accents: bool | None = None,
        max_word_characters: int = 200,
        compose: bool = False,
    ) -> None:
        self.unicodedata = unicodedata if compose else _WithoutNFC
        self.basic = legacy.BasicTokenizer(do_lower_case=lowercase, strip_accents=strip_accents)
        self.cached_words = lru_cache(1 << 18)(lambda text: tuple(self.words(text)))
        self.pieces_of = lru_cache(1 << 18)(
            legacy.WordpieceTokenizer(set(pieces), "[UNK]", max_word_characters).tokenize
        )

    def words(self, text: str) -> list[str]:
        with mock.patch.object(legacy, "unicodedata", self.unicodedata):
            found: list[str] = self.basic.tokenize(text)
        return found

    def tokenize(self, text: str) -> list[str]:
        return [piece for word in self.cached_words(text) for piece in self.pieces_of(word)]
