"""A queue that packs the rows of many requests into batches, in two threads.

    submit ─► rows ─► tokenising thread ─► ready rows ─► network thread ─► the requests' futures

A *runner* computes results. Rows of one runner may share a batch, also rows of different clients.
Which rows are next is decided by `schedule.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, takewhile
from typing import Any, NamedTuple

from ..errors import BertworksError
from ..packed import Sized
from .schedule import Load, QueuedRow, Runner, Schedule, Ticket

_MAX_WAIT_SECONDS = 0.002
"""How long a batch waits while other rows are being tokenised."""


class ClosedError(BertworksError):
    """The queue accepts no more requests."""


class RemainingWork(NamedTuple):
    """The remaining work of a row that needs several batches; other rows run in between."""

    example: Sized


class Queue:
    """Batches the rows of any number of callers; see the module.

    Args:
        batch_tokens: maximum tokens of a batch (or one row); halved when memory runs out.
        max_tokens: maximum tokens in the queue; above it, `submit` refuses requests.
        clock: returns seconds; deadlines are compared with it.
        observe: called after each batch with its rows, tokens and seconds.
    """

    def __init__(
        self,
        batch_tokens: int = 8192,
        max_tokens: int = 1 << 20,
        clock: Callable[[], float] = time.monotonic,
        observe: Callable[[int, int, float], None] | None = None,
    ) -> None:
        self._clock, self._observe = clock, observe
        self._condition = threading.Condition()
        self._schedule = Schedule(batch_tokens, max_tokens, clock)
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
            return self._schedule.load

    @property
    def batch_tokens(self) -> int:
        """The most tokens of a batch."""
        return self._schedule.batch_tokens

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
            ticket = Ticket(
                runner, items, sizes, limit, client, prepare or runner.prepare, deadline
            )
            self._schedule.add(ticket)
            ticket.future.add_done_callback(lambda _: self._cancel(ticket))
            self._condition.notify_all()
        return ticket

    def prepare_some(self, *, wait: bool = False) -> bool:
        """Tokenise some rows of the next request; return False if there are none.

        With `wait`, wait for a request until the queue is closed.
        """
        part = None
        while part is None:
            with self._condition:
                part = self._schedule.take_untokenised_rows()
                if part is not None:
                    ticket, rows = part
                    items = [ticket.items[row] for row in rows]
                elif not self._schedule.ended_tickets and self._may_end(wait=wait):
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
                self._schedule.add_ready(ticket, row, example)
            self._condition.notify_all()
        self._notify()
        return True

    def run_batch(self, *, wait: bool = False) -> bool:
        """Compute a batch; return False if no row is ready.

        With `wait`, wait for rows until the queue is closed.
        """
        batch: list[QueuedRow] = []
        while not batch:
            with self._condition:
                if wait and self._schedule.ready_tokens:
                    self._wait_for_rows()
                batch = self._schedule.take_batch()
                if not batch and not self._schedule.ended_tickets and self._may_end(wait=wait):
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
            self._schedule.record_rate(tokens, seconds)
            for ticket in {row.ticket for row in batch}:
                ticket.running_seconds += seconds
            for row, answer in zip(batch, answers, strict=True):
                if isinstance(answer, RemainingWork):
                    self._schedule.return_row(row.ticket, row.number, answer.example)
                else:
                    self._schedule.complete_row(row.ticket, row.number, answer)
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
        if not wait or (self._is_closed and not self._schedule.tickets):
            return True
        self._condition.wait()
        return False

    def _wait_for_rows(self) -> None:
        """Wait a moment while rows are tokenised, so that the next batch is fuller."""
        until = self._clock() + _MAX_WAIT_SECONDS
        while self._schedule.num_untokenised_rows and (left := until - self._clock()) > 0:
            if self._schedule.ready_tokens >= self._schedule.batch_limit:
                return
            self._condition.wait(left)

    def _run(self, runner: Runner, batch: Sequence[QueuedRow]) -> list[Any]:
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
                    self._schedule.batch_tokens = max(1, tokens // 2)
        return answers

    def _cancel(self, ticket: Ticket) -> None:
        """End a request whose future was cancelled; do nothing if it has ended already."""
        with self._condition:
            if not ticket.is_done:
                self._schedule.end(ticket)
                self._schedule.ended_tickets.remove(ticket)
                self._condition.notify_all()

    def _notify(self) -> None:
        """Resolve the futures of ended requests, without the lock."""
        with self._condition:
            tickets = self._schedule.take_ended()
            if tickets:  # while the queue closes, the other thread may wait for the last request
                self._condition.notify_all()
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
                for ticket in tuple(self._schedule.tickets):
                    self._schedule.end(ticket, error)
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
