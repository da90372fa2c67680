"""Paragraphs split into sentences, and the tokens of a document's sentences.

The tokens are those of the document when it is tokenised whole: byte-level BPE and SentencePiece
give a word other pieces at the start of a text than behind a space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import sentencex

from ..errors import DataError
from .encoding import Ints, Segment
from .normalization import check_text
from .tokenizer import Tokenizer

_AT_ONCE = 1 << 16  # characters of a document that the tokenizer library is given in one text


def sentence_ids(tokenizer: Tokenizer, documents: Sequence[Sequence[str]]) -> list[Ints]:
    """The ids of each sentence, as of `sentence_tokens`, by the fastest way there is."""
    if tokenizer.definition.context_free:
        sentences = [sentence for document in documents for sentence in document]
        return tokenizer.piece_ids(sentences)
    return [tokens.input_ids for tokens in sentence_tokens(tokenizer, documents)]


def sentence_tokens(tokenizer: Tokenizer, documents: Sequence[Sequence[str]]) -> list[Segment]:
    """The tokens of each sentence, document after document, with their offsets in the sentence.

    Those of a document, one after the other, are the tokens of its sentences joined by spaces.

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


def _parted(sentences: Sequence[str], text: Segment) -> list[Segment]:
    """The tokens of sentences that were joined by spaces.

    A space between two belongs to the second, and so does a piece that stands for it.
    """
    lengths = np.array([len(sentence) for sentence in sentences])
    ends = np.cumsum(lengths + 1) - 1
    owner = np.maximum.accumulate(np.searchsorted(ends, text.offsets[:, 1]))
    edges = np.searchsorted(owner, np.arange(len(sentences) + 1)).tolist()
    found = []
    for number, length in enumerate(lengths.tolist()):
        part = text[edges[number] : edges[number + 1]]
        offsets = part.offsets - np.int32(ends[number] - length)
        found.append(Segment(part.input_ids, offsets.clip(0, length), part.word_ids))
    return found


# The library breaks down at a letter, white space of several bytes (U+00A0, U+3000, …) and a dot:
# "M\u00a0." It is shown blanks there, as many as there are characters.
_BEFORE_DOT = re.compile(r"(?<!\s)\s++(?=\.)")

LANGUAGES = (
    *("am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "hi", "hy"),
    *("it", "ja", "kk", "kn", "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te"),
    *("uk", "zh"),
)
"""The languages that `sentencex` has rules for, as ISO 639-1 codes."""

# Those that it splits by a related language's rules (Czech by Slovak ones). Any other code it takes
# for English without a word: these were found by their splitting another way than English.
_RELATED = (
    *("ab", "an", "av", "ay", "ba", "bm", "ce", "co", "cs", "cv", "gl", "gn", "ht", "kl", "kv"),
    *("lb", "li", "ln", "mg", "oc", "os", "qu", "rm", "sa", "sg", "tt", "ty", "wa", "wo"),
)


def split_sentences(paragraph: str, language: str = "en") -> list[str]:
    """Split a paragraph into its sentences, by the rules of `sentencex`.

    Nothing but white space between sentences is lost, and no sentence is empty.

    Args:
        language: one of `LANGUAGES`, or of some languages related to these, such as `cs`; with or
            without a region, as in `pt-BR`.

    Raises:
        DataError: there are no rules for `language`, or the text has a lone surrogate.
    """
    code = re.split("[-_]", language, maxsplit=1)[0].lower()
    if code not in LANGUAGES and code not in _RELATED:
        raise DataError(
            f"there are no rules for the language {language!r}",
            fix=f"Give one of {', '.join(LANGUAGES)}: the nearest, or en.",
        )
    try:
        shown = paragraph
        if not paragraph.isascii():
            shown = _BEFORE_DOT.sub(lambda found: " " * len(found[0]), paragraph)
        pieces: list[str] = sentencex.segment(code, shown)
    except UnicodeEncodeError:
        check_text(paragraph)
        raise
    if shown == paragraph:
        return [sentence for piece in pieces if (sentence := piece.strip())]
    sentences, at = [], 0
    for piece in pieces:
        if sentence := piece.strip():
            at = shown.index(sentence, at)
            sentences.append(paragraph[at : at + len(sentence)])
            at += len(sentence)
    return sentences
