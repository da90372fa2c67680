"""What a server measures: each request's counts and times, and metrics for Prometheus.

Histograms and gauges that text-embeddings-inference has too have its names. Its counters do not end
in `_total`, which OpenMetrics requires; they are in Prometheus's text format alone. Counters named
`bertworks_…_total` are in both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request

from ..errors import LengthError

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
KINDS = (
    *("Backend", "Body", "Empty", "Internal", "NotFound", "Overloaded", "Timeout", "Tokenizer"),
    *("Unauthorized", "Unhealthy", "Validation", "Gone"),
)
"""Kinds of errors. The label has no other values, so that their number is limited."""

GAUGES = {
    "te_queue_size": "requests that wait or are computed",
    "bertworks_queue_tokens": "tokens that wait or are computed; scale on this",
    "bertworks_connections": "open connections",
}
"""Gauges of the server's state."""

NO_KEY = "no key"
"""The value of the label `client` for requests without a valid key."""


@dataclass
class RequestTokens:
    """Counts of a request's tokens.

    Attributes:
        max_tokens: maximum tokens of all texts together.
        truncated, tokens: number of truncated texts and of tokens of all texts, so far.
    """

    max_tokens: int | None = None
    truncated: int = 0
    tokens: int = 0

    def count(self, tokens: int, *, is_truncated: bool) -> None:
        """Add the tokens of a text; raise `LengthError` if the total is too large."""
        self.truncated += is_truncated
        self.tokens += tokens
        if self.max_tokens is not None and self.tokens > self.max_tokens:
            raise LengthError(f"the texts have more than {self.max_tokens:,} tokens")


@dataclass
class RequestContext:
    """A request's client and deadline, and figures for the log, the metrics and the headers."""

    id: str  # sent by the client, or new
    start_time: float  # on the monotonic clock, like the deadline
    client: str = ""  # the key's name, or the address; the queue is fair to clients
    has_key: bool = False
    trace_id: str | None = None  # of the caller's trace
    deadline: float | None = None
    operation: str | None = None  # "embed" or "predict", if it is one of these
    model: str | None = None
    device: str = "cpu"  # where the model runs
    rows: int = 0
    characters: int = 0  # of all rows, like the tokens
    tokens: int = 0
    tokenising_seconds: float = 0.0
    queueing_seconds: float = 0.0
    computing_seconds: float = 0.0
    request_tokens: RequestTokens = field(default_factory=RequestTokens)
    error: str | None = None  # its kind
    columns: Sequence[str] | None = None  # those that the texts of its rows were read from

    def make_headers(self, now: float) -> dict[str, str]:
        """Return text-embeddings-inference's headers (times in ms), `x-truncated-texts`, and
        `x-columns`, a list in JSON, with which a client reads other parts of a table alike."""
        parts = {
            "x-compute-time": now - self.start_time,
            "x-total-time": now - self.start_time,
            "x-tokenization-time": self.tokenising_seconds,
            "x-queue-time": self.queueing_seconds,
            "x-inference-time": self.computing_seconds,
        }
        return {
            "x-compute-type": self.device,
            "x-compute-characters": str(self.characters),
            "x-compute-tokens": str(self.tokens),
            "x-truncated-texts": str(self.request_tokens.truncated),
            **{name: str(round(1000 * seconds)) for name, seconds in parts.items()},
            **({} if self.columns is None else {"x-columns": json.dumps(self.columns)}),
        }


def get_context(request: Request) -> RequestContext:
    """Return a request's id, client, deadline, counts and times."""
    context: RequestContext = request.state.context
    return context


