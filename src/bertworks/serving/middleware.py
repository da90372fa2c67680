"""Middleware around the application: access, limits, deadlines, logging, metrics.

    id ─► size of headers ─► key or host ─► concurrent requests ─► whole body, limited size ─► app
       ◄─ log line (no text, no key) ◄─ metrics ◄─ headers ◄────────────────────────────────────┘

This is plain ASGI, so that the size of a body is checked before anything parses it, and a request
is cancelled when its client disconnects.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
import traceback
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .connections import long_headers_message
from .error_conversion import to_request_error
from .logs import log
from .metrics import RequestContext
from .pages import make_key_page
from .request_error import RequestError
from .security import is_loopback, needs_no_key, parse_host
from .service import Service
from .tracing import RequestTrace

Headers = Mapping[bytes, bytes]
_ID = re.compile(rb"[\w.:-]{1,64}")


class RequestMiddleware:
    """The outermost middleware.

    Args:
        app: the application.
        service: limits, metrics, and whether the server is stopping: then connections are closed.
            Without accepted API keys, every client that can reach the server has access.
        local: whether the server listens only to this machine. Without keys, requests must then
            name this machine as their host, so that no web page can reach the server under
            another name (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, service: Service, *, local: bool) -> None:
        self.app, self.service, self.keys, self.local = app, service, service.keys, local
        self.settings = service.settings
        self._num_open_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn omits the body
        headers: Headers = dict(scope["headers"])
        client = scope.get("client")
        context = RequestContext(
            _read_id(headers), time.monotonic(), client[0] if client else "local"
        )
        trace = None
        is_traced = self.settings.traces or b"traceparent" in headers
        if is_traced and not _is_probe(scope["method"], scope["path"]):
            trace = self.service.traces.begin(scope["method"], headers)
        context.trace_id = None if trace is None else trace.trace_id
        scope.setdefault("state", {})["context"] = context
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                more = [(b"x-request-id", context.id.encode())]
                if trace is not None:
                    more.append((b"traceparent", trace.header.encode()))
                if self.service.draining:
                    more.append((b"connection", b"close"))
                message["headers"] = [*message.get("headers", []), *more]
            await send(message)

        self._num_open_requests += 1
        quota_name = None
        try:
            self._check_size(scope)
            self._check_access(scope, headers, context)
            if context.has_key and scope["method"] == "POST":
                self.service.quotas.begin(context.client)
                quota_name = context.client
            body = await self._body(scope, headers, receive)
            await self._cancel_on_disconnect(scope, body, receive, answer, context)
        except RequestError as error:
            context.error = error.kind
            await self._respond(error, scope, receive, answer)
        except Exception as error:
            _log_error(context, error)
            if not status:
                await self._respond(to_request_error(error), scope, receive, answer)
        finally:
            self._num_open_requests -= 1
            if quota_name is not None:
                self.service.quotas.end(quota_name, context.tokens)
            self._record(scope, context, status, trace)

    async def _respond(
        self, error: RequestError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send an error in the format of the path's protocol."""
        response = None
        if error.status == 401:
            accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
            response = make_key_page(scope["method"], scope["path"], accept)
        if response is None:
            response = error.to_response(self.service.error_formats.find(scope["path"]))
        await response(scope, receive, send)

    def _check_size(self, scope: Scope) -> None:
        """Refuse headers and a URL that are too long. (`connections` bounds what is received.)"""
        limit = self.settings.max_header_bytes
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > limit:
            raise RequestError(
                431, "Validation", long_headers_message(limit), headers={"connection": "close"}
            )

    def _check_access(self, scope: Scope, headers: Headers, context: RequestContext) -> None:
        """Store the key's name and the deadline; refuse requests without access, or too many."""
        path = scope["path"]
        if self.keys:
            owner = self.keys.find_owner(_read_key(headers))
            if owner is not None:
                context.client, context.has_key = owner, True
            elif not needs_no_key(scope["method"], path) and not (
                path == "/metrics" and self.local
            ):
                raise RequestError(401, "Unauthorized", "no valid API key", code="invalid_api_key")
        elif self.local and not is_loopback(
            parse_host(headers.get(b"host", b"").decode("latin-1"))
        ):
            raise RequestError(
                403, "Unauthorized", "the host is not this machine: use an API key for others"
            )
        deadline = headers.get(b"x-deadline-ms")
        if deadline is not None:
            if not re.fullmatch(rb"\d{1,9}", deadline):
                raise RequestError(
                    400, "Validation", "x-deadline-ms: must be milliseconds", "x-deadline-ms"
                )
            context.deadline = context.start_time + int(deadline) / 1000
        if (
            scope["method"] == "POST"
            and self._num_open_requests > self.settings.max_concurrent_requests
        ):
            raise RequestError(
                429,
                "Overloaded",
                f"more than {self.settings.max_concurrent_requests} requests at a time",
                headers={"retry-after": "1", "retry-after-ms": "500"},
            )

    async def _body(self, scope: Scope, headers: Headers, receive: Receive) -> bytes:
        """Return the whole body; refuse one that is compressed, too large, or too slow."""
        if scope["method"] == "GET":
            return b""
        coding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        if coding not in ("", "identity"):
            raise RequestError(
                415,
                "Validation",
                f"content-encoding: {coding[:40]!r} is not supported; send plain JSON",
                headers={"accept-encoding": "identity"},
            )
        limit = self.settings.max_body_bytes
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            raise _body_too_large_error(limit)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestError(408, "Gone", "the client hung up")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise _body_too_large_error(limit)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise RequestError(
                408, "Timeout", f"the body did not arrive in {self.settings.body_seconds:g} seconds"
            ) from None

    async def _cancel_on_disconnect(
        self, scope: Scope, body: bytes, receive: Receive, send: Send, context: RequestContext
    ) -> None:
        """Run the application; cancel a POST if the client disconnects before the response."""
        has_replayed = False

        async def replay() -> Message:
            nonlocal has_replayed
            if not has_replayed:
                has_replayed = True
                return {"type": "http.request", "body": body, "more_body": False}
            return await receive()

        if scope["method"] != "POST":
            await self.app(scope, replay, send)
            return
        async with self.service.request_turns:
            await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        has_answered = False

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            if not has_answered:
                context.error = "Gone"
                task.cancel()

        async def answer(message: Message) -> None:
            nonlocal has_answered
            has_answered = True
            await send(message)

        watcher = asyncio.create_task(watch())
        try:
            await self.app(scope, replay, answer)
        except asyncio.CancelledError:
            if context.error != "Gone":
                raise
            task.uncancel()
        finally:
            watcher.cancel()

    def _record(
        self, scope: Scope, context: RequestContext, status: int, trace: RequestTrace | None
    ) -> None:
        # A request that was refused before it was routed has no route yet.
        route = getattr(scope.get("route"), "path", None)
        route = self.service.metrics.name_route(scope["path"] if route is None else route)
        seconds = time.monotonic() - context.start_time
        if context.error is None and status >= 400:
            context.error = "Validation" if status < 500 else "Internal"
        self.service.metrics.record_request(route, seconds, context)
        if trace is not None:
            trace.end(route, status, context)
        log(
            logging.DEBUG if _is_probe(scope["method"], route) else logging.INFO,
            "request",
            id=context.id,
            trace=context.trace_id,
            method=scope["method"],
            route=route,
            status=status,
            error=context.error,
            client=context.client,
            model=context.model,
            texts=context.rows,
            tokens=context.tokens,
            milliseconds=round(1000 * seconds, 1),
        )


def _is_probe(method: str, path: str) -> bool:
    """Whether a request is one of those that machines repeat: of health, or of metrics."""
    return needs_no_key(method, path) or path == "/metrics"


def _log_error(context: RequestContext, error: Exception) -> None:
    """Log where an error occurred, but not its message, which may contain a user's text."""
    context.error = "Internal"
    frames = [
        f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    kind = type(error).__name__
    log(logging.ERROR, "fault", id=context.id, kind=kind, frames=frames[-12:])


def _read_id(headers: Headers) -> str:
    """Return the id that the request has, if it is valid, or a new one."""
    value = headers.get(b"x-request-id", b"")
    return value.decode() if _ID.fullmatch(value) else f"{random.getrandbits(64):016x}"


def _read_key(headers: Headers) -> str:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    key = token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
    try:
        return key.decode()
    except UnicodeDecodeError:  # some clients send Latin-1
        return key.decode("latin-1")


def _body_too_large_error(limit: int) -> RequestError:
    return RequestError(
        413, "Body", f"the body has more than {limit:,} bytes", headers={"connection": "close"}
    )
