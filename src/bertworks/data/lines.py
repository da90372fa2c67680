"""Numbered lines of text from plain or compressed files, and counts of what was read.

All commands read lines of text with `decode_lines`. It limits the length of a line, so that memory
is bounded whatever the content of a file (also after decompression), and decodes the line.
"""

from __future__ import annotations

import codecs
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from encodings.aliases import aliases
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

from ..errors import DataError, did_you_mean
from ..utils.lazy_module import LazyModule
from ..utils.memory import is_memory_short
from ..utils.remote import open_raw

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")

MAX_LINE_BYTES = 1 << 26
"""The default maximum length of a line."""
ALLOW_MORE = "If that is intended, allow more: --max-line-bytes N (max_line_bytes=N)."

HEAD_BYTES = 1 << 16
"""The bytes that `read_head` reads."""

LINE_SIZE = 64
"""The least that a line counts towards a limit: short lines take more memory than their text."""
Lines: TypeAlias = Iterable[tuple[int, str]]
"""The lines of a file with their numbers, including their line ends."""

_BUFFER = 1 << 20
_Codec: TypeAlias = Literal["gzip", "zstd"]
_MAGIC: dict[bytes, _Codec] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_SUFFIXES: dict[str, _Codec] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
COMPRESSION_SUFFIXES = tuple(_SUFFIXES)
# Kinds of files that are not text, by their first bytes.
_NO_TEXT: dict[bytes, str] = {
    **{magic: f"{name} inside another compression" for magic, name in _MAGIC.items()},
    b"PK\x03\x04": "a ZIP archive, or a workbook such as .xlsx: save its text or table as a file",
    b"\xd0\xcf\x11\xe0": "an office document: save its text or table as a file",
    b"%PDF-": "a PDF: extract its text first",
    b"BZh91AY&SY": "compressed by bzip2: decompress it, or use gzip or zstd",
    b"\xfd7zXZ\0": "compressed by xz: decompress it, or use gzip or zstd",
    b"PAR1": "Parquet: rename it to end in .parquet",
    b"ARROW1\0\0": "an Arrow file: write it as Parquet",
    b"SQLite format 3\0": "an SQLite database: export the table",
}
# Codecs that write text in ASCII, as for names of hosts or in source code: no files have them.
_NOTATIONS = {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "charmap"}
_MARKS = {  # the mark of UTF-32 begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8",
}
_TAR, _TAR_AT = b"ustar", 257


@dataclass(frozen=True, slots=True)
class ExcludedDocument:
    """A document that was dropped because it shares text with evaluation data."""

    where: str  # where it begins
    beginning: str  # its first line, truncated at 80 characters
    shared_sequences: int  # how many of its word sequences are also in the evaluation data
    first_shared: str  # the words of the first shared sequence


@dataclass(slots=True)
class ReadCounts:
    """The counts of a corpus read so far."""

    documents: int = 0  # documents yielded, including copies by weight
    duplicates: int = 0  # documents dropped because their text occurred before
    # documents dropped because they share text with evaluation data
    excluded_documents: list[ExcludedDocument] = field(default_factory=list)
    left_out: int = 0  # documents that a weight below 1 did not select
    empty: int = 0  # documents without any text
    num_splits: int = 0  # how often a too long document was split at a paragraph
    # how much bad input was skipped, by kind
    num_skipped_by_kind: Counter[str] = field(default_factory=Counter)
    # for each kind, the error message of the first skipped one
    first_skipped: dict[str, str] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)  # each file's format, for display
    bytes_read: int = 0  # of the files on disk, before decompression (0 for data sets)
    bytes_total: int = 0

    @property
    def num_skipped(self) -> int:
        return sum(self.num_skipped_by_kind.values())


