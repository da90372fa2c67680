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
