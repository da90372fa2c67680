"""Random numbers as a pure function of a key and a counter.

Each key and counter give 64 well-mixed bits, without a generator or state, and for whole batches at
once. So what is drawn for a token depends only on its instance's key and its position in the
instance: not on the rest of the batch, the order of computation, or a library's version.

Source: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom
number generators", §5).
"""

from __future__ import annotations

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def mix(values: np.ndarray) -> np.ndarray:
    """Scramble 64-bit values by a bijection in which each input bit affects every output bit."""
    mixed: np.ndarray = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def draw(keys: np.ndarray, counters: np.ndarray | int) -> np.ndarray:
    """64 random bits for each pair of a key and a counter.

    Args:
        keys: uint64, of any shape.
        counters: non-negative integers, of a shape that broadcasts with `keys`.
    """
    offsets = (np.asarray(counters).astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return mix(np.asarray(keys, np.uint64) + offsets)


def derive_key(*numbers: int) -> int:
    """Derive one 64-bit key from a sequence of integers, such as seed, epoch and block."""
    key = np.zeros(1, np.uint64)
    for number in numbers:
        key = draw(key, np.array([number & _MASK], np.uint64))
    return int(key[0])


def permutation(key: int, size: int) -> np.ndarray:
    """`[size]` int64: the integers from 0 to `size - 1` in random order."""
    numbers = draw(np.array([key], np.uint64), np.arange(size))
    return np.argsort(numbers, kind="stable")


def uniform(bits: np.ndarray) -> np.ndarray:
    """Convert random bits to float64 in [0, 1)."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers_below(bits: np.ndarray, limit: int) -> np.ndarray:
    """Convert random bits to int64 in [0, limit), for a limit below 2³²."""
    return (((bits >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)
