"""The KV cache of generation: keys and values of the tokens that a causal encoder has processed.

With it, each step of generation computes only the new tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..packed import Layout, Packed


class Memory:
    """Each layer's keys and values of some sequences, laid end to end like the sequences."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._index: Tensor | None = None
        self.layout: Layout | None = None

    @classmethod
    def joined(cls, parts: Sequence[Memory | None]) -> Memory:
        """Concatenate the sequences of several memories; None is a sequence without tokens."""
        memory = cls()
        known = [part for part in parts if part is not None]
        if known:
            lengths = [np.zeros(1, np.int64) if part is None else part.lengths for part in parts]
            memory.layout = Layout.from_lengths(np.concatenate(lengths))
            memory._kept = {
                layer: (
                    torch.cat([part._kept[layer][0] for part in known]),
                    torch.cat([part._kept[layer][1] for part in known]),
                )
                for layer in known[0]._kept
            }
        return memory

    def split(self) -> list[Memory]:
        """Return a memory per sequence, which shares no tensors with the others."""
        edges = np.append(0, np.cumsum(self.lengths)).tolist()
        found = []
        for start, end in itertools.pairwise(edges):
            part = type(self)()
            part.layout = Layout.from_lengths(np.array([end - start]))
            part._kept = {
                layer: (key[start:end].clone(), value[start:end].clone())
                for layer, (key, value) in self._kept.items()
            }
            found.append(part)
        return found

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each sequence, `[sequences]`; empty before the first step."""
        return np.zeros(0, np.int64) if self.layout is None else self.layout.lengths

    def take(self, packed: Packed) -> None:
        """Prepare for the next tokens of each sequence; the sequences must be the same as before.

        Args:
            packed: the new tokens; their `position_ids` continue those of the earlier tokens.
        """
        before = self.lengths if len(self.lengths) else np.zeros_like(packed.lengths)
        assert len(before) == packed.num_sequences, "the tokens are of other sequences"
        # The sequence of each kept token, then of each new one; a stable sort interleaves them.
        numbers = np.arange(packed.num_sequences)
        sequences = np.repeat(np.tile(numbers, 2), np.concatenate([before, packed.lengths]))
        device = packed.input_ids.device
        index = torch.from_numpy(np.argsort(sequences, kind="stable"))
        self._index = index.to(device) if before.any() else None
        self.layout = Layout.from_lengths(before + packed.lengths).to(device)

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values to a layer; return all, per sequence the kept, then the new ones."""
        if self._index is not None:
            old_key, old_value = self._kept[layer]
            key = torch.cat([old_key, key])[self._index]
            value = torch.cat([old_value, value])[self._index]
        self._kept[layer] = key, value
        return key, value

    def keep(self, sequences: Sequence[int]) -> None:
        """Keep only these sequences."""
        edges = np.append(0, np.cumsum(self.lengths))
        rows = [np.arange(edges[at], edges[at + 1]) for at in sequences]
        key, _ = next(iter(self._kept.values()))
        index = torch.from_numpy(np.concatenate(rows)).to(key.device)
        self._kept = {layer: (k[index], v[index]) for layer, (k, v) in self._kept.items()}
        self.layout = Layout.from_lengths(self.lengths[list(sequences)]).to(key.device)
