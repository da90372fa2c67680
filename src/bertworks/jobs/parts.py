"""Jobs that are split into parts, each computed by an independent process."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..errors import DataError, SettingsError
from ..utils.formatting import format_names


@dataclass(frozen=True, order=True)
class Part:
    """One of several parts of the same job.

    Attributes:
        number: from 1.
        count: the number of parts.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `I/N`.

        Raises:
            SettingsError: the text has another form, or I is not from 1 to N.
        """
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise SettingsError(
                f"part={text!r} is not valid",
                fix="Give I/N, I from 1 to N: 2/8, the second of eight.",
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def in_order(parts: Iterable[tuple[Path, str | None]]) -> list[Path]:
    """Return the paths of all parts of a job, in the order of the parts.

    Args:
        parts: paths, each with the part that it holds: `I/N`, or None.

    Raises:
        DataError: a path holds no part, two paths hold the same part or parts with different N, or
            parts are missing.
    """
    paths: dict[Part, Path] = {}
    for path, text in parts:
        if not text:
            raise DataError("is not a part", where=str(path), fix="Make parts with --part I/N.")
        part = Part.parse(text)
        first = next(iter(paths), part)
        if part.count != first.count:
            raise DataError(f"is part {part}, and {paths[first]} is part {first}", where=str(path))
        if part in paths:
            raise DataError(f"is part {part}, as {paths[part]} is", where=str(path))
        paths[part] = path
    if not paths:
        raise DataError("there are no parts")
    count = next(iter(paths)).count
    missing = [str(part) for i in range(count) if (part := Part(i + 1, count)) not in paths]
    if missing:
        what = f"of {count:,} parts, these are missing: {format_names(missing)}"
        raise DataError(what, fix="Make them, and name all the parts.")
    return [paths[part] for part in sorted(paths)]
