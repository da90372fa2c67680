"""The server's log: lines of JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

LOG = logging.getLogger("bertworks.serving")


def log(level: int, event: str, **values: Any) -> None:
    """Write a JSON line to the log, without values that are None."""
    if LOG.isEnabledFor(level):
        known = {name: value for name, value in values.items() if value is not None}
        LOG.log(level, "%s", json.dumps({"time": round(time.time(), 3), "event": event, **known}))


def log_to_stderr(level: str) -> None:
    """Write the log to standard error, without uvicorn's messages below CRITICAL."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOG.handlers[:] = [handler]
    LOG.propagate = False
    LOG.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
