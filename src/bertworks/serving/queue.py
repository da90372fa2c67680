"""Requests of many callers, packed into batches: in order, fair, bounded.

    submit ─► rows ─► tokenising thread ─► ready rows ─► network thread ─► the requests' futures

A *runner* computes answers; rows of one runner may share a batch, whoever sent them. A batch takes
the ready rows of the client that has been served least, then of the next, up to a budget of tokens
(start-time fair queueing: Goyal, Vin and Cheng 1996, over tokens). So whatever others have queued,
a client's first rows wait for the batch that is under way, and for no more than one of each client
that came before and has not been served yet.
"""

from __future__ import annotations

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
"""Of one request that are tokenised before the next one's turn."""


class OverloadedError(BertworksError):
    """The queue is full; `retry_after` says in how many seconds to try again."""

    retry_after: float = 1.0


class TooLargeError(BertworksError):
    """A request has more tokens than the queue ever takes."""


class LateError(BertworksError):
    """A request's deadline passed before it was computed."""


class ClosedError(BertworksError):
    """The queue takes no more requests."""


class Sized(Protocol):
    """A tokenised row."""

    @property
    def num_tokens(self) -> int: ...


class Runner(Protocol):
    """What computes answers; rows of the same (equal) runner may be in one batch."""

    def __hash__(self) -> int: ...

    def prepare(self, items: Sequence[Any]) -> Sequence[Sized]:
        """Tokenise items. A `BertworksError` is of one of them: they are then tried in parts."""
        ...

    def run(self, examples: Sequence[Any]) -> Sequence[Any]:
        """An answer for each example, or what is left of it as `Unfinished`.

        As in `prepare`; a `MemoryError` halves the budget.
        """
        ...


class Unfinished(NamedTuple):
    """What is left of a row that takes more than one batch; others have their turn in between."""

    example: Sized


class Ticket:
    """A request in the queue.

    Attributes:
        future: of the answers, one for each item in order; or of the first item's error, which
            drops the others. Cancelling it drops what is not computed yet.
        preparing, running: seconds that its rows were tokenised, and in the network.
        tokens: that its rows have, once they are tokenised.
    """

    def __init__(
        self,
        runner: Runner,
        items: Sequence[Any],
        sizes: Sequence[int],
        limit: int | None,
        lane: _Lane,
        prepare: Callable[[Sequence[Any]], Sequence[Sized]],
        deadline: float | None,
    ) -> None:
        self.runner, self.items, self.sizes, self.lane = runner, items, sizes, lane
        self.prepare, self.deadline = prepare, deadline
        self.future: Future[list[Any]] = Future()
        self.answers: list[Any] = [None] * len(items)
        self.costs = [size if limit is None else min(size, limit) for size in sizes]
        self.held = sum(self.costs)  # of the queue's tokens
        self.left = self.untokenised = len(items)  # rows without an answer, and without tokens
        self.next = 0  # the first row that nothing was done for
        self.ready: deque[tuple[int, Sized]] = deque()
        self.has_turn = False
        self.is_over = False
        self.error: BaseException | None = None
        self.preparing = self.running = 0.0
        self.tokens = 0

    def notify(self) -> None:
        """Give the caller, if there is one still, the answers or the error."""
        if not self.future.set_running_or_notify_cancel():
            return
        if self.error is None:
            self.future.set_result(self.answers)
        else:
            self.future.set_exception(self.error)

    def cut(self) -> range:
        """The next rows to be tokenised together."""
        first = self.next
        characters = 0
        while self.next < len(self.items) and self.next - first < _SLICE_ROWS:
            characters += self.sizes[self.next]
            if self.next > first and characters > _SLICE_CHARACTERS:
                break
            self.next += 1
        return range(first, self.next)


class _Lane:
    """A client: how much it was served, and its requests that have rows to tokenise or run."""

    def __init__(self, client: Hashable, number: int) -> None:
        self.client, self.number = client, number
        self.served = 0  # tokens, or as much as the least served client then had
        self.requests = 0
        self.untokenised: deque[Ticket] = deque()
        self.turns: dict[Runner, deque[Ticket]] = {}

    def front(self, runner: Runner, is_awaited: Callable[[Ticket], bool]) -> Ticket | None:
        """The request whose row of a runner is next; those that ended are left out."""
        turns = self.turns.get(runner, deque())
        while turns:
            if turns[0].ready and is_awaited(turns[0]):
                return turns[0]
            turns.popleft().has_turn = False
        self.turns.pop(runner, None)
        return None


