"""Instances against plain code of the original generator, and by their frequencies."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bertworks.errors import SettingsError
from bertworks.tasks.pretraining.instances import Instance, InstanceSettings, Piece, make_instances

PAIR_FORMATS = ("segment-pair", "sentence-pair", "sentence-order")

texts = st.lists(
    st.lists(st.integers(1, 25), min_size=1, max_size=12),  # sentence lengths
    min_size=2,
    max_size=6,
)


def bounds_of(lengths: list[list[int]]) -> Any:
    table = [np.cumsum([0, *document]).tolist() for document in lengths]
    return table.__getitem__


def instances_of(lengths: list[list[int]], seed: int, **values: Any) -> list[Instance]:
    settings_ = InstanceSettings(**values)
    every = range(len(lengths))  # each document is its own original
    return list(make_instances(every, bounds_of(lengths), every, settings_, Random(seed)))


def is_within(share: float, probability: float, draws: int, sigmas: float = 4) -> bool:
    """Whether a share of so many draws lies within its confidence interval."""
    return abs(share - probability) <= sigmas * math.sqrt(probability * (1 - probability) / draws)


# ------------------------------------------------------------------------- the original, retold


class OriginalInstance(NamedTuple):
    a: list[Any]
    b: list[Any]
    not_next: bool


def original(
    documents: list[list[list[Any]]], index: int, max_seq_length: int, short: float, rng: Random
) -> list[OriginalInstance]:
    """The original generator's behaviour, retold with lists of tokens and one loop a token.

    Draws are taken in the same order as the code under test takes them, so that both can be held
    against each other instance by instance.
    """
    room = max_seq_length - 3
    target = room
    if rng.random() < short:
        target = 2 + int(rng.random() * (room - 1))
    sentences = list(documents[index])
    instances = []
    while sentences:
        chunk: list[list[Any]] = []
        while sentences and sum(map(len, chunk)) < target:
            chunk.append(sentences.pop(0))
        in_a = 1
        if len(chunk) > 1:
            in_a = 1 + int(rng.random() * (len(chunk) - 1))
        a = [token for sentence in chunk[:in_a] for token in sentence]
        b: list[Any] = []
        not_next = len(chunk) == 1 or rng.random() < 0.5
        if not_next:
            for _ in range(10):
                other = int(rng.random() * len(documents))
                if other != index:
                    break
            start = int(rng.random() * len(documents[other]))
            for sentence in documents[other][start:]:
                b += sentence
                if len(b) >= target - len(a):
                    break
            sentences = chunk[in_a:] + sentences
        else:
            b = [token for sentence in chunk[in_a:] for token in sentence]
        shorten(a, b, room, rng)
        instances.append(OriginalInstance(a, b, not_next))
    return instances


def shorten(a: list[Any], b: list[Any], room: int, rng: Random) -> None:
    """Drop tokens one at a time; the coins of A's tokens are drawn first, then those of B's."""
    length = {"a": len(a), "b": len(b)}
    turns = []
    while length["a"] + length["b"] > room:
        turns.append("a" if length["a"] > length["b"] else "b")
        length[turns[-1]] -= 1
    coins = {}
    for name in "ab":
        count = turns.count(name)
        word = rng.getrandbits(count) if count else 0
        coins[name] = [bool(word >> bit & 1) for bit in range(count)]
    for name in turns:
        tokens = a if name == "a" else b
        if coins[name].pop():
            del tokens[0]
        else:
            tokens.pop()


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(texts, st.integers(0, 2**32), st.integers(8, 60), st.sampled_from([0.0, 0.1, 1.0]))
def test_segment_pairs_are_those_of_the_original(
    lengths: list[list[int]], seed: int, max_seq_length: int, short: float
) -> None:
    documents = [
        [
            [(number, token) for token in range(start, end)]
            for start, end in pairwise(np.cumsum([0, *document]).tolist())
        ]
        for number, document in enumerate(lengths)
    ]
    rng = Random(seed)
    expected = [
        instance
        for index in range(len(documents))
        for instance in original(documents, index, max_seq_length, short, rng)
    ]
    instances = instances_of(lengths, seed, max_seq_length=max_seq_length, short_seq_prob=short)
    tokens = [
        OriginalInstance(
            *([(p.document, t) for t in range(p.start, p.end)] for p in instance.pieces),
            bool(instance.next_sentence_label),
        )
        for instance in instances
    ]
    assert tokens == expected


# ------------------------------------------------------------------------------------- invariants


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    texts,
    st.integers(0, 2**32),
    st.integers(8, 60),
    st.sampled_from(PAIR_FORMATS),
    st.sampled_from(["original", "exact"]),
)
def test_pairs_fit_and_are_what_their_label_says(
    lengths: list[list[int]], seed: int, max_seq_length: int, format_: str, balance: str
) -> None:
    instances = instances_of(
        lengths, seed, format=format_, max_seq_length=max_seq_length, next_sentence_balance=balance
    )
    is_never_truncated = sum(map(max, lengths)) * 3 <= max_seq_length - 3
    for a, b in (instance.pieces for instance in instances):
        assert a.start < a.end <= sum(lengths[a.document])
        assert b.start < b.end <= sum(lengths[b.document])
    for instance in instances:
        a, b = instance.pieces
        assert instance.num_tokens <= max_seq_length
        if instance.next_sentence_label == 0:
            assert a.document == b.document
            assert a.end <= b.start
            if is_never_truncated:
                assert a.end == b.start
        elif format_ == "sentence-order" and a.document == b.document:
            assert b.end <= a.start or balance == "original"


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(texts, st.integers(0, 2**32))
def test_every_sentence_is_used_once_where_nothing_is_cut(
    lengths: list[list[int]], seed: int
) -> None:
    """Sentences behind a random B come back in a later instance: A's and true B's tile the text."""
    instances = instances_of(lengths, seed, max_seq_length=4 * sum(map(sum, lengths)) + 8)
    pieces_of: dict[int, list[Piece]] = {number: [] for number in range(len(lengths))}
    instance_iterator = iter(instances)
    for number, document in enumerate(lengths):
        while not pieces_of[number] or pieces_of[number][-1].end < sum(document):
            instance = next(instance_iterator)
            a, b = instance.pieces
            pieces_of[number] += [a] if instance.next_sentence_label else [a, b]
        edges = [piece.start for piece in pieces_of[number]] + [pieces_of[number][-1].end]
        assert edges[0] == 0
        assert all(x.end == y.start for x, y in pairwise(pieces_of[number]))
        assert set(edges) <= set(np.cumsum([0, *document]).tolist())
    assert next(instance_iterator, None) is None


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(texts, st.integers(8, 60), st.sampled_from(["full-sentences", "doc-sentences"]))
def test_full_sentences_use_every_token_once_in_order(
    lengths: list[list[int]], max_seq_length: int, format_: str
) -> None:
    instances = instances_of(lengths, 0, format=format_, max_seq_length=max_seq_length)
    pieces = [piece for instance in instances for piece in instance.pieces]
    tokens = [(p.document, t) for p in pieces for t in range(p.start, p.end)]
    assert tokens == [(d, t) for d, document in enumerate(lengths) for t in range(sum(document))]
    assert all(instance.num_tokens <= max_seq_length for instance in instances)
    assert all(instance.next_sentence_label is None for instance in instances)
    if format_ == "doc-sentences":
        assert all(len(instance.pieces) == 1 for instance in instances)
    if max(map(max, lengths)) <= max_seq_length - 2:  # then pieces are whole sentences,
        ends = [set(np.cumsum([0, *document]).tolist()) for document in lengths]
        assert all({p.start, p.end} <= ends[p.document] for p in pieces)
        if format_ == "full-sentences":  # and no sequence had room for the next one
            for instance, following in pairwise(instances):
                p, last = following.pieces[0], instance.pieces[-1]
                longer = min(end for end in ends[p.document] if end > p.start) - p.start
                separator = p.document != last.document
                assert instance.num_tokens + longer + separator > max_seq_length


def test_full_sentences_put_a_separator_between_documents() -> None:
    instances = instances_of([[3, 4], [2], [9]], 0, format="full-sentences", max_seq_length=16)
    assert instances == [
        Instance((Piece(0, 0, 7), Piece(1, 0, 2)), None),  # 1 + (7 + 1) + (2 + 1)
        Instance((Piece(2, 0, 9),), None),
    ]
    assert instances[0].num_tokens == 12


# -------------------------------------------------------------------------------------- the odds


def long_documents(count: int, sentences: int, seed: int = 0) -> list[list[int]]:
    rng = Random(seed)
    return [[rng.randint(5, 45) for _ in range(sentences)] for _ in range(count)]


@pytest.mark.long
def test_one_document_in_ten_is_split_short() -> None:
    """Of very short sentences, a chunk's length shows the target drawn for the document."""
    lengths = [[1] * 300 for _ in range(3000)]
    longest = [0] * len(lengths)
    for (a, b), label in instances_of(lengths, 5, max_seq_length=67):
        if not label:
            longest[a.document] = max(longest[a.document], b.end - a.start)
    short = [length for length in longest if length < 64]
    share_below = 62 / 63  # a short target is uniform over 2 to 64, and may be 64
    assert is_within(len(short) / len(lengths), 0.1 * share_below, len(lengths))
    assert abs(np.mean(short) - 32.5) < 4 * 18 / math.sqrt(len(short))


