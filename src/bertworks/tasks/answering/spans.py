"""Answers in a passage: where they stand in the windows, and the best ones out of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from ...text.encoding import Encoding


class Candidate(NamedTuple):
    """A span of the passage: characters `[start, end)`, and the sum of its two logits."""

    score: float
    start: int
    end: int


Found = Literal["as given", "moved", "lost"]


def locate(passage: str, answer: str, start: object) -> tuple[int, Found]:
    """Where an answer stands: where it is said to, or the nearest place where it does.

    Returns:
        The first character, and whether it is `as given`, had to be `moved`, or is `lost`: then the
        passage does not hold it, and the character is -1.
    """
    told = None
    if isinstance(start, int | float) and not isinstance(start, bool) and start % 1 == 0:
        told = int(start)  # Parquet has floats where a number is missing elsewhere
    if told is not None and told >= 0 and answer and passage.startswith(answer, told):
        return told, "as given"
    places = []
    at = passage.find(answer) if answer else -1
    while at >= 0:
        places.append(at)
        at = passage.find(answer, at + 1)
    if not places:
        return -1, "lost"
    return min(places, key=lambda place: abs(place - (told or 0))), "moved"


def passage_tokens(encoding: Encoding) -> np.ndarray:
    """The tokens of a window that are the passage's: `[n]`, in order."""
    # It stands between the last two special tokens.
    before, behind = np.flatnonzero(encoding.special_tokens_mask)[-2:]
    return np.arange(before + 1, behind)


def tokens_of(
    encoding: Encoding, tokens: np.ndarray, start: int, end: int
) -> tuple[int, int] | None:
    """The first and last token of characters `[start, end)`; None if the window cuts them off."""
    offsets = encoding.offsets[tokens]
    inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
    if not len(inside):
        return None
    first, last = inside[0], inside[-1]
    # A span that begins before the window, or goes on behind it, is another window's.
    if (first == 0 and offsets[0, 0] > start) or (
        last == len(tokens) - 1 and offsets[last, 1] < end
    ):
        return None
    return int(tokens[first]), int(tokens[last])


def tellers(windows: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """For each window, which of its passage tokens it sees with the most context of all windows.

    The context of a token is the lesser of what it has to its left and right, and a hundredth of
    the window's length, which prefers longer windows (the original's `_check_is_max_context`).

    Args:
        windows: first passage token of each window, and how many it has.
    """
    total = max(start + length for start, length in windows)
    best = np.full(total, -np.inf)
    owner = np.zeros(total, np.int64)
    for number, (start, length) in enumerate(windows):
        at = np.arange(length)
        context = np.minimum(at, length - 1 - at) + 0.01 * length
        better = context > best[start : start + length]
        best[start : start + length][better] = context[better]
        owner[start : start + length][better] = number
    return [
        owner[start : start + length] == number for number, (start, length) in enumerate(windows)
    ]


def candidates(
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    offsets: np.ndarray,
    may_start: np.ndarray,
    *,
    max_answer_tokens: int,
    count: int,
) -> list[Candidate]:
    """The best spans of a window's passage, with end ≥ start and a limited length.

    All spans are looked at, where the original looks at the best 20 starts and ends.

    Args:
        start_logits, end_logits: `[tokens]`.
        offsets: `[tokens, 2]` characters of the passage.
        may_start: `[tokens]` bool.
        max_answer_tokens: the most tokens of an answer.
        count: how many spans are wanted.
    """
    length = len(start_logits)
    width = min(max_answer_tokens, length)
    if not width:
        return []
    ends = np.concatenate([end_logits, np.full(width - 1, -np.inf)])
    scores = start_logits[:, None] + np.lib.stride_tricks.sliding_window_view(ends, width)
    scores = np.where(may_start[:, None], scores, -np.inf).ravel()
    kept = min(count, len(scores))
    best = np.argpartition(-scores, kept - 1)[:kept]
    best = best[np.lexsort((best, -scores[best]))]
    return [
        Candidate(
            float(scores[at]),
            int(offsets[at // width, 0]),
            int(offsets[at // width + at % width, 1]),
        )
        for at in best.tolist()
        if np.isfinite(scores[at])
    ]
