"""SIGTERM and Ctrl-C as requests to stop, which the loop fulfils after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from ..errors import TrainingError


class RunInterrupted(TrainingError):  # noqa: N818 - a stop on request is not an error
    """The run was asked to stop; it is saved and can be resumed.

    Attributes:
        status: the exit status by the shell's convention: 128 plus the signal's number.
    """

    def __init__(self, what: str, *, signal_number: int) -> None:
        super().__init__(what)
        self.status = 128 + signal_number

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), signal_number=self.status - 128), (self.what,)


class StopRequest:
    """Holds the number of the last signal received, in `signal_number`; 0 if there was none."""

    def __init__(self) -> None:
        self.signal_number = 0

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal_number and number == signal.SIGINT:
            raise KeyboardInterrupt  # the second request: stop at once
        self.signal_number = number


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Record SIGTERM and SIGINT inside the `with` block; outside the main thread, do nothing."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.signal(number, request._handle) for number in numbers]
    try:
        yield request
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
