"""The thread that computes the explorer's views."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from ..inference.activations import is_awaited
from .queue import LateError, OverloadedError

T = TypeVar("T")

_MOST_VIEWS = 32
"""The most views of the explorer that wait or run at a time."""


class ViewExecutor:
    """A thread, separate from the queue, that computes the explorer's views one at a time.

    If a client disconnects or a deadline passes, the work is dropped or stopped (`is_awaited`).
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "explorer")
        self._waiting = 0

    async def run(self, work: Callable[[], T], deadline: float | None) -> T:
        """Return the result of work; if the client disconnects, the work stops at the next layer.

        Raises:
            OverloadedError: too many views wait.
            LateError: the deadline passed.
        """
        if self._waiting >= _MOST_VIEWS:
            raise OverloadedError(f"{_MOST_VIEWS} requests of this kind wait already")
        left = None if deadline is None else deadline - time.monotonic()
        gone = threading.Event()
        awaited = copy_context()
        awaited.run(is_awaited.set, lambda: not gone.is_set())
        self._waiting += 1
        try:
            future = self._thread.submit(awaited.run, work)
            return await asyncio.wait_for(asyncio.wrap_future(future), left)
        except TimeoutError:
            raise LateError("the deadline passed before the request was computed") from None
        finally:
            gone.set()
            self._waiting -= 1

    def close(self) -> None:
        """Wait for the running work; drop the rest."""
        self._thread.shutdown(cancel_futures=True)
