"""Instances: the five ways to split documents into training sequences.

An instance is `[CLS] piece [SEP]` or `[CLS] piece [SEP] piece [SEP]`; in `full-sentences` it may
have more pieces. A piece is a run of tokens of one document. This module computes only the pieces'
borders, as integers: a few binary searches per instance in the documents' cumulative sentence
lengths. No tokens are copied.

Source: paper §3.1, Task #2, and §A.2; the original data generator (`segment-pair` has the same
probabilities); ALBERT §3.1; RoBERTa §4.2.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Literal, NamedTuple

from pydantic import Field

from ...errors import SettingsError
from ...settings.base import Settings

Format = Literal[
    "segment-pair", "sentence-pair", "sentence-order", "full-sentences", "doc-sentences"
]

DRAWS = 10
"""How often A's document may be drawn for a random B before it is accepted.

A copy of A's document is also rejected, but not counted, so that copies do not make this more
likely."""


class InstanceSettings(Settings):
    """How documents are split into training sequences."""

    format: Format = Field(
        "segment-pair",
        description="segment-pair (BERT): two runs of sentences, and whether the second "
        "follows the first. sentence-pair: the same with single sentences. "
        "sentence-order (ALBERT): two consecutive runs, and whether they were "
        "swapped. full-sentences and doc-sentences (RoBERTa): consecutive "
        "sentences that fill the sequence, across documents (with a [SEP] between "
        "them) or not, without a second task",
    )
    max_seq_length: int = Field(
        128,
        ge=8,
        description="maximum tokens per sequence, including [CLS] and [SEP]",
        json_schema_extra={"hidden": True},  # a run's phases set it
    )
    short_seq_prob: float = Field(
        0.1,
        ge=0,
        le=1,
        description="share of documents that are split into shorter sequences, of a length drawn "
        "per document (segment-pair and sentence-order only)",
    )
    next_sentence_balance: Literal["original", "exact"] = Field(
        "original",
        description="original: a chunk with a single sentence always gets a random second "
        "segment, as in the original generator, so more than half of the pairs are "
        "not-next, and a long first segment reveals it. exact: a fair coin for "
        "each pair; a chunk has at least two sentences, and a single last sentence "
        "is split at a random token",
    )

    @property
    def next_sentence(self) -> bool:
        """Whether instances carry a `next_sentence_label`."""
        return self.format in ("segment-pair", "sentence-pair", "sentence-order")

    @property
    def has_random_pairs(self) -> bool:
        """Whether a document with a single sentence always gets a random second segment."""
        pairs = self.format in ("segment-pair", "sentence-pair")
        return pairs and self.next_sentence_balance == "original"


def instances_without_pairs(settings: InstanceSettings | None, objective: str) -> InstanceSettings:
    """Return the settings of an objective without pairs; full sentences if None.

    Raises:
        SettingsError: the format has pairs.
    """
    settings = settings or InstanceSettings(format="full-sentences")
    if settings.next_sentence:
        raise SettingsError(
            f"instances.format={settings.format!r} predicts next sentences, which "
            f"{objective} does not",
            fix="Set instances.format=full-sentences or doc-sentences.",
        )
    return settings


class Piece(NamedTuple):
    """Tokens `start` to `end` (excluded) of a document."""

    document: int
    start: int
    end: int


class Instance(NamedTuple):
    """The pieces of one sequence, with a `[SEP]` after each.

    `next_sentence_label` is 0 if B follows A, and 1 if not (a random B, or, in sentence-order,
    swapped segments); None if the format has no pairs.
    """

    pieces: tuple[Piece, ...]
    next_sentence_label: int | None

    @property
    def num_tokens(self) -> int:
        return 1 + sum(1 + end - start for _, start, end in self.pieces)


Bounds = Callable[[int], Sequence[int]]
"""Returns a document's cumulative sentence lengths: 0, then the end of each sentence, rising."""


def make_instances(
    documents: Sequence[int],
    bounds: Bounds,
    originals: Sequence[int],
    settings: InstanceSettings,
    rng: Random,
    *,
    add_special_tokens: bool = True,
) -> Iterator[Instance]:
    """Split some documents into instances.

    Args:
        documents: the numbers of the documents to split.
        bounds: returns the cumulative sentence lengths of any document; no document is empty.
        originals: for each document that a random B may come from, the first of its copies; the
            document itself if it has no copies.
        rng: used only through `rng.random()` and `rng.getrandbits()`, whose streams are the same in
            all Python versions.
        add_special_tokens: whether a sequence has `[CLS]` at the start and `[SEP]` after each
            piece. Pairs always have them.
    """
    if settings.format == "full-sentences":
        yield from _full_sentences(
            documents, bounds, settings.max_seq_length, int(add_special_tokens)
        )
        return
    for document in documents:
        if settings.format == "doc-sentences":
            yield from _full_sentences(
                [document], bounds, settings.max_seq_length, int(add_special_tokens)
            )
        else:
            yield from _pairs(document, bounds, originals, settings, rng)


