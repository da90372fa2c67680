"""Split paragraphs into sentences, and tokenise the sentences of documents.

The tokens are those of the whole document: byte-level BPE and SentencePiece give a word different
pieces at the start of a text than after a space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import sentencex

from ..errors import DataError
from .definition import check_text
from .encoding import Ints, Segment
from .tokenizer import Tokenizer

_CHUNK_CHARACTERS = 1 << 16  # about how many characters of a document are tokenised as one text


def sentence_ids(tokenizer: Tokenizer, documents: Sequence[Sequence[str]]) -> list[Ints]:
    """The ids of each sentence, as in `sentence_tokens`, by the fastest method."""
    if tokenizer.definition.context_free:
        sentences = [sentence for document in documents for sentence in document]
        return tokenizer.piece_ids(sentences)
    return [tokens.input_ids for tokens in sentence_tokens(tokenizer, documents)]


def sentence_tokens(tokenizer: Tokenizer, documents: Sequence[Sequence[str]]) -> list[Segment]:
    """The tokens of each sentence of all documents, in order, with their offsets in the sentence.

    Concatenated, the tokens of a document's sentences are those of the sentences joined by spaces.

    Args:
        documents: the sentences of each, stripped.
    """
    if tokenizer.definition.context_free:
        sentences = [sentence for document in documents for sentence in document]
        return tokenizer.segments(sentences)
    runs = [run for document in documents for run in _runs(document)]
    texts = tokenizer.segments([" ".join(run) for run, _ in runs])
    return [
        tokens
        for (run, repeated), text in zip(runs, texts, strict=True)
        for tokens in _split_segment(run, text)[repeated:]
    ]


def _runs(document: Sequence[str]) -> Iterator[tuple[Sequence[str], int]]:
    """Yield sentences to tokenise together, and how many of them the previous run already had.

    A long document is split, to bound memory. Each run except the first begins with the last
    sentence of the previous run, since the pieces of a sentence depend on what precedes it.
    """
    first = size = 0
    for number, sentence in enumerate(document):
        size += len(sentence)
        if size >= _CHUNK_CHARACTERS or number == len(document) - 1:
            repeated = min(first, 1)
            yield document[first - repeated : number + 1], repeated
            first, size = number + 1, 0


def _split_segment(sentences: Sequence[str], text: Segment) -> list[Segment]:
    """Split the tokens of sentences joined by spaces into the tokens of each sentence.

    The space between two sentences belongs to the second, as does a piece that stands for it.
    """
    lengths = np.array([len(sentence) for sentence in sentences])
    ends = np.cumsum(lengths + 1) - 1
    owner = np.maximum.accumulate(np.searchsorted(ends, text.offsets[:, 1]))
    edges = np.searchsorted(owner, np.arange(len(sentences) + 1)).tolist()
    segments = []
    for number, length in enumerate(lengths.tolist()):
        part = text[edges[number] : edges[number + 1]]
        offsets = part.offsets - np.int32(ends[number] - length)
        segments.append(Segment(part.input_ids, offsets.clip(0, length), part.word_ids))
    return segments


# `sentencex` fails at a letter, white space of several bytes (U+00A0, U+3000, …) and a dot:
# "M\u00a0." Such white space is replaced by as many spaces.
_BEFORE_DOT = re.compile(r"(?<!\s)\s++(?=\.)")

LANGUAGES = (
    *("am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "hi", "hy"),
    *("it", "ja", "kk", "kn", "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te"),
    *("uk", "zh"),
)
"""The languages that `sentencex` has rules for, as ISO 639-1 codes."""

# Languages that it splits by the rules of a related one (Czech by those of Slovak). It silently
# treats any other code as English: these were found by splitting differently from English.
_RELATED_LANGUAGES = (
    *("ab", "an", "av", "ay", "ba", "bm", "ce", "co", "cs", "cv", "gl", "gn", "ht", "kl", "kv"),
    *("lb", "li", "ln", "mg", "oc", "os", "qu", "rm", "sa", "sg", "tt", "ty", "wa", "wo"),
)


def split_sentences(paragraph: str, language: str = "en") -> list[str]:
    """Split a paragraph into its sentences, by the rules of `sentencex`.

    Only white space between sentences is lost, and no sentence is empty.

    Args:
        language: one of `LANGUAGES`, or of some languages related to these, such as `cs`; with or
            without a region, as in `pt-BR`.

    Raises:
        DataError: there are no rules for `language`, or the text has a lone surrogate.
    """
    code = re.split("[-_]", language, maxsplit=1)[0].lower()
    if code not in LANGUAGES and code not in _RELATED_LANGUAGES:
        raise DataError(
            f"there are no rules for the language {language!r}",
            fix=f"Give one of {', '.join(LANGUAGES)}: the nearest, or en.",
        )
    try:
        masked_paragraph = paragraph
        if not paragraph.isascii():
            masked_paragraph = _BEFORE_DOT.sub(lambda found: " " * len(found[0]), paragraph)
        pieces: list[str] = sentencex.segment(code, masked_paragraph)
    except UnicodeEncodeError:
        check_text(paragraph)
        raise
    if masked_paragraph == paragraph:
        return [sentence for piece in pieces if (sentence := piece.strip())]
    sentences, position = [], 0
    for piece in pieces:
        if sentence := piece.strip():
            position = masked_paragraph.index(sentence, position)
            sentences.append(paragraph[position : position + len(sentence)])
            position += len(sentence)
    return sentences
