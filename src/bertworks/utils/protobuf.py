"""The part of protocol buffers' wire format that SentencePiece and TensorFlow files need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field: a varint as int, everything else as bytes.

    Raises:
        ValueError: the message ends too early, or is not valid.
    """
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = read_varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = read_varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"there is no wire type {kind}")
        if at + size > len(data):
            raise ValueError("it ends too early")
        yield tag >> 3, data[at : at + size]
        at += size


def number_field(field: int, value: int) -> bytes:
    """Encode a field that holds a number."""
    return varint(field << 3) + varint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    """Encode a field that holds bytes, or a nested message."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Encode a number with seven bits per byte, the lowest first."""
    coded = bytearray()
    while value >= 0x80:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    coded.append(value)
    return bytes(coded)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the number at an offset; return it and the offset after it.

    Raises:
        ValueError: the data end within it, or it has too many bytes for 64 bits.
    """
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("it ends too early" if shift < 64 else "a number is too long")
