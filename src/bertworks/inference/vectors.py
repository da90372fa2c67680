"""Write vectors of any number of texts to a file, in bounded memory; an interrupted run resumes.

    vectors.npy          float32 [texts, width]: `numpy.load(…, mmap_mode="r")`
    vectors.parquet      row, text, vector (a list of fixed size)
    vectors.npy.json     model and settings of the vectors, and how many there are
    vectors.npy.part     the file while it is unfinished

The unfinished file is only appended to, one window of texts at a time. Bytes after the end that the
note records belong to an unfinished window, and are removed. So an interrupted and resumed run
makes the same file as an uninterrupted one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..errors import DataError, check_path_name
from ..jobs import parallel
from ..jobs.parts import Part
from ..nn.config import HEAD_DROPOUTS
from ..nn.encoder import Encoder, HasEncoder
from ..text.tokenizer import Tokenizer
from ..utils.atomic_writes import writing
from ..utils.outputs import check_inputs, exists_error, locked_output
from ..utils.regular_files import read_bytes
from .engine import chunks, threads_of_worker
from .features import Embedder, TokenFeatures
from .manifests import Note, checksum_of, crc, digest, note_file, note_of_part
from .vector_files import Layout, TokenParquet, layout_of


@dataclass(frozen=True)
class WrittenVectors:
    """Counts of written vectors."""

    rows: int  # the number of texts in the file
    width: int  # the length of each vector
    new: int  # how many of the texts this run computed; the others were already in the file
    cut: int  # how many of the texts were truncated


def write_vectors(
    out: str | os.PathLike[str],
    texts: Iterable[tuple[str, str]],
    embedder: Embedder | TokenFeatures,
    *,
    made_with: Mapping[str, Any],
    part: str | None = None,
    workers: int | None = 1,
    on: str | None = None,
    inputs: Iterable[object] = (),
    progress: Callable[[int], None] | None = None,
) -> WrittenVectors:
    """Write a vector of each text, or of each of its tokens or words, in the order of the texts.

    Args:
        out: a name that ends in `.parquet` or, for text vectors only, in `.npy`. If an earlier run
            was interrupted, this one resumes its file.
        texts: the name in errors and the text of each row; any number.
        made_with: everything that the vectors depend on, as JSON values.
        part: `I/N`: only the I-th of N parts of the texts, which are then read twice.
        workers, on: number of processes, and where they run; see `parallel.map`.
        progress: called with the number of rows done.

    Raises:
        DataError: a text is invalid; or the file exists without a note, or was made with another
            model, other settings or other texts.
        OutputError: the file cannot be written, or another process is writing it.
    """
    check_path_name(out)
    out = Path(out)
    layout = _layout(out, embedder)
    beside = note_file(out)
    begun = Note(_plain(made_with), embedder.width)
    if part is not None:
        begun, end = note_of_part(texts, begun, Part.parse(part), embedder.engine.window_rows)
        texts = islice(texts, begun.first, end)
    unfinished = _unfinished(out)
    check_inputs(out, inputs)
    # A finished file is only read, unless its note still describes the unfinished one.
    is_named = out.exists()
    with nullcontext() if is_named else locked_output(out), writing(out):
        note = _read_note(out, unfinished, beside, begun)
        before, was_complete = note.rows, note.complete
        windows = _unseen(texts, note, embedder.engine.window_rows, out)

        def report(done: int) -> None:
            if progress is not None:
                progress(note.rows + done)

        if not note.complete:
            if not note.rows:
                beside.unlink(missing_ok=True)  # left from a file that was removed
            try:
                made = _made(windows, embedder, workers, on, report)
                with _opened(unfinished, note, layout) as file, closing(made):
                    for texts_of_window, vectors, cut in made:
                        note = _add(texts_of_window, vectors, note, file, layout)
                        note = replace(note, cut=note.cut + cut)
                        note.write(beside)
                        report(0)
                    if not note.rows and not note.total:
                        raise DataError("there are no texts")
                    note = replace(note, size=file.tell(), complete=True)
                note.write(beside)
            finally:
                if not beside.exists():
                    unfinished.unlink(missing_ok=True)
        elif next(windows, None) is not None:
            raise DataError(
                f"is finished with {note.rows:,} rows, but there are more texts now",
                where=str(out),
                fix="Give another name, or start again with --overwrite (overwrite=True).",
            )
        if out.exists():
            note.check(out)
        else:
            if was_complete:
                _check_part(unfinished, note, layout)
            note = _name(unfinished, out, note, layout)
        if note.unfinished:
            # The process that named the file may be writing the note, too.
            with locked_output(out) if is_named else nullcontext():
                replace(note, unfinished="").write(beside)
        unfinished.unlink(missing_ok=True)
    return WrittenVectors(note.rows, note.width, note.rows - before, note.cut)


def remove_vectors(out: str | os.PathLike[str], inputs: Iterable[object] = ()) -> None:
    """Remove a file of vectors, finished or not, and its note.

    Raises:
        OutputError: it cannot be removed, is an input, or is being written by another process.
    """
    path = Path(out)
    with locked_output(path, inputs), writing(path):
        for file in (path, note_file(path), _unfinished(path)):
            file.unlink(missing_ok=True)


def _unfinished(out: Path) -> Path:
    return out.with_name(f"{out.name}.part")


def fingerprint(
    encoder: Encoder, tokenizer: Tokenizer, network: torch.nn.Module | None = None
) -> str:
    """A digest that identifies a model: of its weights, geometry and tokenizer.

    The weights are those of `network`, with its heads, if it is given.
    """
    found = hashlib.blake2b(digest_size=16)
    found.update(tokenizer.fingerprint.encode())
    found.update(encoder.config.model_dump_json(exclude=set(HEAD_DROPOUTS)).encode())
    for name, tensor in (network or encoder).state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


def begun_with(out: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The model and settings of the vectors in a file; empty if it has no readable note."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found: Mapping[str, Any] = json.loads(read_bytes(note_file(Path(out))))["made_with"]
        return found
    return {}


def _layout(out: Path, embedder: Embedder | TokenFeatures) -> Layout:
    if isinstance(embedder, Embedder):
        return layout_of(out, embedder.width)
    if out.suffix != ".parquet":
        raise DataError(
            "token features are written as Parquet",
            where=str(out),
            fix="Use a name that ends in .parquet.",
        )
    return TokenParquet(embedder.width, embedder.settings.of)


class _Encoder(HasEncoder):
    """An encoder without heads, of a class that every worker can import."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder


