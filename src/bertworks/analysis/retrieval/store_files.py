"""A store in a directory, which takes additions and deletions.

    store.json           segments, deleted rows, the model; replaced as a whole by each change
    segment-000001/      texts and vectors, in the order of their addition; never changed
        vectors.npy      float32 `[texts, width]`
        codes.npy        int8 `[texts, width]`, or bits `[texts, width / 8]`, if quantized
        texts.bin        the texts in UTF-8, end to end; ends.npy: where each one ends
        ids.json         the id of each text

A change is complete when `store.json` is replaced. A segment that it does not list is what a killed
writer has left; the next writer removes it. An addition is merged with the last segments unless
they are much larger, so that there are few segments. There is one writer at a time; a reader sees
the state at which it opened the store, or called `refresh`.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, OutputError, SettingsError
from ...inference.vector_codes import quantize_vectors
from ...settings.literals import Quantization
from ...tasks.retrieval.exact_search import longest_length, products_with, top_k
from ...utils.atomic_writes import write_file, writing
from ...utils.directories import new_directory, output_exists
from ...utils.json_files import (
    check_format_version,
    read_json,
    verify_checksum,
    with_checksum,
    write_json,
)
from ...utils.outputs import locked_output
from .store_backend import StoreBackend, not_store_error
from .text_index import Ranking, sort_ranking

FORMAT_VERSION = 1
RESCORING_FACTOR = 4
"""With quantized vectors, so many times the texts asked for are compared exactly."""

_MERGED_ROWS = 1 << 18  # a larger segment is not merged with an addition
_MANIFEST = "store.json"


def is_store_directory(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the directory of a store."""
    return (Path(path) / _MANIFEST).is_file()


@dataclass(frozen=True)
class _Segment:
    """A segment, whose files are mapped into memory: they stay readable if a writer removes it.

    Attributes:
        deleted_rows: the rows of texts that were deleted.
    """

    folder: Path
    deleted_rows: tuple[int, ...]
    vectors: NDArray[np.float32]
    codes: NDArray[Any] | None
    texts: NDArray[np.uint8]
    ends: NDArray[np.int64]
    ids_file: NDArray[np.uint8]

    @classmethod
    def open(cls, folder: Path, deleted_rows: tuple[int, ...], *, has_codes: bool) -> _Segment:
        """Open a segment's files.

        Raises:
            DataError: a file is missing or damaged.
            OutputError: too many files are open.
        """
        try:
            ends = np.load(folder / "ends.npy")
            texts = folder / "texts.bin"
            return cls(
                folder,
                deleted_rows,
                np.load(folder / "vectors.npy", mmap_mode="r"),
                np.load(folder / "codes.npy", mmap_mode="r") if has_codes else None,
                np.memmap(texts, np.uint8, "r") if ends[-1] else np.empty(0, np.uint8),
                ends,
                np.memmap(folder / "ids.json", np.uint8, "r"),
            )
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise OutputError(
                    "too many files are open", where=str(folder), fix="Raise the limit (ulimit -n)."
                ) from None
            raise DataError(f"is damaged ({error})", where=str(folder)) from None

    @property
    def num_rows(self) -> int:
        return len(self.ends)

    @cached_property
    def ids(self) -> list[str]:
        ids: list[str] = json.loads(bytes(self.ids_file))
        return ids

    @cached_property
    def longest(self) -> float:
        """The length of the longest vector."""
        return longest_length(self.vectors)

    @property
    def rows(self) -> Iterator[int]:
        """The rows of texts that were not deleted."""
        deleted_rows = set(self.deleted_rows)
        return (row for row in range(self.num_rows) if row not in deleted_rows)

    def text(self, row: int) -> str:
        start = self.ends[row - 1] if row else 0
        return bytes(self.texts[start : self.ends[row]]).decode()


