"""Sources of training examples in memory: the rows of one table, or of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, Literal

import numpy as np

from ..errors import DataError
from ..tasks.task import ExampleT


class RowSource(Generic[ExampleT]):
    """A source of training examples in memory: each once per epoch, each epoch in a new order.

    A batch may contain the end of one epoch and the beginning of the next. The start of the buckets
    is shifted in each epoch, so that their borders are also borders of batches.

    Attributes:
        batch_size: the batch size that is used.

    Args:
        seed: the order is a pure function of (seed, epoch).
        batch_size: batch size of the training; the sizes of blocks and buckets are multiples of it.
            At most all examples: a larger batch would hold some of them twice.
        bucket_batches: number of batches in a bucket, or 0. A bucket's rows are sorted by length
            and split into batches, which are then shuffled. Batches of similar lengths are faster
            on the CPU, but less random.
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
        self.batch_size = size = min(batch_size, len(examples))
        self._seed, self._bucket_batches = seed, bucket_batches
        self._block_size = size * max(1, 4096 // size)
        self._rows_of_epoch = len(examples)
        self._lengths = np.array([example.num_tokens for example in examples])
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    def steps(self, epochs: float) -> int:
        """Return the number of batches in this number of epochs."""
        return math.ceil(epochs * self._rows_of_epoch / self.batch_size)

    def num_blocks(self, epoch: int) -> int:  # noqa: ARG002  (all epochs have the same)
        """Return the number of blocks of an epoch."""
        return -(-self._rows_of_epoch // self._block_size)

    def block(self, epoch: int, block: int) -> list[ExampleT]:
        """Return the examples of a block, in training order."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._order_of(epoch)
        start = block * self._block_size
        return [self._examples[at] for at in self._order[start : start + self._block_size].tolist()]

    def _order_of(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng([self._seed, epoch])
        order = random.permutation(len(self._examples))
        return self._sort_in_buckets(order, epoch, random)

    def _sort_in_buckets(
        self, order: np.ndarray, epoch: int, random: np.random.Generator
    ) -> np.ndarray:
        if not self._bucket_batches:
            return order
        size = self.batch_size
        # The first rows complete the last batch of the previous epoch.
        num_completing = (-epoch * len(order)) % size
        parts = [order[:num_completing]]
        for start in range(num_completing, len(order), size * self._bucket_batches):
            bucket = order[start : start + size * self._bucket_batches]
            bucket = bucket[np.argsort(self._lengths[bucket], kind="stable")]
            whole = len(bucket) // size
            batches = bucket[: whole * size].reshape(whole, size)
            parts += [batches[random.permutation(whole)].ravel(), bucket[whole * size :]]
        return np.concatenate(parts)


class TablesSource(RowSource[ExampleT]):
    """A source of the examples of several tables, of which each batch has only one's.

    An epoch has whole batches alone. What is left of a table, less than a batch, is other rows in
    each epoch.

    Args:
        tables: the examples of each table.
        sampling: "proportional": all batches of all tables, in random order; "round-robin": as many
            of each table as the smallest has, in turn.
        seed, batch_size: see `RowSource`.

    Raises:
        DataError: a table has fewer examples than a batch.
    """

    def __init__(
        self,
        tables: Sequence[Sequence[ExampleT]],
        *,
        sampling: Literal["proportional", "round-robin"],
        seed: int,
        batch_size: int,
    ) -> None:
        super().__init__(
            [example for table in tables for example in table], seed=seed, batch_size=batch_size
        )
        self._sizes, self._sampling = [len(table) for table in tables], sampling
        self._counts = [size // batch_size for size in self._sizes]
        if not min(self._counts):
            number = self._counts.index(0)
            what = f"training table {number + 1} has {self._sizes[number]:,} examples"
            raise DataError(f"{what}, fewer than batch_size={batch_size}")
        if sampling == "round-robin":
            self._counts = [min(self._counts)] * len(tables)
        self._rows_of_epoch = sum(self._counts) * batch_size

    def _order_of(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng([self._seed, epoch])
        batches, first = [], 0
        for size, count in zip(self._sizes, self._counts, strict=True):
            rows = first + random.permutation(size)[: count * self.batch_size]
            batches.append(rows.reshape(count, self.batch_size))
            first += size
        if self._sampling == "round-robin":
            return np.stack(batches, 1).ravel()
        return random.permutation(np.concatenate(batches)).ravel()
