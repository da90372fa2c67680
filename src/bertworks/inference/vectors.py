"""Write vectors of any number of texts to a file, in bounded memory; an interrupted run resumes.

    vectors.npy          float32 [texts, width]: `numpy.load(…, mmap_mode="r")`
    vectors.parquet      row, text, vector (a list of fixed size)
    vectors.npz          sparse vectors: `scipy.sparse.load_npz`; in Parquet: indices, values
    vectors.safetensors  matrices of late interaction: `token_vectors.py`; in Parquet: vectors
    vectors.npy.json     model and settings of the vectors, and how many there are
    vectors.npy.part     the file while it is unfinished

The unfinished file is only appended to, one window of texts at a time. Bytes after the end that the
manifest records belong to an unfinished window, and are removed. So an interrupted and resumed run
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

from ..data.text_inputs import Texts
from ..errors import DataError, check_path_name
from ..jobs import parallel
from ..jobs.parts import Part
from ..nn.config import HEAD_DROPOUTS
from ..nn.encoder import BareEncoder, Encoder
from ..nn.vector_modules import VectorModules
from ..text.tokenizer import Tokenizer
from ..utils.atomic_writes import writing
from ..utils.outputs import check_inputs, exists_error, locked_output
from ..utils.regular_files import read_bytes
from ..utils.remote import is_remote, local_output
from .engine import chunks, resolve_precision, threads_of_worker
from .features import Embedder, TextEmbedder, TokenFeatures
from .late_interaction import LateInteractionEmbedder
from .manifests import (
    OutputManifest,
    checksum_of_file,
    crc32_of,
    extend_digest,
    manifest_of_part,
    manifest_path,
)
from .sparse import SparseEmbedder
from .vector_files import TokenParquet, VectorFormat, vector_format_of


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
    embedder: TextEmbedder | TokenFeatures,
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
        workers, on: number of processes, and where they run; see `parallel.map`.
        overwrite: delete an existing file, finished or not.
        progress: called with the number of rows done, and of all rows (0 if unknown).

    Raises:
        DataError: a text is invalid, or can be read once only; or the file exists without a
            manifest, or was made with another model, other settings or other texts.
        OutputError: the file cannot be written, or another process is writing it.
    """
    if part is not None and not texts.is_repeatable:
        raise DataError(
            "part= needs texts that can be read twice", fix="Give a file, or leave part out."
        )
    total = sum(1 for _ in texts) if texts.is_repeatable and part is None else 0
    if overwrite and not is_remote(out):
        remove_vectors(out, inputs)
    if embedder.engine.precision == "auto":
        precision = resolve_precision("auto", embedder.network)
        precision = read_provenance(out).get("precision", precision)
        embedder.engine = embedder.engine.with_values(precision=precision)
    provenance = {
        "model": fingerprint(
            embedder.network.encoder,
            embedder.tokenizer,
            modules=embedder.modules
            if isinstance(embedder, Embedder | LateInteractionEmbedder)
            else None,
        ),
        **(
            embedder.late_interaction.model_dump(mode="json")
            if isinstance(embedder, LateInteractionEmbedder)
            else {}
        ),
        **embedder.settings.model_dump(mode="json"),
        **embedder.engine.model_dump(mode="json"),
    }
    report = None if progress is None else lambda rows: progress(rows, total)
    with local_output(out, overwrite=overwrite) as file:
        return _write_file(
            file,
            texts,
            embedder,
            provenance=provenance,
            part=part,
            workers=workers,
            on=on,
            inputs=inputs,
            progress=report,
        )


