"""Rows of a table, in memory, as a source of training examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

import numpy as np

from ..tasks.task import ExampleT


class RowSource(Generic[ExampleT]):
    """Every example once an epoch, each epoch in another order.

    Batches run on over the border of two epochs; buckets are laid so that they still fall together
    with batches there.

    Args:
        examples: the rows.
        seed: the order is a pure function of (seed, epoch).
        batch_size: of the training that draws from it; blocks and buckets are multiples of it.
        bucket_batches: if not 0, the rows of so many batches are sorted by length before they are
            cut into batches, which then come in random order. Batches of like lengths are faster
            on the CPU, and less random.
    """

    def __init__(
        self,
        examples: Sequence[ExampleT],
        *,
        seed: int,
        batch_size: int,
        bucket_batches: int = 0,
    ) -> None:
        assert examples, "a source holds at least one example"
        self._examples = examples
        self._seed, self._batch_size, self._bucket_batches = seed, batch_size, bucket_batches
        self._block_size = batch_size * max(1, 4096 // batch_size)
        self._lengths = np.array([example.num_tokens for example in examples])
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    def num_blocks(self, epoch: int) -> int:  # noqa: ARG002  (every epoch has as many)
        """How many blocks an epoch has."""
        return -(-len(self._examples) // self._block_size)

    def block(self, epoch: int, block: int) -> list[ExampleT]:
        """The examples of a block, in the order in which they are to be used."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._order_of(epoch)
        start = block * self._block_size
        return [self._examples[at] for at in self._order[start : start + self._block_size].tolist()]

    def _order_of(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng([self._seed, epoch])
        order = random.permutation(len(self._examples))
        if not self._bucket_batches:
            return order
        size = self._batch_size
        begun = (-epoch * len(order)) % size  # these fill the last epoch's last batch
        parts = [order[:begun]]
        for start in range(begun, len(order), size * self._bucket_batches):
            bucket = order[start : start + size * self._bucket_batches]
            bucket = bucket[np.argsort(self._lengths[bucket], kind="stable")]
            whole = len(bucket) // size
            batches = bucket[: whole * size].reshape(whole, size)
            parts += [batches[random.permutation(whole)].ravel(), bucket[whole * size :]]
        return np.concatenate(parts)
