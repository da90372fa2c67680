"""Train a WordPiece vocabulary on a stream of texts.

Pieces are learned by byte-pair encoding on words and their counts: the most frequent pair of
neighbouring pieces becomes a new piece, repeatedly. (Google never published the code that learned
BERT's vocabulary; the `tokenizers` library uses the same method.) Counts are integers, and ties go
to the pair whose pieces came first, so the result depends only on the words.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, SettingsError
from ..jobs.parallel import Workers
from ..utils.progress import Update
from .definition import ORIGINAL_SPECIAL_PIECES, check_text
from .segmenter import portions
from .tokenizer import Tokenizer
from .wordpiece import CONTINUATION, MAX_WORD_CHARACTERS, Normalization

_PART_CHARACTERS = 1 << 23  # of the texts that are counted together


def train_vocabulary(
    texts: Iterable[str],
    *,
    size: int = 30522,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    min_frequency: int = 2,
    character_coverage: float = 0.99995,
    max_word_characters: int = MAX_WORD_CHARACTERS,
    workers: int | None = 1,
    on: str | None = None,
    progress: Update | None = None,
) -> Tokenizer:
    """Train a vocabulary; the same texts give the same vocabulary, in any order.

    Special pieces have the ids of the published English vocabularies (`[PAD]` 0, `[unused0]` to
    `[unused98]` 1–99, `[UNK]` 100, `[CLS]` 101, `[SEP]` 102, `[MASK]` 103), followed by single
    characters and then by the learned pieces, most frequent first. The texts are streamed; memory
    is bounded by their distinct words.

    Args:
        texts: paragraphs.
        size: vocabulary size, including special pieces. A corpus with too few pairs of at least
            `min_frequency` gives fewer: see the tokenizer's `vocab_size`.
        lowercase: lowercase and strip accents, as in the uncased models.
        strip_accents: whether to strip accents, overriding `lowercase`.
        min_frequency: how often a pair must occur to become a piece.
        character_coverage: share of the text covered by the most frequent characters, which are
            kept; words with other characters become `[UNK]`.
        max_word_characters: longer words are `[UNK]`, and are not used for training.
        workers, on: how many processes count words, and where; see `jobs.parallel.Workers`.
        progress: called from time to time with the number of pieces, and `size`.

    Raises:
        DataError: there are no words, or a text has a lone surrogate.
        SettingsError: `size` has no room for the special pieces and the characters, or a setting
            is out of range.
    """
    if min_frequency < 1:
        raise SettingsError(f"min_frequency={min_frequency} is less than 1")
    if not 0.0 < character_coverage <= 1.0:
        raise SettingsError(f"character_coverage={character_coverage} is not between 0 and 1")
    normalization = Normalization(lowercase=lowercase, strip_accents=strip_accents)
    count = _WordCounter(normalization, max_word_characters)
    counts = _count_words(_parts(texts), count, Workers(workers, on))
    alphabet = _alphabet(counts, character_coverage)
    if not alphabet:
        raise DataError("no words to train a vocabulary from", fix="Give texts that are not empty.")
    pieces = [
        *ORIGINAL_SPECIAL_PIECES,
        *alphabet,
        *(CONTINUATION + char for char in alphabet if not _stands_alone(char, normalization)),
    ]
    if len(pieces) > size:
        raise SettingsError(
            f"size={size} has no room for {len(ORIGINAL_SPECIAL_PIECES)} special pieces and "
            f"{len(pieces) - len(ORIGINAL_SPECIAL_PIECES)} for the text's characters",
            fix=f"Ask for at least {len(pieces)}, or for less character_coverage.",
        )
    known = set(alphabet)
    words = sorted(w for w in counts if len(w) <= max_word_characters and known.issuperset(w))
    vocabulary = learn_pieces(
        words,
        [counts[word] for word in words],
        pieces,
        size=size,
        min_frequency=min_frequency,
        progress=progress,
    )
    return Tokenizer.from_vocabulary(
        vocabulary,
        lowercase=lowercase,
        strip_accents=strip_accents,
        max_word_characters=max_word_characters,
    )


def _parts(texts: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield texts in lists, each with the number of its first text."""
    part: list[str] = []
    characters = number = 0
    for number, text in enumerate(texts, 1):
        part.append(text)
        characters += len(text)
        if characters >= _PART_CHARACTERS:
            yield number - len(part) + 1, part
            part, characters = [], 0
    if part:
        yield number - len(part) + 1, part


def _count_words(
    parts: Iterable[tuple[int, list[str]]],
    count: _WordCounter,
    workers: Workers,
) -> Counter[str]:
    words: Counter[str] = Counter()
    counters: Generator[Counter[str]] = workers.map(count, parts)
    with closing(counters):
        for some in counters:
            words.update(some)
    return words


@dataclass(frozen=True)
class _WordCounter:
    """Counts the normalised words of texts.

    Strings between spaces are counted first, so that each is normalised only once; a space
    separates words before and after normalisation, so the counts are the same. Long texts are
    processed in portions; of a word longer than a portion, only the beginning is used.
    """

    normalization: Normalization
    longest_word: int

    def __call__(self, part: tuple[int, list[str]]) -> Counter[str]:
        first, texts = part
        strings: Counter[str] = Counter()
        for number, text in enumerate(texts, first):
            check_text(text, where=f"paragraph {number}")
            for portion in portions([text], self.normalization.breaks, self.longest_word):
                assert isinstance(portion.text, str)
                strings.update(portion.text.split(" "))
        words: Counter[str] = Counter()
        for string, count in strings.items():
            for word in self.normalization.words(string):
                words[word] += count
        return words