def test_a_ends_anywhere_and_a_coin_decides_about_b() -> None:
    lengths = [[4] * 2000 for _ in range(20)]
    instances = instances_of(
        lengths, 3, max_seq_length=43, short_seq_prob=0
    )  # chunks of 10 sentences
    assert is_within(np.mean([i.next_sentence_label for i in instances]), 0.5, len(instances))
    ends = Counter(
        (a.end - a.start) // 4
        for (a, b), label in instances
        if label == 0 and b.end - a.start == 40
    )
    total = sum(ends.values())
    assert set(ends) == set(range(1, 10))
    assert all(is_within(count / total, 1 / 9, total) for count in ends.values())


@pytest.mark.long
def test_a_random_b_starts_anywhere_in_any_other_document() -> None:
    lengths = [[10] * (5 + 5 * number) for number in range(8)]
    settings_ = InstanceSettings(max_seq_length=63, short_seq_prob=0)
    documents: Counter[int] = Counter()
    starts: Counter[int] = Counter()
    rng = Random(0)
    for _ in range(5000):
        for (_, b), label in make_instances([0], bounds_of(lengths), range(8), settings_, rng):
            if label:
                documents[b.document] += 1
                starts[b.start] += b.document == 7
    total = sum(documents.values())
    assert set(documents) == set(range(1, 8))
    assert all(is_within(count / total, 1 / 7, total) for count in documents.values())
    # each document is as likely, long or short, and so is each of its sentences
    assert all(
        is_within(starts[10 * number] / documents[7], 1 / 40, documents[7]) for number in range(40)
    )


