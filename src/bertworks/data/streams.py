"""The bytes of files: local or remote, decompressed, and counted."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ..errors import DataError, first_line
from ..utils.remote import open_raw
from .reading import ReadCounts

HEAD_BYTES = 1 << 16
"""The bytes that `read_head` reads."""

_BUFFER = 1 << 20
_PART = 1 << 16  # of a compressed file: what is left of a larger one is copied at each call
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
    b"version https://git-lfs": "a pointer of Git LFS: get the file with git lfs pull",
}
_TAR, _TAR_AT = b"ustar", 257


@contextmanager
def open_stream(path: str, counts: ReadCounts) -> Iterator[io.BufferedReader[Any]]:
    """Open a file as a buffered binary stream, decompressed if it is gzip or zstd.

    Compression is detected by the first bytes. Bytes read from disk are added to `counts`.

    Raises:
        OSError: the file cannot be opened, or does not have the compression of its suffix; raised
            by the stream too if the file is damaged.
    """
    with open_raw(path) as file:
        start = file.read(4)
        file.seek(0)
        codec = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)
        claimed = next((name for end, name in _SUFFIXES.items() if path.endswith(end)), None)
        if claimed and codec != claimed and start:
            raise OSError(f"it is not {claimed}, although its name says so")
        raw: io.BufferedReader[Any] = io.BufferedReader(_CountedStream(file, counts), _BUFFER)
        if codec is not None:
            raw = io.BufferedReader(_Gzip(raw) if codec == "gzip" else _Zstandard(raw), _BUFFER)
        yield raw


def read_head(path: str) -> bytes:
    """Return the first `HEAD_BYTES` of a file, decompressed.

    Raises:
        DataError: the file cannot be opened, or is damaged.
    """
    try:
        with open_stream(path, ReadCounts()) as stream:
            return stream.read(HEAD_BYTES)
    except OSError as error:
        raise DataError(f"cannot be read ({first_line(error)})", where=path) from None


def check_text(stream: io.BufferedReader[Any]) -> None:
    """Check that the first bytes are not those of another kind of file.

    Raises:
        OSError: they are.
    """
    head = stream.peek(_TAR_AT + len(_TAR))
    for magic, kind in _NO_TEXT.items():
        if head.startswith(magic):
            raise OSError(f"it is {kind}")
    if head[_TAR_AT:].startswith(_TAR):
        raise OSError("it is a tar archive: unpack it first")


def suffix_of(path: str) -> str:
    """Return the last suffix of a file's name, in lower case, that is not one of compression."""
    suffixes = [part.lower() for part in ["", *Path(path).suffixes]]
    return [part for part in suffixes if part not in COMPRESSION_SUFFIXES][-1]


class _Readable(io.RawIOBase):
    def readable(self) -> bool:
        return True


class _CountedStream(_Readable):
    """A raw file that counts the bytes read from it."""

    def __init__(self, file: Any, counts: ReadCounts) -> None:
        self._file, self._counts = file, counts

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer will do
        count: int = self._file.readinto(buffer) or 0
        self._counts.bytes_read += count
        return count


class _Gzip(_Readable):
    """The content of a gzip file, of one or several members.

    `gzip.GzipFile` takes a sixth more time.
    """

    def __init__(self, file: io.BufferedReader[Any]) -> None:
        self._file, self._rest, self._member = file, b"", _gzip_member()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer will do
        part = b""
        while not part:
            raw = self._rest or self._file.read1(_PART)
            if self._member.eof:
                if not raw:
                    return 0
                self._rest = raw = raw.lstrip(b"\0")  # padding, as on tapes
                if not raw:
                    continue
                self._member = _gzip_member()
            if not raw:
                raise OSError("its compressed content has no end")
            try:
                part = self._member.decompress(raw, len(buffer))
            except zlib.error as error:
                raise OSError(str(error)) from None
            self._rest = self._member.unconsumed_tail or self._member.unused_data
        buffer[: len(part)] = part
        return len(part)


def _gzip_member() -> Any:
    return zlib.decompressobj(zlib.MAX_WBITS | 16)


class _Zstandard(_Readable):
    """The content of a zstd file. Python has no codec for it before 3.14: Arrow's is used."""

    def __init__(self, file: io.BufferedReader[Any]) -> None:
        import pyarrow as pa

        self._stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
        self._error = pa.ArrowException

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer will do
        try:
            return int(self._stream.readinto(buffer))
        except self._error as error:
            raise OSError(str(error)) from None
