"""Jobs that are split into parts, each computed by an independent process."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from ..errors import MAX_NAMES, DataError, SettingsError, shorten_list
from ..utils.formatting import format_count
from .journal import first_difference


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
                fix="Give I/N, I from 1 to N, N below a billion: 2/8, the second of eight.",
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def range_of(self, count: int) -> range:
        """The numbers from 0 that this part has of `count`: each part gets some in a row."""
        return range(count * (self.number - 1) // self.count, count * self.number // self.count)

    @property
    def every_nth(self) -> range:
        """The numbers from 0 that this part has if they are dealt in turn, of any count."""
        return range(self.number - 1, sys.maxsize, self.count)


def order_parts(parts: Iterable[tuple[Path, str | None, Mapping[str, Any]]]) -> list[Path]:
    """Return the paths of all parts of one job, in the order of the parts.

    Args:
        parts: paths, each with the part that it holds (`I/N` or None), and with the settings that
            all parts of the job share, the digest of all texts included.

    Raises:
        DataError: a path holds no part, two paths hold the same part or parts with different N,
            parts are missing, or a part belongs to another job.
    """
    paths: dict[Part, Path] = {}
    settings: dict[Path, Mapping[str, Any]] = {}
    for path, text, job_settings in parts:
        settings[path] = job_settings
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
    if num_missing := count - len(paths):
        missing = (str(part) for i in range(count) if (part := Part(i + 1, count)) not in paths)
        names = shorten_list(list(islice(missing, MAX_NAMES)))
        what = f"missing {format_count(num_missing, 'part')} of {count:,}: {names}"
        raise DataError(what, fix="Make them, and name all the parts.")
    first_path, *others = (paths[part] for part in sorted(paths))
    for path in others:
        if difference := first_difference(settings[path], settings[first_path]):
            raise DataError(
                f"does not belong to {first_path}: made {difference}",
                where=str(path),
                fix="Make this part again, under another name.",
            )
    return [first_path, *others]
