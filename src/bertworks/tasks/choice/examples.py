"""A prompt and its choices as sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False, slots=True)
class ChoiceExample:
    """A prompt with each of its choices as a sequence.

    Attributes:
        index: the row's number.
        prompt: its text.
        choices: their texts.
        input_ids: of each choice, `[tokens]` int32.
        token_type_ids: of each choice, `[tokens]` int8.
        label: the number of the right choice, from 0; None where it is not known.
        truncated_tokens: how many tokens the limit cut off, of all choices together.
        where: the row's place: file and line, or row.
    """

    index: int
    prompt: str
    choices: Sequence[str]
    input_ids: Sequence[np.ndarray]
    token_type_ids: Sequence[np.ndarray]
    label: int | None
    truncated_tokens: int
    where: str = ""

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.input_ids))

    @property
    def content(self) -> bytes:
        return b"".join(ids.tobytes() for ids in self.input_ids)

    @property
    def target(self) -> bytes:
        return np.array(self.label).tobytes()
