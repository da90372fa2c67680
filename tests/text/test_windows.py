from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.errors import DataError
from bertworks.text.encoding import Encoding
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.windows import most_context, segment_windows

pytestmark = pytest.mark.light

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##d", "?"]
TOKENIZER = Tokenizer.from_vocabulary(PIECES)
LETTERS = st.text(st.sampled_from("abcd ?"), max_size=40)


def windows(*texts: str | list[str], max_length: int, stride: int) -> list[Encoding]:
    segments = TOKENIZER.segments(list(texts))
    return segment_windows(TOKENIZER, *segments, max_length=max_length, stride=stride)


@given(text=LETTERS, room=st.integers(1, 9), data=st.data())
def test_windows_hold_every_token_with_its_offsets(text, room, data):
    stride = data.draw(st.integers(1, room))
    whole = TOKENIZER.encode(text)
    text_windows = windows(text, max_length=room + 2, stride=stride)
    positions = []
    for number, window in enumerate(text_windows):
        inner = slice(number * stride + 1, number * stride + window.num_tokens - 1)
        assert window.num_tokens <= room + 2
        assert window.input_ids[1:-1].tolist() == whole.input_ids[inner].tolist()
        assert window.offsets[1:-1].tolist() == whole.offsets[inner].tolist()
        assert window.word_ids[1:-1].tolist() == whole.word_ids[inner].tolist()
        assert window.truncated_tokens == 0
        positions += range(inner.start, inner.stop)
        if number < len(text_windows) - 1:
            assert window.num_tokens == room + 2
            assert inner.stop < whole.num_tokens - 1  # else the next one would hold nothing new
    assert sorted(set(positions)) == list(range(1, whole.num_tokens - 1))


def test_second_text_of_a_pair_is_split_into_windows():
    text_windows = windows("a?", "a b c a b", max_length=8, stride=2)
    assert [TOKENIZER.tokens(window.input_ids) for window in text_windows] == [
        ["[CLS]", "a", "?", "[SEP]", "a", "b", "c", "[SEP]"],
        ["[CLS]", "a", "?", "[SEP]", "c", "a", "b", "[SEP]"],
    ]
    assert text_windows[1].offsets[4:7].tolist() == [[4, 5], [6, 7], [8, 9]]
    assert text_windows[1].word_ids[4:7].tolist() == [2, 3, 4]
    assert text_windows[1].token_type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_words_are_split_into_windows():
    text_windows = windows(["ad", "b", "cd"], max_length=5, stride=3)
    assert [window.word_ids.tolist() for window in text_windows] == [
        [-1, 0, 0, 1, -1],
        [-1, 2, 2, -1],
    ]
    assert text_windows[1].offsets.tolist() == [[0, 0], [0, 1], [1, 2], [0, 0]]


def test_an_empty_text_is_one_window():
    assert [w.num_tokens for w in windows("", max_length=8, stride=4)] == [2]
    assert [w.num_tokens for w in windows("a", "", max_length=8, stride=4)] == [4]
    assert [w.num_tokens for w in windows("a b", "", max_length=5, stride=4)] == [5]
    with pytest.raises(DataError, match="no room for a window next to the first text's 2 tokens"):
        windows("a b", "", max_length=4, stride=4)


def test_a_text_that_fits_needs_no_stride():
    assert len(windows("a b", max_length=512, stride=1000)) == 1
    assert len(windows("a b c", max_length=5, stride=1000)) == 1


@pytest.mark.parametrize(
    ("pair", "max_length", "stride", "message"),
    [
        (None, 2, 1, "max_length=2 has no room for a window. Give"),
        ("b", 7, 1, "no room for a window next to the first text's 5 tokens"),
        (None, 5, 4, "stride=4 is not between 1 and the 3 tokens of a window"),
        (None, 5, 0, "stride=0 is not between 1 and the 3 tokens"),
    ],
)
def test_impossible_windows_are_refused(pair, max_length, stride, message):
    with pytest.raises(DataError, match=message):
        windows(
            "a a a a a", *([] if pair is None else [pair]), max_length=max_length, stride=stride
        )


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 4), max_size=6)), max_size=5))
def test_each_part_is_seen_by_the_window_with_the_most_context(given_windows):
    """By the definition, part by part; of equals the first window."""
    total = max((start + len(context) for start, context in given_windows), default=0)
    window_of_part = most_context(
        [(start, np.array(context)) for start, context in given_windows], total
    )
    for part in range(total):
        candidates = [
            (-context[part - start], number)
            for number, (start, context) in enumerate(given_windows)
            if start <= part < start + len(context)
        ]
        assert window_of_part[part] == (min(candidates)[1] if candidates else 0)
