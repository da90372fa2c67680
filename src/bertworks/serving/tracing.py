"""Distributed traces: a request continues its caller's, by W3C's headers, and may record a span.

Spans need the extra `[otel]` and `traces=true`. Without them a response has a new span's id, and
nothing is recorded.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from .. import __version__
from ..errors import import_optional
from .metrics import RequestContext

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_TRACE = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})")
"""The header `traceparent`: version, trace, the caller's span, flags."""


class RequestTrace(Protocol):
    """The part of a request in a trace.

    Attributes:
        trace_id: of the trace, in hexadecimal.
        header: the header `traceparent` of the response.
    """

    trace_id: str
    header: str

    def end(self, route: str, status: int, context: RequestContext) -> None:
        """Record the request, when it is answered."""


class Traces:
    """Makes the part of each request in its trace.

    Args:
        provider: the `TracerProvider` that records spans, if any.
    """

    def __init__(self, provider: Any = None) -> None:
        self._provider = provider
        self._tracer: Tracer | None = None
        if provider is not None:
            self._tracer = provider.get_tracer("bertworks", __version__)

    def begin(self, method: str, headers: Mapping[bytes, bytes]) -> RequestTrace | None:
        """Return a request's part in a trace.

        It is the caller's trace; without one, it is a new one if spans are recorded, else None.
        """
        names = ("traceparent", "tracestate")
        values = {name: headers.get(name.encode(), b"").decode("latin-1") for name in names}
        if self._tracer is not None:
            return _RecordedTrace(self._tracer, method, values)
        match = _TRACE.fullmatch(values["traceparent"])
        return None if match is None else _ContinuedTrace(match)

    def close(self) -> None:
        """Send the remaining spans."""
        if self._provider is not None:
            self._provider.shutdown()


def make_traces() -> Traces:
    """Return traces whose spans are sent by OTLP over HTTP, as OTEL_… variables configure it.

    Raises:
        BertworksError: the extra is not installed.
    """
    for module in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"):
        import_optional(module, "otel", "serve traces=true")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    attributes = {"service.version": __version__}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = "bertworks"
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider)


class _ContinuedTrace:
    """The caller's trace, in which nothing is recorded."""

    def __init__(self, match: re.Match[str]) -> None:
        self.trace_id = match[1]
        self.header = f"00-{match[1]}-{random.getrandbits(64) or 1:016x}-{match[2]}"

    def end(self, route: str, status: int, context: RequestContext) -> None:
        pass


class _RecordedTrace:
    """A request whose span OpenTelemetry records."""

    def __init__(self, tracer: Tracer, method: str, headers: Mapping[str, str]) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(headers)
        self._method = method
        self._span: Span = tracer.start_span(method, parent, SpanKind.SERVER)
        context = self._span.get_span_context()
        self.trace_id = f"{context.trace_id:032x}"
        self.header = f"00-{self.trace_id}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def end(self, route: str, status: int, context: RequestContext) -> None:
        from opentelemetry.trace import StatusCode

        span = self._span
        span.update_name(f"{self._method} {route}")
        attributes: dict[str, Any] = {
            "http.request.method": self._method,
            "http.route": route,
            "http.response.status_code": status,
            "error.type": context.error,
            "bertworks.request_id": context.id,
            "bertworks.model": context.model,
            "bertworks.texts": context.rows,
            "bertworks.tokens": context.tokens,
            "bertworks.tokenising_seconds": context.tokenising_seconds,
            "bertworks.queueing_seconds": context.queueing_seconds,
            "bertworks.computing_seconds": context.computing_seconds,
        }
        span.set_attributes(
            {name: value for name, value in attributes.items() if value is not None}
        )
        if status >= 500:  # what the client did wrong is no error of a server's span
            span.set_status(StatusCode.ERROR)
        span.end()
