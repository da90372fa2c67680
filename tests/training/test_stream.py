"""The stream gives every example once an epoch, the same for any workers and ranks."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.errors import DataError, TrainingError
from bertworks.packed import Batch, Packed
from bertworks.training.stream import BatchSize, GlobalBatch, Position, split, stream

from .toy_source import ToyExample, ToySource


def collate(examples: Sequence[ToyExample]) -> Batch:
    return Batch(Packed.from_arrays([example.ids for example in examples]))


def contents(batch: GlobalBatch) -> list[tuple[int, ...]]:
    """The sequences of a share, as sorted tuples of ids."""
    rows = []
    for micro_batch in batch.micro_batches:
        packed = micro_batch.packed
        parts = np.split(packed.input_ids, packed.cu_seqlens[1:-1])
        rows += [tuple(part.tolist()) for part in parts]
    return sorted(rows)


def take(count: int, *args: object, **options: object) -> list[GlobalBatch]:
    return list(itertools.islice(stream(*args, **options), count))  # type: ignore[arg-type]


def test_each_example_of_an_epoch_comes_once_and_in_order() -> None:
    source = ToySource()
    epoch = [example for block in range(7) for example in source.block(0, block)]
    batches = take(len(epoch), source, collate, BatchSize(examples=1))
    assert [contents(batch)[0] for batch in batches] == [tuple(e.ids.tolist()) for e in epoch]
    ends = [batch.end.epoch for batch in take(len(epoch) + 1, source, collate, BatchSize(1))]
    assert ends == [0] * len(epoch) + [1]


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(
    size=st.one_of(
        st.builds(BatchSize, examples=st.integers(1, 40)),
        st.builds(BatchSize, tokens=st.integers(1, 200)),
    ),
    skip=st.integers(0, 30),
)
def test_a_stream_started_at_a_batch_s_end_continues_the_first(size: BatchSize, skip: int) -> None:
    whole = take(skip + 5, ToySource(), collate, size)
    start = whole[skip].start
    for old, new in zip(whole[skip:], take(5, ToySource(), collate, size, start), strict=True):
        assert contents(old) == contents(new)
        assert (old.start, old.end) == (new.start, new.end)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=40),
    micro_examples=st.none() | st.integers(1, 10),
    micro_tokens=st.none() | st.integers(1, 60),
)
def test_micro_batches_keep_their_limits_and_lose_nothing(
    lengths: list[int], micro_examples: int | None, micro_tokens: int | None
) -> None:
    examples = [ToyExample(np.arange(length), 0) for length in lengths]
    size = BatchSize(examples=1, micro_examples=micro_examples, micro_tokens=micro_tokens)
    parts = list(split(examples, size))
    assert [example for part in parts for example in part] == examples
    for part in parts:
        assert len(part) <= (micro_examples or len(part))
        if micro_tokens is not None and len(part) > 1:
            assert sum(example.num_tokens for example in part) <= micro_tokens


def test_a_token_budget_is_kept() -> None:
    batches = take(50, ToySource(), collate, BatchSize(tokens=64))
    sizes = [batch.num_tokens for batch in batches]
    assert max(sizes) <= 64
    assert min(sizes) > 64 - 12, "an example of at most 12 tokens would have fitted"


def test_ranks_share_the_same_global_batch_evenly() -> None:
    size = BatchSize(examples=32, micro_tokens=40)
    whole = take(10, ToySource(), collate, size)
    ranks = [take(10, ToySource(), collate, size, rank=rank, world=3) for rank in range(3)]
    for number, batch in enumerate(whole):
        shares = [rank[number] for rank in ranks]
        assert sorted(row for share in shares for row in contents(share)) == contents(batch)
        assert {share.end for share in shares} == {batch.end}
        tokens = [share.num_tokens for share in shares]
        assert max(tokens) - min(tokens) <= 12, "as even as sequences of up to 12 tokens allow"


def test_fewer_examples_than_ranks_is_an_error() -> None:
    with pytest.raises(TrainingError, match=r"2 example\(s\) for 3 processes"):
        take(1, ToySource(), collate, BatchSize(examples=2), world=3)


class EmptySource(ToySource):
    def block(self, epoch: int, block: int) -> list[ToyExample]:
        return []


def test_data_without_an_example_is_an_error_not_an_endless_search() -> None:
    with pytest.raises(TrainingError, match="not a single example"):
        take(1, EmptySource(), collate, BatchSize(examples=2))


class BrokenSource(ToySource):
    def block(self, epoch: int, block: int) -> list[ToyExample]:
        if block == 2:
            raise DataError("a broken shard", where="shard 2", fix="Mend it.")
        return super().block(epoch, block)


class DyingSource(ToySource):
    def block(self, epoch: int, block: int) -> list[ToyExample]:
        if block == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().block(epoch, block)


@pytest.mark.long
def test_workers_change_nothing_and_hand_on_errors() -> None:
    size, start = BatchSize(examples=16), Position(0, 5, 3)
    alone = take(12, ToySource(), collate, size, start)
    helped = take(12, ToySource(), collate, size, start, workers=2)
    for one, other in zip(alone, helped, strict=True):
        assert contents(one) == contents(other)
        assert one.end == other.end
    with pytest.raises(DataError, match=r"shard 2: a broken shard\. Mend it\."):
        take(20, BrokenSource(), collate, size, workers=1)
    with pytest.raises(TrainingError, match="worker ended before its time"):
        take(20, DyingSource(), collate, size, workers=1)


@pytest.mark.usefixtures("new_workers")
def test_a_worker_that_dies_as_it_begins_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that the kernel kills: it reads nothing of a source that no pipe can hold."""
    resource_tracker.ensure_running()
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: b"/bin/true")
    source = ToySource()
    source.rows = list(range(200_000))  # type: ignore[attr-defined]
    with pytest.raises(TrainingError, match="worker ended before its time"):
        take(1, source, collate, BatchSize(examples=2), workers=2)


