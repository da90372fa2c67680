"""The words of a plain text, as a tagger reads them: one way for all who tag texts.

    text ─► pieces, as every task has them ─► words: what BERT's basic tokenization splits, except
                                              where the training data spells words otherwise

BERT's basic tokenization splits at white space, and puts punctuation and each ideograph apart.
Characters that it removes (soft hyphens, those without width) are in no piece. In scripts without
spaces, such as Thai or Japanese kana, words are not known, and each piece is one.

`Spellings` holds the words of the training data that this would split or join otherwise: "U.S.",
"n't", 北京, กรุงเทพ. In a text they are words again; of several, the longest from the left.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise, takewhile

import numpy as np

from ...text.definition import SPECIAL_PIECES, Origin
from ...text.encoding import Segment, continues_letter, with_marks
from ...text.tokenizer import Tokenizer
from ...text.wordpiece import Normalization, WordPieceDefinition, is_removed

_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_IDEOGRAPH = re.compile(f"[{_IDEOGRAPHS}]")
# Scripts that put no space between words: Thai, Lao, Burmese, Khmer, those of the Tai languages,
# Balinese, Javanese, kana; and ideographs.
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f"
    "\u3040-\u30ff\u31f0-\u31ff\ua980-\ua9ff\uaa60-\uaa7f\uff66-\uff9f"
    f"{_IDEOGRAPHS}]"
)
_CASED = Normalization(lowercase=False)
_DIGITS = re.compile(r"\d+")

CharSpan = tuple[int, int]
"""Characters `[start, end)` of a text."""


@dataclass(frozen=True)
class TextWords:
    """The words of a text."""

    segment: Segment  # the tokens, with offsets in the text and the numbers of these words
    char_spans: list[CharSpan]  # the characters of each word

    def words_in(self, text: str) -> list[str]:
        """The words as the text has them."""
        return [text[start:end] for start, end in self.char_spans]


@dataclass(frozen=True)
class _Unit:
    """A part of a text that no spelling splits."""

    start: int
    end: int
    name: str  # what is compared: without case where the tokenizer ignores it, any number is 0
    token: int  # the number of the word of BERT's basic tokenization that it is in
    is_joined: bool  # whether nothing is visible between it and the unit before


class Spellings:
    """Words of training data that BERT's basic tokenization would split, or not split off.

    Args:
        tokenizer: the model's.
        words: as returned by `find_spellings`.
    """

    def __init__(self, tokenizer: Tokenizer, words: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        names = (tuple(unit.name for unit in row) for row in _units(tokenizer, words))
        self._names = frozenset(names)
        self._longest: dict[str, int] = {}
        for row in self._names:
            self._longest[row[0]] = max(len(row), self._longest.get(row[0], 0))

    def read(self, texts: Sequence[str], *, where: Sequence[str] | None = None) -> list[TextWords]:
        """The tokens and words of each text.

        Args:
            where: the name of each text in errors; if omitted, `row 1` and so on.

        Raises:
            DataError: a row is not a text, or has a lone surrogate.
        """
        rows = _units(self._tokenizer, texts, where)
        word_ranges = [self._find_spelled_words(units) for units in rows]
        spaced_texts = [
            _insert_spaces(text, units, words)
            for text, units, words in zip(texts, rows, word_ranges, strict=True)
        ]
        segments = self._tokenizer.segments([text for text, _ in spaced_texts], where=where)
        for segment, (_, origin) in zip(segments, spaced_texts, strict=True):
            _move_offsets(segment, origin)
        return [_group_pieces(*row) for row in zip(texts, segments, rows, word_ranges, strict=True)]

    def _find_spelled_words(self, units: Sequence[_Unit]) -> list[range]:
        """The units of each word that is spelled as in the training data."""
        words: list[range] = []
        index = 0
        while index < len(units):
            run = units[index : index + self._longest.get(units[index].name, 0)]
            names = [unit.name for unit in takewhile(lambda unit: unit.is_joined, run[1:])]
            stop = index + min(len(run), 1 + len(names))
            while stop > index and (run[0].name, *names[: stop - index - 1]) not in self._names:
                stop -= 1
            if stop > index:
                words.append(range(index, stop))
            index = max(stop, index + 1)
        return words


def find_spellings(words: Iterable[str]) -> tuple[str, ...]:
    """The words that a plain text would not give again as words, sorted, each once.

    Numbers are written 0, since other numbers are spelled alike.
    """
    unusual = [word for word in {*words} if not word.isalnum() or _WITHOUT_SPACES.search(word)]
    spellings = set()
    for units in _units(_splitter(_CASED), unusual):
        is_one = all(unit.is_joined for unit in units[1:])
        if is_one and (len(units) > 1 or (units and _is_split_off(units[0].name))):
            spellings.add("".join(unit.name for unit in units))
    return tuple(sorted(spellings))


def split_words(text: str, spans: Iterable[CharSpan]) -> list[CharSpan]:
    """Return the characters of each word of a text that was marked by people.

    Words are those of BERT's basic tokenization; in scripts without spaces they also end where a
    span begins or ends, and such words are spellings of the training data.
    """
    borders = sorted({*chain(*spans)})
    words: list[CharSpan] = []
    token = -1
    for unit in _units(_splitter(_CASED), [text])[0]:
        if unit.token == token and (
            bisect_left(borders, words[-1][1]) == bisect_right(borders, unit.start)
        ):
            words[-1] = words[-1][0], unit.end
        else:
            words.append((unit.start, unit.end))
        token = unit.token
    return words


def _is_split_off(name: str) -> bool:
    """Whether a unit is a word only where the training data has it as one."""
    return _WITHOUT_SPACES.match(name) is not None and _IDEOGRAPH.match(name) is None


def _units(
    tokenizer: Tokenizer, texts: Sequence[str], where: Sequence[str] | None = None
) -> list[list[_Unit]]:
    """The units of each text: words of BERT's basic tokenization, and each character of a script
    without spaces, with its marks."""
    is_bert = isinstance(tokenizer.definition, WordPieceDefinition)
    rows = _splitter(tokenizer.normalization if is_bert else _CASED).segments(texts, where=where)
    return [_units_of(text, row, tokenizer) for text, row in zip(texts, rows, strict=True)]


@lru_cache(maxsize=8)
def _splitter(normalization: Normalization) -> Tokenizer:
    """BERT's tokenizer without a vocabulary: each word of its basic tokenization is one token."""
    return Tokenizer(WordPieceDefinition(SPECIAL_PIECES, normalization=normalization))