def _pairs(
    document: int,
    bounds: Bounds,
    originals: Sequence[int],
    settings: InstanceSettings,
    rng: Random,
) -> Iterator[Instance]:
    """The pairs of one document.

    Sentences are added to a chunk until it has the target length. The chunk is split at random into
    A and B. If B is replaced by a random piece, the next chunk starts with the sentences of the
    second part. In sentence-order, B is random only if a chunk is a single sentence.
    """
    random = rng.random
    max_num_tokens = settings.max_seq_length - 3
    single = settings.format == "sentence-pair"
    swap = settings.format == "sentence-order"
    exact = settings.next_sentence_balance == "exact"
    target = max_num_tokens
    if not single and random() < settings.short_seq_prob:
        target = 2 + int(random() * (max_num_tokens - 1))

    ends = bounds(document)
    num_sentences = len(ends) - 1
    first = 0  # the chunk is sentences `first` to `last` (excluded)
    while first < num_sentences:
        start = ends[first]
        last = first + 2 if single else bisect_left(ends, start + target, first + 1)
        if exact and last < first + 2:
            last = first + 2
        last = min(last, num_sentences)
        end, count = ends[last], last - first

        split_sentence = count == 1 and exact
        if split_sentence:
            if end - start < 2:  # a single token cannot be split
                return
            middle, split = start + 1 + int(random() * (end - start - 1)), last
        else:
            split = first + 1 + (int(random() * (count - 1)) if count > 1 else 0)
            middle = ends[split]

        lone = count == 1 and not exact
        other = lone or random() < 0.5
        a, b = Piece(document, start, middle), Piece(document, middle, end)
        if other and (lone or not swap):
            length = 1 if single else target - (middle - start)
            b = _random_piece(document, length, bounds, originals, rng)
            first = split
        else:
            first = last
            if other:
                a, b = b, a
        yield Instance(_truncate(a, b, max_num_tokens, rng), int(other))


def _random_piece(
    other_than: int, length: int, bounds: Bounds, originals: Sequence[int], rng: Random
) -> Piece:
    """Whole sentences of another document, from a random one on, with at least `length` tokens.

    It has fewer tokens if the document ends before, but at least one sentence. A copy of a document
    does not count as another document.
    """
    num_rejections = 0
    while num_rejections < DRAWS:
        document = int(rng.random() * len(originals))
        if originals[document] != originals[other_than]:
            break
        num_rejections += document == other_than
    ends = bounds(document)
    first = int(rng.random() * (len(ends) - 1))
    last = bisect_left(ends, ends[first] + length, first + 1)
    return Piece(document, ends[first], ends[min(last, len(ends) - 1)])


def _truncate(a: Piece, b: Piece, max_num_tokens: int, rng: Random) -> tuple[Piece, Piece]:
    """Remove tokens from the longer piece (from B if they are equal) until both fit.

    Each token is removed from the front or the back with equal probability. The number removed from
    each piece depends only on the lengths; the number of these from the front is binomial.
    """
    length_a, length_b = a.end - a.start, b.end - b.start
    excess = length_a + length_b - max_num_tokens
    if excess <= 0:
        return a, b
    until_equal = min(excess, abs(length_a - length_b))
    from_a, from_b = (until_equal, 0) if length_a > length_b else (0, until_equal)
    from_a += (excess - until_equal) // 2
    from_b += (excess - until_equal + 1) // 2
    return _remove_tokens(a, from_a, rng), _remove_tokens(b, from_b, rng)


def _remove_tokens(piece: Piece, count: int, rng: Random) -> Piece:
    if count == 0:
        return piece
    front = rng.getrandbits(count).bit_count()
    return Piece(piece.document, piece.start + front, piece.end - (count - front))


def _full_sentences(
    documents: Sequence[int], bounds: Bounds, max_seq_length: int, frame: int
) -> Iterator[Instance]:
    """Fill each sequence with as many whole sentences as fit, one piece per document.

    A sentence that is too long for a sequence is split at the sequence's end. `frame` is the number
    of tokens (0 or 1) before a sequence and after each piece.
    """
    pieces: list[Piece] = []
    room = max_seq_length - frame  # each piece needs its tokens and a [SEP]
    for document in documents:
        ends = bounds(document)
        start = 0
        while start < ends[-1]:
            end = ends[bisect_right(ends, start + room - frame) - 1] if room > frame else start
            if end <= start and not pieces:
                end = start + room - frame
            if end > start:
                pieces.append(Piece(document, start, end))
                room -= end - start + frame
                start = end
            if start < ends[-1]:  # the next sentence does not fit
                yield Instance(tuple(pieces), None)
                pieces, room = [], max_seq_length - frame
    if pieces:
        yield Instance(tuple(pieces), None)
