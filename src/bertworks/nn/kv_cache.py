"""The KV cache of generation: keys and values of the tokens that a causal encoder has processed.

With it, each step of generation computes only the new tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..packed import Layout, Packed, to_tensor


class KeyValueCache:
    """Each layer's keys and values of some sequences, laid end to end like the sequences.

    Those of one sequence have room for further tokens after the last, which are written in place;
    those of several are copied at each step, since every sequence grows.
    """

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._index: Tensor | None = None  # the order of old and new tokens of several sequences
        self._start = 0  # the number of tokens before the last step
        self.layout: Layout | None = None

    @classmethod
    def from_parts(cls, parts: Sequence[KeyValueCache | None]) -> KeyValueCache:
        """Concatenate the sequences of several caches; None is a sequence without tokens."""
        cache = cls()
        caches = [part for part in parts if part is not None]
        if caches:
            lengths = [np.zeros(1, np.int64) if part is None else part.lengths for part in parts]
            cache.layout = Layout.from_lengths(np.concatenate(lengths))
            cache._layers = {
                layer: (
                    torch.cat([part._layers[layer][0][: part.num_tokens] for part in caches]),
                    torch.cat([part._layers[layer][1][: part.num_tokens] for part in caches]),
                )
                for layer in caches[0]._layers
            }
        return cache

    def split(self) -> list[KeyValueCache]:
        """Return a cache per sequence, which shares no tensors with the others."""
        edges = np.append(0, np.cumsum(self.lengths)).tolist()
        parts = []
        for start, end in itertools.pairwise(edges):
            part = type(self)()
            part.layout = Layout.from_lengths(np.array([end - start]))
            part._layers = {
                layer: (key[start:end].clone(), value[start:end].clone())
                for layer, (key, value) in self._layers.items()
            }
            parts.append(part)
        return parts

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each sequence, `[sequences]`; empty before the first step."""
        return np.zeros(0, np.int64) if self.layout is None else self.layout.lengths

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all sequences."""
        return int(self.lengths.sum())

    def prepare(self, packed: Packed) -> None:
        """Prepare for the next tokens of each sequence; the sequences must be the same as before.

        Args:
            packed: the new tokens; their `position_ids` continue those of the earlier tokens.
        """
        lengths = self.lengths if len(self.lengths) else np.zeros_like(packed.lengths)
        assert len(lengths) == packed.num_sequences, "the tokens are of other sequences"
        device = packed.input_ids.device
        self._start = self.num_tokens
        self.layout = Layout.from_lengths(lengths + packed.lengths).to(device)
        self._index = None
        if not self._start or len(lengths) == 1:
            return
        # The sequence of each cached token, then of each new one; a stable sort interleaves them.
        numbers = np.arange(packed.num_sequences)
        sequences = np.repeat(np.tile(numbers, 2), np.concatenate([lengths, packed.lengths]))
        self._index = to_tensor(np.argsort(sequences, kind="stable"), device)

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values to a layer; return all, per sequence the old, then the new ones."""
        if not self._start:
            self._layers[layer] = key, value
            return key, value
        old = self._layers[layer]
        if self._index is not None:
            parts = zip(old, (key, value), strict=True)
            key, value = (torch.cat(part)[self._index] for part in parts)
            self._layers[layer] = key, value
            return key, value
        end = self._start + len(key)
        key, value = (
            _write(buffer, new, self._start) for buffer, new in zip(old, (key, value), strict=True)
        )
        self._layers[layer] = key, value
        return key[:end], value[:end]

    def select(self, sequences: Sequence[int]) -> None:
        """Keep only these sequences."""
        if list(sequences) == [*range(len(self.lengths))]:
            return
        edges = np.append(0, np.cumsum(self.lengths))
        rows = [np.arange(edges[number], edges[number + 1]) for number in sequences]
        key, _ = next(iter(self._layers.values()))
        index = to_tensor(np.concatenate(rows), key.device)
        self._layers = {layer: (k[index], v[index]) for layer, (k, v) in self._layers.items()}
        self.layout = Layout.from_lengths(self.lengths[list(sequences)]).to(key.device)


def _write(buffer: Tensor, rows: Tensor, start: int) -> Tensor:
    """Write rows to a buffer from `start` on; return it, or a larger one if it is too small."""
    end = start + len(rows)
    if end > len(buffer):
        larger = buffer.new_empty(max(end, 2 * start), *buffer.shape[1:])
        larger[:start] = buffer[:start]
        buffer = larger
    buffer[start:end] = rows
    return buffer
