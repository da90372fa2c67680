"""BERT's clean-up and word splitting: from raw text to the words in which pieces are looked up.

The `tokenizers` library does the work (`BertNormalizer`, `BertPreTokenizer`). Where it differs from
BERT's original code for reasons other than the version of its Unicode tables, the text is corrected
first:

* A capital sigma at the end of a Greek word becomes ς, not σ, when text is lower-cased.
* The ideographs U+2B820 to U+2B91F are split off like all other ideographs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import normalizers, pre_tokenizers

from ..errors import DataError

# Everything that may need correction, in one pass: lone surrogates, capital sigma, ideographs.
_UNUSUAL = re.compile("[\ud800-\udfffΣ\U0002b820-\U0002b91f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MISSED_IDEOGRAPH = re.compile("[\U0002b820-\U0002b91f]")

# Patterns that take milliseconds to compile are compiled when they are first used.
# White space and punctuation in every version of Unicode; ideographs.
_WORDS = r"[ \t\n\r!-/:-@\[-`{-~\u3001\u3002\uff0c]"
_WORDS_AND_IDEOGRAPHS = f"{_WORDS[:-1]}\u4e00-\u9fff]"

# Scripts that are written without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana,
# ideographs.
_UNSPACED_SCRIPTS = (
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af]"
)

# The original position of each character of a corrected text, or its first and one after its last;
# None: unchanged.
Origin = NDArray[np.int64] | None


@dataclass(frozen=True)
class Normalization:
    """Normalisation of a text before it is split into pieces."""

    lowercase: bool = True  # fold to lower case
    # remove accents; None: as `lowercase` says, like the original
    strip_accents: bool | None = None
    clean_text: bool = True  # remove control characters, and make every white space a space
    split_ideographs: bool = True  # make every Chinese ideograph a separate word

    @property
    def breaks(self) -> re.Pattern[str]:
        """White space, and characters that are always words: a split before one changes no word."""
        return re.compile(_WORDS_AND_IDEOGRAPHS if self.split_ideographs else _WORDS)

    @property
    def options(self) -> dict[str, Any]:
        """The settings under the library's names."""
        return {
            "clean_text": self.clean_text,
            "handle_chinese_chars": self.split_ideographs,
            "strip_accents": self.strip_accents,
            "lowercase": self.lowercase,
        }

    @cached_property
    def normalizer(self) -> normalizers.Normalizer:
        """The library's normaliser with these settings."""
        return normalizers.BertNormalizer(**self.options)

    @cached_property
    def word_splitter(self) -> pre_tokenizers.PreTokenizer:
        """The library's splitter at white space and around punctuation."""
        return pre_tokenizers.BertPreTokenizer()

    def correct(self, text: str, *, where: str) -> tuple[str, Origin]:
        """See `Definition.correct`."""
        if isinstance(text, str) and (text.isascii() or _UNUSUAL.search(text) is None):
            return text, None
        check_text(text, where=where)
        if self.lowercase:
            text = self._with_final_sigmas(text)
        if self.split_ideographs and _MISSED_IDEOGRAPH.search(text) is not None:
            return _with_spaced_ideographs(text)
        return text, None

    def words(self, text: str, *, where: str = "text") -> list[str]:
        """The normalised words of a text, in which pieces are looked up."""
        text, _ = self.correct(text, where=where)
        normalized = self.normalizer.normalize_str(text)
        return [word for word, _ in self.word_splitter.pre_tokenize_str(normalized)]

    def piece(self, word: str) -> str:
        """The form of a word in a vocabulary: normalised, without spaces around its ideographs."""
        compact = replace(self, split_ideographs=False)
        text, _ = compact.correct(word, where="word")
        return compact.normalizer.normalize_str(text).strip()

    def _with_final_sigmas(self, text: str) -> str:
        """Replace each word-final capital sigma by ς.

        Whether a sigma is final depends on its neighbours after the clean-up, so characters that
        the clean-up removes are ignored. `İ` is the only character that `str.lower` turns into two;
        it is replaced by another letter, so that positions stay the same.
        """
        positions = [
            at for at, char in enumerate(text) if not (self.clean_text and is_removed(char))
        ]
        cleaned = "".join(text[at] for at in positions).replace("İ", "I")
        lower_case = cleaned.lower()
        assert len(lower_case) == len(positions)
        characters = list(text)
        for at, char in zip(positions, lower_case, strict=True):
            if char == "ς":
                characters[at] = char
        return "".join(characters)


def is_unspaced(word: str) -> bool:
    """Whether a word has a character of a script that has no spaces between words."""
    return re.search(_UNSPACED_SCRIPTS, word) is not None


def check_text(text: str, *, where: str | None = None) -> None:
    """Check that `text` can be tokenised.

    Raises:
        DataError: `text` is not a string, or has a lone surrogate; the error names `where`.
    """
    if not isinstance(text, str):
        raise DataError(f"expected a text, got {type(text).__name__}", where=where)
    if text.isascii():
        return
    surrogate = _SURROGATE.search(text)
    if surrogate is not None:
        raise DataError(
            f"lone surrogate U+{ord(surrogate[0]):04X} at character {surrogate.start()}",
            where=where,
            fix="It is half of a character: decode the source again, or remove it.",
        )


def check_texts(texts: Sequence[str], *, where: str | None = None) -> None:
    """Check many short texts as `check_text` does; one check of all takes a tenth of the time."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        for text in texts:
            check_text(text, where=where)


def is_removed(char: str) -> bool:
    """Whether the clean-up removes a character."""
    if char in "\t\n\r":
        return False
    # The library and the original keep unassigned characters (Cn).
    return char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf", "Co")


def _with_spaced_ideographs(text: str) -> tuple[str, Origin]:
    """Put spaces around the ideographs that the library misses."""
    parts: list[str] = []
    origin: list[int] = []
    for index, char in enumerate(text):
        part = f" {char} " if _MISSED_IDEOGRAPH.match(char) else char
        parts.append(part)
        origin.extend([index] * len(part))
    return "".join(parts), np.array(origin, dtype=np.int64)
