"""What the server knows of a request: its client, deadline, counts and times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.requests import Request

from .runners.base import Truncation


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
