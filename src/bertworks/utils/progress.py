"""Progress of all work that takes long, and the time left: a live line on a terminal, otherwise a
line at intervals.

rich is imported only when something is shown.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TextIO

from .formatting import format_clock, format_number, wrap_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

Update = Callable[[int, int], None]
"""Reports progress: how much is done, and the total (0 if unknown)."""

_MAX_BAR = 24
_MIN_BAR = 6
_LIVE_INTERVAL = 0.2  # seconds between two states of a live line
_MIN_UPDATES = 3
_MIN_SECONDS = 5.0
_HALF_LIFE = 30.0  # seconds after which progress counts half
_FORCING = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables by which rich takes a file for a terminal."""


class Progress:
    """Shows the progress of work; as a context manager, it ends the live line.

    Args:
        stream: output stream; if omitted, standard error, or standard output in a notebook.
        every: seconds between lines if the stream is not a terminal.
    """

    def __init__(self, stream: TextIO | None = None, *, every: float = 10.0) -> None:
        self._in_notebook = stream is None and in_notebook()
        self._stream = stream or (sys.stdout if self._in_notebook else sys.stderr)
        self._every = every
        self._live: Live | _Cell | None = None
        self._last = -float("inf")

    @cached_property
    def _console(self) -> Console:
        state = random.getstate()
        from rich.console import Console

        random.setstate(state)  # rich draws when it is imported: a run's numbers stay the same
        return Console(file=self._stream, highlight=False, soft_wrap=True, force_jupyter=False)

    @cached_property
    def _is_live(self) -> bool:
        # Whether a file is a terminal is known without rich, unless a variable says otherwise.
        is_terminal = getattr(self._stream, "isatty", lambda: False)  # pythonw has no stream
        may_be_terminal = is_terminal() or not os.environ.keys().isdisjoint(_FORCING)
        return self._in_notebook or (may_be_terminal and self._console.is_terminal)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def train(
        self,
        step: int,
        total: int,
        *,
        phase: str,
        loss: float,
        tokens_per_second: float,
        seconds_left: float | None,
    ) -> None:
        """Update the progress after a step; not every step is shown.

        Args:
            seconds_left: estimated time to the end; None if there is no estimate yet.
        """
        if self._is_due(step == total):
            speed = f"{format_number(tokens_per_second)} tok/s"
            left = f"{format_clock(seconds_left)} left"
            self._show(f"{phase} {step}/{total} · loss {loss:.3f} · {speed} · {left}", step / total)

    def counter(self, work: str, unit: str = "rows") -> Update:
        """Return a function that takes the number of units done and the total number of units.

        It shows them with the rate and the time left; not every call is shown, and of work that
        takes no longer than the interval nothing.

        Args:
            unit: what is counted; MB are counted in bytes.
        """
        left, start = TimeLeft(time.monotonic), time.monotonic()
        first_count: int | None = None  # done by an earlier run
        was_shown = False
        self._last = start

        def format_units(number: int) -> str:
            return f"{number / 1e6:,.1f}" if unit == "MB" else f"{number:,}"

        def update(count: int, total: int) -> None:
            nonlocal first_count, was_shown
            first_count = count if first_count is None else first_count
            left.update(count, total)
            is_last = count == total
            if not self._is_due(is_last and was_shown):
                return
            if not was_shown:
                self.close()  # the last line of the work before stays
            was_shown = True
            took = max(time.monotonic() - start, 1e-6)
            rate = (count - first_count) / took / (1e6 if unit == "MB" else 1)
            # Nothing is known of it at the first count, which an earlier run may have reached.
            speed = f"{format_number(rate)} {unit}/s · " if count > first_count else ""
            of_total = f"/{format_units(total)}" if total else f" {unit}"
            clock = format_clock(took) if is_last else f"{format_clock(left.seconds)} left"
            line = f"{work} {format_units(count)}{of_total} · {speed}{clock}"
            self._show(line, count / total if total else None)

        return update

    def show_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of an evaluation on a permanent line."""
        shown = [f"{name} {value:.4g}" for name, value in metrics.items()]
        self.parts([f"step {step}: {shown[0]}" if shown else f"step {step}", *shown[1:]])

    def parts(self, parts: Sequence[str]) -> None:
        """Show parts on a permanent line, or on several if one is too narrow."""
        line = parts[0]
        for part in parts[1:]:
            if len(line) - line.rfind("\n") + len(part) + 3 > self._console.width:
                line += f"\n    {part}"
            else:
                line += f" · {part}"
        self.note(line)

    def note(self, text: str) -> None:
        """Show a permanent line, wrapped if the terminal is narrower."""
        self._console.print(wrap_text(text, self._console.width), markup=False)

    def close(self) -> None:
        """End the live line; its last state stays visible."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _is_due(self, is_last: bool) -> bool:
        now = time.monotonic()
        took = now - self._last
        # Work that ends before the shorter interval needs no console.
        is_early = took < min(self._every, _LIVE_INTERVAL)
        if not is_last and (is_early or took < (_LIVE_INTERVAL if self._is_live else self._every)):
            return False
        self._last = now
        return True

    def _show(self, line: str, share: float | None) -> None:
        """Show the state of the work; on a terminal with a bar, if there is room for one.

        Args:
            share: how much is done, from 0 to 1; None if that is unknown.
        """
        if not self._is_live:
            self.note(line)
            return
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            live = Live(console=self._console, auto_refresh=False)
            self._live = _Cell() if self._in_notebook else live
            self._live.start()
        text = Text(line, no_wrap=True, overflow="ellipsis")
        room = min(_MAX_BAR, self._console.width - len(line) - 1)
        if share is not None and room >= _MIN_BAR and not self._in_notebook:
            num_done = round(room * share)
            text.append(" " + "━" * num_done, "green").append("━" * (room - num_done), "dim")
        self._live.update(text, refresh=True)