class _Row(NamedTuple):
    ticket: Ticket
    number: int
    example: Sized


class Load(NamedTuple):
    """What a queue holds: requests, and tokens (of what is not tokenised yet, at most so many)."""

    requests: int
    tokens: int


class Queue:
    """Batches the rows of any number of callers; see the module.

    Args:
        batch_tokens: of a batch, at most (or one row); halved where memory runs out.
        max_tokens: that are held, at most; beyond, `submit` refuses.
        max_wait: seconds that a batch waits for rows that are being tokenised. A request that is
            alone waits for nothing.
        clock: seconds; deadlines are compared with it.
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
        self._changed = threading.Condition()
        self._lanes: dict[Hashable, _Lane] = {}
        self._untokenised: deque[_Lane] = deque()  # each lane once, in turn
        self._tickets: set[Ticket] = set()
        self._over: list[Ticket] = []  # whose callers wait to hear it
        self._tokens = self._served = self._numbers = 0
        self._untokenised_rows = self._ready_tokens = 0
        self._rate = 0.0  # tokens a second
        self._threads: list[threading.Thread] = []
        self._closed = False
        self.broken: BaseException | None = None

    def start(self) -> None:
        """Start the two threads."""
        for loop, name in ((self.prepare_some, "tokenising"), (self.run_batch, "network")):
            thread = threading.Thread(target=self._loop, args=(loop,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def load(self) -> Load:
        """What is held at the moment."""
        with self._changed:
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
        """Queue a request. Nothing of it is tokenised before it is taken or refused.

        Args:
            items: its rows, one at least.
            sizes: the most tokens that each may become, such as its characters.
            limit: the most tokens that a row may have.
            client: whose it is; clients are served alike.
            prepare: what tokenises the items, if it is not `runner.prepare`.
            deadline: on the queue's clock; rows that are reached later are not computed.

        Raises:
            OverloadedError, TooLargeError, ClosedError: it cannot be taken.
        """
        assert items and len(items) == len(sizes), "a request has rows, each of some size"
        with self._changed:
            if self._closed:
                raise ClosedError("the server is shutting down")
            lane = self._lanes.get(client)
            if lane is None:
                self._numbers += 1
                lane = _Lane(client, self._numbers)
            prepare = prepare or runner.prepare
            ticket = Ticket(runner, items, sizes, limit, lane, prepare, deadline)
            self._check_room(ticket.held)
            self._lanes[client] = lane
            lane.requests += 1
            self._tokens += ticket.held
            self._untokenised_rows += len(items)
            self._tickets.add(ticket)
            ticket.future.add_done_callback(lambda _: self._cancel(ticket))
            if not lane.untokenised:
                self._untokenised.append(lane)
            lane.untokenised.append(ticket)
            self._changed.notify_all()
        return ticket

    def prepare_some(self, *, wait: bool = False) -> bool:
        """Tokenise some rows of the request whose turn it is; False if there are none.

        With `wait`, a request is waited for until the queue is closed.
        """
        part = None
        while part is None:
            with self._changed:
                part = self._next_untokenised()
                if part is not None:
                    ticket, rows = part
                    items = [ticket.items[row] for row in rows]
                elif not self._over and self._may_end(wait=wait):
                    return False
            self._notify()
        started = self._clock()
        try:
            made = _apart(ticket.prepare, items)
        except MemoryError:
            made = [BertworksError("there is not enough memory to tokenise the texts")] * len(rows)
        with self._changed:
            ticket.preparing += self._clock() - started
            for row, example in zip(rows, made, strict=True):
                self._add_ready(ticket, row, example)
            self._changed.notify_all()
        self._notify()
        return True

    def run_batch(self, *, wait: bool = False) -> bool:
        """Compute a batch; False if no row is ready.

        With `wait`, rows are waited for until the queue is closed.
        """
        batch: list[_Row] = []
        while not batch:
            with self._changed:
                batch = self._next_batch(wait=wait)
                if not batch and not self._over and self._may_end(wait=wait):
                    return False
            self._notify()
        started = self._clock()
        answers = self._run(batch[0].ticket.runner, batch)
        seconds = self._clock() - started
        tokens = sum(row.example.num_tokens for row in batch)
        # Before the answers are given: who has one finds its batch counted.
        if self._observe is not None:
            self._observe(len(batch), tokens, seconds)
        with self._changed:
            self._rate += (tokens / max(seconds, 1e-6) - self._rate) * (0.2 if self._rate else 1)
            for ticket in {row.ticket for row in batch}:
                ticket.running += seconds
            for row, answer in zip(batch, answers, strict=True):
                if isinstance(answer, Unfinished):
                    self._put_back(row.ticket, row.number, answer.example)
                else:
                    self._settle(row.ticket, row.number, answer)
            self._changed.notify_all()
        self._notify()
        return True

    def close(self) -> None:
        """Take no more requests, and finish those that were taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _may_end(self, *, wait: bool) -> bool:
        """Whether there is nothing to do and nothing to wait for; if there is, wait a little."""
        if not wait or (self._closed and not self._tickets):
            return True
        self._changed.wait()
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

    def _next_untokenised(self) -> tuple[Ticket, range] | None:
        """The rows that are tokenised next: clients take turns, and so do a client's requests."""
        while self._untokenised:
            lane = self._untokenised.popleft()
            ticket = lane.untokenised.popleft()
            rows = ticket.cut() if self._is_awaited(ticket) else range(0)
            if rows and ticket.next < len(ticket.items):
                lane.untokenised.append(ticket)
            if lane.untokenised:
                self._untokenised.append(lane)
            if rows:
                return ticket, rows
        return None

    def _add_ready(self, ticket: Ticket, row: int, example: Sized | Exception) -> None:
        """Note a tokenised row, or why it could not be tokenised."""
        if ticket.is_over:
            return
        ticket.untokenised -= 1
        self._untokenised_rows -= 1
        if isinstance(example, Exception):
            self._settle(ticket, row, example)
            return
        ticket.tokens += example.num_tokens
        self._weigh(ticket, row, example)
        ticket.ready.append((row, example))
        lane = ticket.lane
        if not lane.turns:
            lane.served = max(lane.served, self._served)
        if not ticket.has_turn:
            lane.turns.setdefault(ticket.runner, deque()).append(ticket)
            ticket.has_turn = True

    def _put_back(self, ticket: Ticket, row: int, example: Sized) -> None:
        """Note what is left of a row: of its client's rows, it is the next."""
        if ticket.is_over:
            return
        ticket.tokens += max(0, example.num_tokens - ticket.costs[row])
        self._weigh(ticket, row, example)
        ticket.ready.appendleft((row, example))
        turns = ticket.lane.turns.setdefault(ticket.runner, deque())
        if ticket.has_turn:
            turns.remove(ticket)
        turns.appendleft(ticket)
        ticket.has_turn = True

    def _weigh(self, ticket: Ticket, row: int, example: Sized) -> None:
        """Count a row that is ready by its tokens."""
        cost = example.num_tokens
        self._hold(ticket, cost - ticket.costs[row])
        ticket.costs[row] = cost
        self._ready_tokens += cost

    def _await_more(self) -> None:
        """Wait a little while rows are being tokenised, so that the next batch is fuller."""
        until = self._clock() + self.max_wait
        while self._untokenised_rows and (left := until - self._clock()) > 0:
            if self._ready_tokens >= self.batch_tokens:
                return
            self._changed.wait(left)

    def _next_batch(self, *, wait: bool) -> list[_Row]:
        """Ready rows of one runner, the least served clients first; none if none is ready."""
        if wait and self._ready_tokens:
            self._await_more()
        while lanes := [lane for lane in self._lanes.values() if lane.turns]:
            first = min(lanes, key=lambda lane: (lane.served, lane.number))
            runner = next(iter(first.turns))
            first.turns[runner] = first.turns.pop(runner)  # another one's turn the next time
            self._served = first.served
            batch = self._batch_of(runner, [lane for lane in lanes if runner in lane.turns])
            if batch:
                return batch
        return []

    def _batch_of(self, runner: Runner, lanes: Sequence[_Lane]) -> list[_Row]:
        batch: list[_Row] = []
        tokens = 0
        heap = [(lane.served, lane.number, lane) for lane in lanes]
        heapq.heapify(heap)
        while heap:
            lane = heap[0][-1]
            ticket = lane.front(runner, self._is_awaited)
            if ticket is None:
                heapq.heappop(heap)
                continue
            row, example = ticket.ready[0]
            if batch and tokens + example.num_tokens > self.batch_tokens:
                break
            ticket.ready.popleft()
            self._ready_tokens -= example.num_tokens
            lane.turns[runner].rotate(-1)
            batch.append(_Row(ticket, row, example))
            tokens += example.num_tokens
            lane.served += example.num_tokens
            heapq.heapreplace(heap, (lane.served, lane.number, lane))
        return batch

    def _run(self, runner: Runner, batch: Sequence[_Row]) -> list[Any]:
        """The outcome of each row of a batch, which is computed in parts where it does not fit."""
        examples = [row.example for row in batch]
        answers: list[Any] = []
        while left := examples[len(answers) :]:
            part = left[: _fitting(left, self.batch_tokens)]
            try:
                answers += _apart(runner.run, part)
            except MemoryError:
                if len(part) == 1:
                    answers.append(BertworksError("there is not enough memory for so long a text"))
                else:
                    tokens = sum(example.num_tokens for example in part)
                    self.batch_tokens = max(1, tokens // 2)
        return answers

    def _is_awaited(self, ticket: Ticket) -> bool:
        """Whether anyone still waits for a request; a late one gets its error."""
        if ticket.is_over:
            return False
        if ticket.deadline is not None and self._clock() >= ticket.deadline:
            self._end(ticket, LateError("the deadline passed before the request was computed"))
            return False
        return True

    def _settle(self, ticket: Ticket, row: int, outcome: Any) -> None:
        """Note a row's outcome; the last answer, or the first error, ends the request."""
        if ticket.is_over:
            return
        self._hold(ticket, -ticket.costs[row])
        ticket.answers[row] = outcome
        ticket.left -= 1
        if isinstance(outcome, Exception):
            self._end(ticket, outcome)
        elif not ticket.left:
            self._end(ticket)

    def _hold(self, ticket: Ticket, tokens: int) -> None:
        ticket.held += tokens
        self._tokens += tokens

    def _end(self, ticket: Ticket, error: BaseException | None = None) -> None:
        """Give up what a request still held; its caller hears of it once the lock is free."""
        ticket.is_over, ticket.error = True, error
        self._tickets.discard(ticket)
        self._hold(ticket, -ticket.held)
        self._untokenised_rows -= ticket.untokenised
        self._ready_tokens -= sum(example.num_tokens for _, example in ticket.ready)
        ticket.untokenised = 0
        ticket.ready.clear()
        ticket.items = ()
        ticket.lane.requests -= 1
        if not ticket.lane.requests:
            del self._lanes[ticket.lane.client]
        self._over.append(ticket)

    def _cancel(self, ticket: Ticket) -> None:
        """Give up a request whose caller has gone away; nothing, if it is over already."""
        with self._changed:
            if not ticket.is_over:
                self._end(ticket)
                self._over.remove(ticket)
                self._changed.notify_all()

    def _notify(self) -> None:
        """Resolve the futures of requests that are over, without the lock."""
        with self._changed:
            over, self._over = self._over, []
        for ticket in over:
            ticket.notify()

    def _loop(self, step: Callable[..., bool]) -> None:
        """A thread. A fault of the queue itself fails whatever is held, and hangs nobody."""
        try:
            while step(wait=True):
                pass
        except BaseException as error:
            with self._changed:
                self.broken, self._closed = error, True
                for ticket in tuple(self._tickets):
                    self._end(ticket, error)
                self._changed.notify_all()
            self._notify()


def _fitting(examples: Sequence[Sized], tokens: int) -> int:
    """How many examples, from the first on, have so many tokens at most; one at least."""
    ends = accumulate(example.num_tokens for example in examples)
    return max(1, sum(1 for _ in takewhile(lambda end: end <= tokens, ends)))


def _apart(compute: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any]) -> list[Any]:
    """What is computed for each item, or the error that is this item's alone.

    A `BertworksError` is of some of the items: halves are tried until these are alone. Any other
    exception but `MemoryError` is of all.
    """
    try:
        found = list(compute(items))
        assert len(found) == len(items), "an outcome for each item"
    except BertworksError as error:
        if len(items) == 1:
            return [error]
        half = len(items) // 2
        return [*_apart(compute, items[:half]), *_apart(compute, items[half:])]
    except MemoryError:
        raise
    except Exception as error:
        return [error] * len(items)
    return found
