"""State that requests share: models, queue, limits, metrics, the explorer's thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.routing import Route

from ..errors import BertworksError
from ..inference.abandonment import is_awaited
from .collectors import ModelCollector, QuotaCollector
from .connections import Connections
from .logs import log
from .metrics import Metrics
from .models import Models
from .queue import Queue
from .quotas import Quotas
from .request_error import ErrorFormat, ErrorFormats, RequestError
from .schedule import DeadlineError, OverloadedError
from .security import Keys
from .settings import ServeSettings
from .tracing import Traces, make_traces

if TYPE_CHECKING:
    from ..analysis.retrieval.text_index import Hit, TextIndex

T = TypeVar("T")

_LARGE_CORPUS = 100_000
"""A corpus with more texts, read again for each answer, takes most of an answer's time."""

_MAX_VIEWS = 32
"""The most views of the explorer that wait or run at a time."""


class Service:
    """Models, queue and limits of a server.

    Args:
        routes: all routes, each with the format of its errors.
        keys: the accepted keys, and their quotas; without any, no key is needed.
        open_corpus: opens the texts from which questions are answered, if there are any.

    Attributes:
        corpus: these texts, once they are open.
        corpus_executor: searches them.
        quotas: what each key uses.
        traces: the traces of requests.
        error_formats: the format of errors of each path.
        connections: limits of the server's connections.
        request_turns, response_turns: let a few requests, and responses, continue in an iteration
            of the event loop.
        draining: whether the server is stopping; responses then close their connections.
        view_executor: computes the explorer's views.
        ready: whether the models are loaded (with `lazy`, True at once).
        failure: the error that kept the server from starting, if any.
    """

    def __init__(
        self,
        models: Models,
        settings: ServeSettings,
        routes: Sequence[tuple[Route, ErrorFormat]],
        keys: Keys,
        open_corpus: Callable[[], TextIndex] | None = None,
    ) -> None:
        self.models, self.settings, self.keys = models, settings, keys
        self.error_formats = ErrorFormats(routes)
        self.start_time = int(time.time())
        self.draining = False
        self.ready = False
        self.failure: Exception | None = None
        self.connections = Connections(settings)
        self.quotas = Quotas(keys.quotas)
        self.traces = make_traces() if settings.traces else Traces()
        self.metrics = Metrics(
            sorted({route.path for route, _ in routes}),
            {
                "te_queue_size": lambda: self.queue.load.requests,
                "bertworks_queue_tokens": lambda: self.queue.load.tokens,
                "bertworks_connections": lambda: len(self.connections),
            },
            (ModelCollector(models), QuotaCollector(self.quotas)),
        )
        self.queue = Queue(
            settings.batch_tokens, settings.max_queue_tokens, observe=self.metrics.record_batch
        )
        self.view_executor = ViewExecutor()
        self.corpus: TextIndex | None = None
        self.corpus_executor = ViewExecutor()
        self._open_corpus = open_corpus
        self._loading: dict[Hashable, asyncio.Task[Any]] = {}
        # A batch completes hundreds of requests at once, and their clients then send hundreds of
        # new ones. If all continued in one iteration, a health check would wait for all of them.
        self.request_turns, self.response_turns = asyncio.Semaphore(4), asyncio.Semaphore(4)

    def load_models(self) -> None:
        """Load all models at the start, or check their files if they are loaded on demand.

        Raises:
            BertworksError: no model can be loaded, or one cannot that is required; or the corpus
                cannot be opened.
        """
        if self.ready:
            return
        if self.settings.lazy:
            self.models.check_all()
        else:
            self.models.load_all(require_all=self.settings.require_all)
        if self._open_corpus is not None:
            self.corpus = self._open_corpus()
            self._log_large_corpus(self.corpus)
        self.ready = True

    def _log_large_corpus(self, corpus: TextIndex) -> None:
        from ..analysis.retrieval.store import VectorStore

        if len(corpus) > _LARGE_CORPUS and not isinstance(corpus, VectorStore):
            fix = "make a store (bertworks index MODEL STORE), and serve it with --retriever MODEL"
            event = "the corpus is read again for each answer"
            log(logging.WARNING, event, texts=len(corpus), fix=fix)

    async def load(self, key: Hashable, load: Callable[[], T]) -> T:
        """Return the result of `load`, which runs once, in a thread, for all that wait for it.

        If each request took a thread to wait in, a few would take all that other work runs in.

        Args:
            key: what is loaded.
        """
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(asyncio.to_thread(load))
            task.add_done_callback(lambda _: self._loading.pop(key))
        result: T = await asyncio.shield(task)
        return result

    def search_corpus(self, queries: Sequence[str], count: int) -> list[list[Hit]]:
        """Search the corpus in its present state; `corpus_executor` calls it.

        Raises:
            RequestError: the corpus cannot be read any more.
        """
        assert self.corpus is not None
        try:
            self.corpus.refresh()
        except BertworksError as error:  # its place is not a client's concern
            log(logging.ERROR, "corpus cannot be read", error=str(error))
            what = "the server's corpus cannot be read; the server's log says why"
            raise RequestError(503, "Unhealthy", what) from None
        return self.corpus.search(queries, count)


class ViewExecutor:
    """A thread, separate from the queue, that computes views or searches one at a time.

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
