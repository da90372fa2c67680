"""What a causal encoder remembers of tokens it has seen: each layer's keys and values.

With it a text is gone on with token by token, and no token is computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..packed import Packed, equal_length_groups
from .attention import Layout


class Memory:
    """The keys and values of some sequences, packed like the sequences themselves."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._index: Tensor | None = None
        self.lengths = np.zeros(0, np.int64)
        self.layout = Layout(None, 0, ())

    def take(self, packed: Packed) -> None:
        """Make room for the next tokens of each sequence: as many sequences as before, in order.

        Args:
            packed: the tokens, their `position_ids` counted on from those before.
        """
        own = np.diff(packed.cu_seqlens.cpu().numpy()).astype(np.int64)
        before = self.lengths if len(self.lengths) else np.zeros_like(own)
        assert len(before) == len(own), "the tokens are of other sequences"
        total, old_start, new_start = int(before.sum()), 0, int(before.sum())
        rows: list[np.ndarray] = []
        for old, new in zip(before.tolist(), own.tolist(), strict=True):
            rows += [np.arange(old_start, old_start + old), np.arange(new_start, new_start + new)]
            old_start, new_start = old_start + old, new_start + new
        device = packed.input_ids.device
        self._index = torch.from_numpy(np.concatenate(rows)).to(device) if total else None
        self._set(before + own, device)

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of a layer, the new ones behind the old of their sequence."""
        if self._index is not None:
            old_key, old_value = self._kept[layer]
            key = torch.cat([old_key, key])[self._index]
            value = torch.cat([old_value, value])[self._index]
        self._kept[layer] = key, value
        return key, value

    def keep(self, sequences: Sequence[int]) -> None:
        """Forget all sequences but these."""
        edges = np.concatenate(([0], np.cumsum(self.lengths)))
        rows = [np.arange(edges[at], edges[at + 1]) for at in sequences]
        key = next(iter(self._kept.values()))[0]
        index = torch.from_numpy(np.concatenate(rows)).to(key.device)
        self._kept = {layer: (k[index], v[index]) for layer, (k, v) in self._kept.items()}
        self._set(self.lengths[list(sequences)], key.device)

    def _set(self, lengths: np.ndarray, device: torch.device) -> None:
        self.lengths = lengths
        edges = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        self.layout = Layout(
            torch.from_numpy(edges).to(device), int(lengths.max()), equal_length_groups(lengths)
        )
