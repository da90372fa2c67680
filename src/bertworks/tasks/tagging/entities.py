"""Texts with marked entities, as annotation tools write them: they become words with tags.

    {"text": "Obama spoke.", "label": [[0, 5, "PER"]]}                       doccano
    {"text": …, "spans": [{"start": 0, "end": 5, "label": "PER"}]}           Prodigy
    {"text": …, "label": [{"start": 0, "end": 5, "labels": ["PER"]}]}        Label Studio (JSON-MIN)
    {"text": …, "entities": [{"start": 0, "end": 5, "type": "PER"}]}         `predict` of a tagger

Positions are characters (Unicode code points, from 0); the end is excluded. Annotation tools that
run in browsers count an emoji, or another character above U+FFFF, as two (units of UTF-16): such
positions are converted if an entity has its text too; if not, they are an error where they show.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

from ...data.rows import Row, is_missing, is_unmarked, parse_json_cell, text_of
from ...data.spans import parse_spans
from ...errors import DataError, truncate_repr
from .tags import OUTSIDE_TAG, join_tag
from .text_words import CharSpan, split_words

TEXT = "text"
"""The column of the texts."""

_STARTS = ("start", "start_offset", "begin")
_ENDS = ("end", "end_offset")
_TYPES = ("label", "labels", "type", "entity", "entity_group", "entity_type", "tag")


@dataclass(frozen=True)
class TaggedWords:
    """The words of a labelled row and their tags.

    Attributes:
        words, tags: as many of both.
        num_widened: how many of a text's entities begin or end inside a word, which then has their
            tag as a whole.
    """

    words: list[str]
    tags: list[str]
    num_widened: int = 0


class _Utf16Units:
    """A text, and where its characters begin in UTF-16."""

    def __init__(self, text: str) -> None:
        self.text = text

    def characters(self, span: CharSpan) -> CharSpan:
        """The characters of a span whose positions count units of UTF-16."""
        return self._character(span[0]), self._character(span[1])

    def _character(self, unit: int) -> int:
        if unit <= 0:
            return unit
        past_end = max(0, unit - self._starts[-1])
        return bisect_right(self._starts, unit - past_end) - 1 + past_end

    @cached_property
    def _starts(self) -> list[int]:
        return [*accumulate((1 + (char > "\uffff") for char in self.text), initial=0)]


def holds_entities(row: Row, column: str) -> bool:
    """Whether a row is a text with the entities in a column, and not a list of words with tags."""
    entities, text = _entities_of(row, column), row.get(TEXT, [])
    return (
        (isinstance(text, str) or is_missing(text))
        and isinstance(entities, (list, tuple))
        and all(isinstance(entity, (Mapping, list, tuple)) for entity in entities)
    )


def read_tagged_text(row: Row, column: str, where: str) -> TaggedWords:
    """Return the words of a text with entities, and their tags in BIO.

    Raises:
        DataError: an entity has no position or no type, lies outside the text or between its words,
            or overlaps another.
    """
    text = text_of(row, TEXT, where)
    types: dict[CharSpan, str] = {}
    units = _Utf16Units(text)
    entities = [_read_entity(entity, units, where) for entity in _entities_of(row, column)]
    for span, kind in entities:
        if types.setdefault(span, kind) != kind:
            what = f"the entity at {list(span)} has two types, {types[span]!r} and {kind!r}"
            raise DataError(what, where=where, fix="Keep one of them.")
    _check_units([*types], units, where)
    spans = parse_spans([*types], text, where=where)
    words = split_words(text, spans)
    firsts, stops = [first for first, _ in words], [stop for _, stop in words]
    tags = [OUTSIDE_TAG] * len(words)
    num_widened = 0
    for start, end in spans:
        indices = range(bisect_right(stops, start), bisect_left(firsts, end))
        if not indices or tags[indices[0]] != OUTSIDE_TAG:
            what = f"the entity {truncate_repr(text[start:end])} at [{start}, {end}] has no word"
            raise DataError(what, where=where, fix="Remove it, or join it with its neighbour.")
        for letter, index in zip("B" + "I" * len(indices), indices, strict=False):
            tags[index] = join_tag(letter, types[start, end])
        first, last = words[indices[0]][0], words[indices[-1]][1]
        num_widened += len(text[first:last].strip()) > len(text[start:end].strip())
    return TaggedWords([text[first:stop] for first, stop in words], tags, num_widened)


def _entities_of(row: Row, column: str) -> Any:
    return [] if is_unmarked(row, column) else parse_json_cell(row.get(column), list, object)


def _read_entity(entity: Any, units: _Utf16Units, where: str) -> tuple[CharSpan, str]:
    """Return the position and type of an entity of a text."""
    own_text = None
    if isinstance(entity, Mapping):
        start, end, kind = (_value(entity, names) for names in (_STARTS, _ENDS, _TYPES))
        own_text = entity.get(TEXT)
    else:
        start, end, kind = entity if len(entity) == 3 else (None, None, None)
    if isinstance(kind, Sequence) and not isinstance(kind, str) and len(kind) == 1:
        kind = kind[0]
    if not (isinstance(kind, str) and kind.strip()):
        raise DataError(
            f"the entity {truncate_repr(entity)} has no start, end and type",
            where=where,
            fix='Write it as [0, 5, "PER"] or {"start": 0, "end": 5, "label": "PER"}.',
        )
    if isinstance(own_text, str) and isinstance(start, int) and isinstance(end, int):
        start, end = _locate(own_text, (start, end), units, where)
    return (start, end), kind.strip()


def _locate(own_text: str, span: CharSpan, units: _Utf16Units, where: str) -> CharSpan:
    """Return the characters of an entity of which the text is known too.

    Tools write it in other cases, with escaped line ends, or without what was added to whole words.

    Raises:
        DataError: another text is there.
    """
    own_form = _comparable(own_text)
    text = units.text
    if own_form in _comparable(text[slice(*span)]):
        return span
    converted = units.characters(span)
    if own_form == _comparable(text[slice(*converted)]):
        return converted
    raise DataError(
        f"at {[*span]} is {truncate_repr(text[slice(*span)])}, but the text of the entity is "
        f"{truncate_repr(own_text)}",
        where=where,
        fix="Correct its position or its text.",
    )


def _comparable(text: str) -> str:
    return " ".join(text.replace("\\n", " ").casefold().split())


def _check_units(spans: Sequence[CharSpan], units: _Utf16Units, where: str) -> None:
    """Raise a DataError if spans show that they count units of UTF-16.

    They do if one lies outside the text or ends inside a word, and none does so in such units.
    """
    text = units.text
    if (
        text.isascii()
        or max(text) <= "\uffff"
        or not all(isinstance(at, int) for at in chain(*spans))
    ):
        return
    index = _first_misfit(spans, text)
    char_spans = [units.characters(span) for span in spans]
    if index is None or _first_misfit(char_spans, text) is not None:
        return
    (start, end), (first, stop) = spans[index], char_spans[index]
    raise DataError(
        f"at [{start}, {end}] is {truncate_repr(text[start:end])}; in units of UTF-16, as "
        f"JavaScript counts, it would be {truncate_repr(text[first:stop])}",
        where=where,
        fix="Write the positions of entities in characters: an emoji is one.",
    )


def _first_misfit(spans: Sequence[CharSpan], text: str) -> int | None:
    """The first span that lies outside the text or else begins or ends inside a word, if any."""
    for index, (start, end) in enumerate(spans):
        if not 0 <= start < end <= len(text):
            return index
    words = split_words(text, spans)
    firsts = [first for first, _ in words]

    def is_inside_word(position: int) -> bool:
        number = bisect_left(firsts, position) - 1  # the last word that begins before it
        return number >= 0 and position < words[number][1]

    return next((i for i, span in enumerate(spans) if any(map(is_inside_word, span))), None)


def _value(entity: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((entity[name] for name in names if name in entity), None)