@dataclass(frozen=True)
class _Embed:
    """Embeds windows in a worker: the model, and the number of threads."""

    embedder: Embedder | TokenFeatures
    threads: int | None = None
    report: Callable[[int], None] | None = None

    def __call__(self, window: Sequence[tuple[str, str]]) -> tuple[Any, int]:
        """Return the vectors of a window, and how many texts were truncated."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        places, texts = zip(*window, strict=True)
        cut = self.embedder.cut
        vectors = self.embedder.embed(texts, places, self.report)
        return vectors, self.embedder.cut - cut


def _made(
    windows: Iterable[Sequence[tuple[str, str]]],
    embedder: Embedder | TokenFeatures,
    workers: int | None,
    on: str | None,
    report: Callable[[int], None],
) -> Generator[tuple[list[str], Any, int]]:
    """Yield the texts of each window, their vectors, and how many were truncated."""
    drawn: deque[list[str]] = deque()

    def kept() -> Iterator[Sequence[tuple[str, str]]]:
        for window in windows:
            drawn.append([text for _, text in window])
            yield window

    embed = _Embed(embedder, report=report)
    gpus = int(next(embedder.network.parameters()).is_cuda)
    if workers != 1 or on is not None:
        lean = copy.copy(embedder)
        lean.network = _Encoder(embedder.network.encoder)
        embed = _Embed(lean, threads_of_worker(workers, on))
    made = parallel.map(embed, kept(), workers=workers, on=on, gpus=gpus)
    with closing(made):
        for vectors, cut in made:
            yield drawn.popleft(), vectors, cut


def _add(texts: Sequence[str], vectors: Any, note: Note, file: BinaryIO, layout: Layout) -> Note:
    """Append a window and flush it to disk; return the note that includes it."""
    window = layout.window(note.first + note.rows, texts, vectors)
    file.write(window)
    file.flush()
    os.fsync(file.fileno())
    checksum = int(note.checksum.removeprefix("part "), 16)
    return replace(
        note,
        checksum=f"part {zlib.crc32(window, checksum):08x}",
        rows=note.rows + len(texts),
        size=file.tell(),
        texts=reduce(digest, texts, note.texts),
    )


def _unseen(
    texts: Iterable[tuple[str, str]], note: Note, size: int, out: Path
) -> Iterator[list[tuple[str, str]]]:
    """Yield the windows not written yet, after checking that the written texts are the same."""
    stream = iter(texts)
    rows, seen = 0, note.before
    for _, text in islice(stream, note.rows):
        rows, seen = rows + 1, digest(seen, text)
    if (rows, seen) != (note.rows, note.texts):
        raise _other_texts(out)
    yield from chunks(stream, size, lambda placed: len(placed[1]))


def _other_texts(out: Path) -> DataError:
    return DataError(
        "was started with other texts",
        where=str(out),
        fix="Give another name, or start again with --overwrite (overwrite=True).",
    )


@contextmanager
def _opened(part: Path, note: Note, layout: Layout) -> Iterator[BinaryIO]:
    """Open the unfinished file at the end that the note records; a new file if that has no rows."""
    if not note.rows:
        with part.open("wb") as file:
            file.write(layout.head())
            file.flush()
            os.fsync(file.fileno())
            yield file
        return
    _check_part(part, note, layout)
    with part.open("r+b") as file:
        file.truncate(note.size)
        file.seek(note.size)
        yield file


def _check_part(part: Path, note: Note, layout: Layout) -> None:
    """Check that an unfinished file still holds what was written to it.

    Raises:
        DataError: it does not.
    """
    head, why = len(layout.head()), ""
    checksum = note.unfinished or note.checksum
    if part.stat().st_size < note.size:
        why = "has been truncated"
    elif checksum != f"part {crc(part, head, note.size):08x}":
        why = "is damaged: its checksum is wrong"
    if why:
        raise DataError(why, where=str(part), fix="Remove it, and start again.")


def _name(part: Path, out: Path, note: Note, layout: Layout) -> Note:
    """Make the finished file of a complete part; return its note.

    The note gets the file's checksum before the file gets its name, so that damage in between is
    detected.
    """
    with layout.finished(part, out, note.rows) as new:
        of_part = note.unfinished or note.checksum
        note = replace(note, checksum=checksum_of(new), unfinished=of_part)
        note.write(note_file(out))
    return note


def _read_note(out: Path, part: Path, beside: Path, begun: Note) -> Note:
    """Return the note of an earlier run, or the initial note of a new run."""
    fix = "Give another name, or start again with --overwrite (overwrite=True)."
    if not beside.exists():
        if out.exists():
            raise exists_error(out)
        return begun
    try:
        note = Note.read(beside)
    except ValueError:
        raise DataError(
            "is damaged, or does not describe vectors", where=str(beside), fix=fix
        ) from None
    if not out.exists() and not part.exists():
        return begun
    if out.exists() and not note.complete:  # it is another file, not the finished one
        raise exists_error(out)
    for name in {**begun.made_with, **note.made_with}:
        was, value = note.made_with.get(name), begun.made_with.get(name)
        if was != value:
            what = (
                "was started with another model"
                if name == "model"
                else f"was started with {name}={was!r}, not {value!r}"
            )
            raise DataError(what, where=str(out), fix=fix)
    if note.part != begun.part:
        was, now = note.part or "no part", begun.part or "no part"
        raise DataError(f"was started as {was}, not {now}", where=str(out), fix=fix)
    if (note.first, note.total, note.before) != (begun.first, begun.total, begun.before):
        raise _other_texts(out)
    return note


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they are after writing to JSON and reading back."""
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found
