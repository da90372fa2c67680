"""Requests in the queue, and the clients that sent them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any

from .runners.base import Runner, Sized

_SLICE_ROWS = 64
_SLICE_CHARACTERS = 1 << 16
"""The most rows and characters of a request that are tokenised before the next one's turn."""


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
