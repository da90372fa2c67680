"""Quotas of API keys: tokens a minute, and requests at a time.

A key's tokens are counted when its request ends, so one request may exceed what is left of the
quota; later requests are refused until a minute's tokens would again cover all that were used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from ..errors import SettingsError, did_you_mean
from .request_error import RequestError


class Quota(NamedTuple):
    """What a key may use; None: no limit."""

    tokens_per_minute: int | None = None
    max_requests: int | None = None

    @classmethod
    def parse(cls, text: str, where: str) -> Quota:
        """Read words such as `tokens_per_minute=100000 max_requests=4`.

        Raises:
            SettingsError: a limit is unknown, given twice, or not a positive number.
        """
        values: dict[str, int] = {}
        for word in text.split():
            name, _, value = word.partition("=")
            if name not in cls._fields:
                hint = f"{did_you_mean(name, cls._fields)}."
                raise SettingsError(f"unknown limit {name[:30]!r} of a key", where=where, fix=hint)
            if name in values or not (value.isascii() and value.isdigit() and int(value)):
                raise SettingsError(f"{name} must be one positive whole number", where=where)
            values[name] = int(value)
        return cls(**values)


@dataclass
class _Usage:
    """What a key uses.

    Attributes:
        num_requests: its requests that are being answered.
        num_tokens: the tokens that count against its quota; they decrease with time.
        time: when they were last updated, on the clock.
    """

    num_requests: int = 0
    num_tokens: float = 0.0
    time: float = -math.inf


class Quotas:
    """The use of all keys that have a quota.

    Args:
        clock: returns the time in seconds.

    Attributes:
        refusals: how many requests were refused, by key name.
    """

    def __init__(self, quotas: Mapping[str, Quota], clock: Callable[[], float] = monotonic) -> None:
        self._quotas, self._clock = dict(quotas), clock
        self._usages: dict[str, _Usage] = {}
        self.refusals: dict[str, int] = dict.fromkeys(self._quotas, 0)

    def use(self, quotas: Mapping[str, Quota]) -> None:
        """Use other quotas from now on; what was used still counts."""
        self._quotas = dict(quotas)
        self.refusals = {name: self.refusals.get(name, 0) for name in self._quotas}

    def begin(self, name: str) -> None:
        """Count a request of a key.

        Raises:
            RequestError: the key has used its quota (429, with the seconds after which it may try
                again).
        """
        quota = self._quotas.get(name, Quota())
        usage = self._usages.setdefault(name, _Usage())
        if quota.max_requests is not None and usage.num_requests >= quota.max_requests:
            raise self._refuse(name, f"at most {quota.max_requests} requests at a time", 1.0)
        limit = quota.tokens_per_minute
        if limit is not None:
            self._update(usage, limit)
            if usage.num_tokens >= limit:
                seconds = 60 * (usage.num_tokens - limit) / limit
                raise self._refuse(name, f"at most {limit:,} tokens a minute", seconds)
        usage.num_requests += 1

    def end(self, name: str, num_tokens: int) -> None:
        """Count the tokens of a request for which `begin` was called."""
        usage = self._usages[name]
        usage.num_requests -= 1
        limit = self._quotas.get(name, Quota()).tokens_per_minute
        if limit is not None:
            self._update(usage, limit)
            usage.num_tokens += num_tokens

    def _update(self, usage: _Usage, limit: int) -> None:
        """Let the used tokens decrease by `limit` a minute."""
        now = self._clock()
        usage.num_tokens = max(0.0, usage.num_tokens - (now - usage.time) * limit / 60)
        usage.time = now

    def _refuse(self, name: str, what: str, seconds: float) -> RequestError:
        self.refusals[name] += 1
        milliseconds = max(1, math.ceil(1000 * seconds))
        return RequestError(
            429,
            "Overloaded",
            f"the key {name!r} allows {what}",
            code="rate_limit_exceeded",
            headers={
                "retry-after": str(math.ceil(milliseconds / 1000)),
                "retry-after-ms": str(milliseconds),
            },
        )
