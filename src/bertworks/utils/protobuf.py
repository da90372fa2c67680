"""The part of protocol buffers' wire format that SentencePiece and TensorFlow files need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field: a varint as int, everything else as bytes.

    Raises:
        ValueError: the message ends too early, or is not valid.
    """
    offset = 0
    while offset < len(data):
        tag, offset = read_varint(data, offset)
        kind = tag & 7
        if kind == 0:
            value, offset = read_varint(data, offset)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, offset = read_varint(data, offset)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"there is no wire type {kind}")
        if offset + size > len(data):
            raise ValueError("it ends too early")
        yield tag >> 3, data[offset : offset + size]
        offset += size


def number_field(field: int, value: int) -> bytes:
    """Encode a field that holds a number."""
    return varint(field << 3) + varint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    """Encode a field that holds bytes, or a nested message."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Encode a number with seven bits per byte, the lowest first."""
    encoded_bytes = bytearray()
    while value >= 0x80:
        encoded_bytes.append(value & 0x7F | 0x80)
        value >>= 7
    encoded_bytes.append(value)
    return bytes(encoded_bytes)


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Decode the number at an offset; return it and the offset after it.

    Raises:
        ValueError: the data end within it, or it has too many bytes for 64 bits.
    """
    value = shift = 0
    while offset < len(data) and shift < 64:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7
    raise ValueError("it ends too early" if shift < 64 else "a number is too long")
