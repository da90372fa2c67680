"""The progress display: a live line on a terminal, otherwise a line at intervals."""

from __future__ import annotations

import io
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from bertworks.utils.progress import Progress

pytestmark = pytest.mark.light


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("bertworks.utils.progress.time.monotonic", clock)
    return clock


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal of 70 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("TERM", "xterm-256color")
    return io.StringIO()


def show_step(progress: Progress, step: int = 120_000, phase: str = "length 128") -> None:
    progress.train(
        step,
        1_000_000,
        phase=phase,
        loss=10.312,
        tokens_per_second=123_456.0,
        seconds_left=90_061,
    )


def test_a_line_now_and_then_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with Progress(stream, every=1000) as progress:
        show_step(progress)
        show_step(progress)
        progress.show_metrics(500, {f"some_metric_{i}": i / 7 for i in range(9)})
        show_step(progress, 1_000_000)
    lines = stream.getvalue().splitlines()
    assert "120000/1000000" in lines[0]
    assert "loss 10.312 · 123k tok/s · 1d 01h left" in lines[0]
    assert lines[1].startswith("step 500: some_metric_0 0 · some_metric_1 0.1429")
    assert "1000000/1000000" in lines[-1], "the last step is always shown"
    assert all(len(line) <= 80 for line in lines)
    assert sum("length" in line for line in lines) == 2


def test_short_work_without_a_terminal_needs_no_console(clock: Clock) -> None:
    progress = Progress(io.StringIO(), every=10)
    update = progress.counter("embedding")
    for done in range(3):
        clock.now += 1
        update(done, 2)
    assert "_console" not in vars(progress)


def test_a_stream_that_only_writes_is_no_terminal(clock: Clock) -> None:
    """As of services, and of `pythonw`."""
    stream, lines = io.StringIO(), io.StringIO()
    stream_like: Any = SimpleNamespace(write=stream.write, flush=stream.flush)
    for one in (stream_like, lines):
        update = Progress(one, every=10).counter("teacher")
        for done in range(0, 1200, 50):
            update(done, 1200)
            clock.now += 1
    assert stream.getvalue() == lines.getvalue() != ""


def test_counted_work_is_shown_with_its_rate_and_time(clock: Clock) -> None:
    stream = io.StringIO()
    update = Progress(stream, every=10).counter("teacher")
    for done in range(10_000, 12_500, 50):  # 10,000 by an earlier run; 50 a second
        update(done, 12_500)
        clock.now += 1
    update(12_500, 12_500)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5, "one each ten seconds, and the last"
    assert lines[0] == "teacher 10,500/12,500 · 50 rows/s · 0:40 left"
    assert lines[-1] == "teacher 12,500/12,500 · 50 rows/s · 0:50"


def test_bytes_are_shown_as_megabytes_and_short_work_not_at_all(clock: Clock) -> None:
    stream = io.StringIO()
    progress = Progress(stream, every=10)
    reading, learning = progress.counter("reading", "MB"), progress.counter("learning", "pieces")
    for unknown_total in (True, False):
        clock.now += 10
        reading(int(clock.now * 1e6), 0 if unknown_total else 20_000_000)
    learning(0, 10)
    learning(10, 10)
    assert stream.getvalue().splitlines() == [
        "reading 10.0 MB · -:-- left",
        "reading 20.0/20.0 · 0.5 MB/s · 0:20",
    ]


def test_long_lines_are_wrapped_and_no_word_of_them_broken() -> None:
    stream = io.StringIO()
    path = "runs/" + "a-long-name/" * 8
    labels = ", ".join(f"'label {number}' 1,000 (3.2%)" for number in range(12))
    Progress(stream).note(f"{path}: 12 rows\n  labels: {labels}\n\nthe end")
    lines = stream.getvalue().splitlines()
    assert lines[0] == f"{path}:"
    assert lines[1] == "    12 rows"
    assert lines[2].startswith("  labels: 'label 0' 1,000")
    assert lines[3].startswith("      ")
    assert lines[-2:] == ["", "the end"]
    assert max(map(len, lines[1:])) <= 80
    assert " ".join(" ".join(lines[2:-2]).split()) == f"labels: {labels}"


@pytest.mark.parametrize(("phase", "mark"), [("1", "━"), ("a phase with a name", "…")])
def test_a_terminal_shows_one_live_line(terminal: io.StringIO, phase: str, mark: str) -> None:
    """It has a bar if there is room, and is cut at the terminal's width."""
    with Progress(terminal) as progress:
        show_step(progress, phase=phase)
        progress.note("a line that stays")
    text = terminal.getvalue()
    assert "a line that stays" in text
    assert "\x1b[2K" in text, "the line is drawn again in its place"
    assert [each in text for each in "━…"] == [each == mark for each in "━…"]


def test_random_numbers_do_not_depend_on_what_is_shown() -> None:
    """rich, which is imported when something is shown, draws from Python's generator."""
    code = """
import io, random, sys
from bertworks.utils.progress import Progress
assert "rich.style" not in sys.modules
random.seed(0)
state = random.getstate()
with Progress(io.StringIO(), every=0) as progress:
    progress.note("a line")
assert "rich.style" in sys.modules
assert random.getstate() == state
"""
    subprocess.run([sys.executable, "-c", code], check=True)