class Metrics:
    """Counters and histograms; those without the labels `model` and `client` exist from the start.

    The values of all labels are limited: `client` is the name of a key.

    Args:
        routes: the paths that may be values of the label `route`.
        states: functions that return the current value of gauges, by the names in `GAUGES`.
        collectors: what collects further metrics.
    """

    def __init__(
        self,
        routes: Iterable[str],
        states: Mapping[str, Callable[[], int]],
        collectors: Iterable[Collector],
    ) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, processor time, open files; on Linux
        for collector in collectors:
            self.registry.register(collector)
        self._routes = (*routes, "other")
        self._requests = self._make_counter("requests", "requests by route", "route")
        self._failures = self._make_counter("failures", "failed requests by kind of error", "err")
        self._route_failures = self._make_counter(
            "route_failures", "failed requests by route", "route"
        )
        self._rows = self._make_counter("texts", "texts by model and client", "model", "client")
        self._tokens = self._make_counter("tokens", "tokens by model and client", "model", "client")
        self._reloads = self._make_counter("reloads", "reloads of models, keys and certificate")
        self._failed_reloads = self._make_counter(
            "reload_failures", "reloads that failed; all stayed as it was"
        )
        self._reload_time = Gauge(
            "bertworks_last_load_time_seconds",
            "when models, keys and certificate were last loaded, in seconds since 1970",
            registry=self.registry,
        )
        self._reload_time.set(time.time())
        self._duration = Histogram(
            "te_request_duration", "seconds", ["route"], buckets=SECONDS, registry=self.registry
        )
        for route in self._routes:
            for metric in (self._requests, self._route_failures, self._duration):
                metric.labels(route)
        for kind in KINDS:
            self._failures.labels(kind)
        self._parts = {
            f"te_{name}_{part}": self._make_histogram(f"te_{name}_{part}", "seconds", SECONDS)
            for name in ("request", "embed", "predict")
            for part in ("tokenization_duration", "queue_duration", "inference_duration")
        }
        self._durations = {
            operation: self._make_histogram(f"te_{operation}_duration", "seconds", SECONDS)
            for operation in ("embed", "predict")
        }
        self._length = self._make_histogram("te_request_input_length", "characters", TOKENS)
        self._batch_size = self._make_histogram("te_batch_next_size", "texts of a batch", SIZES)
        self._batch_tokens = self._make_histogram(
            "te_batch_next_tokens", "tokens of a batch", TOKENS
        )
        self._batch_seconds = self._make_histogram("bertworks_batch_duration", "seconds", SECONDS)
        for name, what in GAUGES.items():
            Gauge(name, what, registry=self.registry).set_function(states[name])
        self._tei_counters = TeiCounters()

    def count_requests(self, route: str | None = None) -> int:
        """Return the number of requests that were answered or failed: of a route, or all."""
        routes = self._routes if route is None else (route,)
        counts = (
            self.registry.get_sample_value("bertworks_requests_total", {"route": name})
            for name in routes
        )
        return int(sum(count or 0 for count in counts))

    def name_route(self, path: str) -> str:
        """Return a path if it is the path of a route, else "other"."""
        return path if path in self._routes else "other"

    def record_batch(self, rows: int, tokens: int, seconds: float) -> None:
        """Record a batch."""
        self._batch_size.observe(rows)
        self._batch_tokens.observe(tokens)
        self._batch_seconds.observe(seconds)

    def record_reload(self, *, is_done: bool) -> None:
        """Record a reload of models, keys and certificate."""
        (self._reloads if is_done else self._failed_reloads).inc()
        if is_done:
            self._reload_time.set(time.time())

    def record_request(self, route: str, seconds: float, context: RequestContext) -> None:
        """Record a request that was answered, or that failed."""
        kind = context.error
        if kind is not None and kind not in KINDS:
            kind = "Internal"
        self._requests.labels(route).inc()
        self._duration.labels(route).observe(seconds)
        if kind is not None:
            self._route_failures.labels(route).inc()
            self._failures.labels(kind).inc()
        self._tei_counters.record_request(context.operation, context.rows, kind)
        if context.rows:
            self._record_rows(context)

    def _record_rows(self, context: RequestContext) -> None:
        """Record the rows and times of a request in the queue."""
        operation, rows = context.operation, context.rows
        labels = (context.model or "", context.client if context.has_key else NO_KEY)
        self._rows.labels(*labels).inc(rows)
        self._tokens.labels(*labels).inc(context.tokens)
        seconds = {
            "tokenization_duration": context.tokenising_seconds,
            "queue_duration": context.queueing_seconds,
            "inference_duration": context.computing_seconds,
        }
        self._length.observe(context.characters / rows)
        for name, value in seconds.items():
            self._parts[f"te_request_{name}"].observe(value)
            if operation in self._durations:
                self._parts[f"te_{operation}_{name}"].observe(value)
        if operation in self._durations:
            self._durations[operation].observe(sum(seconds.values()))

    def to_text(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics, and their media type.

        Args:
            accept: the header of that name; `application/openmetrics-text` gives OpenMetrics.
        """
        encode, media_type = choose_encoder(accept)
        text: bytes = encode(self.registry)
        if "openmetrics" not in media_type:
            text += self._tei_counters.to_text().encode()
        return text, media_type

    def _make_counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"bertworks_{name}", what, labels, registry=self.registry)

    def _make_histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, what, buckets=buckets, registry=self.registry)


class TeiCounters:
    """The counters of text-embeddings-inference, with its names and labels."""

    def __init__(self) -> None:
        by_method = {f'{{method="{method}"}}': 0 for method in ("single", "batch")}
        self._counts: dict[str, dict[str, int]] = {
            "te_request_count": dict(by_method),
            "te_request_success": dict(by_method),
            "te_request_failure": {f'{{err="{kind}"}}': 0 for kind in KINDS},
        }
        for operation in ("embed", "predict"):
            for what in ("count", "success", "failure"):
                self._counts[f"te_{operation}_{what}"] = {"": 0}

    def record_request(self, operation: str | None, rows: int, error: str | None) -> None:
        """Count a request.

        Args:
            error: its kind, one of `KINDS`.
        """
        method = f'{{method="{"batch" if rows > 1 else "single"}"}}'
        self._counts["te_request_count"][method] += 1
        if error is None:
            self._counts["te_request_success"][method] += 1
        else:
            self._counts["te_request_failure"][f'{{err="{error}"}}'] += 1
        if rows and operation in ("embed", "predict"):
            self._counts[f"te_{operation}_count"][""] += rows
            if error is None:
                self._counts[f"te_{operation}_success"][""] += rows
            else:
                self._counts[f"te_{operation}_failure"][""] += 1

    def to_text(self) -> str:
        """Return the counters in Prometheus's text format."""
        return "".join(
            f"# TYPE {name} counter\n"
            + "".join(f"{name}{labels} {count}\n" for labels, count in counts.items())
            for name, counts in self._counts.items()
        )
