"""Make shards from documents: the work of one worker on one batch of text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError
from ..settings.literals import Sentences, SpanSource
from ..text.encoding import Segment
from ..text.tokenizer import Tokenizer
from .document_formats import Document
from .manifest import ShardRecord
from .reading import ReadCounts
from .shards import shard_content, token_type
from .spans import Spans, find_chunks, mark_units, place_sentences

_SENTENCES_AT_ONCE = 2048  # the tokenizer library uses much memory for each


class Text(NamedTuple):
    """A document's copy number, its text in UTF-8 (line feeds between paragraphs), and its spans.

    It is compact, so that sending it to a worker is cheap.
    """

    copy: int
    content: bytes
    spans: Spans | None


@dataclass(frozen=True, slots=True)
class TextBatch:
    """The text of one shard."""

    number: int  # the shard's number, from 0
    documents: list[Text]
    digest: str  # of all documents
    bytes_read: int  # how many bytes of the corpus's files were read for it

    @property
    def job_digest(self) -> str:
        """The digest of all documents: a shard belongs to one part."""
        return self.digest


def batches(
    documents: Iterable[Document], shard_bytes: int, counts: ReadCounts
) -> Iterator[TextBatch]:
    """Group documents into shards, in order; a shard is full when its text has `shard_bytes`."""
    number = size = read = 0
    batch: list[Text] = []
    digest = hashlib.blake2b(digest_size=16)
    for document in documents:
        text = Text(document.copy, document.text.encode(), document.spans)
        batch.append(text)
        digest.update(b"%d %d\n" % (text.copy, len(text.content)))
        digest.update(text.content)
        if text.spans is not None:
            digest.update(f"{text.spans}\n".encode())
        size += len(text.content)
        if size >= shard_bytes:
            yield TextBatch(number, batch, digest.hexdigest(), counts.bytes_read - read)
            number, size, read = number + 1, 0, counts.bytes_read
            batch, digest = [], hashlib.blake2b(digest_size=16)
    if batch:
        yield TextBatch(number, batch, digest.hexdigest(), counts.bytes_read - read)


class _Tokens(NamedTuple):
    """The concatenated tokens of some documents."""

    ids: np.ndarray  # `[tokens]`
    lengths: np.ndarray  # `[sentences]`, tokens of each
    per_document: np.ndarray  # `[documents]`, sentences of each
    continues_unit: np.ndarray  # `[tokens]` bool; empty if units are not marked
    spans: int  # how many units are spans


class ShardMaker:
    """Splits and tokenises one batch at a time.

    Args:
        sentences: "split" splits each paragraph into sentences by rules; "lines" uses each
            paragraph as one sentence.
        language: of the rules.
        spans: the source of the spans that are marked in the shards; "none" marks none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sentences: Sentences,
        language: str,
        spans: SpanSource,
    ) -> None:
        self._tokenizer = tokenizer
        self._sentences, self._language, self._spans = sentences, language, spans
        self._type = token_type(tokenizer.vocab_size)

    def make(self, batch: TextBatch) -> tuple[ShardRecord, Any]:
        """Make one shard; return its record and the content of its file.

        Raises:
            DataError: the batch is too large for one shard.
        """
        *arrays, spans = zip(*map(self._tokenise, self._parts(batch.documents)), strict=True)
        ids, lengths, per_document, continues_unit = map(np.concatenate, arrays)
        if len(ids) >= 2**31:
            raise DataError(
                f"a shard would have {len(ids):,} tokens, more than it can count",
                fix="Give a smaller shard_bytes, or split its documents.",
            )
        copies = np.array([text.copy for text in batch.documents])
        document = np.repeat(np.arange(len(per_document)), per_document)
        has_tokens = lengths > 0
        per_document = np.bincount(document[has_tokens], minlength=len(per_document))
        has_sentences = per_document > 0
        content = shard_content(
            ids,
            lengths[has_tokens],
            per_document[has_sentences],
            copies[has_sentences],
            None if self._spans == "none" else continues_unit,
        )
        unk_id = self._tokenizer.id_of("unk")
        record = ShardRecord(
            number=batch.number,
            text=batch.digest,
            size=content.size,
            sha256=hashlib.sha256(content).hexdigest(),
            documents=int(has_sentences.sum()),
            sentences=int(has_tokens.sum()),
            tokens=len(ids),
            unknown_tokens=0 if unk_id is None else int(np.count_nonzero(ids == unk_id)),
            spans=sum(spans),
            empty_sentences=int((~has_tokens).sum()),
            empty_documents=int((~has_sentences).sum()),
        )
        return record, content

    def _parts(self, texts: Iterable[Text]) -> Iterator[list[tuple[Text, list[str]]]]:
        """Documents with their sentences, in the groups that are tokenised at once."""
        part: list[tuple[Text, list[str]]] = []
        size = 0
        for text in texts:
            sentences = self._split(text.content.decode())
            part.append((text, sentences))
            size += len(sentences)
            if size >= _SENTENCES_AT_ONCE:
                yield part
                part, size = [], 0
        if part:
            yield part

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

    def _tokenise(self, part: Sequence[tuple[Text, list[str]]]) -> _Tokens:
        from ..text.sentences import sentence_ids, sentence_tokens

        documents = [sentences for _, sentences in part]
        marks, spans = [np.empty(0, np.bool_)], 0
        if self._spans == "none":
            pieces = sentence_ids(self._tokenizer, documents)
        else:
            tokens = sentence_tokens(self._tokenizer, documents)
            pieces = [sentence.input_ids for sentence in tokens]
            following = iter(tokens)
            for text, sentences in part:
                own = [next(following) for _ in sentences]
                continues_unit, found = self._mark(text, sentences, own)
                marks.append(continues_unit)
                spans += found
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        ids = np.concatenate([*pieces, np.empty(0, np.int32)]).astype(self._type)
        return _Tokens(ids, lengths, np.array([*map(len, documents)]), np.concatenate(marks), spans)

    def _mark(
        self, text: Text, sentences: Sequence[str], tokens: Sequence[Segment]
    ) -> tuple[np.ndarray, int]:
        """Which tokens of a document continue a unit, and how many units are spans."""
        if not sentences:
            return np.empty(0, np.bool_), 0
        starts = place_sentences(sentences, text.content.decode())
        spans = text.spans or ()
        if text.spans is None and self._spans == "rules":
            spans = tuple(
                (at + start, at + end)
                for at, chunks in zip(starts, find_chunks(sentences), strict=True)
                for start, end in chunks
            )
        words = [self._tokenizer.continues_word(sentence.input_ids) for sentence in tokens]
        places = [at + sentence.offsets for at, sentence in zip(starts, tokens, strict=True)]
        return mark_units(np.concatenate(places), np.concatenate(words), spans)