class TimeLeft:
    """An estimate of the time left for a job.

    The first update only starts the measurement, because the work before it (loading, compiling,
    warming up) does not occur again. There is no estimate until a few more updates and seconds have
    passed.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._updates = -1  # the first one is not counted
        self._time = self._units_done = self._first_units = self._remaining = 0.0
        self._seconds = self._units = 0.0  # of work, with recent work weighted more
        self._total_seconds = self._pauses = 0.0

    def update(self, units_done: float, total: float, took: float | None = None) -> None:
        """Record progress.

        Args:
            units_done: the units of work done so far.
            total: the units of work in all; 0 if unknown.
            took: the seconds of work since the last update, without pauses (such as evaluations);
                by default, all seconds. Pauses are expected to recur as often as so far.
        """
        now = self._clock()
        if self._updates >= 0:
            interval, units = now - self._time, units_done - self._units_done
            seconds = interval if took is None else min(took, interval)
            fade = 0.5 ** (seconds / _HALF_LIFE)
            self._seconds = fade * self._seconds + seconds
            self._units = fade * self._units + units
            self._total_seconds += interval
            self._pauses += interval - seconds
        else:
            self._first_units = units_done
        self._updates += 1
        self._time, self._units_done, self._remaining = now, units_done, total - units_done

    @property
    def seconds(self) -> float | None:
        """The estimate in seconds; None while there is none."""
        if self._units_done > 0 and self._remaining == 0:
            return 0.0
        if self._updates < _MIN_UPDATES or self._total_seconds < _MIN_SECONDS:
            return None
        if self._remaining < 0 or self._units <= 0:
            return None
        pause = self._pauses / (self._units_done - self._first_units)
        return self._remaining * (self._seconds / self._units + pause)


class _Cell:
    """A line in a notebook that is overwritten; has the methods of `Live` that are used here."""

    def start(self) -> None:
        shown: Any = importlib.import_module("IPython.display")
        self._line = shown.display({"text/plain": ""}, raw=True, display_id=True)

    def update(self, line: Text, *, refresh: bool) -> None:
        assert refresh
        self._line.update({"text/plain": line.plain}, raw=True)

    def stop(self) -> None:
        """Do nothing: the last state of the line stays visible."""


def in_notebook() -> bool:
    """Whether this process belongs to a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def usual_progress(progress: Progress | None) -> Progress | None:
    """Return the given progress; if it is None, a new one in a notebook, otherwise None."""
    return Progress() if progress is None and in_notebook() else progress


def say(progress: Progress | None, text: str) -> None:
    """Show a permanent line, if there is a progress display."""
    if progress is not None:
        progress.note(text)
