"""Compares a tokenizer of ours with an independent one: counts tokens and offsets that differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bertworks.text.tokenizer import Tokenizer

LANGUAGES = ("ar", "de", "en", "hi", "th", "zh")
SAMPLE = 7
"""Every text takes minutes: the quick tests and `docs/families.md` take each seventh."""
Spans = list[tuple[int, int]]


class ComparisonCounts(NamedTuple):
    """How many tokens and offsets were compared, and how many of each differ."""

    tokens: int = 0
    different: int = 0
    offsets: int = 0
    misplaced_offsets: int = 0

    def plus(self, other: ComparisonCounts) -> ComparisonCounts:
        return ComparisonCounts(*(own + more for own, more in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Peer:
    """A tokenizer of ours, and an independent one.

    Attributes:
        tokenizer: ours.
        tokens: a text's tokens, or their ids, by the other.
        count_misplaced: how many of our tokens have wrong offsets; None if the other cannot judge
            offsets.
        supports: whether the other can tokenize a text.
    """

    tokenizer: Tokenizer
    tokens: Callable[[str], Sequence[str] | Sequence[int]] | None
    count_misplaced: Callable[[str, Sequence[str], Spans], int] | None
    supports: Callable[[str], bool] = lambda _: True


def xquad(data: Path, language: str) -> list[str]:
    tree = json.loads((data / "xquad" / f"xquad.{language}.json").read_text(encoding="utf-8"))
    paragraphs = [p for article in tree["data"] for p in article["paragraphs"]]
    texts = [paragraph["context"] for paragraph in paragraphs]
    return texts + [question["question"] for p in paragraphs for question in p["qas"]]


def compare(peers: Iterable[Peer], texts: Sequence[str]) -> ComparisonCounts:
    """Count the tokens and offsets of texts that differ."""
    total = ComparisonCounts()
    for peer in peers:
        supported = [text for text in texts if peer.supports(text)]
        for text, segment in zip(supported, peer.tokenizer.segments(supported), strict=True):
            ids = segment.input_ids.tolist()
            own = peer.tokenizer.tokens(segment.input_ids)
            if peer.tokens is not None:
                expected = peer.tokens(text)
                by_id = bool(expected) and isinstance(expected[0], int)
                wrong = _differing(ids if by_id else own, expected)
                total = total.plus(ComparisonCounts(len(expected), wrong))
            if peer.count_misplaced is not None:
                spans = [(start, end) for start, end in segment.offsets.tolist()]
                wrong = peer.count_misplaced(text, own, spans)
                total = total.plus(ComparisonCounts(offsets=len(spans), misplaced_offsets=wrong))
    return total


def _differing(own: Sequence[object], expected: Sequence[object]) -> int:
    pairs = zip(own, expected, strict=False)
    return sum(a != b for a, b in pairs) + abs(len(own) - len(expected))


def compare_offsets(spans_of: Callable[[str], Spans]) -> Callable[[str, Sequence[str], Spans], int]:
    """Count the offsets that differ from those of another tokenizer."""
    return lambda text, _, spans: _differing(spans, spans_of(text))


def compare_words(
    words: Callable[[str], Sequence[str]], letters: Callable[[str], str]
) -> Callable[[str, Sequence[str], Spans], int]:
    """Count the tokens that are not what the characters at their offsets normalize to.

    Args:
        words: the words of a text by the other.
        letters: a token without its marks; "" for one that has no letters.
    """

    def count_misplaced(text: str, tokens: Sequence[str], spans: Spans) -> int:
        wrong, last = 0, 0
        for token, (start, end) in zip(tokens, spans, strict=True):
            own = letters(token)
            is_there = not own or "".join(words(text[start:end])) == own
            wrong += not (last <= start < end <= len(text) and is_there)
            last = end
        return wrong

    return count_misplaced
