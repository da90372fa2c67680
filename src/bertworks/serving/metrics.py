"""What a server measures: each request's counts and times, and metrics for Prometheus.

The metrics have the names of text-embeddings-inference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
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
    "bertworks_queue_tokens": "tokens that wait or are computed",
    "bertworks_connections": "open connections",
    "bertworks_unavailable_models": "models that could not be loaded",
}
"""Gauges of the server's state."""


@dataclass
class Truncation:
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
    deadline: float | None = None
    verb: str | None = None  # its name in the metrics
    model: str | None = None
    device: str = "cpu"  # where the model runs
    rows: int = 0
    characters: int = 0  # of all rows, like the tokens
    tokens: int = 0
    tokenising_seconds: float = 0.0
    queueing_seconds: float = 0.0
    computing_seconds: float = 0.0
    truncation: Truncation = field(default_factory=Truncation)
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
            "x-truncated-texts": str(self.truncation.truncated),
            **{name: str(round(1000 * seconds)) for name, seconds in parts.items()},
            **({} if self.columns is None else {"x-columns": json.dumps(self.columns)}),
        }


def get_context(request: Request) -> RequestContext:
    """Return a request's id, client, deadline, counts and times."""
    context: RequestContext = request.state.context
    return context


class Metrics:
    """Counters and histograms, which all exist from the start.

    Args:
        routes: the paths that may be values of the label `route`.
        states: functions that return the current value of gauges, by the names in `GAUGES`.
    """

    def __init__(
        self,
        routes: Iterable[str],
        states: Mapping[str, Callable[[], int]],
    ) -> None:
        self.registry = CollectorRegistry()
        self._routes = (*routes, "other")
        # prometheus_client's counters end in `_total`; these names do not, so they are gauges.
        self._count = self._make_gauge("te_request_count", "requests", "route")
        self._success = self._make_gauge("te_request_success", "answered requests", "route")
        self._failure = self._make_gauge("te_request_failure", "failed requests", "err")
        self._duration = Histogram(
            "te_request_duration", "seconds", ["route"], buckets=SECONDS, registry=self.registry
        )
        for route in self._routes:
            for metric in (self._count, self._success, self._duration):
                metric.labels(route)
        for kind in KINDS:
            self._failure.labels(kind)
        self._parts = {
            f"te_{verb}_{part}": self._make_histogram(f"te_{verb}_{part}", "seconds", SECONDS)
            for verb in ("request", "embed", "predict")
            for part in ("tokenization_duration", "queue_duration", "inference_duration")
        }
        self._verbs = {
            verb: (
                self._make_gauge(f"te_{verb}_count", f"texts of {verb}"),
                self._make_gauge(f"te_{verb}_success", f"answered texts of {verb}"),
                self._make_gauge(f"te_{verb}_failure", f"failed requests of {verb}"),
                self._make_histogram(f"te_{verb}_duration", "seconds", SECONDS),
            )
            for verb in ("embed", "predict")
        }
        self._length = self._make_histogram("te_request_input_length", "characters", TOKENS)
        self._batch_size = self._make_histogram("te_batch_next_size", "texts of a batch", SIZES)
        self._batch_tokens = self._make_histogram(
            "te_batch_next_tokens", "tokens of a batch", TOKENS
        )
        self._batch_seconds = self._make_histogram("bertworks_batch_duration", "seconds", SECONDS)
        for name, what in GAUGES.items():
            self._make_gauge(name, what).set_function(states[name])

    def count_requests(self, route: str | None = None) -> int:
        """Return the number of requests that were answered or failed: of a route, or all."""
        routes = self._routes if route is None else (route,)
        counts = (
            self.registry.get_sample_value("te_request_count", {"route": name}) for name in routes
        )
        return int(sum(count or 0 for count in counts))

    def record_batch(self, rows: int, tokens: int, seconds: float) -> None:
        """Record a batch."""
        self._batch_size.observe(rows)
        self._batch_tokens.observe(tokens)
        self._batch_seconds.observe(seconds)

    def record_request(self, route: str, seconds: float, context: RequestContext) -> None:
        """Record a request that was answered, or that failed."""
        route = route if route in self._routes else "other"
        kind = context.error
        self._count.labels(route).inc()
        self._duration.labels(route).observe(seconds)
        if kind is None:
            self._success.labels(route).inc()
        else:
            self._failure.labels(kind if kind in KINDS else "Internal").inc()
        if context.rows:
            self._record_rows(context)

    def _record_rows(self, context: RequestContext) -> None:
        """Record the rows and times of a request in the queue."""
        verb, rows = context.verb, context.rows
        seconds = {
            "tokenization_duration": context.tokenising_seconds,
            "queue_duration": context.queueing_seconds,
            "inference_duration": context.computing_seconds,
        }
        self._length.observe(context.characters / rows)
        for name, value in seconds.items():
            self._parts[f"te_request_{name}"].observe(value)
            if verb in self._verbs:
                self._parts[f"te_{verb}_{name}"].observe(value)
        if verb in self._verbs:
            count, success, failure, duration = self._verbs[verb]
            count.inc(rows)
            duration.observe(sum(seconds.values()))
            if context.error is None:
                success.inc(rows)
            else:
                failure.inc()

    def to_text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def _make_gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(name, what, labels, registry=self.registry)

    def _make_histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, what, buckets=buckets, registry=self.registry)
