"""A job that makes its output window by window, each once, whatever interrupts it.

    windows of texts ─► make, in processes ─► content ─► store (synchronised) ─► journal

A window is some rows or documents that are computed together. A window is finished when its content
is on the disk and its record is in the journal. The same job, started again, reads all texts again,
and skips each window whose record has the same texts and whose content is undamaged.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from ..errors import DataError, OutputError
from ..utils.atomic_writes import fsync, write_file, writing
from ..utils.regular_files import sha256_of
from .journal import Journal, RecordT, WindowRecord, first_difference
from .parallel import Workers


class Window(Protocol):
    """The texts of a window."""

    @property
    def number(self) -> int:
        """The window's number, from 0, over all parts of the job."""

    @property
    def digest(self) -> str:
        """A digest of its texts."""

    @property
    def job_digest(self) -> str:
        """The digest of its texts and of those that other parts of the job make of this window."""


WindowT = TypeVar("WindowT", bound=Window)
RecordT_contra = TypeVar("RecordT_contra", bound=WindowRecord, contravariant=True)


class WindowStore(Protocol[RecordT_contra]):
    """Where the contents of finished windows are."""

    def holds(self, record: RecordT_contra | None) -> bool:
        """Whether the content of the next window is there, undamaged.

        Called for each window in order; without a record if it has none with the same texts.
        """

    def add(self, record: RecordT_contra, content: Any) -> None:
        """Add the content of a window, and synchronise it to the disk."""


class ResumableJob(Generic[WindowT, RecordT]):
    """The windows of an output that is being made.

    Args:
        journal: of the output; None if the output is finished, and windows can only be repaired.
        records: finished windows.
        where: the name of the output in errors.

    Attributes:
        records: the finished windows that `run` has come to, by number.
        superfluous_records: finished windows that the texts no longer have.
    """

    def __init__(self, journal: Journal[RecordT] | None, records: Iterable[RecordT], where: Path):
        self._journal, self._where = journal, where
        self._digests: list[str] = []
        self.superfluous_records = {record.number: record for record in records}
        self.records: dict[int, RecordT] = {}

    @classmethod
    def resume(cls, journal: Journal[RecordT], settings: Mapping[str, Any], where: Path) -> Self:
        """Resume the job of a journal, or start one if it has no records.

        Args:
            settings: everything that determines the output except the texts, as JSON values.

        Raises:
            DataError: the job was started with other settings, or its journal is damaged.
        """
        recorded_settings, records = journal.read()
        if records:
            check_settings(recorded_settings, settings, where)
        else:
            journal.restart(settings)
        return cls(journal, records, where)

    @property
    def digest(self) -> str:
        """The digest of the texts of all windows so far, also of those of other parts."""
        return digest_windows(self._digests)

    def run(
        self,
        windows: Iterable[WindowT],
        make: Callable[[WindowT], tuple[RecordT, Any]],
        store: WindowStore[RecordT],
        report: Callable[[RecordT, bool], None],
        workers: Workers,
        *,
        numbers: range | None = None,
    ) -> None:
        """Make the windows that are not finished.

        Args:
            windows: all windows of the job, in order.
            make: returns the record and the content of a window.
            report: called with each record, and whether its window was made now.
            workers: make the windows.
            numbers: the numbers of the windows to make; the others belong to other parts.

        Raises:
            DataError: the texts are not those that the job was started with.
            OutputError: the output cannot be written; what is finished is kept.
        """
        pending = self._pending(windows, store, report, numbers)
        results = workers.map(make, pending)
        try:
            with closing(results):
                for record, content in results:
                    store.add(record, content)
                    if self._journal is not None:
                        self._journal.append(record)
                    self._note(record, report, is_new=True)
        except OutputError as error:
            if not self.records:
                raise
            fix = f"{error.fix or 'Run the same command again.'} What is finished is kept."
            raise OutputError(error.what, where=error.where, fix=fix) from None

    def _pending(
        self,
        windows: Iterable[WindowT],
        store: WindowStore[RecordT],
        report: Callable[[RecordT, bool], None],
        numbers: range | None,
    ) -> Iterator[WindowT]:
        """Yield the windows to make.

        A job whose first window has other texts is refused: it was started with another file. If a
        later window differs, the texts were corrected, and it is made again.
        """
        is_first = True
        for window in windows:
            self._digests.append(window.job_digest)
            if numbers is not None and window.number not in numbers:
                continue
            earlier_record = self.superfluous_records.pop(window.number, None)
            has_same_texts = earlier_record is not None and earlier_record.text == window.digest
            record = earlier_record if has_same_texts else None
            if record is None and (self._journal is None or (is_first and earlier_record)):
                raise other_job_error("with other texts", self._where)
            is_first = False
            if store.holds(record) and record is not None:
                self._note(record, report, is_new=False)
            else:
                yield window

    def _note(
        self, record: RecordT, report: Callable[[RecordT, bool], None], *, is_new: bool
    ) -> None:
        self.records[record.number] = record
        report(record, is_new)


