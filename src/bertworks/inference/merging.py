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
from .manifests import OutputManifest, checksum_of_file, manifest_path
from .vector_files import TokenParquet, VectorFormat, append, vector_format_of
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
    manifests = {path: _read_complete_manifest(path) for path in parts}
    paths = in_order((path, manifests[path].part) for path in parts)
    first = manifests[paths[0]]
    vector_format = _vector_format(out, first) if first.width else None
    header = str(first.provenance.get("header", "")).encode()
    head = header if vector_format is None else vector_format.head()
    total = OutputManifest(first.provenance, first.width, size=len(head), complete=True)
    for path in paths:
        part = manifests[path]
        if path.suffix != out.suffix:
            raise DataError(
                f"the name does not end in {out.suffix}, as {out} does", where=str(path)
            )
        if difference := _difference(first, part, total):
            raise _foreign_part_error(path, paths[0], difference)
        total = replace(
            total,
            rows=total.rows + part.rows,
            size=total.size + part.size - len(head),
            num_truncated=total.num_truncated + part.num_truncated,
            digest=part.digest,
        )
    if (total.rows, total.digest) != (first.total, first.total_digest):
        raise _foreign_part_error(paths[-1], paths[0], "of other texts")
    result: WrittenVectors | int = total.rows
    if vector_format is not None:
        result = WrittenVectors(total.rows, total.width, 0, total.num_truncated)
    with locked_output(out, paths), writing(out):
        if not overwrite and output_exists(out):
            if _is_merged(out, paths, head) if vector_format is None else _has_manifest(out, total):
                return result
            raise exists_error(out)
        with atomic_write(out) as new:
            if vector_format is None:
                append(paths, new, head)
                return result
            vector_format.join(paths, new, total.rows)
            # Written before the file gets its name: a manifest without its file is ignored.
            replace(total, checksum=checksum_of_file(new)).write(manifest_path(out))
    return result


def _has_manifest(out: Path, expected: OutputManifest) -> bool:
    """Whether a file of vectors is undamaged and has the manifest of the merged parts."""
    try:
        manifest = OutputManifest.read(manifest_path(out))
        manifest.check(out)
    except (OSError, ValueError, DataError):
        return False
    return replace(manifest, checksum=expected.checksum) == expected


def _is_merged(out: Path, parts: Sequence[Path], head: bytes) -> bool:
    """Whether a file of predictions has the bytes of the merged parts."""
    with out.open("rb") as output:
        if output.read(len(head)) != head:
            return False
        for path in parts:
            with path.open("rb") as part:
                part.seek(len(head))
                while block := part.read(1 << 20):
                    if output.read(len(block)) != block:
                        return False
        return not output.read(1)


def _read_complete_manifest(path: Path) -> OutputManifest:
    """Return the manifest of a finished file.

    Raises:
        DataError: there is no manifest, or it was written in another format; or the file is not
            finished or is damaged.
    """
    try:
        manifest = OutputManifest.read(manifest_path(path))
    except (OSError, ValueError):
        raise DataError(
            "is not a part, or its manifest is missing",
            where=str(path),
            fix=f"Name a file made with --part I/N, with {path.name}.json next to it.",
        ) from None
    if not (manifest.complete and path.exists()):
        raise DataError("is not finished", where=str(path), fix="Run its command again to resume.")
    manifest.check(path)
    return manifest


def _foreign_part_error(path: Path, first: Path, difference: str) -> DataError:
    return DataError(
        f"does not belong to {first}: {difference}",
        where=str(path),
        fix="Make this part again, under another name.",
    )


def _difference(first: OutputManifest, part: OutputManifest, total: OutputManifest) -> str | None:
    """How a part conflicts with the first part, or with the total of the parts before it, if so."""
    for name in {**first.provenance, **part.provenance}:
        value, other = first.provenance.get(name), part.provenance.get(name)
        if other != value:
            return "of another model" if name == "model" else f"{name}={other!r}, not {value!r}"
    if (part.total, part.first, part.previous_digest) != (first.total, total.rows, total.digest):
        return "of other texts"
    return None


def _vector_format(out: Path, manifest: OutputManifest) -> VectorFormat:
    if "unit" in manifest.provenance:
        return TokenParquet(manifest.width, str(manifest.provenance["unit"]))
    return vector_format_of(out, manifest.width, str(manifest.provenance.get("pooling")))
