"""Formatting of numbers, durations, lines and tables for people; time left; values as JSON."""

from __future__ import annotations

import html
import json
import math
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def short(number: float) -> str:
    """A number in three digits: 950, 12.3k, 1.2M."""
    for size, mark in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{mark}"
    return f"{number:.3g}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names in quotes, the first `most` of them: 'a', 'b', … (12 in all)."""
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown}, … ({len(names):,} in all)"


def measured(metrics: Mapping[str, float], remarks: Sequence[str] = ()) -> str:
    """Format metrics and remarks on one line."""
    shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or "not measured"
    return "; ".join([shown, *remarks])


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 document, 2 documents, 3 matches."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def html_facts(title: str, facts: Mapping[str, object], notes: Sequence[str] = ()) -> str:
    """Names and values as HTML, for notebooks; numbers have four digits."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th><td style='text-align:left'>"
        f"{html.escape(f'{value:.4g}' if isinstance(value, float) else str(value))}</td></tr>"
        for name, value in facts.items()
    )
    below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return f"<p><b>{html.escape(title)}</b></p><table>{rows}</table>{below}"


def duration(seconds: float) -> str:
    """A span of time: 4.2 s, 48 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clock(seconds: float | None) -> str:
    """A span of time as a clock shows it: 0:42, 12:05, 3:07:00, 2d 04h; -:-- if it is not known."""
    if seconds is None:
        return "-:--"
    whole = int(max(0.0, seconds))
    if whole >= 2 * 365 * 86400:
        return f"{whole // (365 * 86400):,} years"
    if whole >= 86400:
        return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours}:{minutes:02d}:{whole % 60:02d}"
    return f"{minutes}:{whole % 60:02d}"


def printable(name: str) -> str:
    """Return a text that can be encoded as UTF-8.

    A lone surrogate, as in a file name that is not UTF-8, becomes an escape such as `\\udcff`, as
    in JSON.
    """
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def wrapped(text: str, width: int = 80) -> str:
    """Text whose lines are no wider than a terminal; continued lines are indented by four columns.

    Words are not broken, so that paths and settings can be copied.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=f"{indent}    ",
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)


def as_json(value: Any) -> str:
    """Return a value as JSON on one line; NaN and infinities, which JSON lacks, become null."""
    return json.dumps(_finite(value), allow_nan=False, ensure_ascii=False, default=_plain)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    """Convert NumPy's numbers and arrays to Python's, and all else to text."""
    return _finite(value.tolist()) if hasattr(value, "tolist") else str(value)


def markdown(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int = 0
) -> list[str]:
    """Return a table's lines in Markdown; the last `numbers` columns are right-aligned."""
    rule = ["---"] * (len(columns) - numbers) + ["--:"] * numbers
    return [f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows)]


_MIN_UPDATES = 3
_MIN_SECONDS = 5.0
_HALF_LIFE = 30.0  # seconds after which progress counts half


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
        self._at = self._done = self._first_done = self._remaining = 0.0
        self._seconds = self._units = 0.0  # of work, with recent work weighted more
        self._measured = self._pauses = 0.0

    def update(self, done: float, total: float, took: float | None = None) -> None:
        """Record progress.

        Args:
            done: the units of work done so far.
            total: the units of work in all; 0 if unknown.
            took: the seconds of work since the last update, without pauses (such as evaluations);
                by default, all seconds. Pauses are expected to recur as often as so far.
        """
        now = self._clock()
        if self._updates >= 0:
            passed, units = now - self._at, done - self._done
            worked = passed if took is None else min(took, passed)
            fade = 0.5 ** (worked / _HALF_LIFE)
            self._seconds = fade * self._seconds + worked
            self._units = fade * self._units + units
            self._measured += passed
            self._pauses += passed - worked
        else:
            self._first_done = done
        self._updates += 1
        self._at, self._done, self._remaining = now, done, total - done

    @property
    def seconds(self) -> float | None:
        """The estimate in seconds; None while there is none."""
        if self._updates < _MIN_UPDATES or self._measured < _MIN_SECONDS:
            return None
        if self._remaining < 0 or self._units <= 0:
            return None
        pause = self._pauses / (self._done - self._first_done)
        return self._remaining * (self._seconds / self._units + pause)
