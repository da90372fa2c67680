"""Work for a caller who may no longer wait for the result."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from ..errors import BertworksError

is_awaited: ContextVar[Callable[[], bool]] = ContextVar("is_awaited", default=lambda: True)
"""Whether the caller still waits for the result; called after each layer."""


class AbandonedError(BertworksError):
    """The caller no longer waits for the result."""