@dataclass(frozen=True, slots=True)
class Reading:
    """The options and counts that every format's reader gets."""

    counts: ReadCounts = field(default_factory=ReadCounts)  # the readers add to these
    skip_bad: bool = False  # whether bad input is skipped and counted, instead of raising an error
    column: str | None = None  # the text column, if given
    spans: bool = False  # whether to read spans too, in formats that support them
    # a longer document is split at the next paragraph (plain text and WikiExtractor)
    max_document_characters: int = 1 << 23
    encoding: str = "utf-8"  # of text; any of Python's names
    max_line_bytes: int = MAX_LINE_BYTES  # a longer line is bad

    def bad(self, kind: str, what: str, *, where: str, fix: str | None = None) -> None:
        """Count bad input as skipped.

        Raises:
            DataError: `skip_bad` is false.
        """
        error = DataError(what, where=where, fix=fix)
        if not self.skip_bad:
            raise error
        self.counts.num_skipped_by_kind[kind] += 1
        self.counts.first_skipped.setdefault(kind, str(error))


def read_head(path: str) -> bytes:
    """Return the first `HEAD_BYTES` of a file, decompressed.

    Raises:
        DataError: the file cannot be opened, or is damaged.
    """
    try:
        with open_stream(path, ReadCounts()) as stream:
            return stream.read(HEAD_BYTES)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot be read ({reason(error)})", where=path) from None


def read_lines(path: str, reading: Reading) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a plain or compressed file; see `decode_lines`."""
    try:
        with open_stream(path, reading.counts) as stream:
            _check_text(stream.peek(_TAR_AT + len(_TAR)))
            yield from decode_lines(stream, path, reading)
    except (OSError, pa.ArrowException) as error:
        if is_memory_short(error):  # not the file's fault: do not skip it
            raise
        reading.bad("damaged file", f"cannot be read ({reason(error)})", where=path)


def decode_lines(stream: IO[bytes], name: str, reading: Reading) -> Iterator[tuple[int, str]]:
    """Yield the lines of a stream, with their line feeds, numbered from 1.

    Only a line feed ends a line. A byte-order mark at the start is dropped. A line that is too
    long, or not valid in the encoding, is bad alone; after an error of the stream, the rest is bad.

    Args:
        stream: decompressed bytes.
        reading: the encoding, the limit, and whether bad input is skipped.

    Raises:
        DataError: input is bad and not skipped; or there is no such encoding.
    """
    encoding, limit = text_encoding(reading.encoding), reading.max_line_bytes
    # In UTF-16 and similar, bytes do not show where lines end; in ISO 2022, a line depends on those
    # before it.
    if "\n".encode(encoding) != b"\n" or encoding.startswith("iso2022"):
        stream = io.BufferedReader(_InUtf8(stream, encoding), _BUFFER)
        encoding = "utf-8"
    number = 0
    try:
        while raw := stream.readline(limit + 1):
            number += 1
            if len(raw) > limit and not raw.endswith(b"\n"):
                what = f"the line is longer than {limit:,} bytes"
                reading.bad("long line", what, where=f"{name}:{number}", fix=ALLOW_MORE)
                while raw and not raw.endswith(b"\n"):
                    raw = stream.readline(_BUFFER)
                continue
            try:
                line = str(raw, encoding)
            except UnicodeDecodeError as error:
                _report_bad_bytes(f"{name}:{number}", raw, error, encoding, reading)
                continue
            if number == 1:
                line = line.removeprefix("\ufeff")
                if 3 * line.count("\0") > len(line):
                    _report_nulls(f"{name}:1", raw, reading)
                    continue
            yield number, line
    except UnicodeError as error:
        what = f"not {reading.encoding} from here on ({error})"
        reading.bad("damaged file", what, where=f"{name}:{number + 1}")
    except (OSError, pa.ArrowException) as error:
        if is_memory_short(error):
            raise
        what = f"cannot be read further ({reason(error)})"
        reading.bad("damaged file", what, where=f"{name}:{number + 1}")


def text_encoding(name: str) -> str:
    """Return Python's name of a text encoding; UTF-8 with a byte-order mark is UTF-8.

    Raises:
        DataError: there is no such encoding.
    """
    if not _encodes_text(name):
        valid = filter(_encodes_text, ["utf-8", "latin-1", "utf-16", *aliases])
        raise DataError(f"unknown text encoding {name!r}", fix=f"{did_you_mean(name, valid)}.")
    found = codecs.lookup(name).name
    return "utf-8" if found == "utf-8-sig" else found


def _encodes_text(name: str) -> bool:
    """Whether a name is that of a text encoding (the codec base64, for example, is not one)."""
    try:
        "".encode(name)
    except (LookupError, UnicodeError, ValueError):
        return False
    return codecs.lookup(name).name not in _NOTATIONS


def marked_encoding(head: bytes) -> str | None:
    """Return the encoding that a file's byte-order mark shows; None if the file has no mark."""
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    return None


