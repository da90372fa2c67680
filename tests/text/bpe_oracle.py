"""Byte-level BPE in plain Python, from its published description: an oracle, slow and simple.

Radford et al. (2019), §2.2: text is split by a pattern, each part becomes bytes, and the pair of
neighbours that was learned first is merged until no learned pair is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import regex

SPLIT = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def byte_letters() -> list[str]:
    """A visible letter for each byte: itself where it is visible, else the next free one."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    free = iter(range(256, 512))
    return [chr(byte if byte in visible else next(free)) for byte in range(256)]


LETTERS = byte_letters()


def unseen(char: str) -> bool:
    """White space, and characters that have no width."""
    return bool(regex.fullmatch(r"\s|\p{Cf}", char))


def merged(symbols: Sequence[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Merge until nothing can be."""
    parts = list(symbols)
    while len(parts) > 1:
        best = min(pairwise(parts), key=lambda p: ranks.get(p, 1 << 60))
        if best not in ranks:
            break
        joined: list[str] = []
        at = 0
        while at < len(parts):
            if tuple(parts[at : at + 2]) == best:
                joined.append("".join(best))
                at += 2
            else:
                joined.append(parts[at])
                at += 1
        parts = joined
    return parts


class ByteLevelOracle:
    """Tokens and offsets of a text."""

    def __init__(self, merges: Sequence[tuple[str, str]]) -> None:
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.known: dict[str, list[str]] = {}

    def tokenize(self, text: str) -> list[tuple[str, int, int]]:
        """Each token, its first and past-the-last character, the space before it left out."""
        found: list[tuple[str, int, int]] = []
        for match in SPLIT.finditer(text):
            owner = [at for at, char in enumerate(match[0]) for _ in char.encode()]
            letters = "".join(LETTERS[byte] for byte in match[0].encode())
            if letters not in self.known:
                self.known[letters] = merged(letters, self.ranks)
            done = 0
            for token in self.known[letters]:
                start = match.start() + owner[done]
                done += len(token)
                end = match.start() + owner[done - 1] + 1
                while start < end and unseen(text[start]):
                    start += 1
                while end > start and unseen(text[end - 1]):
                    end -= 1
                found.append((token, start, end))
        return found


def word_oracle(
    merges: Sequence[tuple[str, str]], words: Callable[[str], list[str]], known: set[str]
) -> Callable[[str], list[str]]:
    """The first GPT's: BPE within words, the last letter of which carries the end of the word."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}

    def tokenize(text: str) -> list[str]:
        found: list[str] = []
        for word in words(text):
            parts = merged([*word[:-1], word[-1] + "</w>"], ranks)
            found += [part if part in known else "<unk>" for part in parts]
        return found

    return tokenize
