"""A question and its passage as the sequences that are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...text.encoding import Encoding
from ..example import LabelledExample
from .spans import Found


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AnsweringExample(LabelledExample):
    """A question and its passage, which are its texts, as windows.

    The target of each window is the first and the last token of the answer; (0, 0), which is
    `[CLS]`, where the window has none.

    Attributes:
        sequences: the windows.
        answers: the gold answers, none where there is no answer; None where they are not known.
        found: what became of the first answer.
    """

    sequences: Sequence[Encoding]
    answers: tuple[str, ...] | None
    found: Found

    @property
    def question(self) -> str:
        """The question's text."""
        return self.texts[0]

    @property
    def context(self) -> str:
        """The passage."""
        return self.texts[1]
