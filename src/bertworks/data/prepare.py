"""Convert a corpus of text to a directory of token ids that pre-training maps into memory.

    documents ─ batches of text ─► workers: split, tokenise ─► shards ─► manifest

The boundaries of the shards depend only on the text, so the bytes are the same for any number of
workers. A killed run resumes: it reads the text again (which is quick), and skips the shards that
the journal lists with the same text.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Unpack

from ..errors import DataError, SettingsError
from ..jobs.journal import Journal
from ..jobs.parallel import Workers
from ..jobs.parts import Part
from ..jobs.resumable import FilesOfWindows, ResumableJob, check_settings, other_job_error
from ..settings.keywords import PrepareKeywords
from ..text.files import write_definition
from ..text.tokenizer import Tokenizer
from ..utils.atomic_writes import write_file
from ..utils.directories import make_directory
from ..utils.formatting import escape_surrogates
from ..utils.outputs import locked_output
from .documents import read_documents
from .manifest import (
    EXCLUDED_FILE,
    FORMAT_VERSION,
    JOURNAL,
    MANIFEST,
    SUMMED_FIELDS,
    TOKENIZER,
    Manifest,
    PrepareJob,
    ShardRecord,
    SourceRecord,
)
from .overlap import SharedSequences
from .reading import CorpusOptions, ReadCounts
from .settings import PrepareSettings
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
        workers, on: how many processes, and where; see `jobs.parallel.Workers`.
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
        DataError: the corpus is missing, not valid or holds no text; or `out` holds a corpus of
            other settings or other texts.
        OutputError: `out` holds something else, cannot be written (finished shards are kept), is
            being written by another process, or is, contains or is inside an input.
    """
    reading, others = CorpusOptions.split(settings)
    corpus_options, options = CorpusOptions.parse(reading), PrepareSettings.parse(others)
    _check_settings(options, workers)
    corpus = parse_sources(sources, format=corpus_options.format, column=corpus_options.column)
    excluded_sequences = (
        SharedSequences(exclude, encoding=corpus_options.encoding) if exclude else None
    )
    counts = ReadCounts()
    documents = read_documents(
        corpus,
        exclude=excluded_sequences,
        seed=options.seed,
        spans=options.spans != "none",
        counts=counts,
        **reading,
    )
    tokenizer_path = None
    if not isinstance(tokenizer, Tokenizer):
        tokenizer_path, tokenizer = tokenizer, Tokenizer.load(Path(tokenizer))
    job = PrepareJob(
        sources=tuple(map(_source_record, corpus)),
        vocabulary_hash=tokenizer.fingerprint,
        encoding=corpus_options.encoding,
        header=corpus_options.header,
        skip_bad=corpus_options.skip_bad,
        drop_duplicates=corpus_options.drop_duplicates,
        exclude=excluded_sequences.digest if excluded_sequences else None,
        part=None if part is None else str(Part.parse(part)),
        versions={name: importlib.metadata.version(name) for name in _LIBRARIES},
        **options.model_dump(),
    )
    inputs = [*paths_of(corpus), tokenizer_path, *exclude]
    marks = (MANIFEST, JOURNAL)
    with locked_output(out, inputs, kind="directory", overwrite=overwrite, marks=marks):
        run = _Run(Path(out), job, tokenizer, counts, progress)
        return run.make(batches(documents, options.shard_bytes, counts), Workers(workers, on))


def _check_settings(settings: PrepareSettings, workers: int | None) -> None:
    """Check settings before anything is read.

    Raises:
        DataError: there are no rules for the language.
        SettingsError: settings do not fit each other, or there are no workers.
    """
    from ..text.sentences import split_sentences

    if workers is not None and workers < 1:
        raise SettingsError(f"workers={workers}: must be at least 1")
    split_sentences("", settings.language)


