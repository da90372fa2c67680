"""Divide texts into portions for the tokenizer library, so that memory is bounded.

The library keeps some hundred bytes per character until all texts of a call are tokenised. So it
gets a few texts at a time, and a long text is split where that changes no token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

LONGEST = 1 << 16
"""After this many characters, a text is split at the next possible place."""

_CHUNK_CHARACTERS = 1 << 19  # about how many characters the library gets in one call
_LONG_WORD = re.compile(f"[A-Za-z0-9]{{{LONGEST},}}")


class Portion(NamedTuple):
    """A part of a text."""

    row: int  # the index of the text
    start: int  # the number of characters of the text before the part
    text: str | list[str]  # the part; or the words of a text, which are never split
    gap: int = 0  # the character of the part before which characters are left out
    missing: int = 0  # how many are left out, from the middle of a long word


def portions(
    rows: Sequence[str | list[str]], breaks: re.Pattern[str] | None, longest_word: int
) -> Iterator[Portion]:
    """Yield the portions of texts, in order.

    Args:
        rows: texts, or lists of words.
        breaks: matches a character before which a text may be split; None: texts stay whole.
        longest_word: a word with more characters is unknown, whatever they are. So of a word longer
            than a portion, only the first `longest_word + 1` characters are kept.
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


def group_portions(parts: Iterable[Portion]) -> Iterator[list[Portion]]:
    """Group portions, in order, into lists for one call of the library each."""
    group: list[Portion] = []
    size = 0
    for part in parts:
        group.append(part)
        size += len(part.text) if isinstance(part.text, str) else sum(map(len, part.text))
        if size >= _CHUNK_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group
