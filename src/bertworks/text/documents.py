"""The tokens of a document's sentences, as the document has them when it is tokenised whole.

Byte-level BPE and SentencePiece give a word other pieces at the start of a text than behind a
space. A sentence that is tokenised by itself has its first word as if a text began there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .encoding import Ints, Segment
from .tokenizer import Tokenizer

_AT_ONCE = 1 << 16  # characters of a document that the tokenizer library is given in one text


class Tokens(NamedTuple):
    """The tokens of a sentence.

    Attributes:
        input_ids: int32 [tokens].
        offsets: int32 [tokens, 2]: first and past-the-last character in the sentence.
    """

    input_ids: Ints
    offsets: Ints


def sentence_ids(tokenizer: Tokenizer, documents: Sequence[Sequence[str]]) -> list[Ints]:
    """The ids of each sentence, as of `sentence_tokens`, by the fastest way there is."""
    if tokenizer.definition.context_free:
        sentences = [sentence for document in documents for sentence in document]
        return tokenizer.piece_ids(sentences)
    return [tokens.input_ids for tokens in sentence_tokens(tokenizer, documents)]


def sentence_tokens(tokenizer: Tokenizer, documents: Sequence[Sequence[str]]) -> list[Tokens]:
    """The tokens of each sentence, document after document.

    Those of a document, one after the other, are the tokens of its sentences joined by spaces.

    Args:
        tokenizer: the tokenizer.
        documents: the sentences of each, stripped.

    Raises:
        DataError: a sentence has a lone surrogate.
    """
    if tokenizer.definition.context_free:
        sentences = [sentence for document in documents for sentence in document]
        alone = tokenizer.segments(sentences)
        return [Tokens(segment.input_ids, segment.offsets) for segment in alone]
    runs = [run for document in documents for run in _runs(document)]
    texts = tokenizer.segments([" ".join(run) for run, _ in runs])
    return [
        tokens
        for (run, repeated), text in zip(runs, texts, strict=True)
        for tokens in _parted(run, text)[repeated:]
    ]


def _runs(document: Sequence[str]) -> Iterator[tuple[Sequence[str], int]]:
    """Sentences that are tokenised together, and how many of them the run before had already.

    A long document is cut, so that memory is bounded; each run but the first begins with the last
    sentence of the run before, since what follows a sentence has its pieces by what it follows.
    """
    first = size = 0
    for number, sentence in enumerate(document):
        size += len(sentence)
        if size >= _AT_ONCE or number == len(document) - 1:
            repeated = min(first, 1)
            yield document[first - repeated : number + 1], repeated
            first, size = number + 1, 0


def _parted(sentences: Sequence[str], text: Segment) -> list[Tokens]:
    """The tokens of sentences that were joined by spaces.

    A space between two belongs to the second, and so does a piece that stands for it.
    """
    lengths = np.array([len(sentence) for sentence in sentences])
    ends = np.cumsum(lengths + 1) - 1
    owner = np.maximum.accumulate(np.searchsorted(ends, text.offsets[:, 1]))
    edges = np.searchsorted(owner, np.arange(len(sentences) + 1)).tolist()
    found = []
    for number, length in enumerate(lengths.tolist()):
        part = slice(edges[number], edges[number + 1])
        offsets = text.offsets[part] - np.int32(ends[number] - length)
        found.append(Tokens(text.input_ids[part], offsets.clip(0, length)))
    return found
