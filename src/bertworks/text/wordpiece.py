"""Learning word pieces: the merges of byte-pair encoding, over words and their counts.

The most frequent pair of neighbouring pieces becomes a piece, again and again. (Google never
published the learner of BERT's own vocabulary; this is what the `tokenizers` library does too.)
Counts are integers and ties go to the pair whose pieces came first, so the result depends on the
words alone.

All words lie end to end in flat arrays, as a doubly linked list of symbols; a merge touches only
the places where its pair stands.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

CONTINUATION = "##"

Ints = NDArray[np.int64]
Places = NDArray[np.int32]


def learn_pieces(
    words: Sequence[str],
    counts: Sequence[int],
    pieces: Sequence[str],
    *,
    size: int,
    min_frequency: int,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """Grow a list of pieces by merging, until it is `size` long or no pair is frequent enough.

    Args:
        words: distinct words.
        counts: how often each word occurs.
        pieces: what to begin with; must hold each word's first character, and `##` with each
            later one.
        size: the number of pieces wanted, those to begin with included.
        min_frequency: a pair that occurs less often is not merged.
        progress: told the number of pieces now and then.

    Returns:
        `pieces` and the new ones after them, in the order in which they were made.
    """
    learned = list(pieces)
    number_of = {piece: number for number, piece in enumerate(learned)}
    chain = _Chain(words, counts, number_of)
    while len(learned) < size:
        pair = chain.most_frequent_pair(min_frequency)
        if pair is None:
            break
        left, right = pair
        merged = learned[left] + learned[right].removeprefix(CONTINUATION)
        number = number_of.setdefault(merged, len(learned))
        if number == len(learned):  # else two ways of merging led to the same piece
            learned.append(merged)
            if progress is not None and len(learned) % 500 == 0:
                progress(len(learned))
        chain.merge(left, right, number)
    return learned


class _Chain:
    """All words as one linked list of symbols, with each pair's count and places.

    Between two words, and at both ends, is a place without a symbol (-1), as is every place whose
    symbol was merged into the one before it.
    """

    def __init__(
        self, words: Sequence[str], counts: Sequence[int], number_of: dict[str, int]
    ) -> None:
        symbols: list[int] = [-1]
        lengths = np.fromiter((len(word) + 1 for word in words), np.int64, len(words))
        for word in words:
            symbols.append(number_of[word[0]])
            symbols.extend([number_of[CONTINUATION + char] for char in word[1:]])
            symbols.append(-1)
        self.symbol: Places = np.array(symbols, dtype=np.int32)
        self.weight: Ints = np.concatenate(
            [np.zeros(1, np.int64), np.repeat(np.array(counts, np.int64), lengths)]
        )
        self.next: Places = np.arange(1, len(symbols) + 1, dtype=np.int32)
        self.next[-1] = len(symbols) - 1
        self.previous: Places = np.arange(-1, len(symbols) - 1, dtype=np.int32)
        self.previous[0] = 0
        self.counts: dict[int, int] = {}
        self.places: dict[int, list[Places]] = {}
        self.heap: list[tuple[int, int]] = []
        every = np.arange(len(symbols), dtype=np.int32)
        self._count(every[:0], every)

    def most_frequent_pair(self, min_frequency: int) -> tuple[int, int] | None:
        """Take the most frequent pair from the heap, the lowest numbers first among equals."""
        while self.heap:
            negative, key = heapq.heappop(self.heap)
            count = self.counts.get(key, 0)
            if count == -negative:
                return None if count < min_frequency else (key >> 32, key & 0xFFFFFFFF)
            if 0 < count < -negative:  # it has become rarer since it was put in
                heapq.heappush(self.heap, (-count, key))
        return None

    def merge(self, left: int, right: int, merged: int) -> None:
        """Replace `left` followed by `right` by `merged`, everywhere."""
        places = np.sort(np.concatenate(self.places.pop(left << 32 | right)))
        places = places[(self.symbol[places] == left) & (self.symbol[self.next[places]] == right)]
        if left == right:
            places = self._every_second(places)
        second = self.next[places]
        before, after = self.previous[places], self.next[second]
        removed = np.concatenate([before, places, second])
        removed_keys, removed_weights, _ = self._pairs_at(removed)
        self.symbol[places] = merged
        self.symbol[second] = -1
        self.next[places] = after
        self.previous[after] = places
        order = np.argsort(removed_keys, kind="stable")
        self._update(removed_keys[order], -removed_weights[order])
        self._count(self.previous[places], places)

    def _every_second(self, places: Places) -> Places:
        """In runs of one symbol, as in `aaaa`, pairs overlap: from the left, keep every second."""
        index = np.arange(len(places))
        starts = np.ones(len(places), dtype=bool)
        starts[1:] = self.next[places[:-1]] != places[1:]
        run_start = np.maximum.accumulate(np.where(starts, index, 0))
        kept: Places = places[(index - run_start) % 2 == 0]
        return kept

    def _pairs_at(self, places: Places) -> tuple[Ints, Ints, Places]:
        """Keys, weights and places of the pairs that begin at the given places, each once."""
        places = np.unique(places)
        left = self.symbol[places].astype(np.int64)
        right = self.symbol[self.next[places]].astype(np.int64)
        valid = (left >= 0) & (right >= 0)
        places = places[valid]
        return left[valid] << 32 | right[valid], self.weight[places], places

    def _count(self, *places: Places) -> None:
        """Add the pairs that begin at new places."""
        keys, weights, at = self._pairs_at(np.concatenate(places))
        if len(keys) == 0:
            return
        order = np.argsort(keys, kind="stable")
        keys, at = keys[order], at[order]
        unique, starts = self._update(keys, weights[order])
        for key, group in zip(unique.tolist(), np.split(at, starts[1:]), strict=True):
            self.places.setdefault(key, []).append(group)
            heapq.heappush(self.heap, (-self.counts[key], key))

    def _update(self, keys: Ints, weights: Ints) -> tuple[Ints, Ints]:
        """Add weights to the counts of sorted pairs; the distinct ones, and where each begins."""
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        unique = keys[starts]
        sums = np.add.reduceat(weights, starts)
        for key, change in zip(unique.tolist(), sums.tolist(), strict=True):
            count = self.counts.get(key, 0) + change
            assert count >= 0
            if count:
                self.counts[key] = count
            else:
                del self.counts[key]
        return unique, starts
