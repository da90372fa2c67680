"""Shards of token ids on disk, and a prepared corpus as memory-mapped arrays.

A shard is an uncompressed Arrow IPC file with one record batch and one row per document. Columns:
`tokens`, nested lists (document → sentences → token ids); `copy`, 0 or the number of a further copy
(by a weight above 1); with spans, `continues_unit`, lists (document → tokens) with one bit per
token: whether it is masked together with the previous token.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import CheckpointError, DataError, first_line
from ..text.tokenizer import Tokenizer
from ..utils.lazy_module import LazyModule
from ..utils.memory import is_memory_short
from ..utils.regular_files import sha256_of
from ..utils.remote import fetch_folder, is_remote
from .manifest import TOKENIZER, Manifest, ShardRecord

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow", "parquet", "A prepared corpus")


def token_type(vocabulary_size: int) -> np.dtype[Any]:
    """The smallest unsigned integer type for all ids of a vocabulary."""
    return np.min_scalar_type(vocabulary_size - 1)


def shard_content(
    ids: np.ndarray,
    sentence_lengths: np.ndarray,
    document_sentences: np.ndarray,
    copies: np.ndarray,
    continues_unit: np.ndarray | None = None,
) -> Any:
    """Return the content of a shard's file.

    Args:
        ids: `[tokens]`, in the type in which they are stored.
        sentence_lengths: `[sentences]`, tokens of each.
        document_sentences: `[documents]`, sentences of each.
        copies: `[documents]`, the copy number of each.
        continues_unit: `[tokens]` bool, which tokens continue a unit; None to store no units.

    Returns:
        an Arrow buffer.
    """
    in_tokens, in_sentences = _offsets(sentence_lengths), _offsets(document_sentences)
    sentences = pa.ListArray.from_arrays(pa.array(in_tokens), pa.array(ids))
    documents = pa.ListArray.from_arrays(pa.array(in_sentences), sentences)
    # 16 bits are enough, unless a weight makes more copies than they can count.
    wide = np.promote_types(np.uint16, np.min_scalar_type(int(copies.max(initial=0))))
    columns = {"tokens": documents, "copy": pa.array(copies.astype(wide))}
    if continues_unit is not None:
        columns["continues_unit"] = pa.ListArray.from_arrays(
            pa.array(in_tokens[in_sentences]), pa.array(continues_unit)
        )
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


class _Shard(NamedTuple):
    ids: np.ndarray  # [tokens]
    sentence_offsets: np.ndarray  # [sentences + 1], into ids
    document_offsets: np.ndarray  # [documents + 1], into the sentences
    copies: np.ndarray  # [documents]
    continues_unit: np.ndarray | None  # [⌈tokens / 8⌉] uint8, one bit per token, the lowest first


class Corpus:
    """A memory-mapped prepared corpus. It is pickled as a path; workers map it again.

    Attributes:
        directory: its directory.
        manifest: its counts, settings and shards.
    """

    def __init__(self, directory: Path, manifest: Manifest, shards: list[_Shard]) -> None:
        self.directory, self.manifest = directory, manifest
        self._shards = shards
        counts = [len(shard.document_offsets) - 1 for shard in shards]
        self._starts = [0, *np.cumsum(counts).tolist()]

    @classmethod
    def open(cls, directory: str | Path, *, verify: bool = False) -> Corpus:
        """Open the output of `prepare`.

        Args:
            directory: the directory of `manifest.json`; on another file system, `s3://…`, it is
                copied to a cache first.
            verify: read everything and compare checksums; otherwise only sizes and counts are
                compared.

        Raises:
            DataError: the directory is not a finished corpus, or only a part of one.
            CheckpointError: the manifest or a shard is missing, damaged, or in another format.
        """
        directory = fetch_folder(str(directory)) if is_remote(directory) else Path(directory)
        manifest = Manifest.read(directory)
        if manifest.job.part is not None:
            raise DataError(
                f"is part {manifest.job.part} of a corpus",
                where=str(directory),
                fix="Put all parts together with `bertworks merge`.",
            )
        shards = [open_shard(directory, record, manifest, verify) for record in manifest.shards]
        return cls(directory, manifest, shards)

    def __reduce__(self) -> tuple[Any, ...]:
        return Corpus.open, (self.directory,)

    def __len__(self) -> int:
        return self.num_documents

    @property
    def num_documents(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def document_lengths(self) -> np.ndarray:
        """`[documents]` int64: the tokens of each document."""
        return _concatenate(
            [np.diff(shard.sentence_offsets[shard.document_offsets]) for shard in self._shards]
        )

    @property
    def notes(self) -> list[str]:
        """What a user who trains with next sentences should know about the corpus."""
        documents = self.sentence_counts > 0
        singles, total = int((self.sentence_counts == 1).sum()), int(documents.sum())
        if 2 * singles <= total:
            return []
        which = f"{singles:,} documents have only one sentence, so their pairs have"
        if singles == total:
            which = "no document has two sentences, so all pairs of sentences have"
        return [
            f"documents {total:,}, sentences {int(self.sentence_counts.sum()):,}: {which} a random "
            "second sentence. A blank line ends a document: leave it out between sentences, or "
            "train without next sentences (instances.format=full-sentences)"
        ]

    @cached_property
    def sentence_counts(self) -> np.ndarray:
        """`[documents]` int64: the sentences of each document."""
        return _concatenate([np.diff(shard.document_offsets) for shard in self._shards])

    @cached_property
    def originals(self) -> np.ndarray:
        """`[documents]` int64: for each document, the number of the first of its copies.

        Without copies (by weights), it is the document's own number. Splits use it to keep copies
        together.
        """
        first = _concatenate([shard.copies for shard in self._shards]) == 0
        return np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))

    def document(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """A document's token ids and the bounds of its sentences.

        Returns:
            ids `[tokens]`, unsigned and read-only, a view of the file; and sentence offsets
            `[sentences + 1]` int64, the first 0, the last `tokens`.

        Raises:
            IndexError: there is no such document.
        """
        shard, offsets = self._find(number)
        start = offsets[0]
        return shard.ids[start : offsets[-1]], np.subtract(offsets, start, dtype=np.int64)

    @property
    def has_units(self) -> bool:
        """Whether the corpus records which tokens are masked together."""
        return self.manifest.job.spans != "none"

    def continues_unit(self, number: int) -> np.ndarray:
        """Which tokens of a document are masked together with the previous one, `[tokens]` bool.

        Raises:
            IndexError: there is no such document.
        """
        shard, offsets = self._find(number)
        assert shard.continues_unit is not None, "the corpus has no units"
        start, end = int(offsets[0]), int(offsets[-1])
        bits = np.unpackbits(shard.continues_unit[start // 8 : (end + 7) // 8], bitorder="little")
        return bits[start % 8 :][: end - start].astype(np.bool_)

    def _find(self, number: int) -> tuple[_Shard, np.ndarray]:
        """A document's shard, and the offsets of its sentences there."""
        if not 0 <= number < self._starts[-1]:
            raise IndexError(f"document {number} of {self._starts[-1]}")
        index = bisect_right(self._starts, number) - 1
        shard = self._shards[index]
        row = number - self._starts[index]
        first, last = shard.document_offsets[row], shard.document_offsets[row + 1]
        return shard, shard.sentence_offsets[first : last + 1]

    def load_tokenizer(self) -> Tokenizer:
        """Load the tokenizer that produced the ids, from the corpus's copy.

        Raises:
            CheckpointError: it is missing, damaged, or a different tokenizer.
        """
        path = self.directory / TOKENIZER
        tokenizer = Tokenizer.load(path)
        if tokenizer.fingerprint != self.manifest.vocabulary_hash:
            raise CheckpointError(
                "the corpus was prepared with another tokenizer than this one",
                where=str(path),
                fix="Prepare the corpus again.",
            )
        return tokenizer


