"""Rows as a source: everything once an epoch, in an order that (seed, epoch) alone decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.errors import DataError
from bertworks.training.row_source import RowSource, TablesSource


@dataclass(frozen=True)
class Sized:
    index: int
    num_tokens: int
    truncated_tokens: int = 0


def examples_of(count: int) -> list[Sized]:
    lengths = np.random.default_rng(0).integers(2, 60, count).tolist()
    return [Sized(index, length) for index, length in enumerate(lengths)]


def epoch_of(source: RowSource[Sized], epoch: int) -> list[Sized]:
    return [x for block in range(source.num_blocks(epoch)) for x in source.block(epoch, block)]


@pytest.mark.long
@given(st.integers(1, 10_000), st.integers(1, 70), st.integers(0, 5), st.integers(0, 3))
def test_every_row_comes_once_an_epoch(
    count: int, batch_size: int, bucket_batches: int, epoch: int
) -> None:
    source = RowSource(
        examples_of(count), seed=1, batch_size=batch_size, bucket_batches=bucket_batches
    )
    order = epoch_of(source, epoch)
    assert sorted(x.index for x in order) == list(range(count))


def test_a_batch_holds_no_row_twice() -> None:
    source = RowSource(examples_of(10), seed=1, batch_size=10**30, bucket_batches=3)
    assert source.batch_size == 10
    assert (source.steps(3), source.steps(0.5)) == (3, 1)
    assert sorted(x.index for x in epoch_of(source, 2)) == list(range(10))


def test_blocks_depend_on_nothing_but_their_numbers() -> None:
    def source(seed: int = 1) -> RowSource[Sized]:
        return RowSource(examples_of(9000), seed=seed, batch_size=32, bucket_batches=8)

    one = source()
    backwards = [one.block(epoch, block) for epoch, block in [(3, 2), (1, 0), (3, 0), (0, 1)]]
    for found, (epoch, block) in zip(backwards, [(3, 2), (1, 0), (3, 0), (0, 1)], strict=True):
        assert source().block(epoch, block) == found
    assert epoch_of(one, 0) != epoch_of(one, 1)
    assert epoch_of(one, 0) != epoch_of(source(2), 0)


@pytest.mark.parametrize("count", [1000, 1003])
def test_buckets_fall_together_with_batches(count: int) -> None:
    """Also in later epochs, when a batch has begun in the epoch before."""
    size, epochs = 16, 5

    def length_range(bucket_batches: int) -> float:
        source = RowSource(
            examples_of(count), seed=0, batch_size=size, bucket_batches=bucket_batches
        )
        dealt = [x.num_tokens for epoch in range(epochs) for x in epoch_of(source, epoch)]
        batches = [dealt[at : at + size] for at in range(0, len(dealt), size)]
        return float(np.mean([max(batch) - min(batch) for batch in batches]))

    assert length_range(20) < length_range(0) / 4


SIZES = (70, 33, 12)
TABLE_OF_ROW = np.repeat(np.arange(3), SIZES)


def tables_source(**settings: Any) -> TablesSource[Sized]:
    examples = examples_of(sum(SIZES))
    tables = [[x for x in examples if TABLE_OF_ROW[x.index] == number] for number in range(3)]
    return TablesSource(
        tables, **{"seed": 1, "batch_size": 4, "sampling": "proportional"} | settings
    )


@pytest.mark.parametrize(
    ("sampling", "counts"), [("proportional", [17, 8, 3]), ("round-robin", [3, 3, 3])]
)
def test_a_batch_has_rows_of_one_table(sampling: Any, counts: list[int]) -> None:
    source = tables_source(sampling=sampling)
    orders = [[x.index for x in epoch_of(source, epoch)] for epoch in range(3)]
    for order in orders:
        assert len(set(order)) == len(order) == 4 * sum(counts)
        tables = TABLE_OF_ROW[np.array(order).reshape(-1, 4)]
        assert (tables == tables[:, :1]).all()
        assert np.bincount(tables[:, 0]).tolist() == counts
        if sampling == "round-robin":
            assert tables[:, 0].tolist() == [0, 1, 2] * 3
    assert len(set(map(tuple, orders))) == 3
    assert source.steps(2) == 2 * sum(counts)
    # A resumed run goes on in the same order, whatever was read before.
    assert [x.index for x in epoch_of(tables_source(sampling=sampling), 2)] == orders[2]


def test_a_table_must_fill_a_batch() -> None:
    with pytest.raises(DataError, match="training table 3 has 12 examples, fewer than batch_size"):
        tables_source(batch_size=13)
