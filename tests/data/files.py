"""Files that the tests of this folder write."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa


def write(path: Path, content: str | bytes) -> Path:
    """Write a file, and return its path."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def zstd(content: bytes) -> bytes:
    """Compress with zstd."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()
