"""Files that are made window by window, by a resumable job: of vectors, of predictions.

    vectors.npy            the finished file
    vectors.npy.json       its manifest: model, settings, digest of the texts, checksum
    vectors.npy.part       the windows, while the file is unfinished
    vectors.npy.journal    the journal of these windows

The windows follow each other in one file, not in a file each: a file of NumPy's format, or of
predictions, is then finished without a copy, which would need as much room again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, Self, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter

from ..errors import DataError, exists_error
from ..jobs.journal import TEXTS, Journal, WindowRecord
from ..jobs.parallel import Workers
from ..jobs.parts import Part
from ..jobs.resumable import (
    FileWithWindows,
    ResumableJob,
    check_settings,
    digest_texts,
    digest_windows,
    other_job_error,
)
from ..utils.atomic_writes import rename_durably, writing
from ..utils.json_files import (
    check_format_version,
    parse_json,
    verify_checksum,
    with_checksum,
    write_json,
)
from ..utils.outputs import check_inputs, locked_output
from ..utils.regular_files import read_bytes, read_content, sha256_of

FORMAT_VERSION = 3

T = TypeVar("T")


@dataclass(frozen=True)
class RowWindow(Generic[T]):
    """Rows that are computed together."""

    number: int  # from 0
    start: int  # the number of its first row
    job_digest: str  # of the rows in all parts of the job
    rows: Sequence[T]
    piece: range | None = None  # the numbers of the rows within the window, if it is cut

    @property
    def digest(self) -> str:
        """A digest of its rows."""
        if self.piece is None:
            return self.job_digest
        return f"{self.job_digest}[{self.piece.start}:{self.piece.stop}]"

    def with_rows(self, rows: range) -> Self:
        """Return the window with only those of its rows whose numbers in the job are in `rows`."""
        first = max(rows.start - self.start, 0)
        last = max(min(rows.stop - self.start, len(self.rows)), first)
        if (first, last) == (0, len(self.rows)):
            return self
        piece = range(first, last)
        return replace(self, start=self.start + first, rows=self.rows[first:last], piece=piece)


class RowsRecord(WindowRecord):
    """A finished window of rows."""

    rows: int
    num_truncated: int  # how many of the rows were truncated
    num_truncated_tokens: int = 0  # how many tokens were cut off

    @classmethod
    def from_content(cls, window: RowWindow[Any], content: bytes, **counts: int) -> RowsRecord:
        """The record of a window with this content."""
        return cls(
            number=window.number,
            text=window.digest,
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            rows=len(window.rows),
            **counts,
        )


class FileFormat(ABC):
    """A format of files that are made window by window."""

    @abstractmethod
    def head(self) -> bytes:
        """The first bytes of an unfinished file."""

    @abstractmethod
    def finished_file(self, part: Path, out: Path, rows: int) -> AbstractContextManager[Path]:
        """Make the finished file, renamed to `out` on exit; if interrupted, it can be repeated."""

    @abstractmethod
    def join(self, parts: Mapping[Path, OutputManifest], out: Path, rows: int) -> None:
        """Join finished files, in their order; they have `rows` rows in total."""


class AppendableFormat(FileFormat):
    """A format in which windows follow a head of fixed length."""

    @abstractmethod
    def head(self, rows: int = 0) -> bytes:
        """The head of a file with so many rows."""

    @contextmanager
    def finished_file(self, part: Path, out: Path, rows: int) -> Iterator[Path]:
        with part.open("r+b") as file:
            file.write(self.head(rows))
        yield part
        rename_durably(part, out)

    def join(self, parts: Mapping[Path, OutputManifest], out: Path, rows: int) -> None:
        head = self.head(rows)
        with out.open("wb") as whole:
            whole.write(head)
            for part in parts:
                with part.open("rb") as file:
                    file.seek(len(head))
                    shutil.copyfileobj(file, whole)


@dataclass(frozen=True)
class OutputManifest:
    """Contents of a finished file; saved next to it."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # a flipped bit may change a key

    provenance: Mapping[str, Any]  # model and settings
    width: Annotated[int, Field(ge=0, lt=2**31)]  # the length of a vector; 0: predictions
    rows: int
    num_truncated: int  # how many of the rows were truncated
    text: str  # the digest of all texts, also of those of other parts
    size: int  # the bytes of the file
    sha256: str  # of the file
    part: str | None = None  # which part of all texts this is (`I/N`)
    continues_window: bool = False  # whether its first rows belong to the part before's last window
    format_version: int = FORMAT_VERSION  # of this manifest

    @classmethod
    def read(cls, file: Path) -> OutputManifest:
        """Read a manifest.

        Raises:
            DataError: it cannot be read, or was written in another format.
            ValueError: it is not a manifest, or is damaged.
        """
        tree = parse_json(read_content(file, DataError))
        if not isinstance(tree, dict) or "format_version" not in tree:
            raise ValueError("it is not a manifest")
        fix = "Make its file again, with --overwrite (overwrite=True) under the same name."
        check_format_version(tree, FORMAT_VERSION, file, DataError, fix=fix)
        return TypeAdapter(cls).validate_python(verify_checksum(tree))

    @property
    def shared_settings(self) -> dict[str, Any]:
        """What all parts of the job share: everything that the content depends on."""
        return {**self.provenance, TEXTS: self.text}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the file's job."""
        return job_settings(self.provenance, self.part, self.text)

    def check(self, out: Path) -> None:
        """Check that a finished file matches its manifest.

        Raises:
            DataError: it does not, or cannot be read.
        """
        why = ""
        try:
            size = out.stat().st_size
            if size != self.size:
                why = f"has {size:,} bytes instead of {self.size:,}"
            elif self.sha256 != sha256_of(out):
                why = "is damaged: its checksum is wrong"
        except OSError as error:
            raise DataError(f"cannot be read ({error.strerror})", where=str(out)) from None
        if why:
            raise DataError(why, where=str(out), fix=f"Remove {out.name}*, and make it again.")

    def write(self, out: Path) -> None:
        """Write the manifest of a file atomically."""
        write_json(manifest_path(out), with_checksum(asdict(self)))


