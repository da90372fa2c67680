"""A tokenizer of ours beside an independent one: how many tokens and offsets are not the same."""

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


class Compared(NamedTuple):
    """How many tokens and offsets were compared, and how many of each were not the same."""

    tokens: int = 0
    different: int = 0
    offsets: int = 0
    misplaced: int = 0

    def plus(self, other: Compared) -> Compared:
        return Compared(*(own + more for own, more in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Peer:
    """A tokenizer of ours, and an independent one.

    Attributes:
        tokenizer: ours.
        tokens: a text's tokens, or their ids, by the other.
        misplaced: how many of the tokens and offsets that ours found do not stand where they
            should; None where the other has nothing to say of it.
        tells: whether the other can be asked about a text.
    """

    tokenizer: Tokenizer
    tokens: Callable[[str], Sequence[str] | Sequence[int]] | None
    misplaced: Callable[[str, Sequence[str], Spans], int] | None
    tells: Callable[[str], bool] = lambda _: True


def xquad(data: Path, language: str) -> list[str]:
    tree = json.loads((data / "xquad" / f"xquad.{language}.json").read_text(encoding="utf-8"))
    paragraphs = [p for article in tree["data"] for p in article["paragraphs"]]
    texts = [paragraph["context"] for paragraph in paragraphs]
    return texts + [question["question"] for p in paragraphs for question in p["qas"]]


def compare(peers: Iterable[Peer], texts: Sequence[str]) -> Compared:
    """Count what is not the same in some texts."""
    total = Compared()
    for peer in peers:
        known = [text for text in texts if peer.tells(text)]
        for text, segment in zip(known, peer.tokenizer.segments(known), strict=True):
            ids = segment.input_ids.tolist()
            own = peer.tokenizer.tokens(segment.input_ids)
            if peer.tokens is not None:
                expected = peer.tokens(text)
                by_id = bool(expected) and isinstance(expected[0], int)
                wrong = _differing(ids if by_id else own, expected)
                total = total.plus(Compared(len(expected), wrong))
            if peer.misplaced is not None:
                spans = [(start, end) for start, end in segment.offsets.tolist()]
                wrong = peer.misplaced(text, own, spans)
                total = total.plus(Compared(offsets=len(spans), misplaced=wrong))
    return total


def _differing(own: Sequence[object], expected: Sequence[object]) -> int:
    pairs = zip(own, expected, strict=False)
    return sum(a != b for a, b in pairs) + abs(len(own) - len(expected))


def elsewhere(spans_of: Callable[[str], Spans]) -> Callable[[str, Sequence[str], Spans], int]:
    """Compare offsets with another's."""
    return lambda text, _, spans: _differing(spans, spans_of(text))


def not_there(
    words: Callable[[str], list[str]], letters: Callable[[str], str]
) -> Callable[[str, Sequence[str], Spans], int]:
    """Have another look whether a token is what becomes of the characters that it is said to be.

    Args:
        words: the other's words of a text.
        letters: a token without its marks; "" for one that has no letters.
    """

    def misplaced(text: str, tokens: Sequence[str], spans: Spans) -> int:
        wrong, last = 0, 0
        for token, (start, end) in zip(tokens, spans, strict=True):
            own = letters(token)
            is_there = not own or "".join(words(text[start:end])) == own
            wrong += not (last <= start < end <= len(text) and is_there)
            last = end
        return wrong

    return misplaced