class DirectoryBackend(StoreBackend):
    """A directory of segments.

    Args:
        quantization: of a new store; an existing one has its own.
        create: make the store if the directory is absent or empty.

    Raises:
        DataError: the store is damaged, or its vectors are another model's.
        SettingsError: the store has another quantization.
        OutputError: the directory cannot be written, or is no store.
    """

    def __init__(
        self, path: Path, fingerprint: str, *, quantization: Quantization | None, create: bool
    ) -> None:
        super().__init__(os.fspath(path), fingerprint)
        self._directory = path
        self._manifest: dict[str, Any] = {}
        self._segments: list[_Segment] = []
        if not is_store_directory(path):
            if not create:
                raise not_store_error(self.name)
            with locked_output(path, kind="directory"):
                if not is_store_directory(path):
                    if output_exists(path):
                        raise not_store_error(self.name, "Choose a directory that is new or empty.")
                    manifest = {"model": fingerprint, "segments": [], "next_segment": 1}
                    manifest["id"] = uuid4().hex  # tells it from one that is made anew later
                    _write_manifest(path, {**manifest, "quantization": quantization or "none"})
        self.refresh()
        if quantization not in (None, self.quantization):
            what = f"quantization={quantization}: the store {path} has {self.quantization}"
            raise SettingsError(what, fix="Leave it out, or choose another directory.")

    def refresh(self) -> None:
        while True:
            manifest = _read_manifest(self._directory)
            self.check_model(manifest["model"])
            if manifest == self._manifest:
                return
            open_segments = {(one.folder.name, one.deleted_rows): one for one in self._segments}
            if self._manifest and manifest.get("id") != self._manifest.get("id"):
                open_segments = {}
            has_codes = manifest["quantization"] != "none"
            try:
                segments = []
                for entry in manifest["segments"]:
                    name, deleted_rows = entry["name"], tuple(entry["deleted_rows"])
                    segment = open_segments.get((name, deleted_rows))
                    if segment is None:
                        folder = self._directory / name
                        segment = _Segment.open(folder, deleted_rows, has_codes=has_codes)
                    segments.append(segment)
                break
            except DataError:  # a writer may have replaced it meanwhile
                if _read_manifest(self._directory) == manifest:
                    raise
        self._manifest, self._segments = manifest, segments
        self.quantization = manifest["quantization"]

    def __len__(self) -> int:
        return sum(one.num_rows - len(one.deleted_rows) for one in self._segments)

    def ids(self) -> list[str]:
        return [one.ids[row] for one in self._segments for row in one.rows]

    def texts(self, ids: Collection[str]) -> dict[str, str]:
        names = set(ids)
        return {
            one.ids[row]: one.text(row)
            for one in self._segments
            for row in one.rows
            if one.ids[row] in names
        }

    def texts_in_rows(self, rows: set[int]) -> dict[int, tuple[str, str]]:
        texts: dict[int, tuple[str, str]] = {}
        first = 0
        for segment in self._segments:
            for row in rows & set(range(first, first + segment.num_rows)):
                texts[row] = (segment.ids[row - first], segment.text(row - first))
            first += segment.num_rows
        return texts

    def put(self, ids: Sequence[str], texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        with self._lock():
            entries = self._entries_without(set(ids))
            num_rows = {one.folder.name: one.num_rows for one in self._segments}
            total, num_unmerged = len(ids), len(entries)
            while num_unmerged:
                last = entries[num_unmerged - 1]
                count = num_rows[last["name"]] - len(last["deleted_rows"])
                if count > min(2 * total, _MERGED_ROWS):  # else there would be ever more segments
                    break
                total, num_unmerged = total + count, num_unmerged - 1
            old_ids, old_texts, parts = self._contents(entries[num_unmerged:])
            entry = self._write_segment(
                [*old_ids, *ids], [*old_texts, *texts], np.concatenate([*parts, vectors])
            )
            self._commit([*entries[:num_unmerged], entry])

    def delete(self, ids: Collection[str]) -> int:
        with self._lock():
            count = len(self)
            self._commit(self._entries_without(set(ids)))
            return count - len(self)

    def compact(self) -> None:
        """Write all texts that were not deleted into one segment, and remove the others."""
        with self._lock():
            ids, texts, parts = self._contents(self._entries_without(set()))
            self._commit([self._write_segment(ids, texts, np.concatenate(parts))] if ids else [])

    def nearest(self, queries: NDArray[np.float32], count: int, *, approximate: bool) -> Ranking:
        """As `StoreBackend.nearest`; quantized vectors are always an approximation.

        The best by their codes are compared again by their vectors. Rows count deleted texts.
        """
        del approximate
        scores = np.full((len(queries), count), -np.inf, np.float32)
        rows = np.full((len(queries), count), -1, np.int64)
        first = 0
        for segment in self._segments:
            own_scores, own_rows = self._rank_segment(segment, queries, count)
            scores = np.hstack([scores, own_scores])
            rows = np.hstack([rows, own_rows + first])
            scores, rows = sort_ranking(scores, rows)
            scores, rows = scores[:, :count], rows[:, :count]
            first += segment.num_rows
        return scores, rows

    def _rank_segment(self, segment: _Segment, queries: NDArray[np.float32], count: int) -> Ranking:
        """Rank the texts of a segment; `-inf` is the score of a deleted one."""
        is_excluded = np.zeros(segment.num_rows, bool)
        is_excluded[list(segment.deleted_rows)] = True
        if segment.codes is None:
            return top_k(
                queries, segment.vectors, count, is_excluded=is_excluded, longest=segment.longest
            )
        rough, rows = top_k(
            queries,
            segment.codes,
            RESCORING_FACTOR * count,
            compare=partial(_compare, quantization=self.quantization),
            is_excluded=is_excluded,
        )
        exact = np.stack(
            [
                products_with(query, segment.vectors[chosen])
                for chosen, query in zip(rows, queries, strict=True)
            ]
        )
        return np.where(rough > -np.inf, exact, -np.inf).astype(np.float32), rows

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the store for writing, in its last state."""
        with locked_output(self._directory, kind="directory"):
            self.refresh()
            _remove_unlisted(self._directory, self._manifest)
            yield

    def _entries_without(self, ids: set[str]) -> list[dict[str, Any]]:
        """The segments of the manifest, without the texts with these ids."""
        entries = []
        for one in self._segments:
            rows = {row for row, name in enumerate(one.ids) if name in ids}
            deleted_rows = sorted(rows | set(one.deleted_rows))
            if len(deleted_rows) < one.num_rows:
                entries.append({"name": one.folder.name, "deleted_rows": deleted_rows})
        return entries

    def _contents(
        self, entries: Sequence[dict[str, Any]]
    ) -> tuple[list[str], list[str], list[NDArray[np.float32]]]:
        """The ids, texts and vectors of segments, without those that an entry has as deleted."""
        ids: list[str] = []
        texts: list[str] = []
        parts = []
        segments = {one.folder.name: one for one in self._segments}
        for entry in entries:
            one = replace(segments[entry["name"]], deleted_rows=tuple(entry["deleted_rows"]))
            rows = list(one.rows)
            ids += [one.ids[row] for row in rows]
            texts += [one.text(row) for row in rows]
            parts.append(one.vectors[rows])
        return ids, texts, parts

    def _write_segment(
        self, ids: Sequence[str], texts: Sequence[str], vectors: NDArray[np.float32]
    ) -> dict[str, Any]:
        name = f"segment-{self._manifest['next_segment']:06}"
        contents = [text.encode() for text in texts]
        with new_directory(self._directory / name) as new:
            arrays: dict[str, Any] = {"vectors": np.ascontiguousarray(vectors, "<f4")}
            arrays["ends"] = np.cumsum([len(text) for text in contents], dtype=np.int64)
            if self.quantization != "none":
                arrays["codes"] = quantize_vectors(vectors, self.quantization)
            for key, array in arrays.items():
                np.save(new / f"{key}.npy", array)
            write_file(new / "texts.bin", b"".join(contents))
            write_file(new / "ids.json", json.dumps(list(ids)))
        return {"name": name, "deleted_rows": []}

    def _commit(self, segments: Sequence[dict[str, Any]]) -> None:
        """Replace the manifest, which makes a change visible and lasting."""
        next_segment = self._manifest["next_segment"] + 1
        content = {**self._manifest, "segments": list(segments), "next_segment": next_segment}
        _write_manifest(self._directory, content)
        self.refresh()
        _remove_unlisted(self._directory, self._manifest)


def _compare(
    queries: NDArray[np.float32], codes: NDArray[Any], quantization: Quantization
) -> NDArray[np.float32]:
    if quantization == "binary":
        signs = np.packbits(queries > 0, axis=1)
        rows = [np.unpackbits(codes ^ one, axis=1).sum(1, dtype=np.int32) for one in signs]
        return -np.stack(rows).astype(np.float32)
    scores: NDArray[np.float32] = queries @ codes.astype(np.float32).T
    if quantization == "int8":  # codes have different scales; cosines do not depend on them
        scores /= np.linalg.norm(codes.astype(np.float32), axis=1).clip(1e-30)
    return scores


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / _MANIFEST
    tree = read_json(path, DataError)
    check_format_version(tree, FORMAT_VERSION, path, DataError, fix="Make the store again.")
    try:
        return verify_checksum(tree)
    except ValueError as error:
        raise DataError(f"is damaged ({error})", where=str(path)) from None


def _write_manifest(directory: Path, content: dict[str, Any]) -> None:
    tree = {**content, "format_version": FORMAT_VERSION}
    write_json(directory / _MANIFEST, with_checksum(tree))


def _remove_unlisted(directory: Path, manifest: dict[str, Any]) -> None:
    """Remove segments that the manifest does not list; a reader's open files stay readable."""
    names = {one["name"] for one in manifest["segments"]}
    with writing(directory):
        for path in directory.glob("segment-*"):
            if path.name not in names:
                try:
                    shutil.rmtree(path)
                except PermissionError:
                    if os.name != "nt":  # Windows keeps files that a reader has open: until later
                        raise
