"""Splitting a paragraph into sentences."""

from __future__ import annotations

import re

import sentencex

from ..errors import DataError

# The library breaks down at a letter, white space of several bytes (U+00A0, U+3000, …) and a dot:
# "M\u00a0." It is shown blanks there, as many as there are characters.
_BEFORE_DOT = re.compile(r"(?<!\s)\s++(?=\.)")

LANGUAGES = (
    *("am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "hi", "hy"),
    *("it", "ja", "kk", "kn", "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te"),
    *("uk", "zh"),
)
"""The languages that `sentencex` has rules for, as ISO 639-1 codes."""

# Those that it splits by a related language's rules (Czech by Slovak ones). Any other code it takes
# for English without a word: these were found by their splitting another way than English.
_RELATED = (
    *("ab", "an", "av", "ay", "ba", "bm", "ce", "co", "cs", "cv", "gl", "gn", "ht", "kl", "kv"),
    *("lb", "li", "ln", "mg", "oc", "os", "qu", "rm", "sa", "sg", "tt", "ty", "wa", "wo"),
)


def split_sentences(paragraph: str, language: str = "en") -> list[str]:
    """Split a paragraph into its sentences, by the rules of `sentencex`.

    Nothing but white space between sentences is lost, and no sentence is empty.

    Args:
        paragraph: any text.
        language: one of `LANGUAGES`, or of some languages related to these, such as `cs`; with or
            without a region, as in `pt-BR`.

    Raises:
        DataError: there are no rules for `language`, or the text has a lone surrogate.
    """
    code = re.split("[-_]", language, maxsplit=1)[0].lower()
    if code not in LANGUAGES and code not in _RELATED:
        raise DataError(
            f"there are no rules for the language {language!r}",
            fix=f"Give one of {', '.join(LANGUAGES)}: the nearest, or en.",
        )
    try:
        shown = paragraph
        if not paragraph.isascii():
            shown = _BEFORE_DOT.sub(lambda found: " " * len(found[0]), paragraph)
        pieces: list[str] = sentencex.segment(code, shown)
    except UnicodeEncodeError as error:
        raise DataError(
            f"lone surrogate U+{ord(paragraph[error.start]):04X} at character {error.start}",
            fix="It is half of a character: decode the source again, or remove it.",
        ) from None
    if shown == paragraph:
        return [sentence for piece in pieces if (sentence := piece.strip())]
    sentences, at = [], 0
    for piece in pieces:
        if sentence := piece.strip():
            at = shown.index(sentence, at)
            sentences.append(paragraph[at : at + len(sentence)])
            at += len(sentence)
    return sentences
