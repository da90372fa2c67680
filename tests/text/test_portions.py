"""Long texts in portions: the same tokens, and little memory."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.text import segmenter
from bertworks.text.definition import AddedPiece
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.wordpiece import WordPieceDefinition

pytestmark = pytest.mark.light

PARTS = [
    *(
        "a",
        "ab",
        "Ba",
        "a" * 30,
        "ab9",
        " ",
        "  ",
        "\t",
        "\0",
        ".",
        "'",
        "!?",
        "-",
        "中",
        "文",
        "。",
    ),
    *("Σ", "ΟΔΟΣ", "α", "é", "e\u0301", "\u0301", "\u0323", "\u200b", "\U0002b820", "한", "İ", "ﬁ"),
]
PIECES = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a", "b", "##b", "##9", ".", "'", "!"),
    *("-", "中", "。", "e", "é", "ο", "##δ", "##ο", "##ς", "##σ", "σ", "ς", "α"),
]


def tokenizer_with_added_pieces(*added_pieces: AddedPiece) -> Tokenizer:
    return Tokenizer(WordPieceDefinition(PIECES, added_pieces, max_word_characters=20))


TOKENIZERS = [
    tokenizer_with_added_pieces(),
    Tokenizer.from_vocabulary(PIECES, lowercase=False, max_word_characters=3),
    tokenizer_with_added_pieces(AddedPiece("ab")),
    tokenizer_with_added_pieces(AddedPiece("a.", lstrip=True)),
]


@pytest.fixture
def short_portions() -> Iterator[None]:
    before = segmenter.LONGEST, segmenter._CHUNK_CHARACTERS, segmenter._LONG_WORD
    yield
    segmenter.LONGEST, segmenter._CHUNK_CHARACTERS, segmenter._LONG_WORD = before


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.sampled_from(PARTS)).map("".join), max_size=3), st.integers(1, 40))
@pytest.mark.usefixtures("short_portions")
def test_the_tokens_are_those_of_the_whole(texts: list[str], longest: int) -> None:
    for tokenizer in TOKENIZERS:
        segmenter.LONGEST, segmenter._CHUNK_CHARACTERS = 1 << 30, 1 << 30
        whole, ids = tokenizer.segments(texts), tokenizer.piece_ids(texts)
        segmenter.LONGEST, segmenter._CHUNK_CHARACTERS = longest, 3 * longest
        segmenter._LONG_WORD = re.compile(f"[A-Za-z0-9]{{{longest},}}")
        for one, two in zip(whole, tokenizer.segments(texts), strict=True):
            for name in ("input_ids", "offsets", "word_ids"):
                np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
                assert getattr(two, name).dtype == np.int32
        for own, other in zip(ids, tokenizer.piece_ids(texts), strict=True):
            np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize("longest", [1, 2, 3])  # four portions, three, and two
def test_text_in_a_few_portions_has_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    monkeypatch.setattr(segmenter, "LONGEST", longest)
    (segment,) = TOKENIZERS[0].segments(["a ab a."])
    assert TOKENIZERS[0].tokens(segment.input_ids) == ["a", "a", "##b", "a", "."]
    assert segment.offsets.tolist() == [[0, 1], [2, 3], [3, 4], [5, 6], [6, 7]]
    assert segment.word_ids.tolist() == [0, 1, 1, 2, 3]


def test_a_typed_mask_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmenter, "LONGEST", 2)
    (segment,) = TOKENIZERS[0].segments(["a a [MASK] a."], typed_mask=True)
    assert TOKENIZERS[0].tokens(segment.input_ids) == ["a", "a", "[MASK]", "a", "."]


def test_an_added_piece_of_ideographs_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmenter, "LONGEST", 1)
    tokenizer = tokenizer_with_added_pieces(AddedPiece("中文"))
    (segment,) = tokenizer.segments(["a中文"])
    assert tokenizer.tokens(segment.input_ids) == ["a", "中文"]


def test_long_texts_are_cut() -> None:
    breaks = TOKENIZERS[0].definition.breaks
    text = "word " * 100_000
    parts = list(segmenter.portions([text], breaks, 200))
    assert "".join(str(part.text) for part in parts) == text
    assert max(len(part.text) for part in parts) < segmenter.LONGEST + 10
    (part,) = segmenter.portions(["x" * 10_000_000], breaks, 200)
    assert len(part.text) == 201
    assert sum(len(part.text) for part in segmenter.portions([text], None, 200)) > segmenter.LONGEST


MEMORY = """
import sys
from bertworks.text.tokenizer import Tokenizer
tokenizer = Tokenizer.load(sys.argv[1])
def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) >> 10
before = peak()
tokens = sum(map(len, tokenizer.piece_ids(["a word. " * (1 << 18)])))
print(tokens, peak() - before)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_long_text_needs_little_memory(tmp_path: Path) -> None:
    """2 MB as one text took 220 MB."""
    TOKENIZERS[0].save(tmp_path)
    process = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path], capture_output=True, text=True, check=True
    )
    tokens, megabytes = map(int, process.stdout.split())
    assert tokens == 3 << 18
    assert megabytes < 100