ORPHANS = """
import multiprocessing, sys, time
sys.path.insert(0, {root!r})
from tests.training.test_stream import ToySource, collate
from bertworks.training.stream import BatchSize, stream
if __name__ == "__main__":
    batches = stream(ToySource(), collate, BatchSize(examples=4), workers=2)
    next(batches)
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    time.sleep(60)
"""


PLAIN = """
import sys
sys.path.insert(0, {root!r})
from tests.training.test_stream import ToySource, collate
from bertworks.training.stream import BatchSize, stream
batches = stream(ToySource(), collate, BatchSize(examples=4), workers=1)
print(next(batches).num_examples)
batches.close()
"""

OPEN = """
import sys
sys.path.insert(0, {root!r})
from tests.training.test_stream import ToySource, collate
from bertworks.training.stream import BatchSize, stream
batches = stream(ToySource(), collate, BatchSize(examples=4), workers=1)
sys.kept = batches  # until after the exit
print(next(batches).num_examples)
"""

OWN = """
import sys
sys.path.insert(0, {root!r})
from tests.training.test_stream import ToySource, collate
from bertworks.training.stream import BatchSize, stream
class OwnSource(ToySource): ...
if __name__ == "__main__":
    batches = stream(OwnSource(), collate, BatchSize(examples=4), workers=1)
    print(next(batches).num_examples)
    batches.close()
"""


PARTS = """
import sys
sys.path.insert(0, {root!r})
from tests.training.test_stream import ToySource, collate
from bertworks.training.stream import BatchSize, stream
class Part: ...
if __name__ == "__main__":
    source = ToySource()
    source.part = Part()
    batches = stream(source, collate, BatchSize(examples=4), workers=1)
    print(next(batches).num_examples)
    batches.close()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "text", [PLAIN, OPEN, OWN, PARTS], ids=["plain", "left open", "own source", "own parts"]
)
def test_scripts_may_have_workers(tmp_path: Path, text: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(text.format(root=str(Path(__file__).parents[2])))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("4\n", "")


@pytest.mark.long
def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS.format(root=str(Path(__file__).parents[2])))
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert len(workers) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "workers live on"
        time.sleep(0.1)