def check_settings(
    earlier_settings: Mapping[str, Any], settings: Mapping[str, Any], where: Path
) -> None:
    """Check that an output was started with the same settings.

    Raises:
        DataError: it was not.
    """
    if difference := first_difference(earlier_settings, settings):
        raise other_job_error(difference, where)


def other_job_error(difference: str, where: Path) -> DataError:
    """Return the error about an output of a job with another setting, or with other texts."""
    return DataError(
        f"was started {difference}",
        where=str(where),
        fix="Choose another output path, or start again with --overwrite (overwrite=True).",
    )


def digest_texts(texts: Iterable[str]) -> str:
    """Return a digest of the texts of a window."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d\n" % len(content))
        digest.update(content)
    return digest.hexdigest()


def digest_windows(digests: Iterable[str]) -> str:
    """Return a digest of all texts of a job, from those of its windows."""
    return hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()


class FileWithWindows:
    """Windows that follow each other in a file, after a head that is written again at the end.

    The file needs no more room than the output, and `merge` can append it to others. A window is in
    it only if all windows before it are. What follows the last recorded window is removed.

    Raises:
        OutputError: the file cannot be written.
    """

    def __init__(self, path: Path, head: bytes) -> None:
        self.path, self._end, self._has_gap = path, len(head), False
        with writing(path), ExitStack() as stack:
            is_new = not path.exists()
            self._file = stack.enter_context(path.open("w+b" if is_new else "r+b", buffering=0))
            if is_new:
                self._write(0, head)
                fsync(path.parent)
            stack.pop_all()  # from here on, `__exit__` closes the file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def holds(self, record: WindowRecord | None) -> bool:
        # A window to make comes before all later ones, which may be asked for before it is added.
        self._has_gap = self._has_gap or record is None
        if record is None or self._has_gap:
            return False
        self._file.seek(self._end)
        digest, left = hashlib.sha256(), record.size
        while left and (block := self._file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
        self._has_gap = digest.hexdigest() != record.sha256
        if not self._has_gap:
            self._end += record.size
        return not self._has_gap

    def add(self, record: WindowRecord, content: bytes) -> None:
        self._has_gap = True
        with writing(self.path):
            self._file.truncate(self._end)
            self._write(self._end, content)
        self._end += record.size

    def finish(self) -> None:
        """Remove what follows the last window."""
        with writing(self.path):
            self._file.truncate(self._end)

    def _write(self, place: int, content: bytes) -> None:
        self._file.seek(place)
        rest = memoryview(content)
        while rest:  # an almost full disk may accept only a part
            rest = rest[self._file.write(rest) :]
        os.fsync(self._file.fileno())


class FilesOfWindows:
    """Windows in files of a directory."""

    def __init__(self, path_of: Callable[[Any], Path]) -> None:
        self._path_of = path_of

    def holds(self, record: WindowRecord | None) -> bool:
        if record is None:
            return False
        path = self._path_of(record)
        is_there = path.is_file() and path.stat().st_size == record.size
        return is_there and sha256_of(path) == record.sha256

    def add(self, record: WindowRecord, content: Any) -> None:
        write_file(self._path_of(record), content)
