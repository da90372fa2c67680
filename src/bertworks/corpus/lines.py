"""Lines of text from a file, plain or compressed, with their numbers; and what a read has met."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Literal, TypeAlias

import pyarrow as pa

from ..errors import DataError

_BUFFER = 1 << 20
_Codec: TypeAlias = Literal["gzip", "zstd"]
_MAGIC: dict[bytes, _Codec] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_SUFFIXES: dict[str, _Codec] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}


@dataclass(frozen=True, slots=True)
class ExcludedDocument:
    """A document that was dropped because it shares text with evaluation data.

    Attributes:
        where: where it begins.
        beginning: its first line, at most 80 characters.
        shared_sequences: how many of its word sequences the evaluation data has too.
        first_shared: the words of the first of them.
    """

    where: str
    beginning: str
    shared_sequences: int
    first_shared: str


@dataclass(slots=True)
class ReadCounts:
    """What a read of a corpus has met so far.

    Attributes:
        documents: documents handed out, copies by weight included.
        duplicates: documents dropped because their text had come before.
        excluded: documents dropped because they share text with evaluation data.
        left_out: documents that a weight below 1 (or its fraction) did not draw.
        empty: documents without any text.
        cut: how often a document was cut at a paragraph because it had grown too long.
        skipped: how many bad things were skipped, by kind.
        first_skipped: the first of each kind: the error it would have been.
        formats: what each file was read as, for people.
        bytes_read, bytes_total: of the files as they lie on disk (data sets count nothing).
    """

    documents: int = 0
    duplicates: int = 0
    excluded: list[ExcludedDocument] = field(default_factory=list)
    left_out: int = 0
    empty: int = 0
    cut: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    first_skipped: dict[str, str] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)
    bytes_read: int = 0
    bytes_total: int = 0

    @property
    def num_skipped(self) -> int:
        return sum(self.skipped.values())


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read, and where to count: what every format's reader is given.

    Attributes:
        counts: what is added to.
        skip_bad: whether bad things are skipped and counted, rather than errors.
        column: the column of the text, if named.
        spans: whether spans are read beside the text, where a format has room for them.
        max_document_characters: plain text that runs on longer without a document's end is cut
            at the next paragraph.
    """

    counts: ReadCounts
    skip_bad: bool = False
    column: str | None = None
    spans: bool = False
    max_document_characters: int = 1 << 23

    def bad(self, kind: str, what: str, *, where: str, fix: str | None = None) -> None:
        """Count something bad as skipped.

        Raises:
            DataError: bad things are not to be skipped.
        """
        error = DataError(what, where=where, fix=fix)
        if not self.skip_bad:
            raise error
        self.counts.skipped[kind] += 1
        self.counts.first_skipped.setdefault(kind, str(error))


def read_head(path: str) -> bytes:
    """The first 64 KiB of a file, decompressed.

    Raises:
        DataError: the file cannot be opened, or is damaged.
    """
    try:
        with open_stream(path, ReadCounts()) as stream:
            return stream.read(1 << 16)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot be read ({reason(error)})", where=path) from None


def read_lines(path: str, reading: Reading) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file, each with its number from 1, its line feed still on.

    Lines end with a line feed alone. A byte-order mark at the start is dropped. A line that is
    not UTF-8 is bad by itself; a stream that breaks off is bad from there on.

    Raises:
        DataError: something is bad and not to be skipped.
    """
    number = 0
    try:
        with open_stream(path, reading.counts) as stream:
            for raw in stream:
                number += 1
                try:
                    line = str(raw, "utf-8")
                except UnicodeDecodeError as error:
                    _report_bad_bytes(path, number, raw, error, reading)
                    continue
                yield number, line.removeprefix("\ufeff") if number == 1 else line
    except (OSError, pa.ArrowException) as error:
        reading.bad(
            "damaged file",
            f"cannot be read further ({reason(error)})",
            where=f"{path}:{number + 1}",
        )


@contextmanager
def open_stream(path: str, counts: ReadCounts) -> Iterator[IO[bytes]]:
    """A buffered binary stream of the file's content, decompressed if gzip or zstd.

    Compression is told by the first bytes. The bytes read from disk are added to `counts`.

    Raises:
        OSError: the file cannot be opened, or its suffix claims a compression that it has not.
    """
    with open(path, "rb", buffering=0) as file:
        start = file.read(4)
        file.seek(0)
        codec = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)
        claimed = next((name for end, name in _SUFFIXES.items() if path.endswith(end)), None)
        if claimed and codec != claimed and start:
            raise OSError(f"it is not {claimed}, as its name says")
        raw = io.BufferedReader(_Counted(file, counts), _BUFFER)
        if codec is None:
            yield raw
            return
        inflated: Any = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec)
        yield io.BufferedReader(inflated, _BUFFER)


def reason(error: Exception) -> str:
    """What the operating system or Arrow says, without its error number and path."""
    text = getattr(error, "strerror", None) or str(error)
    return str(text).splitlines()[0]


class _Counted(io.RawIOBase):
    """A raw file that counts the bytes read from it."""

    def __init__(self, file: io.FileIO, counts: ReadCounts) -> None:
        self._file, self._counts = file, counts

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer will do
        count = self._file.readinto(buffer) or 0
        self._counts.bytes_read += count
        return count


def _report_bad_bytes(
    path: str, number: int, raw: bytes, error: UnicodeDecodeError, reading: Reading
) -> None:
    fix = None
    if number == 1 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        fix = "It looks like UTF-16: convert it to UTF-8."
    reading.bad(
        "broken UTF-8",
        f"not UTF-8 (byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line)",
        where=f"{path}:{number}",
        fix=fix,
    )
