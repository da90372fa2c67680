"""Spans of a document's text that are masked as a whole: phrases, entities.

A document has them in addition to its text, as `"spans": [[start, end], …]`: character positions
(Unicode code points, from 0) in the original text, the end excluded, in any order, without overlap.
For corpora without spans, rules that are mostly independent of the language find some
(`find_chunks`).

Source: Sun et al. (2019), "ERNIE: Enhanced Representation through Knowledge Integration", §3.2.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, TypeAlias

import numpy as np

from ..errors import DataError, truncate_repr

COLUMN = "spans"

Span: TypeAlias = tuple[int, int]
Spans: TypeAlias = tuple[Span, ...]


def parse_spans(values: Any, text: str, *, where: str) -> Spans:
    """Check a document's spans, and return them in ascending order.

    Raises:
        DataError: they are not pairs of integers, are empty or outside the text, or overlap.
    """
    fix = f'Give "{COLUMN}": [[start, end], …], in characters of the text.'
    if not isinstance(values, list | tuple):
        raise DataError(
            f"{COLUMN!r} is not a list but {truncate_repr(values)}", where=where, fix=fix
        )
    for value in values:
        if not (isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_int, value))):
            raise DataError(
                f"the span {truncate_repr(value)} is not a pair of integers", where=where, fix=fix
            )
        start, end = value
        if end <= start:
            raise DataError(f"the span [{start}, {end}] ends before it begins", where=where)
        if start < 0 or end > len(text):
            what = f"the span [{start}, {end}] is outside the text of {len(text)} characters"
            raise DataError(what, where=where)
    spans = sorted((int(start), int(end)) for start, end in values)
    for (start, end), (later, last) in pairwise(spans):
        if later < end:
            what = f"the spans [{start}, {end}] and [{later}, {last}] overlap"
            raise DataError(what, where=where, fix="Keep one of them.")
    return tuple(spans)


def of_paragraphs(spans: Spans, text: str) -> Spans:
    """Move spans to their positions in the text's paragraphs, joined by line feeds.

    Stripped white space (`split_paragraphs`) is removed from spans; a span of white space alone is
    dropped.
    """
    paragraphs: list[tuple[int, int, int]] = []  # a paragraph's start and end, and its new start
    offset = new = 0
    for line in text.split("\n"):
        if content := line.strip():
            start = offset + line.index(content)
            paragraphs.append((start, start + len(content), new))
            new += len(content) + 1
        offset += len(line) + 1
    starts, ends = [first for first, *_ in paragraphs], [end for _, end, _ in paragraphs]
    new_spans = []
    for start, end in spans:
        first, last = bisect_right(ends, start), bisect_left(starts, end) - 1
        if first <= last:
            begin = paragraphs[first][2] + max(0, start - paragraphs[first][0])
            stop = paragraphs[last][2] + min(paragraphs[last][1], end) - paragraphs[last][0]
            if begin < stop:
                new_spans.append((begin, stop))
    return tuple(new_spans)


def place_sentences(sentences: Sequence[str], text: str) -> list[int]:
    """The start of each sentence in the text that was split into these sentences."""
    starts, position = [], 0
    for sentence in sentences:
        position = text.find(sentence, position)
        assert position >= 0, "splitting changes no sentence"
        starts.append(position)
        position += len(sentence)
    return starts


def mark_units(
    offsets: np.ndarray, words: np.ndarray, spans: Sequence[Span]
) -> tuple[np.ndarray, int]:
    """Mark which tokens are masked together with the previous token.

    The tokens that overlap a span are a unit; spans that share a token form one unit. Elsewhere
    each word is a unit. The part of a word outside a span is a separate unit.

    Args:
        offsets: `[tokens, 2]`, the start and end of each token in characters; ascending.
        words: `[tokens]` bool, which tokens continue the word of the previous token.
        spans: ascending, without overlap.

    Returns:
        `[tokens]` bool, which tokens continue a unit; and how many units are spans.
    """
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    first = offsets[:, 0]
    # A piece that is only a space has an empty range: treat it as one with the next character.
    past = np.maximum(offsets[:, 1], first + 1)
    low, high = np.searchsorted(ends, first, side="right"), np.searchsorted(starts, past)
    is_inside = high > low
    continues_unit = words.copy()
    continues_unit[:1] = False
    same = high[:-1] > low[1:]
    continues_unit[1:] = same | (continues_unit[1:] & ~is_inside[1:] & ~is_inside[:-1])
    return continues_unit, int(np.count_nonzero(is_inside & ~continues_unit))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_MAX_QUOTED_WORDS = 5
_WORD = re.compile(r"[^\W_]+(?:['’.&-][^\W_]+)*")
_QUOTATION = re.compile(
    r"“([^“”\n]+)”|\"([^\"\n]+)\"|«([^«»\n]+)»|「([^「」\n]+)」|《([^《》\n]+)》"
)
_SMALL = frozenset(
    [
        *("al", "bin", "da", "das", "de", "del", "della", "den", "der", "des", "di", "do", "dos"),
        *("du", "el", "la", "las", "le", "les", "of", "the", "van", "von", "y"),
    ]
)
_UNITS = (
    "km/h|m/s|mph|kWh|MWh|GWh|kHz|MHz|GHz|Hz|kg|mg|µg|km²|km2|m²|m2|m³|m3|km|cm|mm|nm|µm|ml|ha|kW|MW|"
    "GW|kJ|hPa|kPa|kB|KB|MB|GB|TB|min|ft|lb|oz|°C|°F|mi|ms|m|g|l|s|h|t|W|V|A|J|K|°"
)
# Possessive quantifiers and the last alternative prevent backtracking into numbers: a long row of
# digits is scanned once, not once from each digit.
_NUMBER = r"\d++(?:[.,\u00a0\u202f]\d++)*+"
_QUANTITY = re.compile(
    rf"([$€£¥₹]\s?{_NUMBER}(?:\s(?:million|billion|trillion)\b)?"
    rf"|{_NUMBER}"
    rf"(?:\s?[%‰€£¥₹]|\s(?:million|billion|trillion)\b|[\s-]?(?:{_UNITS})(?![\w/])))"
    rf"|{_NUMBER}"
)


def find_chunks(sentences: Sequence[str]) -> list[list[Span]]:
    """Find the chunks of each sentence of a document: start and end in characters, ascending.

    Three kinds are found; where two overlap, the earlier kind wins:

    - names in quotation marks, of at most five words: the titles of books and films;
    - numbers with a currency sign, a per cent sign or a unit of measurement;
    - runs of capitalised words, with small words such as "of" or "van der" and numbers inside them,
      as in "University of Oxford" and "Apollo 11". The first word of a sentence is always
      capitalised: it only counts if it also occurs capitalised inside a sentence of the document.

    In a script without capitals, or in lower-case text, there are no chunks of the last kind. In a
    language that capitalises all nouns, adjacent nouns become one chunk.
    """
    # Words are searched for twice: storing those of a long document takes many times its size.
    inner_words = {
        word[0]
        for sentence in sentences
        for word in islice(_WORD.finditer(sentence), 1, None)
        if word[0][0].isupper()
    }
    chunks = []
    for sentence in sentences:
        sentence_chunks: list[Span] = []
        for start, end in _candidates(sentence, list(_WORD.finditer(sentence)), inner_words):
            index = bisect_left(sentence_chunks, (start, end))
            if (index == 0 or sentence_chunks[index - 1][1] <= start) and (
                index == len(sentence_chunks) or end <= sentence_chunks[index][0]
            ):
                sentence_chunks.insert(index, (start, end))
        chunks.append(sentence_chunks)
    return chunks


def _candidates(
    sentence: str, words: Sequence[re.Match[str]], inner_words: set[str]
) -> Iterator[Span]:
    """Candidate chunks, the better kinds first."""
    for match in _QUOTATION.finditer(sentence):
        start, end = match.span(match.lastindex or 0)
        name = sentence[start:end]
        inner = _WORD.findall(name)
        if 0 < len(inner) <= _MAX_QUOTED_WORDS and name == name.strip():
            yield start, end
    for match in _QUANTITY.finditer(sentence):
        start, end = match.span(1)
        if start >= 0 and not sentence[max(0, start - 1) : start].isalnum():
            yield start, end
    yield from _runs(sentence, words, inner_words)


def _runs(sentence: str, words: Sequence[re.Match[str]], inner_words: set[str]) -> Iterator[Span]:
    """Runs of capitalised words with only white space, small words or numbers between them."""
    start = end = -1  # of the run so far
    last = -1  # the end of the last word that may be inside the run
    for number, word in enumerate(words):
        text = word[0]
        follows = start >= 0 and sentence[last : word.start()].isspace()
        if not follows and start >= 0:
            yield start, end
            start = -1
        if text[0].isupper() and (number > 0 or text in inner_words):
            start = word.start() if start < 0 else start
            end = last = word.end()
        elif start >= 0 and text.isdecimal():
            end = last = word.end()
        elif start >= 0 and text in _SMALL:
            last = word.end()
    if start >= 0:
        yield start, end
