"""Find documents to drop: duplicates, and those that share word sequences with evaluation data.

A network pre-trained on the passages of a test set has misleadingly good results on it. Overlap is
defined as by Brown et al. (2020), appendix C: a document overlaps if it shares 13 consecutive words
with the evaluation data. Case, punctuation and tokenisation do not matter.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ..errors import DataError
from ..settings.literals import DataFormat
from .formats import detect_file_format
from .lines import Lines, marked_encoding, read_lines
from .parquet import read_parquet
from .reading import Reading
from .record_formats import parse_document, read_json_lines
from .streams import read_head, suffix_of

SEQUENCE_WORDS = 13
"""How many consecutive words two texts must share."""

_WORD = re.compile(r"[^\W_]+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of a word's hash is lost
_MAX_BYTES = 1 << 30  # of a line, or of a JSON document
_MAX_WORDS = 1 << 21  # how many words' hashes are cached


@dataclass(frozen=True, slots=True)
class Overlap:
    """The overlap of a document with the evaluation data."""

    sequences: int  # how many of its sequences of 13 words are shared
    words: str  # the first shared sequence


class SharedSequences:
    """The sequences of 13 words in evaluation files, with which documents are compared.

    Files may be tables (TSV, CSV, JSON Lines, Parquet), SQuAD's JSON, CoNLL's columns or plain
    text, also compressed. Every text in them counts: each cell, and the lines and the columns up to
    the next empty line. Texts of fewer than 13 words cannot be recognised.

    Args:
        files: the evaluation files. Their encoding is that of their byte-order mark, or UTF-8.
        encoding: of files that are neither.

    Attributes:
        digest: identifies the set of sequences.

    Raises:
        DataError: a file cannot be read, or has no text of 13 words.
    """

    def __init__(self, files: Sequence[str | os.PathLike[str]], *, encoding: str = "utf-8") -> None:
        self._words = _WordHashes()
        parts = []
        for path in files:
            file = os.fspath(path)
            some = [self._sequences(_WORD.findall(text.lower())) for text in _texts(file, encoding)]
            if not any(map(len, some)):
                raise DataError(
                    f"no text of {SEQUENCE_WORDS} words to compare documents with", where=file
                )
            parts.append(np.unique(np.concatenate(some)))
        self._hashes = np.unique(np.concatenate(parts))
        self.digest = hashlib.blake2b(self._hashes.tobytes(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, text: str) -> Overlap | None:
        """Compare a document; None if it shares no sequence."""
        words = _WORD.findall(text.lower())
        hashes = self._sequences(words)
        at = np.searchsorted(self._hashes, hashes)
        matches = np.flatnonzero(self._hashes[np.minimum(at, len(self) - 1)] == hashes)
        if not len(matches):
            return None
        start = int(matches[0])
        return Overlap(len(matches), " ".join(words[start : start + SEQUENCE_WORDS]))

    def _sequences(self, words: list[str]) -> np.ndarray:
        """A hash of every 13 consecutive words, `[words - 12]` uint64."""
        count = len(words) - SEQUENCE_WORDS + 1
        if count < 1:
            return np.empty(0, np.uint64)
        hashes = self._words.hashes(words)
        total = np.zeros(count, np.uint64)
        for start in range(SEQUENCE_WORDS):
            total = total * _FACTOR + hashes[start : start + count]
        return total


class _WordHashes(dict[str, int]):
    """64-bit hashes of words, the same in every process, in a cache of bounded size."""

    def hashes(self, words: list[str]) -> np.ndarray:
        if len(self) > _MAX_WORDS:
            self.clear()
        return np.fromiter(map(self.__getitem__, words), np.uint64, len(words))

    def __missing__(self, word: str) -> int:
        digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self[word] = value = int.from_bytes(digest, "little")
        return value


def _texts(file: str, encoding: str) -> Iterable[str]:
    """Return all texts of a file, each once."""
    bom_encoding = marked_encoding(read_head(file))
    if bom_encoding is None and encoding != "utf-8":
        with suppress(DataError):  # if it is not UTF-8, the next attempt raises its own error
            return dict.fromkeys(_decoded_texts(file, "utf-8"))
    return dict.fromkeys(_decoded_texts(file, bom_encoding or encoding))


def _decoded_texts(file: str, encoding: str) -> Iterator[str]:
    """The strings in a file's records; of lines of text, what they may mean."""
    reading = Reading(encoding=encoding, max_line_bytes=_MAX_BYTES)
    format: DataFormat = "text"
    with suppress(DataError):  # not a table: whatever its lines are, they are compared
        format = detect_file_format(file, reading)
    lines = partial(read_lines, file, reading)
    if format == "json":
        try:
            yield from _strings(parse_document(lines(), file, reading))
            return
        except DataError:
            if suffix_of(file) == ".json":
                raise  # else it is text or a table that begins with a bracket
    if format == "jsonl":
        records = read_json_lines(lines(), file, reading)
    elif format == "parquet":
        records = read_parquet(file, reading)
    else:
        yield from _line_texts(lines())
        return
    for record in records:
        yield from _strings(record.values)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            yield " ".join(value)  # a sentence as a list of words
        for item in value:
            yield from _strings(item)


def _line_texts(all_lines: Lines) -> Iterator[str]:
    """The cells of each line, and the joined lines and columns up to the next empty line."""
    columns: list[list[str]] = []
    lines: list[str] = []
    for _, line in chain(all_lines, [(0, "")]):
        cells = line.rstrip("\r\n").split("\t")
        if not line.strip():
            yield from {" ".join(part) for part in (*columns, lines)}
            columns, lines = [], []
            continue
        if len(cells) == 1:
            lines.append(line)
            if len(words := line.split()) in range(2, 6):
                cells = words  # CoNLL's columns, separated by spaces; or a short line, read as both
        yield from cells
        columns += [[] for _ in cells[len(columns) :]]
        for column, cell in zip(columns, cells, strict=False):
            column.append(cell)


_FEW = 1 << 16


class SeenTexts:
    """A growing set of texts, stored as 128-bit digests.

    Most are in a sorted array, 16 bytes each. The newest (at most a quarter, or 65,536) are in a
    Python set until they are merged into the array.
    """

    def __init__(self) -> None:
        self._sorted = np.empty(0, "S16")
        self._newest: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._newest)

    def add(self, text: str) -> bool:
        """Add a text; return whether it is new."""
        # NumPy's fixed-length byte strings drop zeros at the end.
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest().rstrip(b"\0")
        if digest in self._newest:
            return False
        at = int(np.searchsorted(self._sorted, np.bytes_(digest)))
        if at < len(self._sorted) and self._sorted[at] == digest:
            return False
        self._newest.add(digest)
        if len(self._newest) > max(_FEW, len(self._sorted) // 4):
            newest = np.fromiter(self._newest, "S16", len(self._newest))
            self._sorted = np.sort(np.concatenate((self._sorted, newest)))
            self._newest = set()
        return True
