"""A text that is changed step by step, with the original position of each of its characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from .definition import Origin

NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]


class AlignedText:
    """A text, changed in place.

    Args:
        text: the original text.
        first: the position of its first character.

    Attributes:
        text: the changed text.
        origins: of each of its characters, the first one in the original text that it came from,
            and one after the last.
    """

    def __init__(self, text: str, first: int = 0) -> None:
        self.text = text
        self.origins = [(at, at + 1) for at in range(first, first + len(text))]

    @property
    def origin(self) -> Origin:
        """The origins as an array, int64 [characters, 2]."""
        return np.array(self.origins, np.int64).reshape(-1, 2)

    def replace_matches(self, pattern: Any, replacement: Callable[[re.Match[str]], str]) -> None:
        """Replace each match; all characters of a replacement came from all of the match.

        A replacement of the same length keeps the position of each character.

        Args:
            pattern: a pattern of `re` or `regex`.
            replacement: called with each match.
        """
        parts: list[str] = []
        origins: list[tuple[int, int]] = []
        position = 0
        for match in pattern.finditer(self.text):
            start, end = match.span()
            new = replacement(match)
            parts += [self.text[position:start], new]
            origins += self.origins[position:start]
            if len(new) == end - start:
                origins += self.origins[start:end]
            else:
                origins += [self._span(start, end)] * len(new)
            position = end
        self.text = "".join([*parts, self.text[position:]])
        self.origins = [*origins, *self.origins[position:]]

    def respace(self, old: str, new: str) -> None:
        """Replace each `old` by `new`, which has the same characters but for spaces."""
        assert old.replace(" ", "") == new.replace(" ", "")
        parts = self.text.split(old)
        if len(parts) == 1:
            return
        places = [place for place, char in enumerate(old) if char != " "]
        letters, source = iter(places), places[0]
        # A space takes the position of the letter before it, which is never looked at.
        sources = [(source := next(letters) if char != " " else source) for char in new]
        origins: list[tuple[int, int]] = []
        position = 0
        for part in parts[:-1]:
            origins += self.origins[position : position + len(part)]
            position += len(part)
            origins += [self.origins[position + source] for source in sources]
            position += len(old)
        self.text = new.join(parts)
        self.origins = [*origins, *self.origins[position:]]

    def normalize(self, form: NormalForm) -> None:
        """Compose or decompose characters; each came from all those that it is composed of."""
        if self.text.isascii():
            return

        def normal(text: str) -> str:
            return unicodedata.normalize(form, text)

        chunks: list[str] = []
        for char in self.text:
            if not chunks or normal(chunks[-1] + char) == normal(chunks[-1]) + normal(char):
                chunks.append(char)
            else:
                chunks[-1] += char
        self._replace_chunks(chunks, [normal(chunk) for chunk in chunks])

    def lower(self) -> None:
        """Lower-case the text; a capital sigma at the end of a word becomes ς."""
        lower_text = self.text.lower()
        news: list[str] = []
        position = 0
        for char in self.text:
            news.append(lower_text[position : position + len(char.lower())])
            position += len(news[-1])
        self._replace_chunks(list(self.text), news)

    def select(self, is_selected: Callable[[str], bool]) -> None:
        """Remove the other characters."""
        places = [at for at, char in enumerate(self.text) if is_selected(char)]
        self.text = "".join(self.text[at] for at in places)
        self.origins = [self.origins[at] for at in places]

    def _replace_chunks(self, chunks: list[str], news: list[str]) -> None:
        origins: list[tuple[int, int]] = []
        start = 0
        for chunk, new in zip(chunks, news, strict=True):
            end = start + len(chunk)
            origins += [self._span(start, end)] * len(new)
            start = end
        self.text = "".join(news)
        self.origins = origins

    def _span(self, start: int, end: int) -> tuple[int, int]:
        return self.origins[start][0], self.origins[end - 1][1]
