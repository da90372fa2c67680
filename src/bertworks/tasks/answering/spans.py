"""Answers in a passage: their columns, where they are in the windows, the best ones by score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ...errors import DataError
from ...tables.rows import Row, unpacked
from ...tables.schema import Role, Schema
from ...text.encoding import Encoding, Segment
from ...text.windows import most_context
from ..example import LabelledExample


class Candidate(NamedTuple):
    """A span of the passage: characters `[start, end)`, and the sum of its two logits."""

    score: float
    start: int
    end: int


Found = Literal["as given", "moved", "lost"]


def locate(passage: str, answer: str, start: object) -> tuple[int, Found]:
    """The place of an answer: the given one, or the nearest place where it occurs.

    Returns:
        The first character, and whether it is `as given`, also where no place was, had to be
        `moved`, or is `lost`: then the passage does not hold it, and the character is -1.
    """
    given = None
    # Parquet has NaN where a number is missing.
    is_said = start is not None and not (isinstance(start, float) and math.isnan(start))
    if isinstance(start, int | float) and not isinstance(start, bool) and start % 1 == 0:
        given = int(start)  # and floats, where one is missing elsewhere
    if given is not None and given >= 0 and answer and passage.startswith(answer, given):
        return given, "as given"
    places = []
    at = passage.find(answer) if answer else -1
    while at >= 0:
        places.append(at)
        at = passage.find(answer, at + 1)
    if not places:
        return -1, "lost"
    nearest = min(places, key=lambda place: abs(place - (given or 0)))
    return nearest, "moved" if is_said else "as given"


def passage_tokens(encoding: Encoding) -> np.ndarray:
    """The tokens of a window that are the passage's: `[n]`, in order."""
    # It is between the last two special tokens.
    before, behind = np.flatnonzero(encoding.special_tokens_mask)[-2:]
    return np.arange(before + 1, behind)


def tokens_of(passage: Segment, start: int, end: int) -> np.ndarray:
    """The tokens of a whole passage that hold characters of `[start, end)`: `[n]`, in order."""
    offsets = passage.offsets
    return np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))


def target_in(window: Encoding, first_token: int, answer: np.ndarray) -> tuple[int, int]:
    """The first and last token of an answer in a window; (0, 0) if the window has not all of it.

    Tokens are compared, not characters: at an answer's ends some have no token, such as accents
    that are stripped.

    Args:
        first_token: the passage's token that the window begins with.
        answer: the passage's tokens of the answer.
    """
    tokens = passage_tokens(window)
    inside = answer - first_token
    if not len(inside) or inside[0] < 0 or inside[-1] >= len(tokens):
        return 0, 0
    return int(tokens[inside[0]]), int(tokens[inside[-1]])


def max_context(windows: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """For each window, which of its passage tokens it sees with the most context of all windows.

    The context of a token is the lesser of what it has to its left and right, and a hundredth of
    the window's length, which prefers longer windows (the original's `_check_is_max_context`).

    Args:
        windows: first passage token of each window, and how many it has.
    """
    contexts = []
    for start, length in windows:
        at = np.arange(length)
        contexts.append((start, np.minimum(at, length - 1 - at) + 0.01 * length))
    found = most_context(contexts, max(start + length for start, length in windows))
    return [
        found[start : start + length] == number for number, (start, length) in enumerate(windows)
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


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AnsweringExample(LabelledExample):
    """A question and its passage, which are its texts, as windows.

    The target of each window is the first and the last token of the answer; (0, 0), which is
    `[CLS]`, where the window has none.
    """

    sequences: Sequence[Encoding]  # the windows
    # the gold answers, none where there is no answer; None where they are not known
    answers: tuple[str, ...] | None
    found: Found  # what became of the first answer

    @property
    def question(self) -> str:
        """The question's text."""
        return self.texts[0]

    @property
    def context(self) -> str:
        """The passage."""
        return self.texts[1]


SCHEMA = Schema(
    Role("question", ("question", "query")),
    Role("context", ("context", "passage"), title="passage"),
    Role("answers", ("answers", "answer"), of_label=True),
)


def answers_of(row: Row, column: str, where: str | None) -> tuple[list[str], list[Any]]:
    """A row's answers and where they are said to begin; both empty where there is none.

    A text without a word is no answer.

    Raises:
        DataError: the column is missing, or does not hold answers as SQuAD writes them.
    """
    value = unpacked(row.get(column), dict)
    if isinstance(value, str):
        return ([value], [None]) if value.strip() else ([], [])
    if isinstance(value, Mapping):
        texts, starts = value.get("text"), value.get("answer_start")
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
            starts = starts if isinstance(starts, list) else [None] * len(texts)
            if len(starts) == len(texts):
                kept = [pair for pair in zip(texts, starts, strict=True) if pair[0].strip()]
                return [text for text, _ in kept], [start for _, start in kept]
    raise DataError(
        f"the column {column!r} holds no answers",
        where=where,
        fix='It must be a text, or {"text": [...], "answer_start": [...]}.',
    )
