"""The note next to a file of vectors, or to a part of predictions: contents and progress.

Each part's note has a digest of all texts before the part, and of all texts up to its end, so that
the parts of the same texts form a chain.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter

from ..errors import DataError
from ..jobs.parts import Part
from ..utils.json_files import (
    check_format_version,
    parse_json,
    verify_checksum,
    with_checksum,
    write_json,
)
from ..utils.regular_files import read_bytes
from .engine import chunks

FORMAT_VERSION = 2
NO_WINDOWS = "part 00000000"
"""The checksum of an unfinished file without windows."""


@dataclass(frozen=True)
class Note:
    """Contents and progress of a file; saved next to it."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # a flipped bit may change a key

    made_with: Mapping[str, Any]  # model and settings
    width: Annotated[int, Field(ge=0, lt=2**31)] = 0  # the length of a vector; 0: predictions
    rows: int = 0  # the number of texts that are written
    size: int = 0  # the bytes of the file up to the end of these
    cut: int = 0  # how many of these texts were truncated
    texts: str = ""  # a digest of the texts so far
    complete: bool = False  # whether all texts are written
    format_version: int = FORMAT_VERSION  # of this note
    # CRC-32 of the windows in the unfinished file (`part …`), or of the finished file (`file …`)
    checksum: str = NO_WINDOWS
    # checksum of the unfinished file, when `checksum` is that of a file that has no name yet
    unfinished: str = ""
    # which part of all texts this is (`I/N`). Then `total` is the number of all texts and `whole`
    # their digest, `first` the number of the part's first text, and `before` the digest of the
    # texts before it
    part: str | None = None
    first: int = 0
    total: int = 0
    before: str = ""
    whole: str = ""

    @classmethod
    def read(cls, file: Path) -> Note:
        """Read a note.

        Raises:
            DataError: it was written in another format.
            ValueError: it is not a note, or is damaged.
            OSError: it cannot be read.
        """
        tree = parse_json(read_bytes(file))
        if not isinstance(tree, dict) or "format_version" not in tree:
            raise ValueError("it is not a note")
        fix = "Make its file again, with --overwrite (overwrite=True) under the same name."
        check_format_version(tree, FORMAT_VERSION, file, DataError, fix=fix)
        return TypeAdapter(cls).validate_python(verify_checksum(tree))

    def check(self, out: Path) -> None:
        """Check that a finished file matches its note.

        Raises:
            DataError: it does not.
        """
        size, why = out.stat().st_size, ""
        if out.suffix != ".parquet" and size != self.size:
            why = f"has {size:,} bytes instead of {self.size:,}"
        elif self.checksum != checksum_of(out):
            why = "is damaged: its checksum is wrong"
        if why:
            raise DataError(why, where=str(out), fix=f"Remove {out.name}*, and make it again.")

    def write(self, beside: Path) -> None:
        """Write the note atomically."""
        write_json(beside, with_checksum(asdict(self)))


def note_file(out: Path) -> Path:
    """The path of the note about a file."""
    return out.with_name(f"{out.name}.json")


def note_of_part(
    texts: Iterable[tuple[str, str]], begun: Note, part: Part, size: int
) -> tuple[Note, int]:
    """Return the initial note of a part of texts, and the number of the first text after the part.

    Args:
        texts: all texts, with their names in errors; each part gets consecutive windows of `size`
            texts.
    """
    ends, found = [(0, "")], ""
    for window in chunks(texts, size, lambda placed: len(placed[1])):
        found = reduce(digest, (text for _, text in window), found)
        ends.append((ends[-1][0] + len(window), found))
    windows = len(ends) - 1
    first, found = ends[windows * (part.number - 1) // part.count]
    end, _ = ends[windows * part.number // part.count]
    total, whole = ends[-1]
    begun = replace(begun, part=str(part), first=first, total=total, before=found, texts=found)
    return replace(begun, whole=whole), end


def digest(before: str, text: str) -> str:
    """A digest of a text and of the digest before it."""
    coded = before.encode() + text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(coded, digest_size=16).hexdigest()


def checksum_of(out: Path) -> str:
    """The checksum of a finished file, as in its note."""
    return f"file {crc(out):08x}"


def crc(file: Path, start: int = 0, end: int | None = None) -> int:
    """The CRC-32 of a file, or of the bytes from `start` to `end`."""
    found = 0
    with file.open("rb") as opened:
        opened.seek(start)
        left = (file.stat().st_size if end is None else end) - start
        while left > 0 and (block := opened.read(min(left, 1 << 20))):
            found, left = zlib.crc32(block, found), left - len(block)
    return found
