"""A queue that packs the rows of many requests into batches: ordered, fair, bounded.

    submit ─► rows ─► tokenising thread ─► ready rows ─► network thread ─► the requests' futures

A *runner* computes results. Rows of one runner may share a batch, also rows of different clients. A
batch is filled with ready rows, each time from the client that was served the fewest tokens, up to
a limit of tokens (start-time fair queueing: Goyal, Vin and Cheng 1996, over tokens). So whatever
others have queued, a client's first rows wait only for the current batch, and for at most one batch
of each earlier client that has not been served yet.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from itertools import accumulate, takewhile
from typing import Any, NamedTuple, Protocol

from ..errors import BertworksError

_SLICE_ROWS = 64
_SLICE_CHARACTERS = 1 << 16
"""The most rows and characters of a request that are tokenised before the next one's turn."""


class OverloadedError(BertworksError):
    """The queue is full; the client may try again after `retry_after` seconds."""

    retry_after: float = 1.0


class TooLargeError(BertworksError):
    """A request may have more tokens than the queue can hold."""


class DeadlineError(BertworksError):
    """A request's deadline passed before it was computed."""


class ClosedError(BertworksError):
    """The queue accepts no more requests."""


class Sized(Protocol):
    """A tokenised row."""

    @property
    def num_tokens(self) -> int: ...


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


class RemainingWork(NamedTuple):
    """The remaining work of a row that needs several batches; other rows run in between."""

    example: Sized


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
        client_queue: ClientQueue,
        prepare: Callable[[Sequence[Any]], Sequence[Sized]],
        deadline: float | None,
    ) -> None:
        self.runner, self.items, self.sizes, self.client_queue = runner, items, sizes, client_queue
        self.prepare, self.deadline = prepare, deadline
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

    def __init__(self, client: Hashable, number: int) -> None:
        self.client, self.number = client, number
        self.served_tokens = 0  # at least `Queue._virtual_time` when it becomes active
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


class _Row(NamedTuple):
    ticket: Ticket
    number: int
    example: Sized


class Load(NamedTuple):
    """The requests and tokens in a queue; an upper bound for rows that are not tokenised yet."""

    requests: int
    tokens: int


