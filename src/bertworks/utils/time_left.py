"""The time left for a job, estimated from its progress."""

from __future__ import annotations

import time
from collections.abc import Callable

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
