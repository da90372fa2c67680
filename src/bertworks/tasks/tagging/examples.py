"""A row of words as the sequences that are tagged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .words import Window


@dataclass(frozen=True, eq=False, slots=True)
class TaggingExample:
    """A row as windows.

    Attributes:
        index: the row's number.
        words: what is tagged.
        offsets: characters `[start, end)` of each word of a plain text; None if words were given.
        text: the plain text.
        tags: int64 `[words]`; None where they are not known.
        windows: sequences; each word is told by one of them.
        truncated_tokens: tokens of words that are longer than a window.
        where: the row's place: file and line, or row.
    """

    index: int
    words: Sequence[str]
    offsets: Sequence[tuple[int, int]] | None
    text: str | None
    tags: np.ndarray | None
    windows: Sequence[Window]
    truncated_tokens: int
    where: str = ""

    @property
    def num_tokens(self) -> int:
        return sum(len(window.input_ids) for window in self.windows)

    @property
    def content(self) -> bytes:
        return b"".join(window.input_ids.tobytes() for window in self.windows)

    @property
    def target(self) -> bytes:
        assert self.tags is not None
        return self.tags.tobytes()