class Queue:
    """Batches the rows of any number of callers; see the module.

    Args:
        batch_tokens: maximum tokens of a batch (or one row); halved when memory runs out.
        max_tokens: maximum tokens in the queue; above it, `submit` refuses requests.
        max_wait: seconds that a batch waits while other rows are being tokenised.
        clock: returns seconds; deadlines are compared with it.
        observe: called after each batch with its rows, tokens and seconds.
    """

    def __init__(
        self,
        batch_tokens: int = 8192,
        max_tokens: int = 1 << 20,
        max_wait: float = 0.002,
        clock: Callable[[], float] = time.monotonic,
        observe: Callable[[int, int, float], None] | None = None,
    ) -> None:
        self.batch_tokens, self.max_tokens, self.max_wait = batch_tokens, max_tokens, max_wait
        self._clock, self._observe = clock, observe
        self._condition = threading.Condition()
        self._client_queues: dict[Hashable, ClientQueue] = {}
        self._turns: deque[ClientQueue] = deque()  # with rows to tokenise, in order of turns
        self._tickets: set[Ticket] = set()
        self._done_tickets: list[Ticket] = []  # their futures are not resolved yet
        self._tokens = self._virtual_time = self._num_client_queues = 0
        self._untokenised_rows = self._ready_tokens = 0
        self._rate = 0.0  # tokens per second
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self.fatal_error: BaseException | None = None

    def start(self) -> None:
        """Start the two threads."""
        for loop, name in ((self.prepare_some, "tokenising"), (self.run_batch, "network")):
            thread = threading.Thread(target=self._loop, args=(loop,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def load(self) -> Load:
        """The current requests and tokens."""
        with self._condition:
            return Load(len(self._tickets), self._tokens)

    def submit(
        self,
        runner: Runner,
        items: Sequence[Any],
        sizes: Sequence[int],
        *,
        limit: int | None = None,
        client: Hashable = None,
        prepare: Callable[[Sequence[Any]], Sequence[Sized]] | None = None,
        deadline: float | None = None,
    ) -> Ticket:
        """Queue a request. It is accepted or refused before any of it is tokenised.

        Args:
            items: its rows, at least one.
            sizes: maximum tokens of each row, for example its number of characters.
            limit: maximum tokens of any row.
            client: the client that sent it; clients get equal shares.
            prepare: tokenises the items; `runner.prepare` if omitted.
            deadline: on the queue's clock; rows whose turn comes later are not computed.

        Raises:
            OverloadedError, TooLargeError, ClosedError: the request cannot be accepted.
        """
        assert items and len(items) == len(sizes), "a request has rows, each of some size"
        with self._condition:
            if self._is_closed:
                raise ClosedError("the server is shutting down")
            queue = self._client_queues.get(client)
            if queue is None:
                self._num_client_queues += 1
                queue = ClientQueue(client, self._num_client_queues)
            prepare = prepare or runner.prepare
            ticket = Ticket(runner, items, sizes, limit, queue, prepare, deadline)
            self._check_room(ticket.reserved_tokens)
            self._client_queues[client] = queue
            queue.requests += 1
            self._tokens += ticket.reserved_tokens
            self._untokenised_rows += len(items)
            self._tickets.add(ticket)
            ticket.future.add_done_callback(lambda _: self._cancel(ticket))
            if not queue.untokenised_tickets:
                self._turns.append(queue)
            queue.untokenised_tickets.append(ticket)
            self._condition.notify_all()
        return ticket

    def prepare_some(self, *, wait: bool = False) -> bool:
        """Tokenise some rows of the next request; return False if there are none.

        With `wait`, wait for a request until the queue is closed.
        """
        part = None
        while part is None:
            with self._condition:
                part = self._take_untokenised_rows()
                if part is not None:
                    ticket, rows = part
                    items = [ticket.items[row] for row in rows]
                elif not self._done_tickets and self._may_end(wait=wait):
                    return False
            self._notify()
        start = self._clock()
        try:
            examples = _isolate_failures(ticket.prepare, items)
        except MemoryError:
            examples = [BertworksError("there is not enough memory to tokenise the texts")] * len(
                rows
            )
        with self._condition:
            ticket.preparing_seconds += self._clock() - start
            for row, example in zip(rows, examples, strict=True):
                self._add_ready(ticket, row, example)
            self._condition.notify_all()
        self._notify()
        return True

    def run_batch(self, *, wait: bool = False) -> bool:
        """Compute a batch; return False if no row is ready.

        With `wait`, wait for rows until the queue is closed.
        """
        batch: list[_Row] = []
        while not batch:
            with self._condition:
                batch = self._take_batch(wait=wait)
                if not batch and not self._done_tickets and self._may_end(wait=wait):
                    return False
            self._notify()
        start = self._clock()
        answers = self._run(batch[0].ticket.runner, batch)
        seconds = self._clock() - start
        tokens = sum(row.example.num_tokens for row in batch)
        # Before the results are set: a client that has one finds its batch in the metrics.
        if self._observe is not None:
            self._observe(len(batch), tokens, seconds)
        with self._condition:
            self._rate += (tokens / max(seconds, 1e-6) - self._rate) * (0.2 if self._rate else 1)
            for ticket in {row.ticket for row in batch}:
                ticket.running_seconds += seconds
            for row, answer in zip(batch, answers, strict=True):
                if isinstance(answer, RemainingWork):
                    self._return_row(row.ticket, row.number, answer.example)
                else:
                    self._complete_row(row.ticket, row.number, answer)
            self._condition.notify_all()
        self._notify()
        return True

    def close(self) -> None:
        """Accept no more requests, and finish those that were accepted."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def _may_end(self, *, wait: bool) -> bool:
        """Whether a thread may end; if not, wait for a change."""
        if not wait or (self._is_closed and not self._tickets):
            return True
        self._condition.wait()
        return False

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

    def _take_untokenised_rows(self) -> tuple[Ticket, range] | None:
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

    def _add_ready(self, ticket: Ticket, row: int, example: Sized | Exception) -> None:
        """Add a tokenised row, or the error of tokenising it."""
        if ticket.is_done:
            return
        ticket.num_untokenised_rows -= 1
        self._untokenised_rows -= 1
        if isinstance(example, Exception):
            self._complete_row(ticket, row, example)
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

    def _return_row(self, ticket: Ticket, row: int, example: Sized) -> None:
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

    def _charge_ready_row(self, ticket: Ticket, row: int, example: Sized) -> None:
        """Count a ready row by its actual tokens."""
        cost = example.num_tokens
        self._charge_tokens(ticket, cost - ticket.costs[row])
        ticket.costs[row] = cost
        self._ready_tokens += cost

    def _wait_for_rows(self) -> None:
        """Wait up to `max_wait` while rows are tokenised, so that the next batch is fuller."""
        until = self._clock() + self.max_wait
        while self._untokenised_rows and (left := until - self._clock()) > 0:
            if self._ready_tokens >= self.batch_tokens:
                return
            self._condition.wait(left)

    def _take_batch(self, *, wait: bool) -> list[_Row]:
        """Return ready rows of one runner, of clients with the fewest tokens first."""
        if wait and self._ready_tokens:
            self._wait_for_rows()
        while queues := [queue for queue in self._client_queues.values() if queue.turns]:
            first = min(queues, key=lambda queue: (queue.served_tokens, queue.number))
            runner = next(iter(first.turns))
            first.turns[runner] = first.turns.pop(runner)  # another runner is next
            self._virtual_time = first.served_tokens
            batch = self._fill_batch(runner, [queue for queue in queues if runner in queue.turns])
            if batch:
                return batch
        return []

    def _fill_batch(self, runner: Runner, queues: Sequence[ClientQueue]) -> list[_Row]:
        batch: list[_Row] = []
        tokens = 0
        heap = [(queue.served_tokens, queue.number, queue) for queue in queues]
        heapq.heapify(heap)
        while heap:
            queue = heap[0][-1]
            ticket = queue.first_ticket(runner, self._is_active)
            if ticket is None:
                heapq.heappop(heap)
                continue
            row, example = ticket.ready[0]
            if batch and tokens + example.num_tokens > self.batch_tokens:
                break
            ticket.ready.popleft()
            self._ready_tokens -= example.num_tokens
            queue.turns[runner].rotate(-1)
            batch.append(_Row(ticket, row, example))
            tokens += example.num_tokens
            queue.served_tokens += example.num_tokens
            heapq.heapreplace(heap, (queue.served_tokens, queue.number, queue))
        return batch

    def _run(self, runner: Runner, batch: Sequence[_Row]) -> list[Any]:
        """Return each row's result or error; compute the batch in parts if memory is too small."""
        examples = [row.example for row in batch]
        answers: list[Any] = []
        while left := examples[len(answers) :]:
            part = left[: _count_fitting_rows(left, self.batch_tokens)]
            try:
                answers += _isolate_failures(runner.run, part)
            except MemoryError:
                if len(part) == 1:
                    answers.append(BertworksError("there is not enough memory for so long a text"))
                else:
                    tokens = sum(example.num_tokens for example in part)
                    self.batch_tokens = max(1, tokens // 2)
        return answers

    def _is_active(self, ticket: Ticket) -> bool:
        """Whether a request is active; end it with `DeadlineError` if its deadline has passed."""
        if ticket.is_done:
            return False
        if ticket.deadline is not None and self._clock() >= ticket.deadline:
            self._end(ticket, DeadlineError("the deadline passed before the request was computed"))
            return False
        return True

    def _complete_row(self, ticket: Ticket, row: int, outcome: Any) -> None:
        """Store a row's result or error; the last result or the first error ends the request."""
        if ticket.is_done:
            return
        self._charge_tokens(ticket, -ticket.costs[row])
        ticket.answers[row] = outcome
        ticket.num_remaining_rows -= 1
        if isinstance(outcome, Exception):
            self._end(ticket, outcome)
        elif not ticket.num_remaining_rows:
            self._end(ticket)

    def _charge_tokens(self, ticket: Ticket, tokens: int) -> None:
        ticket.reserved_tokens += tokens
        self._tokens += tokens

    def _end(self, ticket: Ticket, error: BaseException | None = None) -> None:
        """End a request and release its tokens; `_notify` resolves its future without the lock."""
        ticket.is_done, ticket.error = True, error
        self._tickets.discard(ticket)
        self._charge_tokens(ticket, -ticket.reserved_tokens)
        self._untokenised_rows -= ticket.num_untokenised_rows
        self._ready_tokens -= sum(example.num_tokens for _, example in ticket.ready)
        ticket.num_untokenised_rows = 0
        ticket.ready.clear()
        ticket.items = ()
        ticket.client_queue.requests -= 1
        if not ticket.client_queue.requests:
            del self._client_queues[ticket.client_queue.client]
        self._done_tickets.append(ticket)

    def _cancel(self, ticket: Ticket) -> None:
        """End a request whose future was cancelled; do nothing if it has ended already."""
        with self._condition:
            if not ticket.is_done:
                self._end(ticket)
                self._done_tickets.remove(ticket)
                self._condition.notify_all()

    def _notify(self) -> None:
        """Resolve the futures of ended requests, without the lock."""
        with self._condition:
            tickets, self._done_tickets = self._done_tickets, []
        for ticket in tickets:
            ticket.notify()

    def _loop(self, step: Callable[..., bool]) -> None:
        """Run a thread. An error of the queue itself ends all requests, so that none hangs."""
        try:
            while step(wait=True):
                pass
        except BaseException as error:
            with self._condition:
                self.fatal_error, self._is_closed = error, True
                for ticket in tuple(self._tickets):
                    self._end(ticket, error)
                self._condition.notify_all()
            self._notify()


def _count_fitting_rows(examples: Sequence[Sized], tokens: int) -> int:
    """Return how many of the first examples have at most `tokens` tokens together; at least 1."""
    ends = accumulate(example.num_tokens for example in examples)
    return max(1, sum(1 for _ in takewhile(lambda end: end <= tokens, ends)))


def _isolate_failures(
    compute: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any]
) -> list[Any]:
    """Compute each item's result, or the error that this item causes.

    After a `BertworksError`, halves are tried until the items that cause it are found. Any other
    exception except `MemoryError` counts for all items.
    """
    try:
        results = list(compute(items))
        assert len(results) == len(items), "an outcome for each item"
    except BertworksError as error:
        if len(items) == 1:
            return [error]
        half = len(items) // 2
        return [
            *_isolate_failures(compute, items[:half]),
            *_isolate_failures(compute, items[half:]),
        ]
    except MemoryError:
        raise
    except Exception as error:
        return [error] * len(items)
    return results


class FairYield:
    """Lets a few tasks continue in each iteration of the event loop.

    A batch completes hundreds of requests at once, and their clients then send hundreds of new
    ones. If all continued in one iteration, a health check would wait for all of them.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(4)

    async def wait_turn(self) -> None:
        """Wait until this task may continue."""
        async with self._free:
            await asyncio.sleep(0)