def _write_file(
    out: str | os.PathLike[str],
    texts: Iterable[tuple[str, str]],
    embedder: TextEmbedder | TokenFeatures,
    *,
    provenance: Mapping[str, Any],
    part: str | None,
    workers: int | None,
    on: str | None,
    inputs: Iterable[object],
    progress: Callable[[int], None] | None,
) -> WrittenVectors:
    """Write vectors to a file of this machine; see `write_vectors`.

    Args:
        texts: the name in errors and the text of each row.
        provenance: everything that the vectors depend on, as JSON values.
    """
    check_path_name(out)
    out = Path(out)
    vector_format = _vector_format(out, embedder)
    path = manifest_path(out)
    initial = OutputManifest(_plain(provenance), embedder.width)
    if part is not None:
        initial, end = manifest_of_part(
            texts, initial, Part.parse(part), embedder.engine.window_rows
        )
        texts = islice(texts, initial.first, end)
    part_path = _part_path(out)
    check_inputs(out, inputs)
    # A finished file is only read, unless its manifest still describes the unfinished one.
    is_named = out.exists()
    with nullcontext() if is_named else locked_output(out), writing(out):
        manifest = _read_manifest(out, part_path, path, initial)
        first_new, was_complete = manifest.rows, manifest.complete
        windows = _remaining_windows(texts, manifest, embedder.engine.window_rows, out)

        def report(rows: int) -> None:
            if progress is not None:
                progress(manifest.rows + rows)

        if not manifest.complete:
            if not manifest.rows:
                path.unlink(missing_ok=True)  # left from a file that was removed
            try:
                windows_with_vectors = _embed_windows(windows, embedder, workers, on, report)
                with (
                    _open_part(part_path, manifest, vector_format) as file,
                    closing(windows_with_vectors),
                ):
                    for window_texts, vectors, num_truncated in windows_with_vectors:
                        manifest = _add(window_texts, vectors, manifest, file, vector_format)
                        total = manifest.num_truncated + num_truncated
                        manifest = replace(manifest, num_truncated=total)
                        manifest.write(path)
                        report(0)
                    if not manifest.rows and not manifest.total:
                        raise DataError("there are no texts")
                    manifest = replace(manifest, size=file.tell(), complete=True)
                manifest.write(path)
            finally:
                if not path.exists():
                    part_path.unlink(missing_ok=True)
        elif next(windows, None) is not None:
            raise DataError(
                f"is finished with {manifest.rows:,} rows, but there are more texts now",
                where=str(out),
                fix="Give another name, or start again with --overwrite (overwrite=True).",
            )
        if out.exists():
            manifest.check(out)
        else:
            if was_complete:
                _check_part(part_path, manifest, vector_format)
            manifest = _finish(part_path, out, manifest, vector_format)
        if manifest.unfinished_checksum:
            # The process that named the file may be writing the manifest, too.
            with locked_output(out) if is_named else nullcontext():
                replace(manifest, unfinished_checksum="").write(path)
        part_path.unlink(missing_ok=True)
    return WrittenVectors(
        manifest.rows, manifest.width, manifest.rows - first_new, manifest.num_truncated
    )


def remove_vectors(out: str | os.PathLike[str], inputs: Iterable[object] = ()) -> None:
    """Remove a file of vectors, finished or not, and its manifest.

    Raises:
        OutputError: it cannot be removed, is an input, or is being written by another process.
    """
    path = Path(out)
    with locked_output(path, inputs), writing(path):
        for file in (path, manifest_path(path), _part_path(path)):
            file.unlink(missing_ok=True)


def _part_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.part")


def fingerprint(
    encoder: Encoder,
    tokenizer: Tokenizer,
    network: torch.nn.Module | None = None,
    *,
    modules: VectorModules | None = None,
) -> str:
    """A digest that identifies a model: of its weights, geometry and tokenizer.

    The weights are those of `network`, with its heads, if it is given, and of `modules`.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(tokenizer.fingerprint.encode())
    digest.update(encoder.config.model_dump_json(exclude=set(HEAD_DROPOUTS)).encode())
    tensors = (network or encoder).state_dict()
    if modules is not None:
        digest.update(repr(modules.settings).encode())
        tensors |= {f"modules.{name}": tensor for name, tensor in modules.state_dict().items()}
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def read_provenance(out: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Return the model and settings of a file's vectors; empty if it has no readable manifest."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        manifest = json.loads(read_bytes(manifest_path(Path(out))))
        provenance: Mapping[str, Any] = manifest["provenance"]
        return provenance
    return {}


def _vector_format(out: Path, embedder: TextEmbedder | TokenFeatures) -> VectorFormat:
    if isinstance(embedder, TextEmbedder):
        return vector_format_of(out, embedder.width, embedder.pooling)
    if out.suffix != ".parquet":
        raise DataError(
            "token features are written as Parquet",
            where=str(out),
            fix="Use a name that ends in .parquet.",
        )
    return TokenParquet(embedder.width, embedder.settings.unit)


@dataclass(frozen=True)
class _Embed:
    """Embeds windows in a worker: the model, and the number of threads."""

    embedder: TextEmbedder | TokenFeatures
    threads: int | None = None
    report: Callable[[int], None] | None = None

    def __call__(self, window: Sequence[tuple[str, str]]) -> tuple[Any, int]:
        """Return the vectors of a window, and how many texts were truncated."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        places, texts = zip(*window, strict=True)
        num_truncated = self.embedder.num_truncated
        vectors = self.embedder.embed(texts, places, self.report)
        return vectors, self.embedder.num_truncated - num_truncated


def _embed_windows(
    windows: Iterable[Sequence[tuple[str, str]]],
    embedder: TextEmbedder | TokenFeatures,
    workers: int | None,
    on: str | None,
    report: Callable[[int], None],
) -> Generator[tuple[list[str], Any, int]]:
    """Yield the texts of each window, their vectors, and how many were truncated."""
    window_texts: deque[list[str]] = deque()

    def record_texts() -> Iterator[Sequence[tuple[str, str]]]:
        for window in windows:
            window_texts.append([text for _, text in window])
            yield window

    embed = _Embed(embedder, report=report)
    gpus = int(next(embedder.network.parameters()).is_cuda)
    if workers != 1 or on is not None:
        lean = copy.copy(embedder)
        if not isinstance(embedder, SparseEmbedder):  # which also needs a head
            lean.network = BareEncoder(embedder.network.encoder)
        embed = _Embed(lean, threads_of_worker(workers, on))
    results = parallel.map(embed, record_texts(), workers=workers, on=on, gpus=gpus)
    with closing(results):
        for vectors, num_truncated in results:
            yield window_texts.popleft(), vectors, num_truncated


