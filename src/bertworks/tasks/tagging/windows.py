"""Words to windows of tokens: each word has at least one token, and is tagged in one window.

words ─► pieces of each ─► windows of whole words, a stride apart
                        ├► for each word, the window that tags it: where it has most context
                        └► context words of the document, where a window has room left
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...errors import DataError
from ...text.encoding import Segment
from ...text.tokenizer import Tokenizer
from ...text.windows import most_context
from ..example import LabelledExample
from .tags import Span

ContextWords = tuple[Sequence[str], Sequence[str]]
"""The context words before and after those of a row, which are not tagged."""

WordCounts = tuple[int, int, int]
"""The numbers of context words before a row's words, of these words, and of context words after."""

LabelledPiece = Literal["first", "last", "all"]


@dataclass(frozen=True, eq=False, slots=True)
class Window:
    """A part of a row's words as one sequence."""

    input_ids: np.ndarray  # `[tokens]` int32
    token_type_ids: np.ndarray  # `[tokens]` int8
    positions: np.ndarray  # `[m]` int64: indices of the labelled tokens
    # `[m]` int64: index in the row of each one's word; a word is labelled in one window only
    words: np.ndarray


def make_windows(
    tokenizer: Tokenizer,
    rows: Sequence[Segment],
    word_counts: Sequence[WordCounts],
    *,
    max_seq_length: int,
    stride: int | None,
    labelled_piece: LabelledPiece,
) -> list[tuple[list[Window], int]]:
    """Each row's windows, and its number of truncated tokens (words longer than a window).

    Args:
        rows: the tokens of each row with the numbers of their words, those of the context included.
        word_counts: the numbers of words of each row. Context words fill a window's free tokens:
            half on each side, more if the other side has fewer.
        max_seq_length: maximum tokens of a window, including special tokens.
        stride: tokens between the starts of windows; half a window if None.
        labelled_piece: which pieces of a word are labelled.

    Raises:
        DataError: `stride` does not fit the window.
    """
    max_tokens = max_seq_length - tokenizer.num_special_tokens(pair=False)
    step = max_tokens // 2 if stride is None else stride
    if not 1 <= step <= max_tokens:
        raise DataError(
            f"stride={step} is not between 1 and the {max_tokens} tokens of a window",
            fix="Give a smaller stride, so that no word falls between two windows.",
        )
    windows = []
    for segment, (num_before, words, num_after) in zip(rows, word_counts, strict=True):
        first, stop = num_before, num_before + words
        pieces = _pieces(segment, stop + num_after, tokenizer.unk_id)
        num_truncated = sum(max(0, len(ids) - max_tokens) for ids in pieces[first:stop])
        word_pieces = [ids[:max_tokens] for ids in pieces[first:stop]]
        context_pieces = pieces[:first], pieces[stop:]
        windows.append(
            (
                _windows(tokenizer, word_pieces, context_pieces, max_tokens, step, labelled_piece),
                num_truncated,
            )
        )
    return windows


def _pieces(segment: Segment, num_words: int, unk_id: int) -> list[np.ndarray]:
    """The ids of each word; a word without pieces (only invisible characters) gets `unk_id`."""
    counts = np.bincount(segment.word_ids, minlength=num_words)
    ids = np.split(segment.input_ids, np.cumsum(counts)[:-1]) if num_words else []
    return [row if len(row) else np.array([unk_id], np.int32) for row in ids]


def _windows(
    tokenizer: Tokenizer,
    pieces: list[np.ndarray],
    context_pieces: tuple[list[np.ndarray], list[np.ndarray]],
    max_tokens: int,
    step: int,
    labelled_piece: LabelledPiece,
) -> list[Window]:
    ends = np.cumsum([len(ids) for ids in pieces], dtype=np.int64)
    starts = ends - [len(ids) for ids in pieces]
    borders = _borders(starts, ends, max_tokens, step)
    labelled_by = _labelled_by(borders, starts, ends)
    windows = []
    for number, (first, stop) in enumerate(borders):
        pieces_before, pieces_after = _context(
            context_pieces[0] if first == 0 else [],
            context_pieces[1] if stop == len(pieces) else [],
            max_tokens - sum(len(ids) for ids in pieces[first:stop]),
        )
        ids = np.concatenate(
            [np.empty(0, np.int32), *pieces_before, *pieces[first:stop], *pieces_after]
        )
        zeros = np.zeros(len(ids), np.int32)
        frame = tokenizer.frame(Segment(ids, np.stack([zeros, zeros], 1), zeros))
        offset = int(frame.special_tokens_mask.argmin()) if len(ids) else 0
        offset += sum(len(ids) for ids in pieces_before)
        positions: list[int] = []
        words: list[int] = []
        for word in range(first, stop):
            if labelled_by[word] != number:
                continue
            start = offset + int(starts[word] - starts[first])
            size = int(ends[word] - starts[word])
            piece_numbers = {"first": [0], "last": [size - 1], "all": list(range(size))}[
                labelled_piece
            ]
            positions += [start + piece for piece in piece_numbers]
            words += [word] * len(piece_numbers)
        windows.append(
            Window(
                frame.input_ids,
                frame.token_type_ids,
                np.array(positions, np.int64),
                np.array(words, np.int64),
            )
        )
    return windows


def _context(
    pieces_before: list[np.ndarray], pieces_after: list[np.ndarray], room: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The nearest words on each side that fit: half of the room, or more if a side leaves some."""
    ends_before = np.cumsum([len(ids) for ids in reversed(pieces_before)], dtype=np.int64)
    ends_after = np.cumsum([len(ids) for ids in pieces_after], dtype=np.int64)

    def fit(ends: np.ndarray, room: int) -> tuple[int, int]:
        words = int(np.searchsorted(ends, room, "right"))
        return words, int(ends[words - 1]) if words else 0

    _, tokens = fit(ends_before, room // 2)
    num_after, tokens = fit(ends_after, room - tokens)
    num_before, _ = fit(ends_before, room - tokens)
    return pieces_before[len(pieces_before) - num_before :], pieces_after[:num_after]


def _borders(starts: np.ndarray, ends: np.ndarray, room: int, step: int) -> list[tuple[int, int]]:
    """The words of each window, `[first, past)`."""
    borders = []
    first = 0
    while True:
        stop = int(np.searchsorted(ends, starts[first] + room, "right")) if len(ends) else 0
        borders.append((first, stop))
        if stop >= len(ends):
            return borders
        next_first = int(np.searchsorted(starts, starts[first] + step, "left"))
        first = min(max(next_first, first + 1), stop)


def _labelled_by(
    borders: list[tuple[int, int]], starts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """The window that labels each word: its smaller context (left or right) is largest there."""
    contexts = [
        (first, np.minimum(starts[first:stop] - starts[first], ends[stop - 1] - ends[first:stop]))
        for first, stop in borders
        if first < stop  # otherwise the row has no words
    ]
    return most_context(contexts, len(starts))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TaggingExample(LabelledExample):
    """A row as windows; its target is int64 `[words]`, the indices of the tags."""

    sequences: Sequence[Window]  # the windows; each word is tagged in one of them
    words: Sequence[str]  # the words to tag
    # the gold spans, which the labels of a published model may be unable to express
    spans: Sequence[Span] = ()
    # characters `[start, end)` of each word of a plain text; None if the row is a list of words
    offsets: Sequence[tuple[int, int]] | None = None
