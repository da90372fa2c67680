"""Vectors of any number of texts to a file, in bounded memory; killed, it goes on where it was.

    vectors.npy          float32 [texts, width]: `numpy.load(…, mmap_mode="r")`
    vectors.parquet      row, text, vector (a list of fixed size)
    vectors.npy.json     what the vectors were made with, and how many there are
    vectors.npy.part     the file, while it is being made

A part is only ever appended to, a window of texts at a time; what stands behind the end that the
note names is of a window that was not finished, and cut off. So a killed run ends with the same
file as one that was not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import torch

from .. import files
from ..errors import DataError, check_name
from ..locks import check_inputs, claim
from ..model.config import HEAD_DROPOUTS
from ..model.encoder import Encoder
from ..text.tokenizer import Tokenizer
from .engine import chunks
from .features import Embedder
from .token_features import TokenFeatures
from .vector_files import Layout, TokenParquet, layout_of

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Note:
    """How far a file is; kept beside it.

    Attributes:
        made_with: model and settings.
        width: the numbers of a vector.
        rows: the texts whose vectors are written.
        size: the bytes of the part that they take.
        cut: the texts among them that were too long, and cut.
        texts: a digest of the texts so far.
        complete: whether these are all.
        format_version: of this note.
    """

    made_with: Mapping[str, Any]
    width: int
    rows: int = 0
    size: int = 0
    cut: int = 0
    texts: str = ""
    complete: bool = False
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class WrittenVectors:
    """What was written.

    Attributes:
        rows, width: the texts whose vectors are in the file, and the numbers of each.
        new: those that this run made; the others were there before.
        cut: the texts that were too long, and cut.
    """

    rows: int
    width: int
    new: int
    cut: int


def write_vectors(
    out: str | os.PathLike[str],
    texts: Iterable[tuple[str, str]],
    embedder: Embedder | TokenFeatures,
    *,
    made_with: Mapping[str, Any],
    inputs: Iterable[object] = (),
    progress: Callable[[int], None] | None = None,
) -> WrittenVectors:
    """Write a vector of each text, or of each of its tokens or words, in the order of the texts.

    Args:
        out: a name that ends in `.parquet`, or, but for tokens and words, in `.npy`. If an earlier
            run was stopped, this one goes on with its file.
        texts: the place and the text of each row; any number.
        embedder: what makes the vectors.
        made_with: what the vectors depend on, as JSON can hold it.
        inputs: what is read; see `locks.claim`.
        progress: told how many rows are done.

    Raises:
        DataError: a text is none; or the file is there already, or was begun with another model,
            other settings or other texts.
        OutputError: it cannot be written, or is being written by another process.
    """
    check_name(out)
    out = Path(out)
    layout = _layout(out, embedder)
    beside = _note_file(out)
    part = out.with_name(f"{out.name}.part")
    check_inputs(out, inputs)
    # What is finished is only read.
    with nullcontext() if out.exists() else claim(out), files.writing(out):
        note = _read_note(out, part, beside, Note(_plain(made_with), embedder.width))
        before = note.rows
        windows = _unseen(texts, note, embedder.engine.window_rows, out)
        if not note.complete:
            if not note.rows:
                beside.unlink(missing_ok=True)  # of a file that was removed
            try:
                with _opened(part, note, layout) as file:
                    for window in windows:
                        note = _add(window, note, file, layout, embedder, progress)
                        files.write_json(beside, asdict(note))
            finally:
                if not beside.exists():
                    part.unlink(missing_ok=True)
            if not note.rows:
                raise DataError("there are no texts")
            note = replace(note, complete=True)
            files.write_json(beside, asdict(note))
        elif next(windows, None) is not None:
            raise DataError(
                f"is finished, with {note.rows:,} rows, and there are more texts now",
                where=str(out),
                fix="Give another name.",
            )
        if not out.exists():
            layout.finish(part, out, note.rows)
        elif out.suffix == ".npy" and out.stat().st_size != note.size:
            raise DataError(
                f"has {out.stat().st_size:,} bytes, and had {note.size:,} when it was finished",
                where=str(out),
                fix=f"Remove {out.name}*, and begin anew.",
            )
        part.unlink(missing_ok=True)
    return WrittenVectors(note.rows, note.width, note.rows - before, note.cut)


def fingerprint(encoder: Encoder, tokenizer: Tokenizer) -> str:
    """What tells a model from others: a digest of its weights, geometry and tokenizer."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(tokenizer.fingerprint.encode())
    digest.update(encoder.config.model_dump_json(exclude=set(HEAD_DROPOUTS)).encode())
    for name, tensor in encoder.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def begun_with(out: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The model and settings of the vectors that a file holds; empty if it is not there."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found: Mapping[str, Any] = json.loads(_note_file(Path(out)).read_text("utf-8"))["made_with"]
        return found
    return {}


def _note_file(out: Path) -> Path:
    return out.with_name(f"{out.name}.json")


def _layout(out: Path, embedder: Embedder | TokenFeatures) -> Layout:
    if isinstance(embedder, Embedder):
        return layout_of(out, embedder.width)
    if out.suffix != ".parquet":
        raise DataError(
            "features of tokens are Parquet", where=str(out), fix="Have the name end in .parquet."
        )
    return TokenParquet(embedder.width, embedder.settings.of)


def _add(
    window: Sequence[tuple[str, str]],
    note: Note,
    file: BinaryIO,
    layout: Layout,
    embedder: Embedder | TokenFeatures,
    progress: Callable[[int], None] | None,
) -> Note:
    """Append a window; the note of it, which is true once this has returned."""
    places, texts = zip(*window, strict=True)
    cut = embedder.cut

    def tell(done: int) -> None:
        if progress is not None:
            progress(note.rows + done)

    vectors = embedder.embed(texts, places, tell)
    file.write(layout.window(note.rows, texts, vectors))
    file.flush()
    os.fsync(file.fileno())
    return replace(
        note,
        rows=note.rows + len(texts),
        size=file.tell(),
        cut=note.cut + embedder.cut - cut,
        texts=reduce(_digest, texts, note.texts),
    )


def _unseen(
    texts: Iterable[tuple[str, str]], note: Note, size: int, out: Path
) -> Iterator[list[tuple[str, str]]]:
    """The windows that are not written yet, once those that are have been seen to be the same."""
    stream = iter(texts)
    rows, digest = 0, ""
    for _, text in islice(stream, note.rows):
        rows, digest = rows + 1, _digest(digest, text)
    if (rows, digest) != (note.rows, note.texts):
        raise DataError(
            "was begun with other texts than these",
            where=str(out),
            fix=f"Give another name, or remove {out.name}*.",
        )
    yield from chunks(stream, size, lambda placed: len(placed[1]))


def _digest(before: str, text: str) -> str:
    """A digest of a text and of what was before it."""
    coded = before.encode() + text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(coded, digest_size=16).hexdigest()


@contextmanager
def _opened(part: Path, note: Note, layout: Layout) -> Iterator[BinaryIO]:
    """A part, its end where the note says; a new one if nothing is in it."""
    if not note.rows:
        with part.open("wb") as file:
            file.write(layout.head())
            yield file
        return
    with part.open("r+b") as file:
        if file.seek(0, os.SEEK_END) < note.size:
            raise DataError(
                "is shorter than it was", where=str(part), fix="Remove it, and begin anew."
            )
        file.truncate(note.size)
        file.seek(note.size)
        yield file


def _read_note(out: Path, part: Path, beside: Path, begun: Note) -> Note:
    """What an earlier run left, or what a new one begins with.

    Raises:
        DataError: the file is there, and is not of such a run.
    """
    fix = f"Give another name, or remove {out.name}*."
    if not beside.exists():
        if out.exists():
            raise DataError("is there already", where=str(out), fix=fix)
        return begun
    try:
        note = Note(**json.loads(beside.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise DataError("says nothing of vectors", where=str(beside), fix=fix) from None
    if not out.exists() and not part.exists():
        return begun
    if note.format_version != FORMAT_VERSION:
        raise DataError("is of another version of bertworks", where=str(beside), fix=fix)
    for name, value in begun.made_with.items():
        was = note.made_with.get(name)
        if was != value:
            what = (
                "was begun with another model"
                if name == "model"
                else f"was begun with {name}={was!r}, not {value!r}"
            )
            raise DataError(what, where=str(out), fix=fix)
    return note


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As it is once written and read."""
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found
