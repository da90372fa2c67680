"""Numbered lines of text from plain or compressed files.

All commands read lines of text with `decode_lines`. It limits the length of a line, so that memory
is bounded whatever the content of a file (also after decompression), and decodes the line.
"""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO, ClassVar, TypeAlias

from ..errors import DataError, first_line
from ..utils.memory import is_memory_short
from .reading import ALLOW_MORE, Reading, text_encoding
from .streams import check_text, open_stream

LINE_SIZE = 64
"""The least that a line counts towards a limit: short lines take more memory than their text."""
Lines: TypeAlias = Iterable[tuple[int, str]]
"""The lines of a file with their numbers, including their line ends."""

_BUFFER = 1 << 20
_CHARACTERS = 1 << 20
_MARKS = {  # the mark of UTF-32 begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8",
}


class StandardInput:
    """Standard input, which can be read only once."""

    name: ClassVar[str] = "standard input"
    num_reads: ClassVar[int] = 0
    """How many times this process began to read it."""

    @classmethod
    def lines(cls, reading: Reading) -> Iterator[tuple[int, str]]:
        """Return its numbered lines; see `decode_lines`."""
        cls.num_reads += 1
        return decode_lines(sys.stdin.buffer, cls.name, reading)


def read_lines(path: str, reading: Reading) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a plain or compressed file; see `decode_lines`."""
    try:
        with open_stream(path, reading.counts) as stream:
            check_text(stream)
            yield from decode_lines(stream, path, reading)
    except OSError as error:
        if is_memory_short(error):  # not the file's fault: do not skip it
            raise
        reading.bad("damaged file", f"cannot be read ({first_line(error)})", where=path)


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
                if not line:  # the file has a mark alone
                    continue
                if 3 * line.count("\0") > len(line):
                    _report_nulls(f"{name}:1", raw, reading)
                    continue
            yield number, line
    except UnicodeError as error:
        what = f"not {reading.encoding} from here on ({error})"
        reading.bad("damaged file", what, where=f"{name}:{number + 1}")
    except OSError as error:
        if is_memory_short(error):
            raise
        what = f"cannot be read further ({first_line(error)})"
        reading.bad("damaged file", what, where=f"{name}:{number + 1}")


def first_lines(lines: Lines, count: int) -> list[str]:
    """Return the first lines without their ends; fewer, but two, if they are long."""
    first: list[str] = []
    size = 0
    for _, line in islice(lines, count):
        first.append(line.rstrip("\r\n"))
        size += len(line)
        if size > _CHARACTERS and len(first) > 1:
            break
    return first


def marked_encoding(head: bytes) -> str | None:
    """Return the encoding that a file's byte-order mark shows; None if the file has no mark."""
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    return None


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
