"""Texts in portions: what the tokenizer library is given at once, so that memory is bounded.

The library keeps some hundred bytes of each character until all texts of a call are tokenised. So
texts are given to it a few at a time, and a long one is cut where that changes no token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

LONGEST = 1 << 16
"""The characters from which on a text is cut at the next place where it may be."""

_AT_ONCE = 1 << 19  # characters that the library is given in one call
_LONG_WORD = re.compile(f"[A-Za-z0-9]{{{LONGEST},}}")


class Portion(NamedTuple):
    """A part of a text."""

    row: int  # the text's number
    start: int  # the characters of the text before it
    text: str | list[str]  # the part; or a text's words, which are never cut
    # from which character of the part on `missing` characters of the text are left out
    gap: int = 0
    missing: int = 0  # how many; they are of the middle of a word


def portions(
    rows: Sequence[str | list[str]], breaks: re.Pattern[str] | None, longest_word: int
) -> Iterator[Portion]:
    """The portions of texts, in order.

    Args:
        rows: texts, or lists of words.
        breaks: a character before which a text may be cut; None where texts must stay whole.
        longest_word: a word with more characters is unknown, whatever they are. So of one that
            takes more than a portion, only as many as are too many are kept.
    """
    for number, row in enumerate(rows):
        if breaks is None or isinstance(row, list):
            yield Portion(number, 0, row)
            continue
        start, is_over = 0, False
        while not is_over:
            found = breaks.search(row, start + LONGEST)
            end = found.start() if found else len(row)
            part = row[start:end]
            word = _LONG_WORD.search(part) if len(part) > LONGEST else None
            if word is None or len(word[0]) <= longest_word:
                yield Portion(number, start, part)
            else:
                gap = word.start() + longest_word + 1
                kept = part[:gap] + part[word.end() :]
                yield Portion(number, start, kept, gap, word.end() - gap)
            start, is_over = end, end == len(row)


def together(parts: Iterable[Portion]) -> Iterator[list[Portion]]:
    """Portions in order, as many together as the library is given at once."""
    group: list[Portion] = []
    size = 0
    for part in parts:
        group.append(part)
        size += len(part.text) if isinstance(part.text, str) else sum(map(len, part.text))
        if size >= _AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group