def test_ten_draws_for_another_document_then_its_own() -> None:
    class ConstantRandom(Random):
        draws = 0

        def random(self) -> float:
            self.draws += 1
            return 0.0  # always document 0, always "not next", never "short" (0 < 0 is false)

    rng = ConstantRandom()
    settings_ = InstanceSettings(short_seq_prob=0, max_seq_length=32)
    (instance,) = make_instances([0], bounds_of([[5], [7]]), range(2), settings_, rng)
    assert instance == Instance((Piece(0, 0, 5), Piece(0, 0, 5)), 1)
    assert rng.draws == 1 + 10 + 1  # short, ten documents, where it starts


def test_a_random_b_is_of_no_copy_of_its_own_document() -> None:
    """However many copies there are: one of 30 documents is not A's or a copy of it."""
    lengths = [[10] * 20] * 30
    originals = [0] * 29 + [29]
    settings_ = InstanceSettings(max_seq_length=63, short_seq_prob=0)
    instances = make_instances(range(29), bounds_of(lengths), originals, settings_, Random(0))
    documents = [b.document for (_, b), label in instances if label]
    assert len(documents) > 50
    assert set(documents) == {29}


def test_b_is_of_its_own_document_if_all_others_are_copies() -> None:
    settings_ = InstanceSettings(max_seq_length=63, short_seq_prob=0)
    instances = make_instances([0, 1], bounds_of([[10] * 20] * 3), [0, 0, 0], settings_, Random(0))
    is_same_document = [a.document == b.document for (a, b), label in instances if label]
    assert is_same_document and all(is_same_document)


