"""Convert a corpus of text to a directory of token ids that pre-training maps into memory.

    documents ─ batches of text ─► workers: split, tokenise ─► shards ─► manifest

The boundaries of the shards depend only on the text, so the bytes are the same for any number of
workers. A killed run resumes: it reads the text again (which is quick), and skips the shards that
the journal lists with the same text.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Unpack

from ..errors import BertworksError, DataError, OutputError, SettingsError
from ..jobs import parallel
from ..jobs.parts import Part
from ..settings.keywords import PrepareKeywords
from ..text.tokenizer import Tokenizer
from ..utils.atomic_writes import write_file
from ..utils.directories import LOCK_NAME, is_empty_directory, new_directory
from ..utils.formatting import escape_surrogates
from ..utils.outputs import locked_output
from ..utils.regular_files import sha256_of
from .documents import read_documents
from .manifest import (
    EXCLUDED_FILE,
    FORMAT_VERSION,
    MANIFEST,
    SUMMED_FIELDS,
    TOKENIZER,
    Journal,
    Manifest,
    PrepareJob,
    ShardRecord,
    SourceRecord,
    remove_unfinished,
)
from .overlap import SharedSequences
from .reading import ReadCounts
from .settings import CorpusOptions, PrepareSettings
from .shard_builder import ShardMaker, TextBatch, batches
from .shards import token_type
from .sources import CorpusSource, Sources, bytes_of, parse_sources, paths_of

_LIBRARIES = ("pyarrow", "sentencex", "tokenizers")


def prepare(
    sources: Sources,
    *,
    tokenizer: Tokenizer | str | os.PathLike[str],
    out: str | os.PathLike[str],
    workers: int | None = 1,
    on: str | None = None,
    exclude: Sequence[str | os.PathLike[str]] = (),
    part: str | None = None,
    overwrite: bool = False,
    progress: Callable[[PrepareProgress], None] | None = None,
    **settings: Unpack[PrepareKeywords],
) -> Manifest:
    """Split a corpus into sentences, tokenise it, and write it as shards of token ids.

    The directory holds the shards, `manifest.json`, and the tokenizer's files. After an
    interruption, the same call resumes. The bytes do not depend on `workers`.

    Args:
        sources: see `read_documents`.
        tokenizer: a Tokenizer, or the path of its files.
        out: output directory; new, empty, or of a run with the same arguments.
        workers, on: how many processes, and where; see `parallel.map`.
        exclude: files of evaluation data: documents that share 13 consecutive words with them are
            dropped, and listed in `excluded.jsonl`; see `data.overlap`.
        part: `I/N`: make only every N-th shard, from the I-th on. The whole corpus is read, so
            that the shards equal those of a single run; `merge` merges the parts.
        overwrite: delete an existing corpus, finished or not, and start again.
        progress: called after every shard and at the end.
        settings: options of `CorpusOptions` (see `read_documents`); settings of `PrepareSettings`:
            sentences and spans (`language`: one of
            `text.sentences.LANGUAGES`; for spans see `data.spans`), and shards.

    Raises:
        DataError: the corpus is missing, not valid or holds no text; or `out` holds a finished
            corpus whose text has changed since.
        OutputError: `out` cannot be written (finished shards are kept), is being written by another
            process, or is, contains or is inside an input.
        BertworksError: `out` holds something else.
    """
    reading, others = CorpusOptions.split(settings)
    corpus_options, options = CorpusOptions.parse(reading), PrepareSettings.parse(others)
    if workers is not None and workers < 1:
        raise SettingsError(f"workers={workers}: must be at least 1")
    from ..text.files import write_definition
    from ..text.sentences import split_sentences
    from ..text.tokenizer import Tokenizer

    split_sentences("", options.language)  # an unknown language is refused before anything is read
    if options.sentences == "lines" and options.language != "en":
        raise SettingsError(
            f"language={options.language!r} is for sentences='split'",
            fix="With sentences='lines' each line is a sentence: leave the language out.",
        )
    tokenizer_path = None if isinstance(tokenizer, Tokenizer) else tokenizer
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(Path(tokenizer))
    corpus_sources = parse_sources(
        sources, format=corpus_options.format, column=corpus_options.column
    )
    excluded_sequences = (
        SharedSequences(exclude, encoding=corpus_options.encoding) if exclude else None
    )
    job = PrepareJob(
        sources=tuple(map(_source_record, corpus_sources)),
        vocabulary_hash=tokenizer.fingerprint,
        encoding=corpus_options.encoding,
        skip_bad=corpus_options.skip_bad,
        drop_duplicates=corpus_options.drop_duplicates,
        exclude=excluded_sequences.digest if excluded_sequences else None,
        part=None if part is None else str(Part.parse(part)),
        versions={name: importlib.metadata.version(name) for name in _LIBRARIES},
        **options.model_dump(),
    )
    counts = ReadCounts()
    documents = read_documents(
        corpus_sources,
        exclude=excluded_sequences,
        seed=options.seed,
        spans=options.spans != "none",
        counts=counts,
        **reading,
    )
    directory = Path(out)
    inputs = [*paths_of(corpus_sources), tokenizer_path, *exclude]
    with locked_output(directory, inputs, kind="directory", overwrite=overwrite or None):
        _check_ours(directory)
        with closing(Journal(directory)) as journal:
            run = _Run(directory, job, journal, counts, progress)
            try:
                if run.is_finished and (directory / TOKENIZER).exists():
                    # File by file, so that concurrent readers find each; repairs damaged files.
                    write_definition(tokenizer.definition, directory / TOKENIZER)
                else:
                    with new_directory(directory / TOKENIZER, replace=True) as new:
                        write_definition(tokenizer.definition, new)
                run.work(batches(documents, options.shard_bytes, counts), tokenizer, workers, on)
                return run.finish(tokenizer)
            except OutputError as error:
                if not run.records:
                    raise
                kept = f"{len(run.records)} finished shards are kept"
                fix = f"{kept}: make room, and run the same command again to resume."
                raise OutputError(error.what, where=error.where, fix=fix) from None
            finally:
                run.leave_no_trace()


class _Run:
    """One call of `prepare`, from resuming to writing the manifest."""

    def __init__(
        self,
        directory: Path,
        job: PrepareJob,
        journal: Journal,
        counts: ReadCounts,
        progress: Callable[[PrepareProgress], None] | None,
    ) -> None:
        self._directory, self._job, self._journal = directory, job, journal
        self._counts, self._report = counts, progress
        self.records: dict[str, ShardRecord] = {}
        self._progress = PrepareProgress(bytes_total=counts.bytes_total, read=counts)
        self._part = Part.parse(job.part) if job.part is not None else Part(1, 1)
        self._text = hashlib.blake2b(digest_size=16)
        self._bytes: dict[str, int] = {}
        self._start = time.monotonic()
        self.is_finished = (directory / MANIFEST).exists()
        self._finished_records = {record.file: record for record in self._resume()}

    def _resume(self) -> list[ShardRecord]:
        """The shards of earlier runs, after a check that they were the same job."""
        remove_unfinished(self._directory)
        if self.is_finished:
            manifest = Manifest.read(self._directory)
            before, records = manifest.job, list(manifest.shards)
            difference = before.first_difference(self._job)
        else:
            started_job, records = self._journal.read()
            if started_job is None or not records:
                self._journal.restart(self._job)
                shutil.rmtree(self._directory / TOKENIZER, ignore_errors=True)
                return []
            # Repairing text after an error changes file sizes; shards are compared by their text.
            difference = started_job.without_sizes().first_difference(self._job.without_sizes())
        if difference:
            raise BertworksError(
                f"the directory holds another preparation: {difference}",
                where=str(self._directory),
                fix="Choose another --out, or start again with --overwrite (overwrite=True).",
            )
        return records

    def work(
        self, todo: Iterator[TextBatch], tokenizer: Tokenizer, workers: int | None, on: str | None
    ) -> None:
        """Make all missing shards."""
        job = self._job
        make = ShardMaker(tokenizer, job.sentences, job.language, job.spans).make
        with closing(parallel.map(make, self._pending(todo), workers=workers, on=on)) as shards:
            for record, content in shards:
                write_file(self._directory / record.file, content)
                self._journal.append(record)
                self._progress.new_tokens += record.tokens
                self._note(record)

    def _pending(self, todo: Iterator[TextBatch]) -> Iterator[TextBatch]:
        for batch in todo:
            self._text.update(batch.digest.encode())
            if batch.number % self._part.count != self._part.number - 1:
                self._progress.bytes_read += batch.bytes_read
                self._show()
                continue
            self._bytes[batch.file] = batch.bytes_read
            record = self._finished_records.pop(batch.file, None)
            if record is not None and self._is_whole(record) and record.text == batch.digest:
                self._progress.reused_shards += 1
                self._note(record)
                continue
            if self.is_finished and (record is None or record.text != batch.digest):
                raise self._change_error()
            yield batch

    def _is_whole(self, record: ShardRecord) -> bool:
        path = self._directory / record.file
        return (
            path.is_file()
            and path.stat().st_size == record.bytes
            and sha256_of(path) == record.sha256
        )

    def _note(self, record: ShardRecord) -> None:
        self.records[record.file] = record
        now = self._progress
        now.shards += 1
        now.documents += record.documents
        now.sentences += record.sentences
        now.tokens += record.tokens
        now.unknown_tokens += record.unknown_tokens
        now.bytes_read += self._bytes.pop(record.file)
        self._show()

    def _show(self) -> None:
        self._progress.seconds = time.monotonic() - self._start
        if self._report is not None:
            self._report(self._progress)

    def finish(self, tokenizer: Tokenizer) -> Manifest:
        """Replace the journal by the manifest."""
        text = None if self._job.part is None else self._text.hexdigest()
        if self.is_finished and (
            self._finished_records or Manifest.read(self._directory).text != text
        ):
            raise self._change_error()
        shards = sorted(self.records.values(), key=lambda shard: shard.place)
        total: Counter[str] = Counter()
        for record in shards:
            total.update(record.model_dump(exclude={"file", "sha256", "text"}))
        if not total["tokens"] and self._job.part is None:
            raise DataError("the corpus is empty: no text gives tokens")
        for file in self._finished_records:  # the text is shorter than in the last run
            (self._directory / file).unlink(missing_ok=True)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            **{name: total[name] for name in SUMMED_FIELDS},
            empty_documents=total["empty_documents"] + self._counts.empty,
            duplicate_documents=self._counts.duplicates,
            excluded_documents=len(self._counts.excluded_documents),
            left_out_documents=self._counts.left_out,
            cut_documents=self._counts.num_splits,
            num_skipped=dict(sorted(self._counts.num_skipped_by_kind.items())),
            token_type=token_type(tokenizer.vocab_size).name,
            vocabulary_size=tokenizer.vocab_size,
            text=text,
            job=self._job,
            shards=tuple(shards),
        )
        if self._job.exclude is not None:
            lines = [
                json.dumps(asdict(one), ensure_ascii=False)
                for one in self._counts.excluded_documents
            ]
            write_file(self._directory / EXCLUDED_FILE, "".join(f"{line}\n" for line in lines))
        manifest.write(self._directory)
        self._journal.remove()
        self._progress.bytes_read = self._counts.bytes_read
        self._show()
        return manifest

    def leave_no_trace(self) -> None:
        """Remove the files of a run without tokens: the next run may prepare another corpus."""
        if (self._directory / MANIFEST).exists():
            return
        _, records = self._journal.read()
        if any(record.tokens for record in records):
            return
        # Also a shard whose line could not be written to the journal.
        for shard in self._directory.glob("shard-*.arrow"):
            shard.unlink(missing_ok=True)
        shutil.rmtree(self._directory / TOKENIZER, ignore_errors=True)
        self._journal.remove()

    def _change_error(self) -> DataError:
        return DataError(
            "the directory holds a finished corpus, and its text has changed since",
            where=str(self._directory),
            fix="Choose another --out, or start again with --overwrite (overwrite=True).",
        )


def _check_ours(directory: Path) -> None:
    """Check that a directory is empty or holds only a prepared corpus, finished or not."""
    names = {path.name for path in directory.iterdir()}
    known = {LOCK_NAME, TOKENIZER, Journal.path(directory).name}
    has_journal = Journal.path(directory).name in names and all(
        name in known or name.endswith((".arrow", ".new")) for name in names
    )
    if not (MANIFEST in names or has_journal or is_empty_directory(directory)):
        raise BertworksError(
            "the directory is not empty, and holds no prepared corpus",
            where=str(directory),
            fix="Choose another --out.",
        )


def _source_record(source: CorpusSource) -> SourceRecord:
    paths = source.files()
    return SourceRecord(
        name=escape_surrogates(source.name),
        weight=source.weight,
        format=source.format,
        column=source.column,
        files=len(paths),
        bytes=bytes_of(paths),
    )


@dataclass(slots=True)
class PrepareProgress:
    """The progress of `prepare`, passed to `progress` after every shard and at the end."""

    bytes_total: int = 0  # of the corpus's files (0 for data sets)
    documents: int = 0  # in the shards so far
    sentences: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    shards: int = 0
    reused_shards: int = 0  # how many of the shards were made by an earlier run
    bytes_read: int = 0  # of the corpus's files, for these shards (0 for data sets)
    seconds: float = 0.0  # since the start
    new_tokens: int = 0  # made in this run
    # counts of the input: skipped, duplicates, formats
    read: ReadCounts = field(default_factory=ReadCounts)

    @property
    def tokens_per_second(self) -> float:
        return self.new_tokens / self.seconds if self.seconds else 0.0

    @property
    def unknown_rate(self) -> float:
        """The fraction of tokens that are `[UNK]`."""
        return self.unknown_tokens / max(self.tokens, 1)
