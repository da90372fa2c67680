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


def is_invisible(char: str) -> bool:
    """White space, and characters that have no width."""
    return bool(regex.fullmatch(r"\s|\p{Cf}", char))


def apply_merges(symbols: Sequence[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Merge until nothing can be."""
    parts = list(symbols)
    while len(parts) > 1:
        best = min(pairwise(parts), key=lambda p: ranks.get(p, 1 << 60))
        if best not in ranks:
            break
        merged_parts: list[str] = []
        index = 0
        while index < len(parts):
            if tuple(parts[index : index + 2]) == best:
                merged_parts.append("".join(best))
                index += 2
            else:
                merged_parts.append(parts[index])
                index += 1
        parts = merged_parts
    return parts


class ByteLevelOracle:
    """Tokens and offsets of a text."""

    def __init__(self, merges: Sequence[tuple[str, str]]) -> None:
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.cache: dict[str, list[str]] = {}

    def tokenize(self, text: str) -> list[tuple[str, int, int]]:
        """Each token, its first and past-the-last character, the space before it left out."""
        tokens: list[tuple[str, int, int]] = []
        for match in SPLIT.finditer(text):
            owner = [at for at, char in enumerate(match[0]) for _ in char.encode()]
            letters = "".join(LETTERS[byte] for byte in match[0].encode())
            if letters not in self.cache:
                self.cache[letters] = apply_merges(letters, self.ranks)
            position = 0
            for token in self.cache[letters]:
                start = match.start() + owner[position]
                position += len(token)
                end = match.start() + owner[position - 1] + 1
                while start < end and is_invisible(text[start]):
                    start += 1
                while end > start and is_invisible(text[end - 1]):
                    end -= 1
                tokens.append((token, start, end))
        return tokens


def word_oracle(
    merges: Sequence[tuple[str, str]], words: Callable[[str], Sequence[str]], vocabulary: set[str]
) -> Callable[[str], list[str]]:
    """The first GPT's: BPE within words, the last letter of which carries the end of the word."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}

    def tokenize(text: str) -> list[str]:
        tokens: list[str] = []
        for word in words(text):
            parts = apply_merges([*word[:-1], word[-1] + "</w>"], ranks)
            tokens += [part if part in vocabulary else "<unk>" for part in parts]
        return tokens

    return tokenize
