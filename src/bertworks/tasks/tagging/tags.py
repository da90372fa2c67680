"""Tags that mark spans: their schemes, and conversion between tags and spans.

| scheme | first word of a span | further words | last word | span of one word |
|---|---|---|---|---|
| bio (IOB2) | B-X | I-X | I-X | B-X |
| iob1 | I-X; B-X after a span of the same type | I-X | I-X | I-X |
| bioes | B-X | I-X | E-X | S-X |

A type may be empty: B, I, E, S. Words outside any span are O. Tags are read by the rules of
`conlleval`, the scorer of the CoNLL shared tasks: a tag that continues no span starts one. These
rules read every scheme, so the scheme of a table need not be given. Tags that are written in
another way, such as `B_PER` or BILOU, are converted first (`notation.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

Scheme = Literal["bio", "bioes"]
OUTSIDE_TAG = "O"
_TAG = re.compile(r"([BIES])(?:-(.+))?", re.DOTALL)


class Span(NamedTuple):
    """Words `start` to `end` (excluded) and their type."""

    type: str
    start: int
    end: int


@lru_cache(maxsize=4096)
def split_tag(tag: str) -> tuple[str, str]:
    """A tag's letter (B, I, E, S or O) and type; `O` and "" if the tag marks no span."""
    match = _TAG.fullmatch(tag)
    if match is None:
        return OUTSIDE_TAG, ""
    letter, kind = match.groups()
    return letter, kind or ""


def join_tag(letter: str, kind: str) -> str:
    """The tag with a letter and a type, which may be empty."""
    return f"{letter}-{kind}" if kind else letter


def find_spans(tags: Sequence[str]) -> list[Span]:
    """The spans that tags mark, by the rules of `conlleval`."""
    spans: list[Span] = []
    start: int | None = None
    previous_letter, previous_kind = "O", ""
    for index, tag in enumerate([*tags, "O"]):
        letter, kind = split_tag(tag)
        changes = kind != previous_kind
        ends = previous_letter in "ES" or (previous_letter in "BI" and (letter in "BSO" or changes))
        if start is not None and ends:
            spans.append(Span(previous_kind, start, index))
            start = None
        if start is None and letter != "O":
            start = index
        previous_letter, previous_kind = letter, kind
    return spans


def write_spans(spans: Iterable[Span], length: int, scheme: Scheme) -> list[str]:
    """The tags of `length` words that mark spans; the spans must not overlap."""
    tags = ["O"] * length
    for span in spans:
        size = span.end - span.start
        if scheme == "bioes" and size == 1:
            letters = "S"
        else:
            letters = "B" + "I" * (size - 1)
            if scheme == "bioes":
                letters = letters[:-1] + "E"
        tags[span.start : span.end] = [join_tag(letter, span.type) for letter in letters]
    return tags


def build_labels(types: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """All tags of a scheme for spans of these types."""
    letters = "BI" if scheme == "bio" else "BIES"
    return (
        OUTSIDE_TAG,
        *(join_tag(letter, kind) for kind in sorted(set(types)) for letter in letters),
    )


def find_legal_transitions(labels: Sequence[str]) -> np.ndarray:
    """Which tag may follow which: bool `[labels + 1, labels + 1]`, from row to column.

    The last row stands for the start of a text, the last column for its end. In the bio scheme,
    `I-X` must follow `B-X` or `I-X`; in bioes, a span that is started must also be ended.
    """
    parts = [*map(split_tag, labels), ("O", "")]
    has_ends = any(letter in "ES" for letter, _ in parts)
    is_legal = np.ones((len(parts), len(parts)), bool)
    for row, (previous_letter, previous_kind) in enumerate(parts):
        for column, (letter, kind) in enumerate(parts):
            is_inside = previous_letter in "BI"
            continues_span = letter in ("I", "E")
            if continues_span:
                is_legal[row, column] = is_inside and kind == previous_kind
            elif has_ends and is_inside:
                is_legal[row, column] = False
    return is_legal


def find_best_path(scores: np.ndarray, is_legal: np.ndarray) -> list[int]:
    """The legal tags with the greatest sum of scores (Viterbi 1967).

    Args:
        scores: `[words, labels]`, such as logarithms of probabilities.
        is_legal: the result of `find_legal_transitions`. From every tag, the end must be
            reachable.
    """
    if not len(scores):
        return []
    steps = np.where(is_legal, 0.0, -np.inf)
    best = scores[0] + steps[-1, :-1]
    backpointers = np.zeros(scores.shape, np.int64)
    for index in range(1, len(scores)):
        totals = best[:, None] + steps[:-1, :-1]
        backpointers[index] = totals.argmax(0)
        best = totals.max(0) + scores[index]
    path = [int((best + steps[:-1, -1]).argmax())]
    for index in range(len(scores) - 1, 0, -1):
        path.append(int(backpointers[index, path[-1]]))
    return path[::-1]