class _Run:
    """One call of `prepare`, from resuming to writing the manifest."""

    def __init__(
        self,
        directory: Path,
        job: PrepareJob,
        tokenizer: Tokenizer,
        counts: ReadCounts,
        progress: Callable[[PrepareProgress], None] | None,
    ) -> None:
        self._directory, self._job, self._tokenizer = directory, job, tokenizer
        self._counts, self._report = counts, progress
        part = None if job.part is None else Part.parse(job.part)
        self._numbers = None if part is None else part.every_nth
        self._progress = PrepareProgress(bytes_total=counts.bytes_total, read=counts)
        self._bytes: dict[int, int] = {}
        self._start = time.monotonic()

    def make(self, todo: Iterator[TextBatch], workers: Workers) -> Manifest:
        """Make all missing shards, and the manifest."""
        directory, settings = self._directory, self._job.settings
        for path in directory.glob(".*.new"):  # left by a killed process
            path.unlink()
        if (directory / MANIFEST).exists():
            manifest = Manifest.read(directory)
            check_settings(manifest.job.settings, settings, directory)
            job = ResumableJob[TextBatch, ShardRecord](None, manifest.shards, directory)
            self._make_shards(job, todo, workers)
            if job.superfluous_records or job.digest != manifest.text:
                raise other_job_error("with other texts", directory)
            manifest = self._finish(job)
            (directory / JOURNAL).unlink(missing_ok=True)
            return manifest
        with Journal(directory / JOURNAL, ShardRecord) as journal:
            job = ResumableJob[TextBatch, ShardRecord].resume(journal, settings, directory)
            try:
                self._make_shards(job, todo, workers)
                return self._finish(job)
            finally:
                records = [*job.records.values(), *job.superfluous_records.values()]
                is_finished = (directory / MANIFEST).exists()
                if not is_finished and not any(record.tokens for record in records):
                    # The next run may prepare another corpus. A shard may lack its record.
                    for shard in directory.glob("shard-*.arrow"):
                        shard.unlink()
                    (directory / EXCLUDED_FILE).unlink(missing_ok=True)
                    shutil.rmtree(directory / TOKENIZER, ignore_errors=True)
                    is_finished = True
                if is_finished:
                    journal.remove()

    def _make_shards(
        self, job: ResumableJob[TextBatch, ShardRecord], todo: Iterator[TextBatch], workers: Workers
    ) -> None:
        own = self._job
        make = ShardMaker(self._tokenizer, own.sentences, own.language, own.spans).make
        store = FilesOfWindows(lambda record: self._directory / record.file)
        job.run(self._read(todo), make, store, self._note, workers, numbers=self._numbers)

    def _read(self, todo: Iterator[TextBatch]) -> Iterator[TextBatch]:
        for batch in todo:
            if self._numbers is None or batch.number in self._numbers:
                self._bytes[batch.number] = batch.bytes_read
            else:
                self._progress.bytes_read += batch.bytes_read
                self._show()
            yield batch

    def _note(self, record: ShardRecord, is_new: bool) -> None:
        now = self._progress
        now.shards += 1
        now.documents += record.documents
        now.sentences += record.sentences
        now.tokens += record.tokens
        now.unknown_tokens += record.unknown_tokens
        now.bytes_read += self._bytes.pop(record.number)
        if is_new:
            now.new_tokens += record.tokens
        else:
            now.reused_shards += 1
        self._show()

    def _show(self) -> None:
        self._progress.seconds = time.monotonic() - self._start
        if self._report is not None:
            self._report(self._progress)

    def _finish(self, job: ResumableJob[TextBatch, ShardRecord]) -> Manifest:
        """Write everything but the shards, the manifest last."""
        shards = sorted(job.records.values(), key=lambda record: record.number)
        total: Counter[str] = Counter()
        for record in shards:
            total.update(record.model_dump(include={*SUMMED_FIELDS, "empty_documents"}))
        if not total["tokens"] and self._job.part is None:
            raise DataError("the corpus is empty: no text gives tokens")
        directory, counts = self._directory, self._counts
        for record in job.superfluous_records.values():
            (directory / record.file).unlink(missing_ok=True)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            **{name: total[name] for name in SUMMED_FIELDS},
            empty_documents=total["empty_documents"] + counts.empty,
            duplicate_documents=counts.duplicates,
            excluded_documents=len(counts.excluded_documents),
            left_out_documents=counts.left_out,
            cut_documents=counts.num_splits,
            num_skipped=dict(sorted(counts.num_skipped_by_kind.items())),
            token_type=token_type(self._tokenizer.vocab_size).name,
            vocabulary_size=self._tokenizer.vocab_size,
            text=job.digest,
            job=self._job,
            shards=tuple(shards),
        )
        if self._job.exclude is not None:
            lines = (
                json.dumps(asdict(one), ensure_ascii=False) for one in counts.excluded_documents
            )
            write_file(directory / EXCLUDED_FILE, "".join(f"{line}\n" for line in lines))
        if not (directory / MANIFEST).exists():  # a killed job may have had another tokenizer
            shutil.rmtree(directory / TOKENIZER, ignore_errors=True)
        make_directory(directory / TOKENIZER)
        # File by file, so that others who read a finished corpus find each; repairs damaged files.
        write_definition(self._tokenizer.definition, directory / TOKENIZER)
        manifest.write(directory)
        self._progress.bytes_read = counts.bytes_read
        self._show()
        return manifest


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
