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
from .queue import DeadlineError, OverloadedError

T = TypeVar("T")

_MAX_VIEWS = 32
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
            DeadlineError: the deadline passed.
        """
        if self._waiting >= _MAX_VIEWS:
            raise OverloadedError(f"{_MAX_VIEWS} requests of this kind wait already")
        timeout = None if deadline is None else deadline - time.monotonic()
        disconnection = threading.Event()
        context = copy_context()
        context.run(is_awaited.set, lambda: not disconnection.is_set())
        self._waiting += 1
        try:
            future = self._thread.submit(context.run, work)
            return await asyncio.wait_for(asyncio.wrap_future(future), timeout)
        except TimeoutError:
            raise DeadlineError("the deadline passed before the request was computed") from None
        finally:
            disconnection.set()
            self._waiting -= 1

    def close(self) -> None:
        """Wait for the running work; drop the rest."""
        self._thread.shutdown(cancel_futures=True)
