"""Answers in a passage: locate them in windows, find the best-scored ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ...text.encoding import Encoding, Segment
from ...text.windows import most_context
from ..example import LabelledExample


class ScoredSpan(NamedTuple):
    """A span of the passage: characters `[start, end)`, and the sum of its two logits."""

    score: float
    start: int
    end: int


AnswerMatch = Literal[
    "exact",
    "moved",
    "longer than max_answer_tokens",  # learned, but never predicted
    "not found",
    "in no window",
    "is_impossible, with answers",  # which are ignored
]


def locate_answer(passage: str, answer: str, start: int | None) -> tuple[int, AnswerMatch]:
    """Locate an answer in its passage: at the given start, or at the nearest occurrence.

    Args:
        start: the index of its first character, as the row says; None if it does not.

    Returns:
        The index of the first character, and `exact` (also if no start was given), `moved` to
        another occurrence, or `not found`: the passage does not contain the answer, and the index
        is -1.
    """
    if start is not None and start >= 0 and answer and passage.startswith(answer, start):
        return start, "exact"
    positions = []
    position = passage.find(answer) if answer else -1
    while position >= 0:
        positions.append(position)
        position = passage.find(answer, position + 1)
    if not positions:
        return -1, "not found"
    nearest = min(positions, key=lambda occurrence: abs(occurrence - (start or 0)))
    return nearest, "exact" if start is None else "moved"


def find_passage_tokens(encoding: Encoding, num_end_tokens: int = 1) -> np.ndarray:
    """The indices of a window's tokens that belong to the passage: `[n]`, rising.

    Args:
        num_end_tokens: the number of special tokens after the passage.
    """
    special = np.flatnonzero(encoding.special_tokens_mask)
    return np.arange(special[-num_end_tokens - 1] + 1, special[-num_end_tokens])


def find_answer_tokens(passage: Segment, start: int, end: int) -> np.ndarray:
    """The indices of a passage's tokens that overlap characters `[start, end)`: `[n]`, rising."""
    offsets = passage.offsets
    return np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))


def find_target(
    tokens: np.ndarray, first_token: int, answer: np.ndarray, no_answer: int
) -> tuple[int, int]:
    """The first and last token of an answer in a window.

    If not all of the answer is inside, both are the token that stands for "no answer".

    Tokens are compared, not characters, because characters at the ends of an answer may have no
    token, such as stripped accents.

    Args:
        tokens: the indices of the window's tokens that belong to the passage.
        first_token: index in the passage of the window's first passage token.
        answer: indices of the answer's tokens in the passage.
        no_answer: the index of that token in the window.
    """
    offsets = answer - first_token
    if not len(offsets) or offsets[0] < 0 or offsets[-1] >= len(tokens):
        return no_answer, no_answer
    return int(tokens[offsets[0]]), int(tokens[offsets[-1]])


def find_max_context(windows: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """For each window, a mask of the passage tokens that have their maximum context in it.

    The context of a token in a window is the smaller of the numbers of tokens to its left and
    right, plus 0.01 times the window's length, which prefers longer windows (the original's
    `_check_is_max_context`).

    Args:
        windows: for each window, the index of its first passage token and its number of passage
            tokens.
    """
    contexts = []
    for start, length in windows:
        offsets = np.arange(length)
        contexts.append((start, np.minimum(offsets, length - 1 - offsets) + 0.01 * length))
    best_windows = most_context(contexts, max(start + length for start, length in windows))
    return [
        best_windows[start : start + length] == number
        for number, (start, length) in enumerate(windows)
    ]


def find_best_spans(
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    offsets: np.ndarray,
    may_start: np.ndarray,
    *,
    max_answer_tokens: int,
    count: int,
) -> list[ScoredSpan]:
    """The best spans of a window's passage with end ≥ start and a limited length, best first.

    All spans are compared; the original compares only those of the best 20 starts and ends.

    Args:
        start_logits, end_logits: `[tokens]`.
        offsets: `[tokens, 2]` characters of the passage.
        may_start: `[tokens]` bool: whether an answer may start at a token.
        max_answer_tokens: maximum tokens of an answer.
        count: maximum number of spans to return.
    """
    length = len(start_logits)
    width = min(max_answer_tokens, length)
    if not width:
        return []
    ends = np.concatenate([end_logits, np.full(width - 1, -np.inf)])
    scores = start_logits[:, None] + np.lib.stride_tricks.sliding_window_view(ends, width)
    scores = np.where(may_start[:, None], scores, -np.inf).ravel()
    num_spans = min(count, len(scores))
    best = np.argpartition(-scores, num_spans - 1)[:num_spans]
    best = best[np.lexsort((best, -scores[best]))]
    return [
        ScoredSpan(
            float(scores[index]),
            int(offsets[index // width, 0]),
            int(offsets[index // width + index % width, 1]),
        )
        for index in best.tolist()
        if np.isfinite(scores[index])
    ]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AnsweringExample(LabelledExample):
    """A question and its passage as windows; `texts` are the two.

    A window's target is the first and the last token of the answer; both are `[CLS]` if the window
    does not contain the answer.
    """

    sequences: Sequence[Encoding]  # the windows
    # the gold answers, empty if the question has none; None if they are unknown
    answers: tuple[str, ...] | None
    match: AnswerMatch  # how the first answer was located, or why it is ignored

    @property
    def question(self) -> str:
        """The question's text."""
        return self.texts[0]

    @property
    def context(self) -> str:
        """The passage."""
        return self.texts[1]
