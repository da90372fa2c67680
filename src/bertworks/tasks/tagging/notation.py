"""How tables and published models write tags that mark spans, and conversion to one way.

A tag has a marker (the position of a word in its span) and the type of the span.

| notation | examples |
|---|---|
| marker first | `B-PER`, `B_PER`, `B:PER`, `B PER`, `b-per`, `BEGIN-PER`, `BPER` |
| marker last | `PER-B`, `PER_B`, `PER.I`, `PERB` |
| marker alone | `B`, `I`, `O`: the type is empty |
| type alone, with `O` | `PER`, `LOC`: adjacent words of one type are one span |

All markers of IOB1, IOB2, IOE1, IOE2, IOBES, BILOU, BMES, BMEWO and BMEWO+ are read. Brackets
around a tag (`<B-PER>`) are ignored. Some scripts for BERT label more than words: the rest of a
word (`X`), `[CLS]`, `[SEP]` and padding. These are no tags: what has them is neither trained nor
scored.

The result is written `B-PER`, with the markers B, I, E and S (see `tags.py`), and O.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ...errors import shorten_list
from .tags import OUTSIDE_TAG, join_tag, split_tag

_MARKERS: Mapping[str, str] = {
    **dict.fromkeys(("B", "BEG", "BEGIN", "BEGINNING", "START"), "B"),
    **dict.fromkeys(("I", "M", "IN", "INSIDE", "MID", "MIDDLE", "INTERMEDIATE"), "I"),
    **dict.fromkeys(("E", "L", "END", "LAST"), "E"),
    **dict.fromkeys(("S", "U", "W", "SINGLE", "SINGLETON", "UNIT", "WHOLE"), "S"),
}
"""The markers in capital letters, and the letters that they mean."""

_JOINT = r"(?:[^\w\s]|_| )"
_BRACKETS = re.compile(r"<(.+)>|\[(.+)\]|\((.+)\)|\{(.+)\}", re.DOTALL)
_SHORT_START = re.compile(rf"[A-Z]{{1,2}}{_JOINT}(.+)", re.DOTALL)
_USUAL = re.compile(r"[BIESLU]-.+", re.DOTALL)
# LingPipe's BMEWO+ also marks the words outside that are next to a span.
_OUTSIDE_OF_BMEWO = re.compile(r"(?:BB|EE|MM|WW)[-_]O(?:[-_].+)?", re.DOTALL)
_OUTSIDE_NAMES = frozenset({"O", "0", "OUT", "OUTSIDE", "OTHER", "NONE", "NULL", "NIL", "_", "-"})
_UNLABELLED = re.compile(
    r"X|\[(?:CLS|SEP|PAD|MASK|START|END)\]|<(?:CLS|SEP|PAD|MASK|START|STOP|END|s|/s)>",
    re.IGNORECASE,
)

_Position = Literal["first", "last", "alone", "joined first", "joined last", "none"]
_PATTERNS: Mapping[_Position, re.Pattern[str]] = {
    "first": re.compile(rf"(?P<marker>[A-Za-z]+){_JOINT}(?P<type>.+)", re.DOTALL),
    "last": re.compile(rf"(?P<type>.+){_JOINT}(?P<marker>[A-Za-z]+)", re.DOTALL),
    "alone": re.compile(r"(?P<marker>[A-Za-z]+)(?P<type>)"),
    "joined first": re.compile(r"(?P<marker>[BIMESLUW])(?P<type>\w{2,})"),
    "joined last": re.compile(r"(?P<type>\w{2,})(?P<marker>[BIMESLUW])"),
}
"""Where tags have their markers, in the order in which notations are tried."""
_WITHOUT_JOINT: tuple[_Position, ...] = ("joined first", "joined last")
_SCHEMES = (
    ("IO", "I"),
    ("BIO", "BI"),
    ("IOE", "IE"),
    ("IOBES", "BIES"),
    ("BILOU", "BILU"),
    ("BMES", "BMES"),
    ("BMEWO", "BMEW"),
)
"""Schemes by their markers: the first that has all markers of a table names them."""


@dataclass(frozen=True)
class Notation:
    """How a set of tags marks spans."""

    types: frozenset[str]  # the types of the spans; "" is the type of markers alone
    position: _Position  # of the marker
    markers: frozenset[str]  # as the tags have them, in capital letters
    example: str  # one of the tags
    is_usual: bool  # whether all tags are written as this package writes them
    unlabelled: tuple[str, ...] = ()  # tags such as `X` and `[CLS]`, which are no tags of words

    @property
    def has_markers(self) -> bool:
        """Whether tags have markers, and are not types alone."""
        return self.position != "none"

    @property
    def scheme(self) -> str:
        """The usual name of the scheme with these markers."""
        names = (name for name, letters in _SCHEMES if self.markers <= {*letters})
        return next(names, "marked with " + ", ".join(sorted(self.markers)))

    @property
    def text(self) -> str:
        """A short description for people: the scheme, and how a tag is written."""
        if not self.has_markers:
            text = f"types without markers ({self.example!r}); adjacent words of one are a span"
        else:
            text = f"{self.scheme} ({self.example!r})"
        if self.unlabelled:
            text += f"; words with {shorten_list(self.unlabelled)} are left out"
        return text

    @property
    def note(self) -> str | None:
        """What was recognised, unless tags are written as usual: `B-PER`, `I-PER`."""
        return None if self.is_usual else f"tags mark spans: {self.text}"

    def types_in(self, tags: Iterable[str]) -> frozenset[str]:
        """The types of other tags that are written in the same way."""
        if not self.has_markers:
            return frozenset(tag for tag in tags if _is_name(tag) and not _is_outside(tag))
        parts = (_split(tag, self.position) or _split(tag, "alone") for tag in tags)
        return frozenset(part[1] for part in parts if part is not None)


def find_notation(tags: Iterable[str]) -> Notation | None:
    """How tags mark spans; None if they are plain tags, such as parts of speech.

    Args:
        tags: all tags that occur, or all labels of a model.
    """
    unlabelled = tuple(sorted(tag for tag in {*tags} if _UNLABELLED.fullmatch(tag)))
    words = sorted({*tags} - {*unlabelled})
    span_tags = [tag for tag in words if not _is_outside(tag)]
    if not span_tags:
        return None
    for position in _PATTERNS:
        parts = [_split(tag, position) or _split(tag, "alone") for tag in span_tags]
        pairs = [part for part in parts if part is not None]
        if len(pairs) < len(span_tags) or (
            position != "alone" and not any(kind for _, kind in pairs)
        ):
            continue
        markers = frozenset(marker for marker, _ in pairs)
        if position in _WITHOUT_JOINT:
            mark_spans = len(span_tags) < len(words) and _share_a_type(pairs)
        else:
            mark_spans = _mark_spans(markers) or all(map(_USUAL.fullmatch, span_tags))
        if mark_spans:
            types = frozenset(kind for _, kind in pairs)
            usual_tags = {tag for tag in words if tag == OUTSIDE_TAG or split_tag(tag)[1]}
            is_usual = len(usual_tags) == len(words) and not unlabelled
            return Notation(types, position, markers, span_tags[0], is_usual, unlabelled)
    names = [tag for tag in words if tag.upper() != OUTSIDE_TAG]
    # With letters alone, as in some tag sets of parts of speech, O may be a tag like the others.
    has_outside = len(names) < len(words)
    is_odd = _find_start_tag(names) is not None or _unknown_markers(names)
    if has_outside and not is_odd and all(map(_is_name, names)):
        return Notation(frozenset(names), "none", frozenset(), names[0], False, unlabelled)
    return None


def _mark_spans(markers: Collection[str]) -> bool:
    """Whether markers are of spans. By chance, other tags look like marked ones: NOUN-S and VERB-S,
    start-date and end-date."""
    letters = {_MARKERS[marker] for marker in markers}
    are_words = any(len(marker) > 1 for marker in markers)
    return letters >= {*"BI"} if are_words else bool(letters & {*"BI"})


def _share_a_type(pairs: Iterable[tuple[str, str]]) -> bool:
    """Whether a type has several markers, which only spans of several words have: BPER, IPER."""
    letters: dict[str, set[str]] = {}
    for marker, kind in pairs:
        letters.setdefault(kind, set()).add(_MARKERS[marker])
    return any(len(of_type & {*"BIE"}) > 1 for of_type in letters.values())


def _is_outside(tag: str) -> bool:
    tag = _strip_brackets(tag)
    return tag.upper() in _OUTSIDE_NAMES or _OUTSIDE_OF_BMEWO.fullmatch(tag) is not None


def _is_name(tag: str) -> bool:
    """Whether a tag may be the name of a type."""
    return len(tag) > 1 and tag[0].isalpha()


def _split(tag: str, position: _Position) -> tuple[str, str] | None:
    """The marker, in capital letters, and the type of a tag; None if it has no marker there."""
    match = _PATTERNS[position].fullmatch(_strip_brackets(tag))
    if match is None or (marker := match["marker"].upper()) not in _MARKERS:
        return None
    return marker, match["type"]


def _strip_brackets(tag: str) -> str:
    """A tag without the brackets that enclose it."""
    match = _BRACKETS.fullmatch(tag)
    return tag if match is None else next(filter(None, match.groups()))


def is_unlabelled(tag: str, types: Collection[str]) -> bool:
    """Whether a tag of spans of these types says that its word has none, such as `X`, `[CLS]`."""
    return tag not in types and _UNLABELLED.fullmatch(tag) is not None


@lru_cache(maxsize=4096)
def read_tag(tag: str, types: frozenset[str]) -> str | None:
    """A tag as this package writes it: `B-PER`, or `O`; None if it is no tag of these types."""
    if tag in types and tag:
        return join_tag("I", tag)
    for position in _PATTERNS:
        parts = _split(tag, position)
        if parts is not None and parts[1] in types:
            return join_tag(_MARKERS[parts[0]], parts[1])
    return OUTSIDE_TAG if _is_outside(tag) else None


def count_types(counts: Mapping[str, int], types: frozenset[str]) -> Counter[str]:
    """How many words have a tag of each type, given how often each tag occurs."""
    kinds: Counter[str] = Counter()
    for tag, count in counts.items():
        kind = split_tag(read_tag(tag, types) or OUTSIDE_TAG)[1]
        kinds.update({kind: count} if kind else {})
    return kinds


def drop_unlabelled_words(
    types: Collection[str], tags: Sequence[str], *others: Sequence[str]
) -> tuple[list[str], ...]:
    """Tags, and sequences of their words, without the words whose tag says that they have none."""
    indices = [index for index, tag in enumerate(tags) if not is_unlabelled(tag, types)]
    return tuple([sequence[index] for index in indices] for sequence in (tags, *others))


def find_span_warning(counts: Mapping[str, int]) -> str | None:
    """A note that tags which are read as plain tags look like spans; None if they do not.

    Args:
        counts: how often each tag occurs.
    """
    names = [tag for tag in counts if not _is_outside(tag) and not _UNLABELLED.fullmatch(tag)]
    if not names or find_notation(counts) is not None:
        return None
    start_tag = _find_start_tag(names)
    unmarked_tags = [tag for tag in names if not (_split(tag, "first") or _split(tag, "last"))]
    if start_tag and unmarked_tags and start_tag not in unmarked_tags:
        return (
            "tags are read one by one, not as spans, since these mark none: "
            f"{shorten_list(unmarked_tags)}"
        )
    in_brackets = any(tag.startswith("(") for tag in names) and any("*" in tag for tag in names)
    mostly_outside = counts.get(OUTSIDE_TAG, 0) > sum(counts.values()) / 2
    if (
        start_tag
        or in_brackets
        or mostly_outside
        or (OUTSIDE_TAG in counts and _unknown_markers(names))
    ):
        return (
            "tags are read one by one, though they look like spans in an unknown notation: "
            f"{shorten_list(names)}; write B-PER, I-PER, O"
        )
    return None


def _unknown_markers(tags: Collection[str]) -> bool:
    """Whether tags other than O seem to have markers that are not known: DB-PER and HB-PER."""
    ends = [match[1] for tag in tags if (match := _SHORT_START.fullmatch(tag))]
    return len({*ends}) < len(ends)


def _find_start_tag(tags: Collection[str]) -> str | None:
    """A tag that begins a span, in any notation, also without a joint (BPER together with IPER)."""
    for tag in tags:
        splits = _split(tag, "first"), _split(tag, "last")
        if any(part is not None and part[0] in ("B", "BEGIN") for part in splits):
            return tag
    for position in _WITHOUT_JOINT:
        of_tags = {tag: _split(tag, position) for tag in tags}
        kinds = {part[1] for part in of_tags.values() if part is not None and part[0] in "IM"}
        for tag, part in of_tags.items():
            if part is not None and part[0] == "B" and part[1] in kinds:
                return tag
    return None
