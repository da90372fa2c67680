"""The journal of a resumable job: its settings, and a line for each finished window."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import DataError
from ..utils.json_files import check_format_version, first_problem, parse_json
from ..utils.line_files import LineFile

FORMAT_VERSION = 1
"""The format of all journals; it rises if the fields of a record change."""

TEXTS = "all texts"
"""The name, among settings, of the digest of a job's texts; it is no name of a setting."""

_CHECKED_LINE = re.compile(rb'(.*),"crc32":"([0-9a-f]{8})"}')
_START_AGAIN = "Start again with --overwrite (overwrite=True)."
_DIFFERENCES = {
    "model": "another model",
    "vocabulary_hash": "another tokenizer",
    "sources": "another corpus (its parts or their weights differ)",
    "exclude": "another text of the files to exclude",
    "passages": "other passages",
    "pairs": "other pairs",
    "reranker": "another reranker",
    TEXTS: "other texts",
}
"""Words for settings that differ, where showing their values would not help."""


class WindowRecord(BaseModel):
    """A finished window of a job."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    number: int  # from 0, over all parts of the job
    text: str  # the digest of its texts
    size: int  # the bytes of its content
    sha256: str  # of its content


RecordT = TypeVar("RecordT", bound=WindowRecord)


class Journal(Generic[RecordT]):
    """A job's settings and its finished windows, as JSON Lines, each with a checksum.

    Raises:
        OutputError: the file cannot be written; methods that write raise it too.
    """

    def __init__(self, path: Path, record_class: type[RecordT]) -> None:
        self._file, self._record_class, self._is_removed = LineFile(path), record_class, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if not self._file.size:
                self.remove()
        finally:
            self._file.close()
        if self._is_removed:  # after it is closed: Windows removes no open file
            self._file.path.unlink(missing_ok=True)

    def read(self) -> tuple[dict[str, Any], list[RecordT]]:
        """Read the settings and the records; both are empty if the journal is.

        Raises:
            DataError: a line is damaged, or the journal was written in another format.
        """
        lines = self._file.read().splitlines()
        if not lines:
            return {}, []
        path = self._file.path
        try:
            header, *records = map(_verify_checksum, lines)
            tree = parse_json(header)
            check_format_version(tree, FORMAT_VERSION, path, DataError, fix=_START_AGAIN)
            settings: dict[str, Any] = tree["settings"]
            return settings, [self._record_class.model_validate_json(line) for line in records]
        except ValidationError as error:
            why = first_problem(error)
        except (ValueError, KeyError, TypeError) as error:
            why = str(error)
        raise DataError(f"damaged ({why})", where=str(path), fix=_START_AGAIN)

    def restart(self, settings: Mapping[str, Any]) -> None:
        """Empty the journal, then write the settings: JSON values."""
        self._file.truncate(0)
        self._append(json.dumps({"format_version": FORMAT_VERSION, "settings": settings}))

    def append(self, record: RecordT) -> None:
        """Add a record, and synchronise it to the disk."""
        self._append(record.model_dump_json())

    def _append(self, text: str) -> None:
        line = text.encode()
        self._file.append(line[:-1] + b',"crc32":"%08x"}\n' % zlib.crc32(line))
        self._file.sync()

    def remove(self) -> None:
        """Remove the file, once the output is finished, at the end of the `with` block."""
        self._is_removed = True


def _verify_checksum(line: bytes) -> bytes:
    """Return a line without its checksum.

    Raises:
        ValueError: the checksum is missing or wrong.
    """
    match = _CHECKED_LINE.fullmatch(line)
    if match is None or zlib.crc32(match[1] + b"}") != int(match[2], 16):
        raise ValueError("the checksum of a line is wrong")
    return match[1] + b"}"


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Return with or without what a job was made, in words, if another job's settings differ."""
    for name in {**one, **other}:
        value, other_value = one.get(name), other.get(name)
        if value == other_value:
            continue
        if name in _DIFFERENCES:
            return f"with {_DIFFERENCES[name]}"
        if value is None:
            return f"without {name}, not with {name}={other_value!r}"
        return f"with {name}={value!r}, not " + (
            f"without {name}" if other_value is None else repr(other_value)
        )
    return None