def test_truncation_takes_from_front_and_back_alike() -> None:
    lengths = [[40] * 100 for _ in range(200)]
    num_front = num_truncated = 0
    for (a, b), label in instances_of(lengths, 1, max_seq_length=53, short_seq_prob=0):
        assert (a.end - a.start, b.end - b.start) == (25, 25)  # B gives way first, then in turns
        num_front += a.start % 40
        num_truncated += 40 - 25
        if label:
            num_front += b.start % 40
            num_truncated += 40 - 25
    assert is_within(num_front / num_truncated, 0.5, num_truncated)


def test_the_longer_piece_is_truncated_first() -> None:
    """10 and 70 tokens in 40 places: all cuts fall on the longer one."""
    for seed in range(50):
        for (a, b), label in instances_of([[10, 70], [10, 70]], seed, max_seq_length=43):
            if not label and a.end - a.start == 10:
                assert (a.start, a.end) == (0, 10)
                assert b.end - b.start == 30


def test_not_next_is_the_larger_half_in_the_original_and_half_in_exact_balance() -> None:
    lengths = long_documents(200, 60) + [[120] * 30 for _ in range(50)]  # chunks of one sentence
    shares = {}
    for balance in ("original", "exact"):
        for format_ in PAIR_FORMATS:
            instances = instances_of(lengths, 2, format=format_, next_sentence_balance=balance)
            labels = [instance.next_sentence_label for instance in instances]
            shares[balance, format_] = np.mean(labels)
            if balance == "exact":
                assert is_within(np.mean(labels), 0.5, len(labels))
                single_labels = [
                    i.next_sentence_label for i in instances if i.pieces[0].document >= 200
                ]
                assert is_within(np.mean(single_labels), 0.5, len(single_labels))  # whatever A is
    assert 0.54 < shares["original", "segment-pair"] < 0.66
    assert shares["original", "sentence-order"] > 0.54


def test_exact_balance_cuts_a_last_sentence_in_two() -> None:
    instances = [
        instance
        for seed in range(200)
        for instance in instances_of([[12], [7, 1]], seed, next_sentence_balance="exact")
        if instance.pieces[0].document == 0
    ]
    assert {a.start for (a, _), _ in instances} == {0}
    assert {a.end for (a, _), _ in instances} == set(range(1, 12))
    assert all(b == Piece(0, a.end, 12) for (a, b), label in instances if label == 0)
    assert instances_of([[1], [1]], 0, next_sentence_balance="exact") == []


def test_sentence_order_swaps_half_of_them() -> None:
    lengths = long_documents(300, 40)
    instances = instances_of(lengths, 4, format="sentence-order", next_sentence_balance="exact")
    assert all(a.document == b.document for (a, b), _ in instances)
    assert all((a.start > b.start) == bool(label) for (a, b), label in instances)
    assert is_within(np.mean([label for _, label in instances]), 0.5, len(instances))


def test_sentence_pairs_are_single_sentences() -> None:
    lengths = long_documents(50, 40)
    ends = [np.cumsum([0, *document]).tolist() for document in lengths]
    for pieces, label in instances_of(lengths, 4, format="sentence-pair", max_seq_length=128):
        for piece in pieces:
            index = ends[piece.document].index(piece.start)
            assert ends[piece.document][index + 1] == piece.end
        if not label:
            assert pieces[0].end == pieces[1].start


def test_settings_are_strict() -> None:
    with pytest.raises(SettingsError, match="max_seq_length"):
        InstanceSettings.parse({"max_seq_length": 3})
    with pytest.raises(ValidationError):
        InstanceSettings(format="pairs")  # type: ignore[arg-type]  (a wrong name is the point)
