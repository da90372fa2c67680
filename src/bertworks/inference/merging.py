"""Merge parts made by several machines: of a corpus, of vectors, of predictions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..data.manifest import Manifest
from ..data.merging import merge_corpora
from ..errors import DataError, exists_error
from ..jobs.parts import order_parts
from ..utils.atomic_writes import atomic_write, writing
from ..utils.directories import output_exists
from ..utils.outputs import locked_output
from ..utils.regular_files import sha256_of
from ..utils.remote import fetch_file, fetch_folder, is_remote, local_output, remote_files
from .prediction_files import Lines
from .vector_files import TokenParquet, vector_format_of
from .vectors import WrittenVectors
from .window_files import FileFormat, OutputManifest, journal_path, manifest_path


def merge(
    parts: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> Manifest | WrittenVectors | int:
    """Merge all parts of a corpus, of vectors or of predictions; called again, it does nothing.

    The result equals that of a single machine, byte for byte, for any number of parts. Parts, and
    an output that is a file, may be on another file system (`s3://…`).

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
    with tempfile.TemporaryDirectory() as directory:
        paths = [
            _fetch_part(os.fspath(part), Path(directory)) if is_remote(part) else Path(part)
            for part in parts
        ]
        if any(path.is_dir() for path in paths):
            return merge_corpora(paths, Path(out), overwrite=overwrite)
        with local_output(out, overwrite=overwrite) as file:
            return _merge_files(paths, file, overwrite=overwrite)


def _fetch_part(url: str, directory: Path) -> Path:
    """Return a copy of a part: of a folder in the cache, of a file and its manifest in a directory.

    A copy of a file has its URL at the end of its path, so that errors name it.
    """
    if (names := remote_files(url)) and names != [url]:
        return fetch_folder(url)
    folder, _, name = url.rpartition("/")
    fetch_file(f"{folder}/{manifest_path(Path(name)).name}", directory)
    return fetch_file(url, directory)


def _merge_files(parts: Sequence[Path], out: Path, *, overwrite: bool) -> WrittenVectors | int:
    manifests = {path: _read_manifest(path) for path in parts}
    for path in parts:
        if path.suffix != out.suffix:
            raise DataError(
                f"the name does not end in {out.suffix}, as {out} does", where=str(path)
            )
    paths = order_parts(
        (path, manifests[path].part, manifests[path].shared_settings) for path in parts
    )
    first = manifests[paths[0]]
    rows = sum(one.rows for one in manifests.values())
    num_truncated = sum(one.num_truncated for one in manifests.values())
    result = WrittenVectors(rows, first.width, 0, num_truncated) if first.width else rows
    with locked_output(out, paths), writing(out):
        if not overwrite and output_exists(out):
            if _is_merged(out, first):
                return result
            raise exists_error(out)
        with atomic_write(out) as new:
            _format_of(out, first).join({path: manifests[path] for path in paths}, new, rows)
            # Written before the file gets its name: a manifest without its file is ignored.
            replace(
                first,
                rows=rows,
                num_truncated=num_truncated,
                size=new.stat().st_size,
                sha256=sha256_of(new),
                part=None,
            ).write(out)
    return result


def _is_merged(out: Path, first: OutputManifest) -> bool:
    """Whether a file holds the merged parts, undamaged."""
    try:
        manifest = OutputManifest.read(manifest_path(out))
        manifest.check(out)
    except (ValueError, DataError):
        return False
    return manifest.part is None and manifest.shared_settings == first.shared_settings


def _read_manifest(path: Path) -> OutputManifest:
    """Return the manifest of a finished file.

    Raises:
        DataError: the file or its manifest is missing, unfinished, damaged or cannot be read; or
            the manifest was written in another format.
    """
    file = manifest_path(path)
    if not path.exists():
        if journal_path(path).exists():
            fix = "Run its command again to resume."
            raise DataError("is not finished", where=str(path), fix=fix)
        raise DataError("no such file", where=str(path))
    fix = f"Name a file made with --part I/N, with {file.name} next to it."
    if not file.exists():
        raise DataError("is not a part, or its manifest is missing", where=str(path), fix=fix)
    try:
        manifest = OutputManifest.read(file)
    except ValueError:
        raise DataError("is damaged, or not a manifest", where=str(file), fix=fix) from None
    manifest.check(path)
    return manifest


def _format_of(out: Path, manifest: OutputManifest) -> FileFormat:
    provenance = manifest.provenance
    if not manifest.width:
        return Lines(str(provenance["header"]))
    if "unit" in provenance:
        return TokenParquet(manifest.width, str(provenance["unit"]))
    quantization = provenance.get("quantization", "none")
    pooling = str(provenance.get("pooling"))
    return vector_format_of(out, manifest.width, pooling, quantization)
