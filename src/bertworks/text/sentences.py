"""Splitting a paragraph into sentences."""

from __future__ import annotations

import re

import sentencex

from ..errors import DataError

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
        pieces: list[str] = sentencex.segment(language, paragraph)
    except UnicodeEncodeError as error:
        raise DataError(
            f"lone surrogate U+{ord(paragraph[error.start]):04X} at character {error.start}",
            fix="It is half of a character: decode the source again, or remove it.",
        ) from None
    return [sentence for piece in pieces if (sentence := piece.strip())]
