"""Stream documents from files and data sets of all supported formats.

Memory holds one document at a time, whatever the size of the corpus.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from ..errors import BertworksWarning, DataError
from ..settings.literals import DataFormat
from ..utils.regular_files import why_no_file
from .document_formats import Document, documents_of
from .formats import FORMATS, detect_file_format
from .lines import read_lines
from .overlap import SeenTexts, SharedSequences
from .parquet import read_parquet_documents
from .reading import CorpusOptions, ExcludedDocument, ReadCounts, Reading
from .separated_tables import open_separated
from .sources import (
    CorpusSource,
    Sources,
    bytes_of,
    is_file,
    open_dataset,
    parse_sources,
)

if TYPE_CHECKING:
    from ..settings.keywords import CorpusKeywords


def read_documents(
    sources: Sources,
    *,
    exclude: SharedSequences | None = None,
    seed: int = 0,
    spans: bool = False,
    counts: ReadCounts | None = None,
    **options: Unpack[CorpusKeywords],
) -> Iterator[Document]:
    """Stream the documents of a corpus, source after source, file after file; none is empty.

    Args:
        sources: paths, folders, globs or `hf:NAME`, each optionally with `@WEIGHT`; or
            `CorpusSource`s.
        exclude: drop and record documents that share word sequences with this evaluation data.
        seed: random seed for the fraction of a weight.
        spans: whether to read the spans of documents (JSON Lines, Parquet, data sets).
        counts: filled in as documents are read.
        options: those of `CorpusOptions`: `format`, `header`, `column` (of the text), `skip_bad`
            (skip and count unreadable input, instead of raising an error), `drop_duplicates` (drop
            and count documents whose whole text occurred before), `encoding`, `max_line_bytes`
            (longer lines are an error, so that memory is bounded).

    Raises:
        DataError: a source is missing or empty, or (unless `skip_bad`) unreadable; raised when
            the input is reached, but at once for missing sources, and for a column of sources
            without columns.
        SettingsError: an option is unknown or invalid.
    """
    settings = CorpusOptions.parse(options)
    corpus_sources = parse_sources(sources, format=settings.format, column=settings.column)
    files = [source.files() for source in corpus_sources]
    for source, paths in zip(corpus_sources, files, strict=True):
        _check_columns(source, paths, settings)
    counts = counts if counts is not None else ReadCounts()
    counts.bytes_total += sum(map(bytes_of, files))
    reading = Reading(
        counts,
        settings.skip_bad,
        spans=spans,
        encoding=settings.encoding,
        max_line_bytes=settings.max_line_bytes,
        header=settings.header,
    )
    return _read(corpus_sources, files, settings.drop_duplicates, exclude, seed, reading)


def _check_columns(source: CorpusSource, files: list[str], options: CorpusOptions) -> None:
    """Check that `column` and `header` are only given if one of the files may have columns."""
    if source.is_dataset or (source.column is None and options.header is None):
        return

    def format_of(file: str) -> DataFormat | None:
        if not is_file(file):
            return None
        try:
            return detect_file_format(
                file, Reading(encoding=options.encoding), source.format, is_corpus=True
            )
        except DataError:
            return None  # reported when the file is read

    formats = {format_of(file) for file in files}
    if source.column is not None and formats <= {"text", "wiki"}:
        raise DataError(
            f"plain text has no column {source.column!r}",
            where=source.path,
            fix="Leave the column out, or say what the files are: --format jsonl.",
        )
    if options.header is not None and not formats & {"tsv", "csv", None}:
        raise DataError(
            f"header={str(options.header).lower()} is for tsv and csv, and no file is one",
            where=source.path,
            fix="Leave it out, or say what the files are: --format tsv.",
        )


def _read(
    sources: list[CorpusSource],
    files: list[list[str]],
    drop_duplicates: bool,
    exclude: SharedSequences | None,
    seed: int,
    of_all: Reading,
) -> Iterator[Document]:
    counts, seen_texts = of_all.counts, SeenTexts() if drop_duplicates else None
    for index, source in enumerate(sources):
        reading = replace(of_all, column=source.column)
        number = 0
        for document in _read_source(source, files[index], reading):
            if not document.paragraphs:
                counts.empty += 1
                continue
            number += 1
            if seen_texts is not None and not seen_texts.add(document.text):
                counts.duplicates += 1
                continue
            if exclude is not None and (overlap := exclude.find(document.text)) is not None:
                beginning = document.paragraphs[0][:80]
                counts.excluded_documents.append(
                    ExcludedDocument(document.where, beginning, overlap.sequences, overlap.words)
                )
                continue
            copies = _copies(source.weight, f"{seed}:{index}:{number}")
            counts.left_out += not copies
            counts.documents += copies
            if copies:
                yield document
            for copy in range(1, copies):
                yield replace(document, copy=copy)


def _read_source(source: CorpusSource, files: list[str], reading: Reading) -> Iterator[Document]:
    if source.is_dataset:
        reading.counts.formats[source.path] = "data set"
        yield from _read_dataset(source, reading)
    for file in files:
        if not is_file(file):
            reading.bad("no file", why_no_file(file), where=file)
            continue
        has_document, num_skipped = False, reading.counts.num_skipped
        try:
            format = detect_file_format(file, reading, source.format, is_corpus=True)
            reading.counts.formats[file] = format
            for document in _documents_in(file, format, reading):
                has_document = True
                yield document
        except DataError as error:  # about the rest of the file
            reading.skip("damaged file", error)
        if not has_document and reading.counts.num_skipped == num_skipped:
            reading.bad("empty file", "the file holds no text", where=file)


def _documents_in(file: str, format: DataFormat, reading: Reading) -> Iterator[Document]:
    """Yield the documents of a file: by its format's reader of documents, or from its records."""
    read, readers = partial(read_lines, file), FORMATS[format]
    if readers.documents is not None:
        return readers.documents(read(reading), file, reading)
    if readers.records is not None:
        return documents_of(readers.records(read(reading), file, reading), reading)
    if readers.fields is not None:
        names = () if reading.column is None else (reading.column,)
        table = open_separated(file, read, format, readers.fields, reading, column_names=names)
        if format == "tsv" and len(table.columns) == 1:
            what = "lines without a tab are a document each"
            fix = "If it is prose, give --format text (format=text)"
            warnings.warn(f"{file}: {what}. {fix}", BertworksWarning, stacklevel=2)
        return documents_of(table, reading)
    return read_parquet_documents(file, reading)


def _read_dataset(source: CorpusSource, reading: Reading) -> Iterator[Document]:
    """Stream the documents of a Hugging Face data set; see `open_dataset`."""
    row = 0

    def records() -> Iterator[tuple[str, Mapping[str, Any]]]:
        nonlocal row
        for row, record in enumerate(open_dataset(source), 1):
            yield f"{source.path}, row {row}", record

    yield from documents_of(records(), reading)
    if not row:
        reading.bad("empty file", "the data set holds no rows", where=source.path)


def _copies(weight: float, key: str) -> int:
    """How many copies of a document a weight yields; the key decides about its fraction."""
    whole = int(weight)
    fraction = weight - whole
    if not fraction:
        return whole
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return whole + (int.from_bytes(digest, "big") < fraction * 2**64)