def _units_of(text: str, tokens: Segment, tokenizer: Tokenizer) -> list[_Unit]:
    units: list[_Unit] = []
    last = 0
    for token, span in enumerate(tokens.offsets.tolist()):
        for start, end in _split_at_characters(text, *span):
            name = _name_of(text[start:end], lower=tokenizer.lowercase)
            is_joined = all(map(is_removed, text[last:start]))
            units.append(_Unit(start, end, name, token, is_joined))
            last = end
    return units


def _split_at_characters(text: str, start: int, end: int) -> list[CharSpan]:
    """Split a word before and after each character of a script without spaces."""
    if text.isascii() or not _WITHOUT_SPACES.search(text, start, end):
        return [(start, end)]
    spans: list[CharSpan] = []
    is_over = True  # whether a part ends before the next character
    for index in range(start, end):
        if spans and (continues_letter(text[index]) or is_removed(text[index])):
            spans[-1] = spans[-1][0], index + 1
            continue
        is_alone = _WITHOUT_SPACES.match(text[index]) is not None
        if is_over or is_alone:
            spans.append((index, index + 1))
        else:
            spans[-1] = spans[-1][0], index + 1
        is_over = is_alone
    return spans


def _name_of(text: str, *, lower: bool) -> str:
    visible = "".join(sign for sign in text if not is_removed(sign))
    name = unicodedata.normalize("NFC", _DIGITS.sub("0", visible)).replace("\u2019", "'")
    return name.lower() if lower else name


def _insert_spaces(text: str, units: Sequence[_Unit], words: Sequence[range]) -> tuple[str, Origin]:
    """Put spaces around the words that BERT's basic tokenization would not split off.

    Returns:
        The text, and the original position of each of its characters; None if it is unchanged.
    """
    borders = {border for word in words for border in (word.start, word.stop)}
    breaks = [
        units[index].start
        for index in sorted(borders - {0, len(units)})
        if units[index].token == units[index - 1].token
    ]
    if not breaks:
        return text, None
    positions = np.insert(np.arange(len(text)), breaks, breaks)
    parts = [text[start:end] for start, end in pairwise([0, *breaks, len(text)])]
    return " ".join(parts), positions


def _move_offsets(segment: Segment, origin: Origin) -> None:
    """Change offsets in a spaced text to those in the text."""
    if origin is None:
        return
    origin = np.append(origin, origin[-1] + 1)
    starts, ends = segment.offsets.T.copy()
    segment.offsets[:, 0] = origin[starts]
    segment.offsets[:, 1] = np.where(ends > starts, origin[ends - 1] + 1, origin[starts])


def _group_pieces(
    text: str, segment: Segment, units: Sequence[_Unit], word_ranges: Sequence[range]
) -> TextWords:
    """Group the pieces of a text to words."""
    tokens = np.full(len(text), -1)  # the word of BERT's basic tokenization of each character
    for unit in units:
        tokens[unit.start : unit.end] = unit.token
    spellings = np.full(len(text), -1)  # the word as spelled in the training data
    for number, word in enumerate(word_ranges):
        spellings[units[word[0]].start : units[word[-1]].end] = number

    def continues_word(last: int, first: int) -> bool:
        """Whether a piece that begins at `first` is in the word of a piece that ends at `last`."""
        if first <= last or spellings[first] != spellings[last] or spellings[first] >= 0:
            return first <= last or spellings[first] == spellings[last]
        is_split = _WITHOUT_SPACES.match(text[first]) or _WITHOUT_SPACES.match(text[last])
        return tokens[first] == tokens[last] and (not is_split or continues_letter(text[first]))

    numbers: list[int] = []
    char_spans: list[CharSpan] = []
    for piece, (start, end) in enumerate(segment.offsets.tolist()):
        visible = start + np.flatnonzero(tokens[start:end] >= 0)
        if not len(visible):  # it stands for a space, or for what BERT removes
            continue
        first, stop = int(visible[0]), int(visible[-1]) + 1
        if char_spans and continues_word(char_spans[-1][1] - 1, first):
            char_spans[-1] = char_spans[-1][0], max(stop, char_spans[-1][1])
        else:
            char_spans.append((first, stop))
        # Pieces without a visible character belong to the next word, at the end to the last one.
        numbers += [len(char_spans) - 1] * (piece + 1 - len(numbers))
    if not char_spans:
        return TextWords(segment[:0], [])
    numbers += [len(char_spans) - 1] * (len(segment) - len(numbers))
    word_ids = np.array(numbers, np.int32)
    with_accents = with_marks(np.array(char_spans, np.int32), text).tolist()
    return TextWords(
        Segment(segment.input_ids, segment.offsets, word_ids),
        [(start, end) for start, end in with_accents],
    )
