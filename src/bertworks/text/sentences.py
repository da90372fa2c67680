"""Splitting a paragraph into sentences."""

from __future__ import annotations

import re

import sentencex

from ..errors import DataError

# The library breaks down at a letter, white space of several bytes (U+00A0, U+3000, …) and a dot:
# "M\u00a0." It is shown blanks there, as many as there are characters.
_BEFORE_DOT = re.compile(r"(?<!\s)\s++(?=\.)")
_LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*")


def split_sentences(paragraph: str, language: str = "en") -> list[str]:
    """Split a paragraph into its sentences, by the rules of `sentencex`.

    Nothing but white space between sentences is lost, and no sentence is empty.

    Args:
        paragraph: any text.
        language: an ISO 639 code such as `en` or `de`. Languages for which there are no rules of
            their own are split by those of a related language, in the end by English ones.

    Raises:
        DataError: `language` is no language code, or the text has a lone surrogate.
    """
    if not _LANGUAGE.fullmatch(language):
        raise DataError(f"{language!r} is no language code", fix="Give one such as en, de or zh.")
    try:
        shown = paragraph
        if not paragraph.isascii():
            shown = _BEFORE_DOT.sub(lambda found: " " * len(found[0]), paragraph)
        pieces: list[str] = sentencex.segment(language, shown)
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
