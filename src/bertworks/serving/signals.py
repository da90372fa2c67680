"""Signals that arrive while the server starts, before it handles them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import BertworksError


@contextmanager
def signals_at_start() -> Iterator[None]:
    """Within the block, hold SIGHUP back until `receive_hangups`, and let SIGTERM end the process.

    By default SIGHUP ends a process, and the first process of a container ignores both signals.

    Raises:
        BertworksError: the system has no such signals.
    """
    if not hasattr(signal, "SIGHUP"):
        raise BertworksError("serve does not run on Windows", fix="Use WSL, or the container.")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    old_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old_handler)
        old_handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # drops what was held back
        signal.signal(signal.SIGHUP, old_handler)
        receive_hangups()


def receive_hangups() -> None:
    """Receive each SIGHUP from now on, and one that was held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
