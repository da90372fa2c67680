"""The wire format of protocol buffers: what SentencePiece's and TensorFlow's files need of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message: numbers as int, everything else as bytes.

    Raises:
        ValueError: the message ends too early, or is none.
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
    """A field that holds a number."""
    return varint(field << 3) + varint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    """A field that holds bytes, or a message of its own."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """A number, seven bits a byte, the lowest first."""
    coded = bytearray()
    while value >= 0x80:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    coded.append(value)
    return bytes(coded)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it.

    Raises:
        ValueError: the data end within it, or it is of more than 64 bits.
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
