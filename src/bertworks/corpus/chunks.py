"""Phrases and names in a text, by rules that know little of any language.

For corpora that come without spans of their own. In cased text these are found, the earlier kinds
first where two lie over each other:

- names in quotation marks, of five words at most: the titles of books and films;
- numbers with a currency sign, a per cent sign or a unit of measurement;
- runs of capitalised words, with small words such as "of" or "van der" and numbers inside them, as
  in "University of Oxford" and "Apollo 11". The first word of a sentence is capitalised anyhow: it
  counts only if the document has it capitalised within a sentence, too.

Where a script has no capitals, or the text was folded to lower case, the last kind finds nothing.
In a language that capitalises all nouns, neighbouring nouns are taken for one name.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

from .spans import Span

_MAX_QUOTED_WORDS = 5
_WORD = re.compile(r"[^\W_]+(?:['’.&-][^\W_]+)*")
_QUOTED = re.compile(r"“([^“”\n]+)”|\"([^\"\n]+)\"|«([^«»\n]+)»|「([^「」\n]+)」|《([^《》\n]+)》")
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
# Numbers are not gone back into, and one that measures nothing is passed over as a whole: a long
# row of digits is read once, not once from each digit.
_NUMBER = r"\d++(?:[.,\u00a0\u202f]\d++)*+"
_MEASURED = re.compile(
    rf"([$€£¥₹]\s?{_NUMBER}(?:\s(?:million|billion|trillion)\b)?"
    rf"|{_NUMBER}"
    rf"(?:\s?[%‰€£¥₹]|\s(?:million|billion|trillion)\b|[\s-]?(?:{_UNITS})(?![\w/])))"
    rf"|{_NUMBER}"
)


def find_chunks(sentences: Sequence[str]) -> list[list[Span]]:
    """The chunks of each sentence of a document: first and past-the-last characters, rising."""
    # Words are looked for twice: kept, those of a long document would take many times its size.
    within = {
        word[0]
        for sentence in sentences
        for word in islice(_WORD.finditer(sentence), 1, None)
        if word[0][0].isupper()
    }
    found = []
    for sentence in sentences:
        taken: list[Span] = []
        for start, end in _candidates(sentence, list(_WORD.finditer(sentence)), within):
            at = bisect_left(taken, (start, end))
            if (at == 0 or taken[at - 1][1] <= start) and (at == len(taken) or end <= taken[at][0]):
                taken.insert(at, (start, end))
        found.append(taken)
    return found


def _candidates(sentence: str, words: Sequence[re.Match[str]], within: set[str]) -> Iterator[Span]:
    """What may be a chunk, the better kinds first."""
    for match in _QUOTED.finditer(sentence):
        start, end = match.span(match.lastindex or 0)
        name = sentence[start:end]
        inner = _WORD.findall(name)
        if 0 < len(inner) <= _MAX_QUOTED_WORDS and name == name.strip():
            yield start, end
    for match in _MEASURED.finditer(sentence):
        start, end = match.span(1)
        if start >= 0 and not sentence[max(0, start - 1) : start].isalnum():
            yield start, end
    yield from _runs(sentence, words, within)


def _runs(sentence: str, words: Sequence[re.Match[str]], within: set[str]) -> Iterator[Span]:
    """Capitalised words that follow each other with nothing but white space between."""
    start = end = -1  # of the run so far
    last = -1  # the end of the last word that may lie inside a run
    for number, word in enumerate(words):
        text = word[0]
        follows = start >= 0 and sentence[last : word.start()].isspace()
        if not follows and start >= 0:
            yield start, end
            start = -1
        if text[0].isupper() and (number > 0 or text in within):
            start = word.start() if start < 0 else start
            end = last = word.end()
        elif start >= 0 and text.isdecimal():
            end = last = word.end()
        elif start >= 0 and text in _SMALL:
            last = word.end()
        elif start >= 0:
            yield start, end
            start = -1
    if start >= 0:
        yield start, end
