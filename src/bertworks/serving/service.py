"""What requests share: models, queue, limits, metrics, and the thread of the explorer's views."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from ..inference.activations import is_awaited
from .failures import invalid
from .gate import Turnstile
from .metrics import Metrics
from .models import Models
from .queue import LateError, OverloadedError, Queue
from .settings import ServeSettings

T = TypeVar("T")

_MOST_VIEWS = 32
"""Views of the explorer that wait at a time."""


class Service:
    """Models, queue and limits of a server.

    Args:
        routes: all routes that requests may have.

    Attributes:
        answering: what answers pass, a few at a time.
        draining: whether it is about to stop, and takes no new clients.
        lane: computes the explorer's views.
        ready: whether the models that are not lazy are loaded.
    """

    def __init__(self, models: Models, settings: ServeSettings, routes: Iterable[str]) -> None:
        self.models, self.settings = models, settings
        self.started_at = int(time.time())
        self.draining = False
        self.ready = False
        self.metrics = Metrics(
            routes, lambda: self.queue.load.requests, lambda: self.queue.load.tokens
        )
        self.queue = Queue(
            settings.batch_tokens, settings.max_queue_tokens, observe=self.metrics.batch
        )
        self.lane = Lane()
        self.answering = Turnstile()

    def check_count(self, field: str, count: int) -> None:
        """Refuse no texts, and too many."""
        most = self.settings.max_texts
        if not count:
            raise invalid(field, "give at least one text", kind="Empty")
        if count > most:
            raise invalid(field, f"{count:,} texts, but at most {most:,}", 413)

    def check_text(self, field: str, text: Sequence[object]) -> None:
        """Refuse a text, or its token ids, that is empty or too long."""
        most = self.settings.max_characters
        if not text:
            raise invalid(field, "must not be empty", kind="Empty")
        if len(text) > most:
            raise invalid(field, f"{len(text):,} characters, but at most {most:,}", 413)

    def check_texts(self, field: str, texts: Sequence[Sequence[object]]) -> None:
        """Refuse texts of which there are none or too many, or one is empty or too long."""
        self.check_count(field, len(texts))
        for at, text in enumerate(texts):
            self.check_text(f"{field}[{at}]", text)


class Lane:
    """A thread that computes views of the explorer one after another, beside the queue.

    Work whose client has left, or whose deadline has passed, is dropped or stopped (`is_awaited`).
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "explorer")
        self._waiting = 0

    async def run(self, work: Callable[[], T], deadline: float | None) -> T:
        """What the work returns; if the client leaves, it is dropped, or stops at the next layer.

        Raises:
            OverloadedError: too many wait.
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
        """Wait for the work that has begun; drop the rest."""
        self._thread.shutdown(cancel_futures=True)