@contextmanager
def open_stream(path: str, counts: ReadCounts) -> Iterator[io.BufferedReader[Any]]:
    """Open a file as a buffered binary stream, decompressed if it is gzip or zstd.

    Compression is detected by the first bytes. Bytes read from disk are added to `counts`.

    Raises:
        OSError: the file cannot be opened, or does not have the compression of its suffix.
    """
    with open_raw(path) as file:
        start = file.read(4)
        file.seek(0)
        codec = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)
        claimed = next((name for end, name in _SUFFIXES.items() if path.endswith(end)), None)
        if claimed and codec != claimed and start:
            raise OSError(f"it is not {claimed}, although its name says so")
        raw = io.BufferedReader(_CountedStream(file, counts), _BUFFER)
        if codec is not None:
            inflated: Any = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec)
            raw = io.BufferedReader(inflated, _BUFFER)
        yield raw


def _check_text(head: bytes) -> None:
    """Check that the first bytes are not those of another kind of file.

    Raises:
        OSError: they are.
    """
    for magic, kind in _NO_TEXT.items():
        if head.startswith(magic):
            raise OSError(f"it is {kind}")
    if head[_TAR_AT:].startswith(_TAR):
        raise OSError("it is a tar archive: unpack it first")


def reason(error: Exception) -> str:
    """The error message of the operating system or Arrow, without its error number and path."""
    text = getattr(error, "strerror", None) or str(error)
    return str(text).splitlines()[0]


class _CountedStream(io.RawIOBase):
    """A raw file that counts the bytes read from it."""

    def __init__(self, file: Any, counts: ReadCounts) -> None:
        self._file, self._counts = file, counts

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer will do
        count: int = self._file.readinto(buffer) or 0
        self._counts.bytes_read += count
        return count


class _InUtf8(io.RawIOBase):
    """Converts a text stream from another encoding to UTF-8."""

    def __init__(self, stream: IO[bytes], encoding: str) -> None:
        self._stream, self._left, self._is_over = stream, b"", False
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer will do
        while not self._left and not self._is_over:
            raw = self._stream.read(1 << 16)
            self._is_over = not raw
            self._left = self._decoder.decode(raw, final=self._is_over).encode()
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


def _report_bad_bytes(
    where: str, raw: bytes, error: UnicodeDecodeError, encoding: str, reading: Reading
) -> None:
    byte = raw[error.start]
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        fix = _name_encoding("utf-16")
    elif b"\0" in raw:
        fix = "It also has null bytes: is it a text file?"
    elif encoding == "utf-8":  # texts have no C1 control characters: cp1252 has quotes there
        fix = _name_encoding("cp1252" if 0x80 <= byte < 0xA0 else "latin-1")
    else:
        fix = None
    what = f"not {encoding.upper()} (byte 0x{byte:02x} at byte {error.start + 1} of the line)"
    reading.bad(f"broken {encoding.upper()}", what, where=where, fix=fix)


def _report_nulls(where: str, raw: bytes, reading: Reading) -> None:
    encoding = "utf-16-be" if raw.startswith(b"\0") else "utf-16-le"
    reading.bad("null bytes", "every other byte is null", where=where, fix=_name_encoding(encoding))


def _name_encoding(likely: str) -> str:
    return f'If it is {likely}, give --encoding {likely} (encoding="{likely}").'


def too_long(what: str, limit: int, where: str) -> DataError:
    """Return the error for an item of several lines that would need too much memory."""
    long = f"the {what} that begins here is longer than {limit:,} characters"
    return DataError(long, where=where, fix=ALLOW_MORE)
