"""A question and its passage as the sequences that are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...text.encoding import Encoding
from .spans import Found


@dataclass(frozen=True, eq=False, slots=True)
class AnsweringExample:
    """A question and its passage as windows.

    Attributes:
        index: the row's number.
        question: its text.
        context: the passage.
        windows: the sequences.
        answers: the true answers, none where there is no answer; None where they are not known.
        targets: first and last token of the answer in each window; (0, 0), which is `[CLS]`, where
            the window has none. None where answers are not known.
        found: what became of the first answer.
        truncated_tokens: tokens of the question that were cut off.
        where: the row's place: file and line, or row.
    """

    index: int
    question: str
    context: str
    windows: Sequence[Encoding]
    answers: tuple[str, ...] | None
    targets: Sequence[tuple[int, int]] | None
    found: Found
    truncated_tokens: int
    where: str = ""

    @property
    def num_tokens(self) -> int:
        return sum(window.num_tokens for window in self.windows)

    @property
    def content(self) -> bytes:
        return b"".join(window.input_ids.tobytes() for window in self.windows)

    @property
    def target(self) -> bytes:
        return np.array(self.targets, np.int64).tobytes()