def job_settings(
    provenance: Mapping[str, Any], part: str | None, text: str | None
) -> dict[str, Any]:
    """The settings of a file's job; the texts of a part are known before it begins."""
    return {**provenance, **({} if part is None else {"--part": part, TEXTS: text})}


def manifest_path(out: Path) -> Path:
    """Return the path of the manifest of a file."""
    return out.with_name(f"{out.name}.json")


def journal_path(out: Path) -> Path:
    """Return the path of the journal of an unfinished file."""
    return out.with_name(f"{out.name}.journal")


def _part_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.part")


def read_provenance(out: Path) -> Mapping[str, Any]:
    """Return the model and settings of a file, finished or not; empty if they cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        if out.exists():
            provenance: Mapping[str, Any] = json.loads(read_bytes(manifest_path(out)))["provenance"]
            return provenance
        with journal_path(out).open("rb") as journal:
            settings: Mapping[str, Any] = json.loads(journal.readline())["settings"]
            return settings
    return {}


def check_has_manifest(out: Path) -> None:
    """Check that a file, if it exists, was made window by window.

    Raises:
        OutputError: it was not.
    """
    if out.exists() and not manifest_path(out).exists():
        raise exists_error(out)


def remove_file(out: Path, inputs: Iterable[object] = ()) -> None:
    """Remove a file that was made window by window, finished or not, and its manifest.

    Raises:
        OutputError: it cannot be removed, is an input, or is being written by another process.
    """
    with locked_output(out, inputs), writing(out):
        for file in (out, manifest_path(out), _part_path(out), journal_path(out)):
            file.unlink(missing_ok=True)


def row_windows(
    chunks: Iterable[Sequence[T]], text_of: Callable[[T], str]
) -> Iterator[RowWindow[T]]:
    """Yield windows of rows.

    Args:
        chunks: the rows of each window.
        text_of: returns everything of a row that its result depends on.
    """
    start = 0
    for number, rows in enumerate(chunks):
        yield RowWindow(number, start, digest_texts(map(text_of, rows)), rows)
        start += len(rows)


class _Share(NamedTuple):
    """The rows of one part of a job.

    Attributes:
        rows: their numbers; every part has the same number of rows, or one more.
        numbers: the windows that they are in.
        continues_window: whether the first of them is not the first of a window.
        text: the digest of all rows of the job.
    """

    rows: range
    numbers: range
    continues_window: bool
    text: str

    @classmethod
    def of_part(cls, part: Part, windows: Iterable[RowWindow[Any]]) -> Self:
        """Read all windows, and return a part's share of their rows."""
        digests, ends, num_rows = [], [], 0
        for window in windows:
            digests.append(window.job_digest)
            num_rows += len(window.rows)
            ends.append(num_rows)
        rows = part.range_of(num_rows)
        numbers = range(bisect_right(ends, rows.start), bisect_left(ends, rows.stop) + 1)
        continues_window = bool(rows) and rows.start not in (0, *ends)
        return cls(rows, numbers if rows else range(0), continues_window, digest_windows(digests))

    def select_windows(self, windows: Iterable[RowWindow[T]]) -> Iterator[RowWindow[T]]:
        """Yield all windows, with only the rows of the share."""
        return (window.with_rows(self.rows) for window in windows)


