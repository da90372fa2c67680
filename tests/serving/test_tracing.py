"""Spans of requests, as OpenTelemetry's SDK records and sends them."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from bertworks.errors import BertworksError
from bertworks.serving.metrics import RequestContext
from bertworks.serving.settings import ServeSettings
from bertworks.serving.tracing import Traces, make_traces

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
NEEDS_SDK = "OpenTelemetry's SDK is in the extra [otel]"


def test_traces_need_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(BertworksError, match=r"serve traces=true.*bertworks\[otel\]"):
        make_traces()


@pytest.mark.long
def test_each_request_has_a_span_in_its_trace(
    directories, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.sdk", reason=NEEDS_SDK)
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.trace import SpanKind, StatusCode

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("bertworks.serving.service.make_traces", lambda: Traces(provider))
    with start({"m": directories["encoder"]}, ServeSettings(traces=True)) as server:
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=b"}
        response = server.post("/embed", {"inputs": ["the door", "a"]}, headers=headers)
        server.http.get("/health")
        server.http.get("/metrics")
        server.http.get("/info")
        unsampled = {"traceparent": f"00-{TRACE}-{SPAN}-00"}
        header = server.post("/embed", {"inputs": "a"}, headers=unsampled).headers["traceparent"]
        assert server.post("/tag", {"inputs": "a"}).status_code == 424
        server.http.get("/nowhere")
    embed, info, tag, unknown = exporter.get_finished_spans()
    context = embed.get_span_context()
    assert (f"{context.trace_id:032x}", f"{embed.parent.span_id:016x}") == (TRACE, SPAN)
    assert context.trace_state.get("a") == "b"
    assert response.headers["traceparent"] == f"00-{TRACE}-{context.span_id:016x}-01"
    assert (embed.name, embed.kind) == ("POST /embed", SpanKind.SERVER)
    attributes = dict(embed.attributes)
    seconds = [value for name, value in attributes.items() if name.endswith("_seconds")]
    assert len(seconds) == 3
    assert 0 < sum(seconds) <= (embed.end_time - embed.start_time) / 1e9
    assert attributes["http.response.status_code"] == 200
    assert (attributes["bertworks.model"], attributes["bertworks.texts"]) == ("m", 2)
    assert attributes["bertworks.request_id"] == response.headers["x-request-id"]
    assert "error.type" not in attributes
    assert header.startswith(f"00-{TRACE}-")
    assert header.endswith("-00"), "the caller does not record this trace"
    assert (info.name, info.parent) == ("GET /info", None)
    assert (tag.attributes["error.type"], tag.status.status_code) == (
        *("Backend", StatusCode.UNSET),
    )
    assert (unknown.name, unknown.attributes["http.route"]) == ("GET other", "other")


@pytest.mark.long
def test_spans_are_sent_to_the_address_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=NEEDS_SDK)
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    bodies: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}"
        )
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        traces = make_traces()
        trace = traces.begin("POST", {})
        assert trace is not None
        trace.end("/embed", 500, RequestContext("id", 0.0, error="Internal"))
        traces.close()
        collector.shutdown()
        thread.join()
    ((path, body),) = bodies
    assert path == "/v1/traces"
    (group,) = ExportTraceServiceRequest.FromString(body).resource_spans
    values = {entry.key: entry.value.string_value for entry in group.resource.attributes}
    assert values["service.name"] == "bertworks"
    (span,) = group.scope_spans[0].spans
    assert (span.name, span.trace_id.hex()) == ("POST /embed", trace.trace_id)
    assert span.status.code == span.status.STATUS_CODE_ERROR