def _add(
    texts: Sequence[str],
    vectors: Any,
    manifest: OutputManifest,
    file: BinaryIO,
    vector_format: VectorFormat,
) -> OutputManifest:
    """Append a window and flush it to disk; return the manifest that includes it."""
    window = vector_format.window(manifest.first + manifest.rows, texts, vectors)
    file.write(window)
    file.flush()
    os.fsync(file.fileno())
    checksum = int(manifest.checksum.removeprefix("part "), 16)
    return replace(
        manifest,
        checksum=f"part {zlib.crc32(window, checksum):08x}",
        rows=manifest.rows + len(texts),
        size=file.tell(),
        digest=reduce(extend_digest, texts, manifest.digest),
    )


def _remaining_windows(
    texts: Iterable[tuple[str, str]], manifest: OutputManifest, size: int, out: Path
) -> Iterator[list[tuple[str, str]]]:
    """Yield the windows not written yet, after checking that the written texts are the same."""
    stream = iter(texts)
    rows, digest = 0, manifest.previous_digest
    for _, text in islice(stream, manifest.rows):
        rows, digest = rows + 1, extend_digest(digest, text)
    if (rows, digest) != (manifest.rows, manifest.digest):
        raise _other_texts_error(out)
    yield from chunks(stream, size, lambda item: len(item[1]))


def _other_texts_error(out: Path) -> DataError:
    return DataError(
        "was started with other texts",
        where=str(out),
        fix="Give another name, or start again with --overwrite (overwrite=True).",
    )


@contextmanager
def _open_part(
    part: Path, manifest: OutputManifest, vector_format: VectorFormat
) -> Iterator[BinaryIO]:
    """Open the unfinished file at the end that the manifest records; or a new file."""
    if not manifest.rows:
        with part.open("wb") as file:
            file.write(vector_format.head())
            file.flush()
            os.fsync(file.fileno())
            yield file
        return
    _check_part(part, manifest, vector_format)
    with part.open("r+b") as file:
        file.truncate(manifest.size)
        file.seek(manifest.size)
        yield file


def _check_part(part: Path, manifest: OutputManifest, vector_format: VectorFormat) -> None:
    """Check that an unfinished file still holds what was written to it.

    Raises:
        DataError: it does not.
    """
    head, fault = len(vector_format.head()), ""
    checksum = manifest.unfinished_checksum or manifest.checksum
    if part.stat().st_size < manifest.size:
        fault = "has been truncated"
    elif checksum != f"part {crc32_of(part, head, manifest.size):08x}":
        fault = "is damaged: its checksum is wrong"
    if fault:
        raise DataError(fault, where=str(part), fix="Remove it, and start again.")


def _finish(
    part: Path, out: Path, manifest: OutputManifest, vector_format: VectorFormat
) -> OutputManifest:
    """Make the finished file of a complete part; return its manifest.

    The manifest gets the file's checksum before the file gets its name, so that damage in between
    is detected.
    """
    with vector_format.finished_file(part, out, manifest.rows) as new:
        part_checksum = manifest.unfinished_checksum or manifest.checksum
        manifest = replace(
            manifest, checksum=checksum_of_file(new), unfinished_checksum=part_checksum
        )
        manifest.write(manifest_path(out))
    return manifest


def _read_manifest(out: Path, part: Path, path: Path, initial: OutputManifest) -> OutputManifest:
    """Return the manifest of an earlier run, or the initial manifest of a new run."""
    fix = "Give another name, or start again with --overwrite (overwrite=True)."
    if not path.exists():
        if out.exists():
            raise exists_error(out)
        return initial
    try:
        manifest = OutputManifest.read(path)
    except ValueError:
        raise DataError(
            "is damaged, or does not describe vectors", where=str(path), fix=fix
        ) from None
    if not out.exists() and not part.exists():
        return initial
    if out.exists() and not manifest.complete:  # it is another file, not the finished one
        raise exists_error(out)
    for name in {**initial.provenance, **manifest.provenance}:
        recorded_value, value = manifest.provenance.get(name), initial.provenance.get(name)
        if recorded_value != value:
            what = (
                "was started with another model"
                if name == "model"
                else f"was started with {name}={recorded_value!r}, not {value!r}"
            )
            raise DataError(what, where=str(out), fix=fix)
    if manifest.part != initial.part:
        recorded_part, now = manifest.part or "no part", initial.part or "no part"
        raise DataError(f"was started as {recorded_part}, not {now}", where=str(out), fix=fix)
    if (manifest.first, manifest.total, manifest.previous_digest) != (
        initial.first,
        initial.total,
        initial.previous_digest,
    ):
        raise _other_texts_error(out)
    return manifest


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they are after writing to JSON and reading back."""
    result: dict[str, Any] = json.loads(json.dumps(values))
    return result
