"""Access: API keys, and the hosts on which a server without keys may listen."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from ..errors import SettingsError, first_line
from ..utils.regular_files import read_bytes
from .quotas import Quota

KEYLESS_PATHS = frozenset({"/health", "/ready", "/ping", "/"})
"""Paths that need no key to be read; a POST to "/" does."""

PAGE_FILES = "/explore/static/"
"""The path of the explorer's files, which need no key either."""


def needs_no_key(method: str, path: str) -> bool:
    """Whether a request needs no key."""
    return method == "GET" and (path in KEYLESS_PATHS or path.startswith(PAGE_FILES))


ENVIRONMENT = "BERTWORKS_API_KEYS"
_MIN_KEY_CHARACTERS = 16


class Keys:
    """API keys by name; only their digests are kept.

    Attributes:
        file: the file that they were read from, if any.
        quotas: the quotas of the keys that have one, by name.
    """

    def __init__(
        self,
        keys: Mapping[str, str] | None = None,
        file: Path | None = None,
        quotas: Mapping[str, Quota] | None = None,
    ) -> None:
        self._digests = {name: _digest(key) for name, key in (keys or {}).items()}
        self.file, self.quotas = file, dict(quotas or {})

    def __bool__(self) -> bool:
        return bool(self._digests)

    @property
    def names(self) -> list[str]:
        """The names of the keys."""
        return list(self._digests)

    def accept(self, keys: Keys) -> None:
        """Accept other keys from now on."""
        self._digests, self.quotas = keys._digests, keys.quotas

    def find_owner(self, key: str) -> str | None:
        """Return the name of a key, or None. All keys are compared, each in constant time."""
        owner = None
        digest = _digest(key)
        for name, known in self._digests.items():
            if hmac.compare_digest(known, digest):
                owner = name
        return owner


def read_keys(file: Path | None) -> Keys:
    """Read the keys of a file and of the variable `BERTWORKS_API_KEYS`.

    They have the form `NAME:KEY` or `KEY`. A quota (`Quota.parse`) may follow after a space.

    Args:
        file: one key per line; `#` begins a comment line. In the variable, commas separate keys.

    Raises:
        SettingsError: the file cannot be read; it or the variable has no key; a key is too short; a
            name is used twice.
    """
    value = os.environ.get(ENVIRONMENT)
    lines = [(ENVIRONMENT, line) for line in _key_lines((value or "").split(",")).values()]
    if value is not None and not lines:  # as of an empty variable of a container's settings
        raise SettingsError(
            "there is no key in it", where=ENVIRONMENT, fix="Unset it, or give one."
        )
    if file is not None:
        try:
            in_file = _key_lines(read_content(file).decode("utf-8-sig").splitlines())
        except UnicodeDecodeError as error:
            raise SettingsError(f"cannot be read ({error})", where=str(file)) from None
        if not in_file:
            raise SettingsError(
                "there is no key in it", where=str(file), fix="Write NAME:KEY, one on each line."
            )
        lines += [(f"{file}:{number}", line) for number, line in in_file.items()]
    keys: dict[str, str] = {}
    quotas: dict[str, Quota] = {}
    for where, line in lines:
        name, is_named, key = (part.strip() for part in line.partition(":"))
        if not is_named:
            name, key = "", line
        name = name or f"key-{len(keys) + 1}"
        key, _, limits = key.partition(" ")
        if limits.strip():
            quotas[name] = Quota.parse(limits, where)
        if len(key) < _MIN_KEY_CHARACTERS:
            what = f"the key {name!r} has fewer than {_MIN_KEY_CHARACTERS} characters"
            raise SettingsError(what, where=where)
        if name in keys:
            raise SettingsError(f"two keys are called {name!r}", where=where)
        keys[name] = key
    return Keys(keys, file, quotas)


def read_content(file: str | Path) -> bytes:
    """Return the content of a file; raise `SettingsError` if it cannot be read."""
    try:
        return read_bytes(file)
    except FileNotFoundError:
        raise SettingsError("no such file", where=str(file)) from None
    except OSError as error:
        raise SettingsError(f"cannot be read ({first_line(error)})", where=str(file)) from None


def _key_lines(lines: Sequence[str]) -> dict[int, str]:
    """Return the lines that contain a key, by line number, counted from 1."""
    stripped = enumerate(map(str.strip, lines), 1)
    return {number: line for number, line in stripped if line and not line.startswith("#")}


@lru_cache(maxsize=64)  # called for each request
def is_loopback(host: str) -> bool:
    """Whether a host name or address is a loopback, reachable only from this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_host(host: str, keys: Keys, *, no_auth: bool) -> None:
    """Raise `SettingsError` if other machines could send requests without a key."""
    if not is_loopback(host) and not keys and not no_auth:
        raise SettingsError(
            f"host={host} can be reached from other machines, and there are no API keys",
            fix=f"Give --api-keys FILE or {ENVIRONMENT}, or --no-auth.",
        )


def parse_host(header: str) -> str:
    """Return the host of a `Host` header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
