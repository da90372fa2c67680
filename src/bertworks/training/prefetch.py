"""Global batches that a thread makes ahead of time, in pinned memory, for training on CUDA.

    stream ─► thread: the next batches, pinned ─► queue ─► loop: non-blocking copies, computation

The host of a GPU has time while the device computes: the next batch is then complete when the step
ends. The batches, their order and their positions are those of the stream, so a checkpoint needs
nothing more: batches that were made and not used are made again. At most `MAX_AHEAD` exist in
addition to the one that is used.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from queue import SimpleQueue
from threading import Event, Semaphore

from ..utils.memory import start_thread
from .stream import GlobalBatch

MAX_AHEAD = 2


def prefetch(batches: Generator[GlobalBatch]) -> Generator[GlobalBatch]:
    """Yield global batches, of which a thread makes the next ones; close it to end the thread.

    Args:
        batches: without end; the thread closes them.

    Raises:
        Exception: what making a batch raised, in place of that batch.
    """
    results: SimpleQueue[GlobalBatch | BaseException] = SimpleQueue()
    slots, is_closed = Semaphore(MAX_AHEAD), Event()

    def make_batches() -> None:
        try:
            with closing(batches):
                while slots.acquire() and not is_closed.is_set():
                    results.put(_pin(next(batches)))
        except BaseException as error:  # not hidden: the loop raises it
            results.put(error)

    wait_for_end = start_thread(make_batches)
    try:
        while True:
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            slots.release()
            yield result
    finally:
        is_closed.set()
        slots.release()
        wait_for_end()


def _pin(batch: GlobalBatch) -> GlobalBatch:
    return replace(batch, micro_batches=[part.pin() for part in batch.micro_batches])