def _alphabet(counts: Counter[str], coverage: float) -> list[str]:
    """The most frequent characters that cover at least `coverage` of all, sorted."""
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for char in word:
            characters[char] += count
    min_count = math.ceil(coverage * characters.total())
    alphabet: list[str] = []
    count_of_alphabet = 0
    for char, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        if count_of_alphabet >= min_count:
            break
        alphabet.append(char)
        count_of_alphabet += count
    return sorted(alphabet)


def _stands_alone(char: str, normalization: Normalization) -> bool:
    """Whether a character is always a separate word, like punctuation and ideographs."""
    return len(normalization.words(f"a{char}")) > 1


Ints = NDArray[np.int64]
Places = NDArray[np.int32]


def learn_pieces(
    words: Sequence[str],
    counts: Sequence[int],
    pieces: Sequence[str],
    *,
    size: int,
    min_frequency: int,
    progress: Update | None = None,
) -> list[str]:
    """Extend a list of pieces by merging, until it has `size` or no pair is frequent enough.

    All words are end to end in flat arrays, as a doubly linked list of symbols; a merge changes
    only the positions of its pair.

    Args:
        words, counts: distinct words, and how often each occurs.
        pieces: the initial pieces; must contain the first character of each word, and `##` with
            each later one.
        progress: called from time to time with the number of pieces, and `size`.

    Returns:
        `pieces`, followed by the new pieces in the order in which they were made.
    """
    vocabulary = list(pieces)
    number_of = {piece: number for number, piece in enumerate(vocabulary)}
    chain = _Chain(words, counts, number_of)
    while len(vocabulary) < size:
        pair = chain.most_frequent_pair(min_frequency)
        if pair is None:
            break
        left, right = pair
        piece = vocabulary[left] + vocabulary[right].removeprefix(CONTINUATION)
        number = number_of.setdefault(piece, len(vocabulary))
        if number == len(vocabulary):  # else another merge made the same piece
            vocabulary.append(piece)
            if progress is not None and len(vocabulary) % 500 == 0:
                progress(len(vocabulary), size)
        chain.merge(left, right, number)
    return vocabulary


class _Chain:
    """All words as one linked list of symbols, with the count and the positions of each pair.

    A position without a symbol (-1) is between two words, at both ends, and wherever a symbol was
    merged into the one before it.
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
        """Remove the most frequent pair from the heap; of equals, the one with the lowest numbers.

        None: no pair occurs `min_frequency` times.
        """
        while self.heap:
            negative, key = heapq.heappop(self.heap)
            count = self.counts.get(key, 0)
            if count == -negative:
                return None if count < min_frequency else (key >> 32, key & 0xFFFFFFFF)
            if 0 < count < -negative:  # it has become rarer since it was pushed
                heapq.heappush(self.heap, (-count, key))
        return None

    def merge(self, left: int, right: int, symbol: int) -> None:
        """Replace `left` followed by `right` by `symbol`, everywhere."""
        places = np.sort(np.concatenate(self.places.pop(left << 32 | right)))
        places = places[(self.symbol[places] == left) & (self.symbol[self.next[places]] == right)]
        if left == right:
            places = self._every_second(places)
        second = self.next[places]
        before, following = self.previous[places], self.next[second]
        removed = np.concatenate([before, places, second])
        removed_keys, removed_weights, _ = self._pairs_at(removed)
        self.symbol[places] = symbol
        self.symbol[second] = -1
        self.next[places] = following
        self.previous[following] = places
        order = np.argsort(removed_keys, kind="stable")
        self._update(removed_keys[order], -removed_weights[order])
        self._count(self.previous[places], places)

    def _every_second(self, places: Places) -> Places:
        """Keep every second pair, from the left: in runs such as `aaaa`, pairs overlap."""
        index = np.arange(len(places))
        starts = np.ones(len(places), dtype=bool)
        starts[1:] = self.next[places[:-1]] != places[1:]
        run_start = np.maximum.accumulate(np.where(starts, index, 0))
        kept: Places = places[(index - run_start) % 2 == 0]
        return kept

    def _pairs_at(self, places: Places) -> tuple[Ints, Ints, Places]:
        """Keys, weights and positions of the pairs that begin at given positions, each once."""
        places = np.unique(places)
        left = self.symbol[places].astype(np.int64)
        right = self.symbol[self.next[places]].astype(np.int64)
        valid = (left >= 0) & (right >= 0)
        places = places[valid]
        return left[valid] << 32 | right[valid], self.weight[places], places

    def _count(self, *places: Places) -> None:
        """Add the pairs that begin at new positions."""
        keys, weights, positions = self._pairs_at(np.concatenate(places))
        if len(keys) == 0:
            return
        order = np.argsort(keys, kind="stable")
        keys, positions = keys[order], positions[order]
        unique, starts = self._update(keys, weights[order])
        for key, group in zip(unique.tolist(), np.split(positions, starts[1:]), strict=True):
            self.places.setdefault(key, []).append(group)
            heapq.heappush(self.heap, (-self.counts[key], key))

    def _update(self, keys: Ints, weights: Ints) -> tuple[Ints, Ints]:
        """Add weights to counts of sorted pairs; return distinct pairs, and where each begins."""
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
