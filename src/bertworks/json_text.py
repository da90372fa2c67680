"""JSON from files that others wrote: read as it is, or refused with a `ValueError`."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 100
"""How deep lists and objects may be nested; no format that is read here needs more than 20.

Python and the libraries that a value is handed to take it apart recursively, and end in a
`RecursionError`, or a crash, at some depth of their own.
"""


def parse_json(text: str | bytes) -> Any:
    """The value that a JSON text holds.

    Raises:
        ValueError: it is not valid JSON, not UTF-8, nested deeper than `MAX_DEPTH`, or has a number
            of too many digits.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    """See that a value is not nested too deeply, level by level."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [part for whole in level for part in _parts(whole) if isinstance(part, dict | list)]
        if not level:
            return
    raise _too_deep()


def _parts(whole: Any) -> Any:
    if isinstance(whole, dict):
        return whole.values()
    return whole if isinstance(whole, list) else ()


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
