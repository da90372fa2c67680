"""Merge parts made by several machines: of a corpus, of vectors, of predictions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..data.manifest import Manifest
from ..data.merging import merge_corpora
from ..errors import DataError
from ..jobs.parts import in_order
from ..utils.atomic_writes import atomic_write, writing
from ..utils.directories import output_exists
from ..utils.outputs import exists_error, locked_output
from .manifests import Note, checksum_of, note_file
from .vector_files import Layout, TokenParquet, append, layout_of
from .vectors import WrittenVectors


def merge(
    parts: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> Manifest | WrittenVectors | int:
    """Merge all parts of a corpus, of vectors or of predictions; called again, it does nothing.

    The result equals that of a single machine, byte for byte, for any number of parts.

    Args:
        parts: outputs of `prepare`, `embed_to`, `features_to` or `predict_to` with `part="I/N"`, in
            any order.
        out: the output: a directory for a corpus, else a file with the same ending as the parts.
        overwrite: replace an existing output.

    Returns:
        The manifest of a corpus, a description of the vectors, or the number of predicted rows.

    Raises:
        DataError: a part is missing, unfinished, damaged, duplicate, or does not belong to the
            others.
        CheckpointError: a part of a corpus is damaged.
        OutputError: `out` exists and does not hold the merged parts, or cannot be written.
    """
    paths = [Path(part) for part in parts]
    if any(path.is_dir() for path in paths):
        return merge_corpora(paths, Path(out), overwrite=overwrite)
    return _merge_files(paths, Path(out), overwrite=overwrite)


def _merge_files(parts: Sequence[Path], out: Path, *, overwrite: bool) -> WrittenVectors | int:
    found = {path: _finished(path) for path in parts}
    paths = in_order((path, found[path].part) for path in parts)
    first = found[paths[0]]
    layout = _layout(out, first) if first.width else None
    header = str(first.made_with.get("header", "")).encode()
    head = header if layout is None else layout.head()
    note = Note(first.made_with, first.width, size=len(head), complete=True)
    for path in paths:
        part = found[path]
        if path.suffix != out.suffix:
            raise DataError(
                f"the name does not end in {out.suffix}, as {out} does", where=str(path)
            )
        if difference := _difference(first, part, note):
            raise _stranger(path, paths[0], difference)
        note = replace(
            note,
            rows=note.rows + part.rows,
            size=note.size + part.size - len(head),
            cut=note.cut + part.cut,
            texts=part.texts,
        )
    if (note.rows, note.texts) != (first.total, first.whole):
        raise _stranger(paths[-1], paths[0], "of other texts")
    merged = note.rows if layout is None else WrittenVectors(note.rows, note.width, 0, note.cut)
    with locked_output(out, paths), writing(out):
        if not overwrite and output_exists(out):
            if _is_merged(out, paths, head) if layout is None else _is_noted(out, note):
                return merged
            raise exists_error(out)
        with atomic_write(out) as new:
            if layout is None:
                append(paths, new, head)
                return merged
            layout.join(paths, new, note.rows)
            # Written before the file gets its name: a note without its file is ignored.
            replace(note, checksum=checksum_of(new)).write(note_file(out))
    return merged


def _is_noted(out: Path, merged: Note) -> bool:
    """Whether a file of vectors is undamaged and has the note of the merged parts."""
    try:
        note = Note.read(note_file(out))
        note.check(out)
    except (OSError, ValueError, DataError):
        return False
    return replace(note, checksum=merged.checksum) == merged


def _is_merged(out: Path, parts: Sequence[Path], head: bytes) -> bool:
    """Whether a file of predictions has the bytes of the merged parts."""
    with out.open("rb") as written:
        if written.read(len(head)) != head:
            return False
        for path in parts:
            with path.open("rb") as part:
                part.seek(len(head))
                while block := part.read(1 << 20):
                    if written.read(len(block)) != block:
                        return False
        return not written.read(1)


def _finished(path: Path) -> Note:
    """Return the note of a finished file.

    Raises:
        DataError: there is no note, or it was written in another format; or the file is not
            finished or is damaged.
    """
    try:
        note = Note.read(note_file(path))
    except (OSError, ValueError):
        raise DataError(
            "is not a part, or its note is missing",
            where=str(path),
            fix=f"Name a file made with --part I/N, with {path.name}.json beside it.",
        ) from None
    if not (note.complete and path.exists()):
        raise DataError("is not finished", where=str(path), fix="Run its command again to resume.")
    note.check(path)
    return note


def _stranger(path: Path, first: Path, difference: str) -> DataError:
    return DataError(
        f"does not belong to {first}: {difference}",
        where=str(path),
        fix="Make this part again, under another name.",
    )


def _difference(first: Note, part: Note, before: Note) -> str | None:
    """How a part conflicts with the first part, or with the sum of the parts before it, if so."""
    for name in {**first.made_with, **part.made_with}:
        value, other = first.made_with.get(name), part.made_with.get(name)
        if other != value:
            return "of another model" if name == "model" else f"{name}={other!r}, not {value!r}"
    if (part.total, part.first, part.before) != (first.total, before.rows, before.texts):
        return "of other texts"
    return None


def _layout(out: Path, note: Note) -> Layout:
    if "of" in note.made_with:
        return TokenParquet(note.width, str(note.made_with["of"]))
    return layout_of(out, note.width)
