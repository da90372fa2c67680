"""What people see while a run goes on: a live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..wording import clock, short, wrapped


class Progress:
    """Shows how a run goes.

    Args:
        stream: where to; standard error if left out.
        every: seconds between lines where the stream is no terminal.
    """

    def __init__(self, stream: TextIO | None = None, *, every: float = 10.0) -> None:
        self._console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self._is_live = self._console.is_terminal
        self._interval = 0.2 if self._is_live else every
        self._live: Live | None = None
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
        """Take note of a step; not every step is shown.

        Args:
            step: the steps done with it.
            total: those of the run.
            phase: the phase's name.
            loss: of the step.
            tokens_per_second: of the last steps.
            seconds_left: None as long as there is no estimate.
        """
        now = time.monotonic()
        if now - self._last < self._interval and step < total:
            return
        self._last = now
        self._show(
            f"{phase} {step}/{total} · loss {loss:.3f} · "
            f"{short(tokens_per_second)} tok/s · {clock(seconds_left)} left"
        )

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of an evaluation, on a line that stays."""
        shown = [f"{name} {value:.4g}" for name, value in metrics.items()]
        self.parts([f"step {step}: {shown[0]}" if shown else f"step {step}", *shown[1:]])

    def parts(self, parts: Sequence[str]) -> None:
        """Show parts on a line that stays, or on more of them if one does not hold all."""
        line = parts[0]
        for part in parts[1:]:
            if len(line) - line.rfind("\n") + len(part) + 3 > self._console.width:
                line += f"\n    {part}"
            else:
                line += f" · {part}"
        self.note(line)

    def note(self, text: str) -> None:
        """Show a line that stays, as several where the terminal is narrower."""
        self._console.print(wrapped(text, self._console.width), markup=False)

    def close(self) -> None:
        """End the live line; the last state of it stays."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self, line: str) -> None:
        if not self._is_live:
            self.note(line)
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)


def say(progress: Progress | None, text: str) -> None:
    """Show a line that stays, where anybody looks."""
    if progress is not None:
        progress.note(text)


class Meter:
    """Tokens and operations a second of the training steps, averaged over about the last 20 s."""

    def __init__(self) -> None:
        self._tokens = self._flops = self._seconds = 0.0

    def add(self, tokens: int, flops: float, seconds: float) -> None:
        """Take note of a step."""
        fade = 0.5 ** (seconds / 10)
        self._tokens = fade * self._tokens + tokens
        self._flops = fade * self._flops + flops
        self._seconds = fade * self._seconds + seconds

    @property
    def tokens_per_second(self) -> float:
        return self._tokens / max(self._seconds, 1e-9)

    @property
    def flops_per_second(self) -> float:
        return self._flops / max(self._seconds, 1e-9)
