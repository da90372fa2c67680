"""Split long texts into windows: no token is lost, and each window keeps its position."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .encoding import Encoding, Segment
from .tokenizer import Tokenizer


def segment_windows(
    tokenizer: Tokenizer,
    first: Segment,
    second: Segment | None = None,
    *,
    max_length: int,
    stride: int,
    where: str | None = None,
) -> list[Encoding]:
    """Sequences of at most `max_length` tokens that together contain every token of a long text.

    A single text is split into windows. Of a pair, the second text is split, and the whole first
    text (a question) is repeated before each window. Offsets and word numbers are those of the
    original text. The last window ends at the end of the text and may be shorter. A text that fits,
    or is empty, is one window.

    Args:
        max_length: maximum tokens of a window, special tokens included.
        stride: the distance between the beginnings of two windows, in tokens: `doc_stride` in the
            original code. (In Hugging Face, a stride is the overlap: the room of a window minus
            this distance.)

    Raises:
        DataError: the first text leaves no room for the second, or `stride` is not between 1 and
            the room of a window, so that tokens would be lost.
    """
    long = first if second is None else second
    room = max_length - tokenizer.num_special_tokens(pair=second is not None)
    if second is not None:
        room -= len(first)
    if room < min(1, len(long)):
        before = "" if second is None else f" next to the first text's {len(first)} tokens"
        raise DataError(
            f"max_length={max_length} has no room for a window{before}",
            where=where,
            fix="Give a greater max_length.",
        )
    if not 1 <= stride <= room and len(long) > room:
        raise DataError(
            f"stride={stride} is not between 1 and the {room} tokens of a window",
            where=where,
            fix="Give a smaller stride, so that no token falls between two windows.",
        )
    windows = []
    start = 0
    while True:
        part = long[start : start + room]
        windows.append(tokenizer.frame(part) if second is None else tokenizer.frame(first, part))
        if start + room >= len(long):
            return windows
        start += stride


def most_context(
    windows: Iterable[tuple[int, NDArray[np.generic]]], total: int
) -> NDArray[np.int64]:
    """For each part of a text, the window with the most context: `[total]`; of equals, the first.

    Args:
        windows: for each, the index of its first part, and the context of each of its parts.
        total: the number of parts of the text.
    """
    most = np.full(total, -np.inf)
    best = np.zeros(total, np.int64)
    for number, (start, context) in enumerate(windows):
        span = slice(start, start + len(context))
        better = context > most[span]
        most[span][better] = context[better]
        best[span][better] = number
    return best