@dataclass(frozen=True)
class FileJob(Generic[T]):
    """What a file is made of, and how.

    Attributes:
        windows: returns all windows of the rows; called twice for a part.
        make: computes a window, in a worker.
        provenance: everything that the content depends on except the rows, as JSON values.
        workers: compute the windows.
        width: the length of a vector; 0: predictions.
        inputs: what the output must not be.
    """

    out: Path
    windows: Callable[[], Iterator[RowWindow[T]]]
    make: Callable[[RowWindow[T]], tuple[RowsRecord, bytes]]
    format: FileFormat
    provenance: Mapping[str, Any]
    workers: Workers
    width: int = 0
    part: str | None = None
    inputs: Sequence[object] = ()

    def run(self, report: Callable[[RowsRecord, bool], None]) -> OutputManifest:
        """Make the file; called again, resume, or check that the file is finished.

        Args:
            report: called with the record of each window of an unfinished file, and whether it was
                made now.

        Raises:
            DataError: the file was started with other settings or other texts, or is damaged; or
                there are no rows.
            OutputError: the file exists and another job wrote it, cannot be written, or another
                process is writing it.
        """
        out, share = self.out, None
        check_inputs(out, self.inputs)
        if self.part is not None:
            share = _Share.of_part(Part.parse(self.part), self.windows())
        text = None if share is None else share.text
        settings = job_settings(self._plain_provenance, self.part, text)
        if not out.exists():
            with locked_output(out, self.inputs), writing(out):
                if not out.exists():
                    return self._make(settings, share, report)
        return self._check_finished(settings, text)

    @property
    def _plain_provenance(self) -> dict[str, Any]:
        """The provenance as it is after it was read from a file."""
        provenance: dict[str, Any] = json.loads(json.dumps(self.provenance))
        return provenance

    def _make(
        self,
        settings: Mapping[str, Any],
        share: _Share | None,
        report: Callable[[RowsRecord, bool], None],
    ) -> OutputManifest:
        """Make the file of all rows, or of the rows of a part."""
        out, part = self.out, _part_path(self.out)
        manifest_path(out).unlink(missing_ok=True)  # of a file that was removed
        with Journal(journal_path(out), RowsRecord) as journal:
            job = ResumableJob[RowWindow[T], RowsRecord].resume(journal, settings, out)
            try:
                with FileWithWindows(part, self.format.head()) as store:
                    windows, numbers = self.windows(), None
                    if share is not None:
                        windows, numbers = share.select_windows(windows), share.numbers
                    job.run(windows, self.make, store, report, self.workers, numbers=numbers)
                    store.finish()
                if not job.records and share is None and self.width:
                    raise DataError("there are no texts")
                if share is not None and job.digest != settings[TEXTS]:  # were changed meanwhile
                    raise other_job_error("with other texts", out)
                return self._finish(list(job.records.values()), job.digest, share)
            finally:
                if not (job.records or job.superfluous_records) or out.exists():
                    part.unlink(missing_ok=True)
                    journal.remove()

    def _finish(
        self, records: Sequence[RowsRecord], text: str, share: _Share | None
    ) -> OutputManifest:
        """Make the finished file of all windows.

        The manifest is written before the file gets its name, so that damage in between is
        detected; a manifest without its file is ignored.
        """
        rows = sum(record.rows for record in records)
        with self.format.finished_file(_part_path(self.out), self.out, rows) as new:
            manifest = OutputManifest(
                provenance=self._plain_provenance,
                width=self.width,
                rows=rows,
                num_truncated=sum(record.num_truncated for record in records),
                text=text,
                size=new.stat().st_size,
                sha256=sha256_of(new),
                part=self.part,
                continues_window=share is not None and share.continues_window,
            )
            manifest.write(self.out)
        return manifest

    def _check_finished(self, settings: Mapping[str, Any], text: str | None) -> OutputManifest:
        """Check that a file that exists is the finished file of this job; return its manifest.

        It is only read, unless the process that named it was killed before its last step.
        """
        out, file = self.out, manifest_path(self.out)
        check_has_manifest(out)
        try:
            manifest = OutputManifest.read(file)
        except ValueError:
            fix = "Choose another output path, or start again with --overwrite (overwrite=True)."
            what = "is damaged, or not a manifest"
            raise DataError(what, where=str(file), fix=fix) from None
        check_settings(manifest.settings, settings, out)
        manifest.check(out)
        if text is None:
            text = digest_windows(window.digest for window in self.windows())
        if text != manifest.text:
            raise other_job_error("with other texts", out)
        if journal_path(out).exists():
            with locked_output(out), writing(out):
                _part_path(out).unlink(missing_ok=True)
                journal_path(out).unlink(missing_ok=True)
        return manifest
