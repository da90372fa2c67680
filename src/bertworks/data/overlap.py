"""Find documents to drop: duplicates, and those that share word sequences with evaluation data.

A network pre-trained on the passages of a test set has misleadingly good results on it. Overlap is
defined as by Brown et al. (2020), appendix C: a document overlaps if it shares 13 consecutive words
with the evaluation data. Case, punctuation and tokenisation do not matter.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ..errors import DataError
from .document_formats import detect_format
from .lines import marked_encoding, read_lines
from .reading import ReadCounts, Reading
from .streams import open_stream, read_head, reason

SEQUENCE_WORDS = 13
"""How many consecutive words two texts must share."""

_WORD = re.compile(r"[^\W_]+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of a word's hash is lost
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


def _texts(file: str, encoding: str) -> list[str]:
    """Return all texts of a file."""
    head = read_head(file)
    if head.startswith(b"PAR1"):
        return list(_parquet_texts(file))
    bom_encoding = marked_encoding(head)
    if bom_encoding is None and encoding != "utf-8":
        try:
            return _decoded_texts(file, "utf-8")
        except DataError:
            return _decoded_texts(file, encoding)
    return _decoded_texts(file, bom_encoding or "utf-8")


def _decoded_texts(file: str, encoding: str) -> list[str]:
    begin = read_head(file).decode(encoding, "replace").lstrip("\ufeff \t\r\n")[:1]
    read = _json_texts if begin in ("{", "[") else _line_texts
    return list(read(file, encoding))


def _parquet_texts(file: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(file).iter_batches():
            for row in batch.to_pylist():
                yield from _strings(row)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot be read ({reason(error)})", where=file) from None


def _json_texts(file: str, encoding: str) -> Iterator[str]:
    """The strings of one JSON value, or of one per line.

    Other content is an error if the file is named as JSON Lines, otherwise it is read as lines.
    """
    with open_stream(file, ReadCounts()) as stream:
        raw = stream.read()
    try:
        content = raw.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError:
        yield from _line_texts(file, encoding)  # says where the error is
        return
    try:
        yield from _strings(json.loads(content))
        return
    except (ValueError, RecursionError):
        pass  # more than one value: one per line
    for number, line in enumerate(content.split("\n"), start=1):
        try:
            value = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            if detect_format(file) != "jsonl":  # text or a table that begins with a bracket
                yield from _line_texts(file, encoding)
                return
            raise DataError(f"not JSON ({error})", where=f"{file}:{number}") from None
        yield from _strings(value)


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


def _line_texts(file: str, encoding: str) -> Iterator[str]:
    """The cells of each line, and the joined lines and columns up to the next empty line."""
    columns: list[list[str]] = []
    lines: list[str] = []
    for _, line in chain(read_lines(file, Reading(encoding=encoding)), [(0, "")]):
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
