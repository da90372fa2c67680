"""A row of words as the sequences that are tagged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..example import LabelledExample
from .words import Window


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TaggingExample(LabelledExample):
    """A row as windows; its target is int64 `[words]`.

    Attributes:
        sequences: the windows; each word is tagged in one of them.
        words: what is tagged.
        offsets: characters `[start, end)` of each word of a plain text; None if words were given.
    """

    sequences: Sequence[Window]
    words: Sequence[str]
    offsets: Sequence[tuple[int, int]] | None = None
