"""What all routes share: models, queue, limits, and the thread of the explorer's views."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from ..api import of_unit_length
from ..inference.activations import is_awaited
from .failures import invalid
from .gate import RequestContext, Turnstile
from .metrics import Metrics
from .models import Models, Served
from .queue import LateError, OverloadedError, Queue, Runner
from .runners import EmbedRunner, Text
from .settings import ServeSettings

T = TypeVar("T")

_MOST_VIEWS = 32
"""Views of the explorer that wait at a time."""


class Service:
    """Models, queue and limits of a server.

    Args:
        models: what is served.
        settings: limits.

    Attributes:
        draining: whether it is about to stop, and takes no new clients.
        lane: computes the explorer's views.
        ready: whether the models that are not lazy are loaded.
    """

    def __init__(self, models: Models, settings: ServeSettings) -> None:
        self.models, self.settings = models, settings
        self.started_at = int(time.time())
        self.draining = False
        self.ready = False
        self.metrics: Metrics
        self.queue = Queue(
            settings.batch_tokens,
            settings.max_queue_tokens,
            observe=self._observe,
        )
        self.lane = Lane()
        self._answer = Turnstile()

    def _observe(self, rows: int, tokens: int, seconds: float) -> None:
        self.metrics.batch(rows, tokens, seconds)

    async def model(self, request: Request, name: str | None) -> Served:
        """The model that a request names, loaded.

        Raises:
            UnknownModelError: there is none of that name.
        """
        served = self.models.loaded(name)
        if served is None:
            served = await asyncio.to_thread(self.models.get, name)
        context = context_of(request)
        context.model, context.device = served.name, served.device
        return served

    async def compute(
        self,
        request: Request,
        runner: Runner,
        items: Sequence[Any],
        texts: Sequence[str | Sequence[Any]],
        *,
        limit: int | None,
        prepare: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
    ) -> list[Any]:
        """Compute rows in the queue; their answers, in order.

        Args:
            request: whose they are.
            runner: what computes them.
            items: the rows, as the runner takes them.
            texts: what of each is tokenised: a text, words, or token ids.
            limit: the most tokens that a row has; None where it has as many windows as it takes.
            prepare: what tokenises the rows, if it is not `runner.prepare`.

        Raises:
            BertworksError: the first row's that cannot be computed; or the queue is full.
        """
        context = context_of(request)
        context.rows += len(items)
        context.characters += sum(map(len, texts))
        started = time.monotonic()
        ticket = self.queue.submit(
            runner,
            items,
            [_most_tokens(text) for text in texts],
            limit=limit,
            client=context.client,
            prepare=prepare,
            deadline=context.deadline,
            stop_at_error=True,
        )
        try:
            return await self._result(ticket.future, context)
        finally:
            context.tokens += ticket.tokens
            context.tokenising += ticket.preparing
            context.computing += ticket.running
            waited = time.monotonic() - started - ticket.preparing - ticket.running
            context.queueing += max(0.0, waited)

    async def _result(self, future: Future[list[Any]], context: RequestContext) -> list[Any]:
        left = None if context.deadline is None else context.deadline - time.monotonic()
        try:
            found = await asyncio.wait_for(asyncio.wrap_future(future), left)
        except TimeoutError:
            raise LateError("the deadline passed before the request was computed") from None
        await self._answer.passed()
        return found

    async def vectors(
        self,
        request: Request,
        runner: EmbedRunner,
        items: Sequence[Text],
        *,
        normalize: bool,
        dimensions: int | None = None,
        prompt: str = "",
    ) -> list[NDArray[np.float32]]:
        """The vectors of texts, cut and then brought to length 1 where that is asked.

        Args:
            request: whose they are.
            runner: what computes them.
            items: texts, token ids, or lists of words.
            normalize: whether vectors, of texts rather than tokens, have length 1.
            dimensions: to which these are cut.
            prompt: what is put before texts.
        """
        if prompt:
            items = [
                item._replace(text=prompt + item.text) if isinstance(item.text, str) else item
                for item in items
            ]
        found = await self.compute(
            request,
            runner,
            items,
            [item.text for item in items],
            limit=runner.embedder.limit,
            prepare=partial(runner.prepare, truncation=context_of(request).truncation),
        )
        if found[0].ndim == 1:
            found = list(finished(np.stack(found), normalize=normalize, dimensions=dimensions))
        return found

    def check_texts(self, field: str, texts: Sequence[str], *, single: bool = False) -> None:
        """See that texts are there, and neither too many nor too long.

        Args:
            field: where in the request they are.
            texts: themselves.
            single: whether the field is one text.

        Raises:
            RequestError: they are not.
        """
        limits = self.settings
        if not texts:
            raise invalid(field, "give at least one text", kind="Empty")
        if len(texts) > limits.max_texts:
            raise invalid(field, f"{len(texts):,} texts, but at most {limits.max_texts:,}", 413)
        for at, text in enumerate(texts):
            if not text:
                place = field if single else f"{field}[{at}]"
                raise invalid(place, "must not be empty", kind="Empty")
            if len(text) > limits.max_characters:
                place = field if single else f"{field}[{at}]"
                raise invalid(
                    place,
                    f"{len(text):,} characters, but at most {limits.max_characters:,}",
                    413,
                )

    def prompt(self, served: Served, name: str | None) -> str:
        """What is put before texts.

        Raises:
            RequestError: the model has no prompt of that name.
        """
        prompts = served.prompts
        if name is None:
            default = prompts.default if self.settings.default_prompt else None
            return prompts.texts.get(default or "", "")
        if name not in prompts.texts:
            known = ", ".join(prompts.texts) or "none"
            raise invalid("prompt_name", f"the model has no such prompt; it has: {known}")
        return prompts.texts[name]

    def check_dimensions(self, served: Served, width: int, dimensions: int | None) -> None:
        """See that vectors may be cut to a width.

        Raises:
            RequestError: they may not.
        """
        if dimensions is None:
            return
        if not 1 <= dimensions <= width:
            raise invalid("dimensions", f"must be from 1 to {width}")
        prompts = served.prompts
        is_any = self.settings.any_dimensions or prompts.any_dimensions
        if dimensions != width and not is_any and dimensions not in prompts.dimensions:
            which = ", ".join(map(str, sorted(prompts.dimensions)))
            raise invalid(
                "dimensions",
                f"the model's vectors may be cut to {which}"
                if which
                else "the model was not trained for shorter vectors (Matryoshka); "
                "the server's --any-dimensions allows them",
            )


class Lane:
    """A thread that computes views of the explorer one after another, beside the queue.

    Work whose client has left, or whose deadline has passed, is dropped or stopped (`is_awaited`).
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "explorer")
        self._waiting = 0

    async def run(self, work: Callable[[], T], deadline: float | None) -> T:
        """What the work returns; if the client leaves, it is dropped, or stops at the next layer.

        Args:
            work: what is done.
            deadline: on the monotonic clock.

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


def service_of(request: Request) -> Service:
    """The server's models, queue and limits."""
    service: Service = request.app.state.service
    return service


