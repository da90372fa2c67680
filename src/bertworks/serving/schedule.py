"""Which rows of many requests are tokenised and computed next: ordered, fair, bounded.

A batch is filled with ready rows of one runner, each time from the client that was served the
fewest tokens, up to a limit of tokens (start-time fair queueing: Goyal, Vin and Cheng 1996, over
tokens). So whatever others have queued, a client's first rows wait only for the current batch, and
for at most one batch of each earlier client that has not been served yet. While several clients
send requests, batches are smaller, so that they wait less; alone, a client has the full throughput.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from ..errors import BertworksError
from ..packed import Sized

_SLICE_ROWS = 64
_SLICE_CHARACTERS = 1 << 16
"""The most rows and characters of a request that are tokenised before the next one's turn."""

_SHARED_BATCH_SECONDS = 0.05
"""The time that a batch should take while several clients send requests."""

_MIN_SHARE = 8
"""Such a batch may have at least this part of the tokens of another, however long it takes."""

_SHARED_SECONDS = 1.0
"""How long batches stay small after a request that was added next to another client's."""


class OverloadedError(BertworksError):
    """The queue is full; the client may try again after `retry_after` seconds."""

    retry_after: float = 1.0


class TooLargeError(BertworksError):
    """A request may have more tokens than the queue can hold."""


class DeadlineError(BertworksError):
    """A request's deadline passed before it was computed."""


