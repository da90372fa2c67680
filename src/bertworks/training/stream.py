"""From a source of blocks to the micro-batches of each step.

    Source.block(epoch, block) ─► examples in order
        ─► global batch: the next `batch_size` examples, or as many as fit `batch_tokens`
        ─► this rank's share, sorted by length
        ─► micro-batches, each collated by the task

A block is a pure function of (seed, epoch, block number). The place in a stream is therefore a
`Position` of three integers, and a stream that starts there continues exactly like the original
stream. The batches do not depend on the number of processes that make the blocks, and the content
of a global batch does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import TrainingError
from ..jobs.parallel import WorkerError, Workers

if TYPE_CHECKING:
    from ..packed import Batch
    from ..tasks.task import Example, Source


class Position(NamedTuple):
    """A place in a stream of examples: the next one is `block[offset]`."""

    epoch: int = 0
    block: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return f"epoch {self.epoch}, block {self.block}, offset {self.offset}"


@dataclass(frozen=True)
class BatchSize:
    """The size of a global batch and of its micro-batches."""

    examples: int | None = None  # examples per global batch
    tokens: int | None = None  # or instead: maximum tokens per global batch
    micro_examples: int | None = None  # maximum examples per micro-batch
    micro_tokens: int | None = None  # maximum tokens, but a longer example is a micro-batch alone

    def __post_init__(self) -> None:
        assert (self.examples is None) != (self.tokens is None), "one of the two"


@dataclass(frozen=True)
class GlobalBatch:
    """One rank's share of a global batch."""

    micro_batches: Sequence[Batch]  # this rank's share
    rounds: int  # the largest number of micro-batches of any rank
    num_examples: int  # in this rank's share
    start: Position  # where the global batch begins in the stream
    end: Position  # where the next one begins

    @property
    def num_tokens(self) -> int:
        return sum(batch.packed.num_tokens for batch in self.micro_batches)

    @property
    def counts(self) -> dict[str, int]:
        """For each loss, the sum of this rank's `Batch.counts`."""
        names = self.micro_batches[0].counts
        return {name: sum(batch.counts[name] for batch in self.micro_batches) for name in names}


def stream(
    source: Source[Any],
    collate: Callable[[Sequence[Any]], Batch],
    size: BatchSize,
    start: Position = Position(),  # noqa: B008 - immutable
    *,
    rank: int = 0,
    world: int = 1,
    workers: int = 0,
) -> Generator[GlobalBatch]:
    """Yield global batches of a source's examples, epoch after epoch, without end.

    A batch may contain examples of several blocks and epochs.

    Args:
        source: must be picklable if there are workers.
        collate: the task's function; a pure function of the examples.
        rank: which of the `world` shares of each global batch to yield.
        workers: number of processes that make blocks ahead of time; 0: made in this process, when
            they are needed.

    Raises:
        TrainingError: an epoch has no examples, a global batch has fewer examples than there are
            ranks, or a worker was killed.
    """
    for examples, begin, end in _global_batches(source, size, start, workers):
        if len(examples) < world:
            raise TrainingError(
                f"the batch at {begin} has {len(examples)} example(s) for {world} processes",
                fix="Make the batch larger, or start fewer processes.",
            )
        # Every `world`-th example in order of length: each rank gets about as many tokens.
        ordered = sorted(examples, key=lambda example: example.num_tokens)
        parts = [list(split(ordered[one::world], size)) for one in range(world)]
        micro_batches = [collate(part) for part in parts[rank]]
        share = sum(map(len, parts[rank]))
        yield GlobalBatch(micro_batches, max(map(len, parts)), share, begin, end)


def split(examples: Sequence[Any], size: BatchSize) -> Iterator[list[Any]]:
    """Split examples into micro-batches: in order, each as large as `size` allows."""
    part: list[Any] = []
    tokens = 0
    for example in examples:
        is_full = len(part) == size.micro_examples or (
            size.micro_tokens is not None and tokens + example.num_tokens > size.micro_tokens
        )
        if part and is_full:
            yield part
            part, tokens = [], 0
        part.append(example)
        tokens += example.num_tokens
    yield part


def _global_batches(
    source: Source[Any], size: BatchSize, start: Position, workers: int
) -> Iterator[tuple[list[Example], Position, Position]]:
    batch: list[Example] = []
    tokens = 0
    begin = start
    for position, example in _examples(source, start, workers):
        if size.tokens is not None and batch and tokens + example.num_tokens > size.tokens:
            yield batch, begin, position
            batch, tokens, begin = [], 0, position
        batch.append(example)
        tokens += example.num_tokens
        if len(batch) == size.examples:
            after = position._replace(offset=position.offset + 1)
            yield batch, begin, after
            batch, tokens, begin = [], 0, after


def _examples(
    source: Source[Any], start: Position, workers: int
) -> Iterator[tuple[Position, Example]]:
    epoch, num_examples = start.epoch, start.offset
    for position, examples in _blocks(source, start, workers):
        if position.epoch != epoch:
            if not num_examples:
                raise TrainingError(
                    "the data holds not a single example", fix="Give more or longer documents."
                )
            epoch, num_examples = position.epoch, 0
        num_examples += len(examples)
        for offset in range(position.offset, len(examples)):
            yield position._replace(offset=offset), examples[offset]


def _blocks(
    source: Source[Any], start: Position, workers: int
) -> Iterator[tuple[Position, Sequence[Any]]]:
    """Yield blocks in order, each with the position of the first example to use."""
    positions = _block_numbers(source, start)
    if workers == 0:
        for position in positions:
            yield _placed_block(source, position)
        return
    pool = Workers(workers, is_separate=True)
    with closing(pool.map(partial(_placed_block, source), positions)) as blocks:
        try:
            yield from blocks
        except WorkerError:
            raise TrainingError(
                "a loader worker ended before its time; the machine may be out of memory",
                fix="Run the same command again, perhaps with fewer loader_workers.",
            ) from None


def _block_numbers(source: Source[Any], start: Position) -> Iterator[Position]:
    position = start
    while True:
        for block in range(position.block, source.num_blocks(position.epoch)):
            yield Position(position.epoch, block, position.offset)
            position = position._replace(offset=0)
        position = Position(position.epoch + 1)


def _placed_block(source: Source[Any], position: Position) -> tuple[Position, Sequence[Any]]:
    return position, source.block(position.epoch, position.block)
