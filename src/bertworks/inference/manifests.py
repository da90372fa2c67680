"""The manifest next to a file of vectors, or to a part of predictions: contents and progress.

Each part's manifest has a digest of all texts before the part, and of all texts up to its end, so
that the parts of the same texts form a chain.
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
class OutputManifest:
    """Contents and progress of a file; saved next to it."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # a flipped bit may change a key

    provenance: Mapping[str, Any]  # model and settings
    width: Annotated[int, Field(ge=0, lt=2**31)] = 0  # the length of a vector; 0: predictions
    rows: int = 0  # the number of texts that are written
    size: int = 0  # the bytes of the file up to the end of these
    num_truncated: int = 0  # how many of these texts were truncated
    digest: str = ""  # of the texts so far
    complete: bool = False  # whether all texts are written
    format_version: int = FORMAT_VERSION  # of this manifest
    # CRC-32 of the windows in the unfinished file (`part …`), or of the finished file (`file …`)
    checksum: str = NO_WINDOWS
    # checksum of the unfinished file, when `checksum` is that of a file that has no name yet
    unfinished_checksum: str = ""
    # which part of all texts this is (`I/N`). Then `total` is the number of all texts and
    # `total_digest` their digest, `first` the number of the part's first text, and
    # `previous_digest` the digest of the texts before it
    part: str | None = None
    first: int = 0
    total: int = 0
    previous_digest: str = ""
    total_digest: str = ""

    @classmethod
    def read(cls, file: Path) -> OutputManifest:
        """Read a manifest.

        Raises:
            DataError: it was written in another format.
            ValueError: it is not a manifest, or is damaged.
            OSError: it cannot be read.
        """
        tree = parse_json(read_bytes(file))
        if not isinstance(tree, dict) or "format_version" not in tree:
            raise ValueError("it is not a manifest")
        fix = "Make its file again, with --overwrite (overwrite=True) under the same name."
        check_format_version(tree, FORMAT_VERSION, file, DataError, fix=fix)
        return TypeAdapter(cls).validate_python(verify_checksum(tree))

    def check(self, out: Path) -> None:
        """Check that a finished file matches its manifest.

        Raises:
            DataError: it does not.
        """
        size, why = out.stat().st_size, ""
        if out.suffix not in (".npz", ".parquet", ".safetensors") and size != self.size:
            why = f"has {size:,} bytes instead of {self.size:,}"
        elif self.checksum != checksum_of_file(out):
            why = "is damaged: its checksum is wrong"
        if why:
            raise DataError(why, where=str(out), fix=f"Remove {out.name}*, and make it again.")

    def write(self, path: Path) -> None:
        """Write the manifest atomically."""
        write_json(path, with_checksum(asdict(self)))


def manifest_path(out: Path) -> Path:
    """Return the path of the manifest of a file."""
    return out.with_name(f"{out.name}.json")


def manifest_of_part(
    texts: Iterable[tuple[str, str]], manifest: OutputManifest, part: Part, size: int
) -> tuple[OutputManifest, int]:
    """Return a part's initial manifest, and the number of the first text after the part.

    Args:
        texts: all texts, with their names in errors; each part gets consecutive windows of `size`
            texts.
    """
    ends, digest = [(0, "")], ""
    for window in chunks(texts, size, lambda item: len(item[1])):
        digest = reduce(extend_digest, (text for _, text in window), digest)
        ends.append((ends[-1][0] + len(window), digest))
    windows = len(ends) - 1
    first, previous_digest = ends[windows * (part.number - 1) // part.count]
    end, _ = ends[windows * part.number // part.count]
    total, total_digest = ends[-1]
    manifest = replace(
        manifest,
        part=str(part),
        first=first,
        total=total,
        previous_digest=previous_digest,
        digest=previous_digest,
        total_digest=total_digest,
    )
    return manifest, end


def extend_digest(digest: str, text: str) -> str:
    """Return a digest of a digest and the text after it."""
    content = digest.encode() + text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def checksum_of_file(out: Path) -> str:
    """Return the checksum of a finished file, as in its manifest."""
    return f"file {crc32_of(out):08x}"


def crc32_of(path: Path, start: int = 0, end: int | None = None) -> int:
    """Return the CRC-32 of a file, or of the bytes from `start` to `end`."""
    checksum = 0
    with path.open("rb") as file:
        file.seek(start)
        left = (path.stat().st_size if end is None else end) - start
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            checksum, left = zlib.crc32(block, checksum), left - len(block)
    return checksum