class Runner(Protocol):
    """Computes results; rows of equal runners may share a batch."""

    def __hash__(self) -> int: ...

    def prepare(self, items: Sequence[Any]) -> Sequence[Sized]:
        """Tokenise items. After a `BertworksError`, parts of them are tried to find its cause."""
        ...

    def run(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Return for each example its result, or the remaining work as `RemainingWork`.

        Errors are handled as in `prepare`; a `MemoryError` halves the limit of tokens.
        """
        ...


class Ticket:
    """A request in the queue.

    Attributes:
        future: holds the results, one for each item in order; or the first error of an item, which
            drops the other items. Cancelling it drops items that are not computed yet.
        preparing_seconds, running_seconds: time in which its rows were tokenised, and computed by
            the network.
        tokens: the tokens of its rows that are tokenised.
    """

    def __init__(
        self,
        runner: Runner,
        items: Sequence[Any],
        sizes: Sequence[int],
        limit: int | None,
        client: Hashable,
        prepare: Callable[[Sequence[Any]], Sequence[Sized]],
        deadline: float | None,
    ) -> None:
        self.runner, self.items, self.sizes, self.client = runner, items, sizes, client
        self.prepare, self.deadline = prepare, deadline
        self.client_queue: ClientQueue  # set by `Schedule.add`
        self.future: Future[list[Any]] = Future()
        self.answers: list[Any] = [None] * len(items)
        self.costs = [size if limit is None else min(size, limit) for size in sizes]
        self.reserved_tokens = sum(self.costs)  # of the queue's limit
        self.num_remaining_rows = self.num_untokenised_rows = len(items)
        self.next = 0  # the first row not yet taken to be tokenised
        self.ready: deque[tuple[int, Sized]] = deque()
        self.has_turn = False
        self.is_done = False
        self.error: BaseException | None = None
        self.preparing_seconds = self.running_seconds = 0.0
        self.tokens = 0

    def notify(self) -> None:
        """Set the future's results or error, unless it was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return
        if self.error is None:
            self.future.set_result(self.answers)
        else:
            self.future.set_exception(self.error)

    def take_slice(self) -> range:
        """Return the next rows to tokenise together."""
        first = self.next
        characters = 0
        while self.next < len(self.items) and self.next - first < _SLICE_ROWS:
            characters += self.sizes[self.next]
            if self.next > first and characters > _SLICE_CHARACTERS:
                break
            self.next += 1
        return range(first, self.next)


class ClientQueue:
    """A client's requests with rows to tokenise or run, and its share of the computed tokens."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.served_tokens = 0  # at least `Schedule._virtual_time` when it becomes active
        self.requests = 0
        self.untokenised_tickets: deque[Ticket] = deque()
        self.turns: dict[Runner, deque[Ticket]] = {}

    def first_ticket(self, runner: Runner, is_active: Callable[[Ticket], bool]) -> Ticket | None:
        """Return the request with the next row for a runner; remove requests that ended."""
        turns = self.turns.get(runner, deque())
        while turns:
            if turns[0].ready and is_active(turns[0]):
                return turns[0]
            turns.popleft().has_turn = False
        self.turns.pop(runner, None)
        return None


class QueuedRow(NamedTuple):
    """A tokenised row of a request."""

    ticket: Ticket
    number: int
    example: Sized


class Load(NamedTuple):
    """The requests and tokens in a queue; an upper bound for rows that are not tokenised yet."""

    requests: int
    tokens: int


class Schedule:
    """The requests in a queue, and the order of their rows. The caller holds the queue's lock.

    Args:
        batch_tokens: maximum tokens of a batch (or one row); see `batch_limit`.
        max_tokens: maximum tokens in the queue; above it, `add` refuses requests.
        clock: returns seconds; deadlines are compared with it.

    Attributes:
        tickets: the requests that have not ended.
        ended_tickets: requests whose futures are not resolved yet.
    """

    def __init__(
        self, batch_tokens: int, max_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.batch_tokens, self.max_tokens, self._clock = batch_tokens, max_tokens, clock
        self._client_queues: dict[Hashable, ClientQueue] = {}
        self._turns: deque[ClientQueue] = deque()  # with rows to tokenise, in order of turns
        self.tickets: set[Ticket] = set()
        self.ended_tickets: list[Ticket] = []
        self._tokens = self._virtual_time = self._num_client_queues = 0
        self.num_untokenised_rows = self.ready_tokens = 0
        self._rate = 0.0
        self._sharing_end_time = -math.inf

    @property
    def batch_limit(self) -> int:
        """The most tokens of the next batch: fewer while several clients send requests."""
        if self._clock() >= self._sharing_end_time or not self._rate:
            return self.batch_tokens
        tokens = int(self._rate * _SHARED_BATCH_SECONDS)
        return max(self.batch_tokens // _MIN_SHARE, min(tokens, self.batch_tokens))

    @property
    def load(self) -> Load:
        """The current requests and tokens."""
        return Load(len(self.tickets), self._tokens)

    def add(self, ticket: Ticket) -> None:
        """Add a request; refuse one for which there is no room."""
        queue = self._client_queues.get(ticket.client)
        if queue is None:
            self._num_client_queues += 1
            queue = ClientQueue(self._num_client_queues)
        self._check_room(ticket.reserved_tokens)
        ticket.client_queue = self._client_queues[ticket.client] = queue
        if len(self._client_queues) > 1:
            self._sharing_end_time = self._clock() + _SHARED_SECONDS
        queue.requests += 1
        self._tokens += ticket.reserved_tokens
        self.num_untokenised_rows += len(ticket.items)
        self.tickets.add(ticket)
        if not queue.untokenised_tickets:
            self._turns.append(queue)
        queue.untokenised_tickets.append(ticket)

    def take_ended(self) -> list[Ticket]:
        """Return the requests that ended since the last call; their futures are to be resolved."""
        tickets, self.ended_tickets = self.ended_tickets, []
        return tickets

    def record_rate(self, tokens: int, seconds: float) -> None:
        """Take a batch into the average of tokens computed per second."""
        weight = 0.2 if self._rate else 1
        self._rate += (tokens / max(seconds, 1e-6) - self._rate) * weight

    def take_untokenised_rows(self) -> tuple[Ticket, range] | None:
        """Return the next rows to tokenise: clients take turns, and so do a client's requests."""
        while self._turns:
            queue = self._turns.popleft()
            ticket = queue.untokenised_tickets.popleft()
            rows = ticket.take_slice() if self._is_active(ticket) else range(0)
            if rows and ticket.next < len(ticket.items):
                queue.untokenised_tickets.append(ticket)
            if queue.untokenised_tickets:
                self._turns.append(queue)
            if rows:
                return ticket, rows
        return None

    def add_ready(self, ticket: Ticket, row: int, example: Sized | Exception) -> None:
        """Add a tokenised row, or the error of tokenising it."""
        if ticket.is_done:
            return
        ticket.num_untokenised_rows -= 1
        self.num_untokenised_rows -= 1
        if isinstance(example, Exception):
            self.complete_row(ticket, row, example)
            return
        ticket.tokens += example.num_tokens
        self._charge_ready_row(ticket, row, example)
        ticket.ready.append((row, example))
        queue = ticket.client_queue
        if not queue.turns:
            queue.served_tokens = max(queue.served_tokens, self._virtual_time)
        if not ticket.has_turn:
            queue.turns.setdefault(ticket.runner, deque()).append(ticket)
            ticket.has_turn = True

    def return_row(self, ticket: Ticket, row: int, example: Sized) -> None:
        """Add the rest of an unfinished row, as the next of its client's rows."""
        if ticket.is_done:
            return
        ticket.tokens += max(0, example.num_tokens - ticket.costs[row])
        self._charge_ready_row(ticket, row, example)
        ticket.ready.appendleft((row, example))
        turns = ticket.client_queue.turns.setdefault(ticket.runner, deque())
        if ticket.has_turn:
            turns.remove(ticket)
        turns.appendleft(ticket)
        ticket.has_turn = True

    def take_batch(self) -> list[QueuedRow]:
        """Return ready rows of one runner, of clients with the fewest tokens first."""
        while queues := [queue for queue in self._client_queues.values() if queue.turns]:
            first = min(queues, key=lambda queue: (queue.served_tokens, queue.number))
            runner = next(iter(first.turns))
            first.turns[runner] = first.turns.pop(runner)  # another runner is next
            self._virtual_time = first.served_tokens
            batch = self._fill_batch(runner, [queue for queue in queues if runner in queue.turns])
            if batch:
                return batch
        return []

    def complete_row(self, ticket: Ticket, row: int, outcome: Any) -> None:
        """Store a row's result or error; the last result or the first error ends the request."""
        if ticket.is_done:
            return
        self._charge_tokens(ticket, -ticket.costs[row])
        ticket.answers[row] = outcome
        ticket.num_remaining_rows -= 1
        if isinstance(outcome, Exception):
            self.end(ticket, outcome)
        elif not ticket.num_remaining_rows:
            self.end(ticket)

    def end(self, ticket: Ticket, error: BaseException | None = None) -> None:
        """End a request and release its tokens; its future is resolved later."""
        ticket.is_done, ticket.error = True, error
        self.tickets.discard(ticket)
        self._charge_tokens(ticket, -ticket.reserved_tokens)
        self.num_untokenised_rows -= ticket.num_untokenised_rows
        self.ready_tokens -= sum(example.num_tokens for _, example in ticket.ready)
        ticket.num_untokenised_rows = 0
        ticket.ready.clear()
        ticket.items = ()
        ticket.client_queue.requests -= 1
        if not ticket.client_queue.requests:
            del self._client_queues[ticket.client]
        self.ended_tickets.append(ticket)

    def _check_room(self, tokens: int) -> None:
        if tokens > self.max_tokens:
            raise TooLargeError(
                f"the request may have {tokens:,} tokens, and the queue takes {self.max_tokens:,}",
                fix="Send it in parts.",
            )
        if self._tokens + tokens > self.max_tokens:
            error = OverloadedError("the server is busy", fix="Try again later.")
            error.retry_after = min(60.0, max(1.0, self._tokens / self._rate if self._rate else 1))
            raise error

    def _fill_batch(self, runner: Runner, queues: Sequence[ClientQueue]) -> list[QueuedRow]:
        batch: list[QueuedRow] = []
        tokens, limit = 0, self.batch_limit
        heap = [(queue.served_tokens, queue.number, queue) for queue in queues]
        heapq.heapify(heap)
        while heap:
            queue = heap[0][-1]
            ticket = queue.first_ticket(runner, self._is_active)
            if ticket is None:
                heapq.heappop(heap)
                continue
            row, example = ticket.ready[0]
            if batch and tokens + example.num_tokens > limit:
                break
            ticket.ready.popleft()
            self.ready_tokens -= example.num_tokens
            queue.turns[runner].rotate(-1)
            batch.append(QueuedRow(ticket, row, example))
            tokens += example.num_tokens
            queue.served_tokens += example.num_tokens
            heapq.heapreplace(heap, (queue.served_tokens, queue.number, queue))
        return batch

    def _is_active(self, ticket: Ticket) -> bool:
        """Whether a request is active; end it with `DeadlineError` if its deadline has passed."""
        if ticket.is_done:
            return False
        if ticket.deadline is not None and self._clock() >= ticket.deadline:
            self.end(ticket, DeadlineError("the deadline passed before the request was computed"))
            return False
        return True

    def _charge_ready_row(self, ticket: Ticket, row: int, example: Sized) -> None:
        """Count a ready row by its actual tokens."""
        cost = example.num_tokens
        self._charge_tokens(ticket, cost - ticket.costs[row])
        ticket.costs[row] = cost
        self.ready_tokens += cost

    def _charge_tokens(self, ticket: Ticket, tokens: int) -> None:
        ticket.reserved_tokens += tokens
        self._tokens += tokens
