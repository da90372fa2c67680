"""CRC-32C (Castagnoli) by NumPy, for the checksums in TensorFlow's files.

Begun with a register of zeros, a CRC is linear (⊕ is XOR): that of two pieces is the first one's,
moved over the bytes of the second, ⊕ the second one's. To move a register is to look up its parts
in a table for the distance. So thousands of words are added up side by side, and then in halves:

    word 0 … word n      moved over n words
    word n … word 2n     ⊕, moved over n words
    …                    ⊕ ─► n words ─► n/2 ─► … ─► 1
"""

from __future__ import annotations

from functools import cache

import numpy as np
from jaxtyping import UInt32

_POLYNOMIAL = 0x82F63B78  # its bits reversed
_ONES = 0xFFFFFFFF
_WIDTH = 15  # words side by side, as a power of two

Registers = UInt32[np.ndarray, " registers"]


def crc32c(content: bytes | memoryview) -> int:
    """Return the CRC-32C of a buffer's bytes."""
    data = np.frombuffer(content, np.uint8)
    size = len(data)
    width = min(_WIDTH, ((size + 3) // 4 - 1).bit_length()) if size else 0
    row = 4 << width
    # Zeros in front leave a register of zeros as it is.
    first = np.zeros(row, np.uint8)
    start = size % row or min(size, row)
    first[row - start :] = data[:start]
    words = first.view("<u4")
    for place in range(start, size, row):
        words = _moved(words, _table(width + 2, 2)) ^ data[place : place + row].view("<u4")
    for power in reversed(range(width)):
        half = 1 << power
        words = _moved(words[:half], _table(power + 2, 4)) ^ words[half:]
    words = _moved(words, _table(2, 4))
    # The register begins with ones, and is inverted at the end.
    ones = np.array([_ONES], "<u4")
    for power in range(size.bit_length()):
        if size >> power & 1:
            ones = _moved(ones, _table(power, 4))
    return int(words[0] ^ ones[0]) ^ _ONES


def _moved(registers: Registers, table: UInt32[np.ndarray, "parts values"]) -> Registers:
    """Registers after a number of zero bytes, which `table` is for."""
    parts = registers.view(f"<u{4 // len(table)}").reshape(-1, len(table))
    found: Registers = table[0][parts[:, 0]]
    for number in range(1, len(table)):
        found ^= table[number][parts[:, number]]
    return found


@cache
def _table(power: int, parts: int) -> UInt32[np.ndarray, "parts values"]:
    """For each value of each of a register's 2 or 4 parts, the register 2 ** `power` bytes on."""
    bits = _images(power).reshape(parts, -1)
    found = np.zeros((parts, 1), "<u4")
    for bit in range(bits.shape[1]):
        found = np.concatenate([found, found ^ bits[:, bit : bit + 1]], 1)
    return found


@cache
def _images(power: int) -> Registers:
    """For each bit of a register, the register 2 ** `power` bytes on."""
    found = np.array([1 << bit for bit in range(32)], "<u4")
    if power:
        for _ in range(2):
            found = _moved(found, _table(power - 1, 4))
        return found
    for _ in range(8):
        found = found >> 1 ^ np.where(found & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return found
