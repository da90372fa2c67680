"""From documents to a shard: what one worker does with one batch of text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DataError
from .lines import ReadCounts
from .manifest import Sentences, ShardRecord
from .readers import Document
from .shards import token_type, write_shard

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer

_SENTENCES_AT_ONCE = 2048  # what the tokenizer library keeps of each is large


@dataclass(frozen=True, slots=True)
class TextBatch:
    """The text of one shard.

    Attributes:
        number: the shard's number, from 0.
        documents: each document's copy number, and its paragraphs as UTF-8 with line feeds
            between them (compact, so that sending it to a worker is cheap).
        digest: of all of them.
        bytes_read: how much of the corpus's files was read for it.
    """

    number: int
    documents: list[tuple[int, bytes]]
    digest: str
    bytes_read: int

    @property
    def file(self) -> str:
        return f"shard-{self.number:05d}.arrow"


def batches(
    documents: Iterable[Document], shard_bytes: int, counts: ReadCounts
) -> Iterator[TextBatch]:
    """Deal documents to shards, in order: a shard is full when its text reaches `shard_bytes`."""
    number = size = read = 0
    batch: list[tuple[int, bytes]] = []
    digest = hashlib.blake2b(digest_size=16)
    for document in documents:
        text = document.text.encode()
        batch.append((document.copy, text))
        digest.update(b"%d %d\n" % (document.copy, len(text)))
        digest.update(text)
        size += len(text)
        if size >= shard_bytes:
            yield TextBatch(number, batch, digest.hexdigest(), counts.bytes_read - read)
            number, size, read = number + 1, 0, counts.bytes_read
            batch, digest = [], hashlib.blake2b(digest_size=16)
    if batch:
        yield TextBatch(number, batch, digest.hexdigest(), counts.bytes_read - read)


class ShardMaker:
    """Splits, tokenises and writes, a batch at a time.

    Args:
        tokenizer: makes the token ids.
        directory: where the shards go.
        sentences: "split" splits each paragraph into sentences by rules; "lines" takes each as
            one sentence.
        language: of the rules.
    """

    def __init__(
        self, tokenizer: Tokenizer, directory: Path, sentences: Sentences, language: str
    ) -> None:
        self._tokenizer, self._directory = tokenizer, directory
        self._sentences, self._language = sentences, language
        self._type = token_type(tokenizer.vocab_size)

    def make(self, batch: TextBatch) -> ShardRecord:
        """Make and write one shard.

        Raises:
            DataError: the batch is too large for one shard.
            OSError: the shard cannot be written.
        """
        ids: list[np.ndarray] = []
        lengths: list[np.ndarray] = []
        waiting: list[str] = []
        per_document = []
        for _, text in batch.documents:
            sentences = self._split(text.decode())
            per_document.append(len(sentences))
            waiting += sentences
            if len(waiting) >= _SENTENCES_AT_ONCE:
                self._tokenise(waiting, ids, lengths)
                waiting = []
        self._tokenise(waiting, ids, lengths)
        return self._write(
            batch,
            np.concatenate(ids),
            np.concatenate(lengths),
            np.array(per_document),
            np.array([copy for copy, _ in batch.documents]),
        )

    def _split(self, text: str) -> list[str]:
        paragraphs = text.split("\n")
        if self._sentences == "lines":
            return paragraphs
        from ..text.sentences import split_sentences

        return [
            sentence
            for paragraph in paragraphs
            for sentence in split_sentences(paragraph, self._language)
        ]

    def _tokenise(
        self, sentences: list[str], ids: list[np.ndarray], lengths: list[np.ndarray]
    ) -> None:
        pieces = self._tokenizer.piece_ids(sentences)
        lengths.append(np.fromiter(map(len, pieces), np.int64, len(pieces)))
        ids.append(np.concatenate([*pieces, np.empty(0, np.int32)]).astype(self._type))

    def _write(
        self,
        batch: TextBatch,
        ids: np.ndarray,
        lengths: np.ndarray,
        per_document: np.ndarray,
        copies: np.ndarray,
    ) -> ShardRecord:
        if len(ids) >= 2**31:
            raise DataError(
                f"one document gives {len(ids):,} tokens, more than a shard can count",
                fix="Part it into documents.",
            )
        document = np.repeat(np.arange(len(per_document)), per_document)
        kept = lengths > 0
        per_document = np.bincount(document[kept], minlength=len(per_document))
        filled = per_document > 0
        size, sha256 = write_shard(
            self._directory / batch.file,
            ids,
            lengths[kept],
            per_document[filled],
            copies[filled],
        )
        return ShardRecord(
            file=batch.file,
            documents=int(filled.sum()),
            sentences=int(kept.sum()),
            tokens=len(ids),
            unknown_tokens=int(np.count_nonzero(ids == self._tokenizer.unk_id)),
            empty_sentences=int((~kept).sum()),
            empty_documents=int((~filled).sum()),
            bytes=size,
            sha256=sha256,
            text=batch.digest,
        )
