"""Progress display of a run: a live line on a terminal, otherwise a line at intervals."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..utils.formatting import format_clock, format_number, wrap_text
from ..utils.time_left import TimeLeft


class Progress:
    """Shows the progress of a run.

    Args:
        stream: output stream; if omitted, standard error, or standard output in a notebook.
        every: seconds between lines if the stream is not a terminal.
    """

    def __init__(self, stream: TextIO | None = None, *, every: float = 10.0) -> None:
        self._in_notebook = stream is None and in_notebook()
        usual = sys.stdout if self._in_notebook else sys.stderr
        self._console = Console(
            file=stream or usual, highlight=False, soft_wrap=True, force_jupyter=False
        )
        self._is_live = self._console.is_terminal or self._in_notebook
        self._interval = 0.2 if self._is_live else every
        self._live: Live | _Cell | None = None
        self._last = -float("inf")

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
            self._show(
                f"{phase} {step}/{total} · loss {loss:.3f} · "
                f"{format_number(tokens_per_second)} tok/s · {format_clock(seconds_left)} left"
            )

    def counter(self, work: str) -> Callable[[int, int], None]:
        """Return a function that takes the number of rows done and the total number of rows.

        It shows them with the rate and the time left; not every call is shown.
        """
        left, start = TimeLeft(), time.monotonic()
        first_count: int | None = None  # done by an earlier run

        def update(count: int, total: int) -> None:
            nonlocal first_count
            first_count = count if first_count is None else first_count
            left.update(count, total)
            if self._is_due(count == total):
                rate = (count - first_count) / max(time.monotonic() - start, 1e-6)
                self._show(
                    f"{work} {count:,}/{total:,} · {format_number(rate)} rows/s · "
                    f"{format_clock(left.seconds)} left"
                )

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
        if now - self._last < self._interval and not is_last:
            return False
        self._last = now
        return True

    def _show(self, line: str) -> None:
        if not self._is_live:
            self.note(line)
            return
        if self._live is None:
            live = Live(console=self._console, auto_refresh=False)
            self._live = _Cell() if self._in_notebook else live
            self._live.start()
        self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)


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
