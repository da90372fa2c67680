"""Which parts of a text are as this package wrote them, and which a user has edited.

Such a text has a comment with a checksum of each part, and one of the whole text without this line:

    <!-- bertworks wrote: language=1f0c6a3b use=90ab12cd all=77aa01fe -->
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

_LINE = re.compile(r"<!-- bertworks wrote: ([\w =-]*) -->\n?")
_ALL = "all"


def checksum(text: str) -> str:
    """The CRC-32 of a text, as eight digits."""
    return f"{zlib.crc32(text.encode('utf-8', 'surrogateescape')):08x}"


def read_checksums(text: str) -> tuple[str, dict[str, str]] | None:
    """Return a text without the line of checksums, and the checksums of its parts.

    Returns:
        None for a text without such a line, of which nothing was written here.
    """
    line = _LINE.search(text)
    if line is None:
        return None
    pairs = (entry.partition("=") for entry in line[1].split())
    checksums = {name: value for name, _, value in pairs if name != _ALL}
    return _remove_line(text, line), checksums


def with_checksums(text: str, checksums: Mapping[str, str]) -> str:
    """Return a text with the line of its checksums at the end."""
    entries = {**checksums, _ALL: checksum(text)}
    words = " ".join(f"{name}={value}" for name, value in entries.items())
    return f"{text}<!-- bertworks wrote: {words} -->\n"


def mark_edited(text: str) -> str:
    """Return a text that counts as edited from now on."""
    return re.sub(rf"{_ALL}=\w+ -->", f"{_ALL}=edited -->", text)


def is_edited(text: str) -> bool:
    """Whether a text differs from what this package wrote, or was not written here."""
    line = _LINE.search(text)
    return line is None or f"{_ALL}={checksum(_remove_line(text, line))}" not in line[1].split()


def _remove_line(text: str, line: re.Match[str]) -> str:
    return text[: line.start()] + text[line.end() :]