def open_shard(directory: Path, record: ShardRecord, manifest: Manifest, verify: bool) -> _Shard:
    """Map a shard of a prepared directory, as `Corpus.open` does."""
    path = directory / record.file
    if not path.is_file():
        raise _damage_error(path, "missing")
    if path.stat().st_size != record.size:
        raise _damage_error(path, f"{path.stat().st_size} bytes instead of {record.size}")
    if verify and sha256_of(path) != record.sha256:
        raise _damage_error(path, "its checksum is wrong")
    try:
        # The mapping stays valid after the file is closed: thousands of shards keep none open.
        with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
            batch = reader.get_batch(0)
        documents: Any = batch.column("tokens")
        sentences = documents.values
        shard = _Shard(
            sentences.values.to_numpy(zero_copy_only=True),
            sentences.offsets.to_numpy(zero_copy_only=True),
            documents.offsets.to_numpy(zero_copy_only=True),
            batch.column("copy").to_numpy(zero_copy_only=True),
            _bits(batch.column("continues_unit")) if manifest.job.spans != "none" else None,
        )
    except (pa.ArrowException, OSError, KeyError, AttributeError, ValueError) as error:
        if is_memory_short(error):
            raise
        raise _damage_error(path, first_line(error)) from None
    counts = (
        len(shard.ids),
        len(shard.sentence_offsets) - 1,
        len(shard.document_offsets) - 1,
        int(shard.sentence_offsets[-1]),
        int(shard.document_offsets[-1]),
    )
    tokens, sentences_, documents_ = record.tokens, record.sentences, record.documents
    if counts != (tokens, sentences_, documents_, tokens, sentences_):
        raise _damage_error(path, "its counts differ from the manifest")
    if shard.continues_unit is not None and len(shard.continues_unit) * 8 < record.tokens:
        raise _damage_error(path, "too few bits for its tokens")
    if shard.ids.dtype != np.dtype(manifest.token_type):
        raise _damage_error(path, f"token ids of type {shard.ids.dtype}")
    return shard


def _bits(column: Any) -> np.ndarray:
    """The bits of a column of boolean lists, in Arrow's layout."""
    values = column.values
    if not len(values):
        return np.empty(0, np.uint8)
    assert values.offset == 0, "a shard is written whole"
    return np.frombuffer(values.buffers()[1], np.uint8)


def _offsets(lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    assert offsets[-1] < 2**31, "a shard counts in 32 bits"
    return offsets.astype(np.int32)


def _concatenate(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays).astype(np.int64) if arrays else np.empty(0, np.int64)


def _damage_error(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"this shard is damaged ({why})",
        where=str(path),
        fix="Run the same `bertworks prepare` again: it recreates damaged shards.",
    )
