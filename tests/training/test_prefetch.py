"""Batches that a thread makes ahead are those of the stream, few at a time."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Generator
from contextlib import closing

import pytest
import torch

from bertworks.training.prefetch import MAX_AHEAD, prefetch
from bertworks.training.stream import BatchSize, GlobalBatch, Position, stream

from .test_stream import collate
from .toy_source import ToySource


@pytest.fixture(autouse=True)
def without_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a card no memory can be pinned."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)


def make_stream(start: Position = Position()) -> Generator[GlobalBatch]:  # noqa: B008
    return stream(ToySource(), collate, BatchSize(examples=5, micro_examples=2), start)


class Source:
    """Counts the batches that are made, and knows the thread that makes them."""

    def __init__(self, failing_batch: int | None = None) -> None:
        self.num_made, self.threads, self.is_closed = 0, set[int](), False
        self._failing_batch = failing_batch

    def batches(self) -> Generator[GlobalBatch]:
        try:
            for batch in make_stream():
                if self.num_made == self._failing_batch:
                    raise ValueError("no more")
                self.num_made += 1
                self.threads.add(threading.get_ident())
                yield batch
        finally:
            self.is_closed = True


def test_batches_are_those_of_the_stream_at_any_start() -> None:
    expected = list(itertools.islice(make_stream(), 12))
    with closing(prefetch(make_stream(expected[3].start))) as batches:
        for own, other in zip(batches, expected[3:], strict=False):
            assert (own.start, own.end, own.rounds) == (other.start, other.end, other.rounds)
            for part, other_part in zip(own.micro_batches, other.micro_batches, strict=True):
                assert isinstance(part.packed.input_ids, torch.Tensor)
                assert part.packed.input_ids.tolist() == other_part.packed.input_ids.tolist()
                assert part.packed.on_host.groups == other_part.packed.groups
                assert part.counts == other_part.counts


def test_few_batches_are_made_ahead_and_by_another_thread() -> None:
    source = Source()
    batches = prefetch(source.batches())
    for number in range(1, 4):
        next(batches)
        deadline = time.monotonic() + 10
        while source.num_made < number + MAX_AHEAD and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert source.num_made == number + MAX_AHEAD
    assert not source.is_closed
    batches.close()
    assert source.is_closed  # by its thread, which has ended
    assert len(source.threads) == 1 and threading.get_ident() not in source.threads


def test_an_error_is_raised_in_the_place_of_its_batch() -> None:
    source = Source(failing_batch=4)
    batches = prefetch(source.batches())
    for _ in range(4):
        next(batches)
    with pytest.raises(ValueError, match="no more"):
        next(batches)
    assert source.is_closed
