"""Random numbers that are a pure function of where they are used.

A counter and a key go in, 64 well-mixed bits come out: no generator, no state, and whole batches at
once. So what is drawn for a token depends on its instance's key and its place in it alone: neither
on what it is batched with nor on the order of work, and on no library's version.

Source: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom
number generators", §5).
"""

from __future__ import annotations

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def mix(values: np.ndarray) -> np.ndarray:
    """Scramble 64-bit values: a bijection under which each input bit moves every output bit."""
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
        counters: non-negative integers, of a shape that fits.
    """
    counted = (np.asarray(counters).astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return mix(np.asarray(keys, np.uint64) + counted)


def key_of(*numbers: int) -> int:
    """One 64-bit key for a sequence of integers, such as seed, epoch and block."""
    key = np.zeros(1, np.uint64)
    for number in numbers:
        key = draw(key, np.array([number & _MASK], np.uint64))
    return int(key[0])


def permutation(key: int, size: int) -> np.ndarray:
    """`[size]` int64: the numbers below `size` in random order."""
    numbers = draw(np.array([key], np.uint64), np.arange(size))
    return np.argsort(numbers, kind="stable")


def uniform(bits: np.ndarray) -> np.ndarray:
    """Random bits as float64 in [0, 1)."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(bits: np.ndarray, limit: int) -> np.ndarray:
    """Random bits as int64 in [0, limit), for a limit under 2³²."""
    return (((bits >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)
