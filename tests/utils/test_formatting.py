"""The estimate of the time left is shown only when it is good."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bertworks.utils.formatting import format_clock, format_count, format_number
from bertworks.utils.progress import TimeLeft


class Work:
    """Work whose time is counted, not spent."""

    def __init__(self, total: int) -> None:
        self.now, self.total = 0.0, total
        self.left = TimeLeft(lambda: self.now)
        self.estimates: list[tuple[float, float | None]] = []

    def do(self, num_done: int, seconds: float, pause: float = 0.0) -> None:
        self.now += seconds + pause
        self.left.update(num_done, self.total, seconds)
        self.estimates.append((self.now, self.left.seconds))


def test_an_estimate_ignores_the_time_before_the_work() -> None:
    """Loading, compiling and the first evaluation take a minute; each later step a second."""
    work = Work(480)
    work.do(1, seconds=20.0, pause=60.0)
    for step in range(2, 481):
        work.do(step, seconds=1.0, pause=10.0 if step % 100 == 1 else 0.0)
    assert [left for _, left in work.estimates[:5]] == [None] * 5
    for now, left in work.estimates[5:]:
        assert left is not None
        assert left == pytest.approx(work.now - now, rel=0.15, abs=3)


def test_the_estimate_follows_the_rate() -> None:
    work = Work(1000)
    for step in range(1, 301):
        work.do(step, seconds=1.0)
    for step in range(301, 501):
        work.do(step, seconds=2.0)
    assert work.left.seconds == pytest.approx(500 * 2.0, rel=0.02)


@pytest.mark.parametrize(("seconds", "first"), [(0.5, 11), (1.0, 6), (60.0, 4)])
def test_slow_work_needs_few_updates_and_fast_work_some_seconds(seconds: float, first: int) -> None:
    work = Work(100)
    for step in range(1, 20):
        work.do(step, seconds)
    known = [step for step, (_, left) in enumerate(work.estimates, 1) if left is not None]
    assert known == list(range(first, 20))


def test_an_estimate_needs_progress_and_a_total() -> None:
    def ticking() -> Iterator[float]:
        now = 0.0
        while True:
            yield now
            now += 10.0

    ticks = ticking()
    left = TimeLeft(lambda: next(ticks))
    assert left.seconds is None
    for _ in range(9):
        left.update(5, 100)
    assert left.seconds is None, "nothing was done since the first update"
    left.update(15, 0)
    assert left.seconds is None, "nobody knows how much there is"
    left.update(100, 100)
    assert left.seconds == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-:--"),
        (0, "0:00"),
        (42, "0:42"),
        (725, "12:05"),
        (11_220, "3:07:00"),
        (187_200, "2d 04h"),
        (15_555 * 86_400, "42 years"),
    ],
)
def test_spans_of_time_as_a_clock_shows_them(seconds: float | None, text: str) -> None:
    assert format_clock(seconds) == text


def test_a_number_has_its_noun_in_singular_or_plural() -> None:
    assert [format_count(n, "query") for n in (1, 2)] == ["1 query", "2 queries"]
    assert format_count(2, "key") == "2 keys"
    counts = [format_count(1, "document"), format_count(0, "document"), format_count(1200, "match")]
    assert counts == ["1 document", "0 documents", "1,200 matches"]


@given(st.floats(1, 999e9))
@example(999_600)
@example(999_499_999)
@example(1e9)
def test_numbers_have_three_digits_and_no_exponent(number: float) -> None:
    text = format_number(number)
    size = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1)
    digits = text.rstrip("kMG")
    assert len(digits.replace(".", "")) <= 3, text
    assert float(digits) * size == pytest.approx(number, rel=0.005)
    assert 1 <= float(digits) < 1000
