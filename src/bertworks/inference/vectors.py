"""Write vectors of any number of texts to a file, in bounded memory; an interrupted run resumes.

    vectors.npy          float32 [texts, width]: `numpy.load(…, mmap_mode="r")`; int8 or uint8 if
                         quantized (`vector_codes.py`)
    vectors.parquet      row, text, vector (a list of fixed size)
    vectors.npz          sparse vectors: `scipy.sparse.load_npz`; in Parquet: indices, values
    vectors.safetensors  matrices of late interaction: `token_vectors.py`; in Parquet: vectors

`window_files.py` describes the other files that are next to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..data.rows import chunks
from ..data.text_inputs import Texts
from ..errors import DataError, check_path_name
from ..jobs.parallel import Workers
from ..utils.remote import is_remote, local_output
from .settings import TokenSettings
from .text_embedding import TextEmbedder, TextReader
from .vector_files import TokenParquet, VectorFormat, vector_format_of
from .window_files import FileJob, RowsRecord, RowWindow, read_provenance, remove_file, row_windows


@dataclass(frozen=True)
class WrittenVectors:
    """Counts of written vectors."""

    rows: int  # the number of texts in the file
    width: int  # the length of each vector
    new: int  # how many of the texts this run computed; the others were already in the file
    num_truncated: int  # how many of the texts were truncated


def write_vectors(
    out: str | os.PathLike[str],
    texts: Texts,
    embedder: TextReader,
    *,
    inputs: Iterable[object],
    part: str | None,
    workers: int | None,
    on: str | None,
    overwrite: bool,
    progress: Callable[[int, int], None] | None,
) -> WrittenVectors:
    """Write a vector of each text, or of each of its tokens or words, in the order of the texts.

    Args:
        out: a name that ends in `.parquet` or, for text vectors only, in `.npy`. If an earlier run
            was interrupted, this one resumes its file.
        texts: any number.
        embedder: computes the vectors; `auto` as its precision is replaced by that of the file to
            resume, or by what it means here, also for workers elsewhere.
        inputs: what the output must not be.
        part: `I/N`: only the I-th of N parts of the texts, which are then read twice.
        workers, on: number of processes, and where they run; see `jobs.parallel.Workers`.
        overwrite: delete an existing file, finished or not.
        progress: called with the number of rows done, and of all rows (0 if unknown).

    Raises:
        DataError: a text is invalid, or can be read once only; or the file was made with another
            model, other settings or other texts, or is damaged.
        OutputError: the file exists without a manifest, cannot be written, or another process is
            writing it.
    """
    if part is not None and not texts.is_repeatable:
        raise DataError(
            "part= needs texts that can be read twice", fix="Give a file, or leave part out."
        )
    total = sum(1 for _ in texts) if texts.is_repeatable and part is None else 0
    if overwrite and not is_remote(out):
        remove_file(Path(out), inputs)
    if embedder.engine.precision == "auto":
        precision = read_provenance(Path(out)).get("precision", embedder.auto_precision)
        embedder.engine = embedder.engine.with_values(precision=precision)
    num_done = num_new = 0

    def report_rows(rows: int) -> None:
        if progress is not None:
            progress(num_done + rows, total)

    def report(record: RowsRecord, is_new: bool) -> None:
        nonlocal num_done, num_new
        num_done += record.rows
        num_new += record.rows * is_new
        report_rows(0)

    def windows() -> Iterator[RowWindow[tuple[str, str]]]:
        parts = chunks(texts, embedder.engine.window_rows, lambda item: len(item[1]))
        return row_windows(parts, lambda item: item[1])

    with local_output(out, overwrite=overwrite) as file:
        check_path_name(file)
        vector_format = _vector_format(file, embedder)
        embed = _Embed(embedder, vector_format, report_rows)
        if workers != 1 or on is not None:
            embed = _Embed(embedder.for_workers(on), vector_format, None)
        manifest = FileJob(
            file,
            windows,
            embed,
            vector_format,
            embedder.provenance(),
            width=embedder.width,
            part=part,
            inputs=tuple(inputs),
            workers=Workers(workers, on, embedder.num_gpus),
        ).run(report)
    return WrittenVectors(manifest.rows, manifest.width, num_new, manifest.num_truncated)


def _vector_format(out: Path, embedder: TextReader) -> VectorFormat:
    if isinstance(embedder, TextEmbedder):
        quantization = embedder.settings.quantization
        return vector_format_of(out, embedder.width, embedder.pooling, quantization)
    if out.suffix != ".parquet":
        raise DataError(
            "token features are written as Parquet",
            where=str(out),
            fix="Use a name that ends in .parquet.",
        )
    assert isinstance(embedder.settings, TokenSettings)
    return TokenParquet(embedder.width, embedder.settings.unit)


@dataclass(frozen=True)
class _Embed:
    """Computes the vectors of windows, in a worker.

    Attributes:
        report: called with the number of texts of the window that are done.
    """

    embedder: TextReader
    format: VectorFormat
    report: Callable[[int], None] | None

    def __call__(self, window: RowWindow[tuple[str, str]]) -> tuple[RowsRecord, bytes]:
        places, texts = zip(*window.rows, strict=True)
        num_truncated = self.embedder.num_truncated
        vectors = self.embedder.embed(texts, places, self.report)
        content = self.format.window(window.start, texts, vectors)
        num_truncated = self.embedder.num_truncated - num_truncated
        return RowsRecord.from_content(window, content, num_truncated=num_truncated), content