def context_of(request: Request) -> RequestContext:
    """A request's id, client, deadline and figures."""
    context: RequestContext = request.state.context
    return context


def finished(
    vectors: NDArray[np.float32], *, normalize: bool, dimensions: int | None
) -> NDArray[np.float32]:
    """Vectors cut, then brought to length 1; a zero vector stays one."""
    vectors = np.ascontiguousarray(vectors[:, :dimensions])
    return of_unit_length(vectors) if normalize else vectors


async def encoded(vectors: Sequence[NDArray[np.float32]], form: str = "float") -> list[Any]:
    """Vectors as an answer has them: numbers, or their little-endian float32 in base64.

    Others are answered between some and the next: writing thousands takes a while.
    """
    found: list[Any] = []
    for at, vector in enumerate(vectors):
        if form == "float":
            found.append(orjson.Fragment(orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)))
        else:
            found.append(base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode())
        if at % 64 == 63:
            await asyncio.sleep(0)
    return found


def reply(request: Request, value: Any) -> Response:
    """A value as JSON, arrays included, with the headers that say what it took."""
    context = context_of(request)
    headers = context.headers(time.monotonic())
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, 200, headers, "application/json")


def truncating(request: Request, truncate: bool | None, direction: str | None = None) -> None:
    """Note what becomes of texts that are too long."""
    if truncate:
        context_of(request).truncation.side = "left" if direction in ("Left", "left") else "right"


def many(value: Any) -> list[Any]:
    """A list, or a list of one."""
    return value if isinstance(value, list) else [value]


def placed(field: str, values: Sequence[Any], *, single: bool) -> list[Text]:
    """Texts with the fields that they came in."""
    if single:
        return [Text(field, values[0])]
    return [Text(f"{field}[{at}]", value) for at, value in enumerate(values)]


def _most_tokens(text: str | Sequence[Any]) -> int:
    """The most tokens that a text may become: its bytes, and two for its ends."""
    if isinstance(text, str):
        return (len(text) if text.isascii() else 3 * len(text)) + 2
    return 2 + sum(_most_tokens(part) if isinstance(part, str) else 1 for part in text)
