"""A source of a few examples of many lengths; it loads no torch, so that workers start fast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

VOCAB = 50


@dataclass(frozen=True)
class ToyExample:
    ids: np.ndarray
    label: int
    truncated_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.ids)


class ToySource:
    """Blocks of 20 to 30 examples, 7 blocks an epoch; some blocks are empty."""

    def __init__(self, seed: int = 0, poison: tuple[int, int, int] | None = None) -> None:
        self.seed, self.poison = seed, poison

    def num_blocks(self, epoch: int) -> int:
        return 7

    def block(self, epoch: int, block: int) -> list[ToyExample]:
        if block == 3:
            return []
        rng = np.random.default_rng((self.seed, epoch, block))
        examples = [
            ToyExample(rng.integers(0, VOCAB - 1, rng.integers(1, 13)), int(rng.integers(2)))
            for _ in range(rng.integers(20, 31))
        ]
        if self.poison is not None and self.poison[:2] == (epoch, block):
            examples[self.poison[2]] = ToyExample(np.array([VOCAB - 1]), 0)
        return examples
