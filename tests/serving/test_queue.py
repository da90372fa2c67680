"""The queue: whatever the order of requests, each caller soon gets its own answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, wait
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.errors import BertworksError, DataError
from bertworks.serving.queue import ClosedError, Queue, RemainingWork
from bertworks.serving.schedule import (
    DeadlineError,
    Load,
    OverloadedError,
    Ticket,
    TooLargeError,
)

pytestmark = pytest.mark.light


@dataclass(frozen=True)
class Example:
    """A row: a name, as many tokens as its text has letters."""

    text: str

    @property
    def num_tokens(self) -> int:
        return len(self.text)


@dataclass(eq=False)
class Upper:
    """A network that answers in capitals.

    `?` cannot be tokenised, `!` cannot be computed, each `+` takes one more batch and becomes `*`.
    """

    memory: int = 1 << 30
    batches: list[list[str]] = field(default_factory=list)
    before_batch: Callable[[], Any] = lambda: None

    def prepare(self, items: Sequence[str]) -> list[Example]:
        if any("?" in item for item in items):
            raise DataError("no tokens")
        return [Example(item) for item in items]

    def run(self, examples: Sequence[Example]) -> list[str]:
        self.before_batch()
        if sum(example.num_tokens for example in examples) > self.memory:
            raise MemoryError
        self.batches.append([example.text for example in examples])
        if any("!" in example.text for example in examples):
            raise DataError("not finite")
        if any("#" in example.text for example in examples):
            raise ZeroDivisionError("a fault")
        return [
            RemainingWork(Example(example.text.replace("+", "*", 1)))
            if "+" in example.text
            else example.text.upper()
            for example in examples
        ]


def submit(queue: Queue, runner: Upper, *texts: str, **more: Any) -> Ticket:
    return queue.submit(runner, texts, [len(text) for text in texts], **more)


def finish(queue: Queue) -> None:
    """Do what there is to do."""
    while queue.prepare_some() or queue.run_batch():
        pass


def outcomes(ticket: Ticket) -> list[Any]:
    return ticket.future.result(timeout=10)


def test_answers_are_in_order_and_batches_within_the_budget() -> None:
    queue, upper = Queue(batch_tokens=10), Upper()
    one = submit(queue, upper, "aaaa", "b", "cccccccccccc", client=1)
    two = submit(queue, upper, "dd", "eee", client=2)
    assert queue.load == Load(2, 22)
    finish(queue)
    assert outcomes(one) == ["AAAA", "B", "CCCCCCCCCCCC"]
    assert outcomes(two) == ["DD", "EEE"]
    assert all(sum(map(len, batch)) <= 10 or len(batch) == 1 for batch in upper.batches)
    assert any(
        len({text.islower() for text in batch}) and len(batch) > 2 for batch in upper.batches
    )
    assert queue.load == Load(0, 0)


def test_rows_of_two_runners_are_never_in_one_batch() -> None:
    queue, upper, other = Queue(), Upper(), Upper()
    tickets = [submit(queue, runner, "a", "b") for runner in (upper, other, upper)]
    finish(queue)
    assert [outcomes(ticket) for ticket in tickets] == [["A", "B"]] * 3
    assert [sorted(batch) for batch in upper.batches] == [["a", "a", "b", "b"]]
    assert other.batches == [["a", "b"]]


def test_a_bad_row_fails_its_request_alone() -> None:
    queue, upper = Queue(), Upper()
    tickets = [submit(queue, upper, text) for text in "a?b!c"]
    many = submit(queue, upper, *"defg")
    finish(queue)
    assert [outcomes(tickets[at]) for at in (0, 2, 4)] == [["A"], ["B"], ["C"]]
    for at, says in ((1, "no tokens"), (3, "not finite")):
        with pytest.raises(DataError, match=says):
            outcomes(tickets[at])
    assert outcomes(many) == ["D", "E", "F", "G"]


def test_a_request_stops_at_its_first_error() -> None:
    queue, upper = Queue(batch_tokens=2), Upper()
    bad = submit(queue, upper, "a", "?", *"bcdefg")
    worse = submit(queue, upper, "!", *"hijkl")
    good = submit(queue, upper, "z")
    finish(queue)
    with pytest.raises(DataError, match="no tokens"):
        outcomes(bad)
    with pytest.raises(DataError, match="not finite"):
        outcomes(worse)
    assert outcomes(good) == ["Z"]
    computed = {text for batch in upper.batches for text in batch}
    assert not computed & set("abcdefg")
    assert queue.load == Load(0, 0)


def test_a_fault_fails_its_batch_and_nothing_else() -> None:
    queue, upper = Queue(batch_tokens=2), Upper()
    tickets = [submit(queue, upper, text) for text in "a#bc"]
    finish(queue)
    for ticket in tickets[:2]:
        with pytest.raises(ZeroDivisionError):
            outcomes(ticket)
    assert [outcomes(ticket) for ticket in tickets[2:]] == [["B"], ["C"]]


def test_batches_become_smaller_if_memory_runs_out() -> None:
    queue, upper = Queue(batch_tokens=64), Upper(memory=20)
    fits = submit(queue, upper, *["abc"] * 40)
    too_long = submit(queue, upper, "x" * 30)
    finish(queue)
    assert outcomes(fits) == ["ABC"] * 40
    with pytest.raises(BertworksError, match="not enough memory"):
        outcomes(too_long)
    assert queue.batch_tokens == 15, "63 tokens, then 30"
    assert max(sum(map(len, batch)) for batch in upper.batches) <= 20


def test_cancelled_work_is_not_computed() -> None:
    queue, upper = Queue(batch_tokens=3), Upper()
    cancelled_ticket = submit(queue, upper, *"abcdef")
    other_ticket = submit(queue, upper, "x")
    queue.prepare_some()
    queue.run_batch()
    assert cancelled_ticket.future.cancel()
    assert queue.load == Load(1, 1), "what it held is free at once"
    finish(queue)
    assert outcomes(other_ticket) == ["X"]
    assert sum(map(len, upper.batches)) <= 4
    with pytest.raises(CancelledError):
        outcomes(cancelled_ticket)


def test_closed_queue_ends_when_the_deadline_of_its_last_request_passes() -> None:
    """The thread that waits for rows is woken by the thread that sees that the deadline passed."""
    now = [0.0]
    queue = Queue(clock=lambda: now[0])
    ticket = submit(queue, Upper(), "a", deadline=1.0)
    network = threading.Thread(target=queue.run_batch, kwargs={"wait": True}, daemon=True)
    network.start()
    queue.close()
    while not queue._condition._waiters:  # type: ignore[attr-defined]
        time.sleep(0.001)
    now[0] = 2.0
    assert not queue.prepare_some()
    with pytest.raises(DeadlineError):
        outcomes(ticket)
    network.join(5)
    assert not network.is_alive()


def test_rows_after_their_deadline_are_not_computed() -> None:
    now = [0.0]
    queue, upper = Queue(clock=lambda: now[0]), Upper()
    late, early = (submit(queue, upper, "a", deadline=at) for at in (1.0, 3.0))
    expired_ticket = submit(queue, upper, "b", deadline=0.0)
    queue.prepare_some()
    queue.prepare_some()
    now[0] = 2.0
    finish(queue)
    assert outcomes(early) == ["A"]
    for ticket in (late, expired_ticket):
        with pytest.raises(DeadlineError, match="deadline"):
            outcomes(ticket)
    assert upper.batches == [["a"]]


def test_the_queue_is_bounded() -> None:
    queue, upper = Queue(max_tokens=10), Upper()
    submit(queue, upper, "aaaa", "bbbb")
    with pytest.raises(OverloadedError, match="busy") as refused:
        submit(queue, upper, "ccc")
    assert 1 <= refused.value.retry_after <= 60
    with pytest.raises(TooLargeError, match="may have 11 tokens, and the queue takes 10"):
        submit(queue, upper, "x" * 11)
    submit(queue, upper, "x" * 50, limit=2), "a truncated row takes no more than the limit"
    finish(queue)
    assert queue.load == Load(0, 0)


def test_actual_tokens_replace_the_estimate() -> None:
    queue, upper = Queue(), Upper()
    ticket = queue.submit(upper, ["ab"], [100])
    assert queue.load.tokens == 100
    queue.prepare_some()
    assert queue.load.tokens == 2 == ticket.tokens
    finish(queue)


@given(
    others=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    batches_before=st.integers(0, 5),
    slices_before=st.integers(0, 12),
    runners=st.lists(st.integers(0, 1), min_size=5, max_size=5),
)
def test_a_single_text_waits_for_one_batch_of_each_client_however_much_they_have_queued(
    others: list[int], batches_before: int, slices_before: int, runners: list[int]
) -> None:
    queue, both = Queue(batch_tokens=32), (Upper(), Upper())
    for client, rows in enumerate(others):
        submit(queue, both[runners[client]], *["aaa"] * rows, client=client)
        submit(queue, both[runners[client - 1]], *["b"] * rows, client=client)
    for _ in range(slices_before):
        queue.prepare_some()
    for _ in range(batches_before):
        queue.run_batch()
    single = submit(queue, both[runners[-1]], "z", client="single")
    for _ in range(len(others) + 1):  # each client's turn, at most
        queue.prepare_some()
    assert single.ready
    assert any(queue.run_batch() and single.future.done() for _ in range(len(others) + 1))


def test_a_single_text_waits_for_two_batches_of_ten_thousand() -> None:
    queue, upper = Queue(batch_tokens=256), Upper()
    submit(queue, upper, *["many"] * 10_000, client="many")
    queue.prepare_some()
    tickets = []
    # While a batch is computed, a text comes and is tokenised.
    upper.before_batch = lambda: (
        tickets
        or (
            tickets.append(submit(queue, upper, "one", client="one")),
            [queue.prepare_some() for _ in range(2)],
        )
    )
    queue.run_batch()
    assert not tickets[0].future.done()
    queue.run_batch()
    assert outcomes(tickets[0]) == ["ONE"]


@pytest.mark.parametrize(("seconds", "tokens"), [(0.2, 64), (0.1, 128), (0.01, 256), (100.0, 32)])
def test_batches_are_small_while_several_clients_send(seconds: float, tokens: int) -> None:
    """A full batch of 256 tokens takes `seconds`; one of 0.05 s would have `tokens`, in bounds."""
    now = [0.0]
    queue, upper = Queue(batch_tokens=256, clock=lambda: now[0]), Upper()

    def compute(expected_tokens: int) -> None:
        upper.before_batch = lambda: now.__setitem__(0, now[0] + expected_tokens * seconds / 256)
        assert queue.run_batch()
        assert sum(map(len, upper.batches[-1])) == expected_tokens

    submit(queue, upper, *["many"] * 640, client="many")
    while queue.prepare_some():
        pass
    compute(256)
    single = submit(queue, upper, "text", client="single")
    queue.prepare_some()
    compute(tokens)
    assert outcomes(single) == ["TEXT"]
    if seconds < 100:
        compute(tokens)  # another text of that client may come
    now[0] += 1
    compute(256)


def test_clients_share_by_tokens() -> None:
    queue, upper = Queue(batch_tokens=40), Upper()
    submit(queue, upper, *["a" * 10] * 64, client="long")
    submit(queue, upper, *["b"] * 64, client="short")
    for _ in range(2):
        queue.prepare_some()
    for _ in range(3):
        queue.run_batch()
    letters = "".join(text for batch in upper.batches for text in batch)
    assert abs(letters.count("a") - letters.count("b")) <= 20
    # And so do the requests of one client, by rows.
    queue, upper = Queue(batch_tokens=4), Upper()
    first, second = (submit(queue, upper, *letter * 64, client=1) for letter in "xy")
    for _ in range(2):
        queue.prepare_some()
    queue.run_batch()
    assert sorted(upper.batches[0]) == ["x", "x", "y", "y"]
    assert not first.future.done()
    assert not second.future.done()


def test_a_client_that_comes_late_is_owed_nothing_of_the_past() -> None:
    """From then on both get equal shares; the new client does not catch up first."""
    queue, upper = Queue(batch_tokens=40), Upper()
    submit(queue, upper, *"a" * 900, client="first")
    for _ in range(15):
        queue.prepare_some()
    for _ in range(10):
        queue.run_batch()
    submit(queue, upper, *"b" * 300, client="second")
    for _ in range(20):
        queue.prepare_some()
    for _ in range(3):
        queue.run_batch()
    letters = "".join(text for batch in upper.batches[10:] for text in batch)
    assert abs(letters.count("a") - letters.count("b")) <= 42


def test_a_row_of_many_batches_lets_others_pass() -> None:
    queue, upper, other = Queue(batch_tokens=8), Upper(), Upper()
    long = submit(queue, upper, "a++++", "b+++", client=1)
    queue.prepare_some()
    queue.run_batch()
    assert upper.batches == [["a++++"]]
    assert queue.load == Load(1, 9), "what is unfinished is still held"
    same, others = (submit(queue, runner, "c", client=2) for runner in (upper, other))
    queue.prepare_some()
    queue.prepare_some()
    for _ in range(2):
        queue.run_batch()
    assert outcomes(same) == outcomes(others) == ["C"]
    assert upper.batches[1:] == [["c", "a*+++"]], "and they share batches"
    cancelled_ticket = submit(queue, upper, "d+++++", client=2)
    queue.prepare_some()
    queue.run_batch()
    assert cancelled_ticket.future.cancel()
    finish(queue)
    assert outcomes(long) == ["A****", "B***"]
    texts = [text for batch in upper.batches for text in batch]
    assert texts.index("b+++") > texts.index("a****"), "what was begun is finished first"
    assert not any("d*" in text for text in texts)
    assert queue.load == Load(0, 0)


TEXTS = st.text("abc?!#+", min_size=1, max_size=9)
STEPS = st.one_of(
    st.tuples(
        st.just("submit"),
        st.lists(TEXTS, min_size=1, max_size=90),
        st.integers(0, 3),  # the client
        st.integers(0, 1),  # the runner
        st.sampled_from([None, 3.0, 10.0]),  # the deadline
    ),
    st.tuples(st.just("prepare")),
    st.tuples(st.just("run")),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("tick")),
)


def right(text: str, outcome: Any) -> bool:
    """Whether an outcome is what a text may have."""
    if "?" in text:
        return str(outcome) == "no tokens"
    if "#" in text:
        return isinstance(outcome, (ZeroDivisionError, DataError))
    if "!" in text:
        return str(outcome) in {"not finite", "a fault"}
    # A fault that is nobody's is that of the whole batch.
    return outcome == text.upper().replace("+", "*") or isinstance(outcome, ZeroDivisionError)


@given(st.lists(STEPS, max_size=40), st.sampled_from([7, 30]))
def test_each_request_ends_right_whatever_happens(
    steps: list[tuple[Any, ...]], memory: int
) -> None:
    now = [0.0]
    queue = Queue(batch_tokens=12, max_tokens=500, clock=lambda: now[0])
    runners = (Upper(memory), Upper(memory))
    tickets: list[tuple[Ticket, tuple[str, ...]]] = []
    for what, *values in steps:
        if what == "submit":
            texts, client, runner, deadline = values
            try:
                ticket = submit(
                    queue,
                    runners[runner],
                    *texts,
                    client=client,
                    deadline=deadline,
                )
                tickets.append((ticket, tuple(texts)))
            except (OverloadedError, TooLargeError):
                assert queue.load.tokens + sum(map(len, texts)) > 500
        elif what == "cancel" and tickets:
            tickets[values[0] % len(tickets)][0].future.cancel()
        elif what == "prepare":
            queue.prepare_some()
        elif what == "run":
            queue.run_batch()
        elif what == "tick":
            now[0] += 1
        waiting = [ticket for ticket, _ in tickets if not ticket.future.done()]
        assert queue.load == Load(len(waiting), sum(ticket.reserved_tokens for ticket in waiting))
        assert 0 <= queue.load.tokens <= 500
    finish(queue)
    assert queue.load == Load(0, 0)
    assert queue._schedule.ready_tokens == queue._schedule.num_untokenised_rows == 0
    assert not queue._schedule._client_queues
    for ticket, texts in tickets:
        assert ticket.future.done()
        if ticket.future.cancelled():
            continue
        error = ticket.future.exception()
        if error is None:
            assert all(right(*one) for one in zip(texts, outcomes(ticket), strict=True))
        elif not isinstance(error, DeadlineError):
            is_long = any(len(text) > memory for text in texts)
            assert any(right(text, error) for text in texts) or (is_long and "memory" in str(error))
    for runner in runners:
        assert all(len(batch) == 1 or sum(map(len, batch)) <= 12 for batch in runner.batches)


def test_threads_answer_many_callers_at_once() -> None:
    queue, upper = Queue(batch_tokens=50), Upper()
    queue.start()
    answers: dict[int, list[Any]] = {}

    def call(number: int) -> None:
        texts = [f"{number}a{at}" for at in range(number % 7 + 1)]
        answers[number] = [
            outcomes(submit(queue, upper, *texts, client=number % 3)),
            [text.upper() for text in texts],
        ]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    queue.close()
    assert len(answers) == 60
    assert all(answer == expected for answer, expected in answers.values())
    assert queue.fatal_error is None


def test_requests_gather_while_a_batch_is_computed_and_closing_loses_none() -> None:
    batch_start, go = threading.Semaphore(0), threading.Event()

    def slow() -> None:
        batch_start.release()
        assert go.wait(10)

    queue, upper = Queue(), Upper(before_batch=slow)
    queue.start()
    first = submit(queue, upper, "first")
    assert batch_start.acquire(timeout=10), "a request that is alone is computed at once"
    more = [submit(queue, upper, letter) for letter in "abcdefgh"]
    closing = threading.Thread(target=queue.close)
    closing.start()
    go.set()
    closing.join(10)
    wait([ticket.future for ticket in more], timeout=10)
    assert outcomes(first) == ["FIRST"]
    assert [outcomes(ticket) for ticket in more] == [[letter.upper()] for letter in "abcdefgh"]
    assert len(upper.batches) <= 4, "they were computed together"
    with pytest.raises(ClosedError):
        submit(queue, upper, "x")


def test_faults_of_the_queue_are_raised_to_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    queue, upper = Queue(), Upper()
    monkeypatch.setattr(queue._schedule, "take_batch", fail)
    queue.start()
    with pytest.raises((RuntimeError, BertworksError), match=r"a bug|shutting down"):
        outcomes(submit(queue, upper, "a"))
    queue.close()
    assert isinstance(queue.fatal_error, RuntimeError)


def test_tokenising_that_runs_out_of_memory_fails_its_request() -> None:
    def prepare(_: Sequence[str]) -> list[Example]:
        raise MemoryError

    queue, upper = Queue(), Upper()
    ticket = submit(queue, upper, "a", prepare=prepare)
    other_ticket = submit(queue, upper, "b")
    finish(queue)
    with pytest.raises(BertworksError, match="not enough memory"):
        outcomes(ticket)
    assert outcomes(other_ticket) == ["B"]
