"""Results of a tokenizer: tokens of one text, and sequences for the model, possibly truncated."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, overload

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, LengthError, SettingsError, did_you_mean
from ..utils.formatting import format_count
from .definition import Origin, Side

Ints = NDArray[np.int32]
Truncation = Literal["error", "longest_first", "first", "second"]
TokensT = TypeVar("TokensT", "Segment", Ints)


@dataclass(frozen=True, eq=False, slots=True)
class Segment:
    """The tokens of one text, without special tokens."""

    input_ids: Ints  # int32 [tokens]
    offsets: Ints  # int32 [tokens, 2]: first character in the text (or word), and one after last
    word_ids: Ints  # int32 [tokens]: the number of the word to which a token belongs

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, part: slice) -> Segment:
        return Segment(self.input_ids[part], self.offsets[part], self.word_ids[part])

    def select(self, mask: NDArray[np.bool_]) -> Segment:
        """Return the tokens where a mask, bool [tokens], is true."""
        return Segment(self.input_ids[mask], self.offsets[mask], self.word_ids[mask])


@dataclass(frozen=True, eq=False, slots=True)
class Encoding:
    """One sequence for the model: in BERT `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    Attributes:
        input_ids: int32 [tokens].
        token_type_ids: int8 [tokens]: in BERT, 0 for A and its special tokens, 1 for B and its.
        offsets: int32 [tokens, 2]: characters of the original text of the token's segment (of the
            word, if words were given); (0, 0) for special tokens.
        word_ids: int32 [tokens]: the number of the word within its segment; -1 for special tokens.
        special_tokens_mask: bool [tokens]: true for special tokens around the texts.
        truncated_tokens: the number of tokens that were truncated.
    """

    input_ids: Ints
    token_type_ids: NDArray[np.int8]
    offsets: Ints
    word_ids: Ints
    special_tokens_mask: NDArray[np.bool_]
    truncated_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """The number of tokens, special ones included."""
        return len(self.input_ids)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """An array by its name: `encoding["input_ids"]`.

        Raises:
            KeyError: there is no such array.
        """
        return _array(self, name)

    def __repr__(self) -> str:
        shown = np.array2string(self.input_ids, separator=", ", threshold=12, edgeitems=5)
        cut = f", truncated_tokens={self.truncated_tokens}" if self.truncated_tokens else ""
        return f"Encoding({format_count(self.num_tokens, 'token')}, input_ids={shown}{cut})"


@dataclass(frozen=True, eq=False, slots=True)
class TokenIds:
    """The ids of one text's sequence, without the other arrays of `Encoding`."""

    input_ids: Ints  # int32 [tokens]
    truncated_tokens: int = 0  # the number of tokens that were truncated

    @property
    def token_type_ids(self) -> Ints:
        """int32 [tokens]: type 0, as of any single text."""
        return np.zeros_like(self.input_ids)

    @property
    def num_tokens(self) -> int:
        """The number of tokens, special ones included."""
        return len(self.input_ids)


@dataclass(frozen=True, eq=False, slots=True)
class Encodings:
    """The sequences of several texts, of different lengths: nothing is padded.

    `encodings[0]` is the first text's `Encoding`; `encodings.input_ids`, like
    `encodings["input_ids"]`, is the list of all texts' ids. `Packed.from_arrays` packs them.
    """

    rows: tuple[Encoding, ...]  # each text's encoding

    @property
    def input_ids(self) -> list[Ints]:
        """int32 [tokens] of each text; the other arrays of `Encoding` likewise."""
        return [row.input_ids for row in self.rows]

    @property
    def token_type_ids(self) -> list[NDArray[np.int8]]:
        return [row.token_type_ids for row in self.rows]

    @property
    def offsets(self) -> list[Ints]:
        return [row.offsets for row in self.rows]

    @property
    def word_ids(self) -> list[Ints]:
        return [row.word_ids for row in self.rows]

    @property
    def special_tokens_mask(self) -> list[NDArray[np.bool_]]:
        return [row.special_tokens_mask for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Encoding]:
        return iter(self.rows)

    @overload
    def __getitem__(self, key: int) -> Encoding: ...
    @overload
    def __getitem__(self, key: str) -> list[NDArray[Any]]: ...
    def __getitem__(self, key: int | str) -> Encoding | list[NDArray[Any]]:
        if isinstance(key, str):
            return [_array(row, key) for row in self.rows]
        return self.rows[key]

    def __repr__(self) -> str:
        tokens = format_count(sum(row.num_tokens for row in self), "token")
        return f"Encodings({format_count(len(self), 'text')}, {tokens})"


_ARRAYS = ("input_ids", "token_type_ids", "offsets", "word_ids", "special_tokens_mask")


def _array(encoding: Encoding, name: str) -> NDArray[Any]:
    if name not in _ARRAYS:
        raise KeyError(f"an encoding has no {name!r}; it has {', '.join(_ARRAYS)}")
    found: NDArray[Any] = getattr(encoding, name)
    return found


def concatenate_segments(parts: Sequence[Segment]) -> Segment:
    """The tokens of a text, from those of its parts; there must be at least one."""
    if len(parts) == 1:
        return parts[0]
    return Segment(
        np.concatenate([part.input_ids for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.word_ids for part in parts]),
    )


def special_tokens(ids: Sequence[int]) -> Segment:
    """A segment of special tokens."""
    count = len(ids)
    return Segment(
        np.array(ids, np.int32), np.zeros((count, 2), np.int32), np.full(count, -1, np.int32)
    )


def move_offsets(segment: Segment, origins: Origin | list[Origin]) -> None:
    """Change offsets in a corrected text (or in each word of a list) to those in the original."""
    if origins is None or (isinstance(origins, list) and all(o is None for o in origins)):
        return
    for index, (start, end) in enumerate(segment.offsets.tolist()):
        origin = origins[segment.word_ids[index]] if isinstance(origins, list) else origins
        if origin is None:
            continue
        if start == end:  # a space that is not in the text
            first = origin[min(start, len(origin) - 1)]
            segment.offsets[index] = first if origin.ndim == 1 else first[0]
        elif origin.ndim == 2:  # the first and the last source of each character
            segment.offsets[index] = origin[start, 0], origin[end - 1, 1]
        else:
            segment.offsets[index] = origin[start], origin[end - 1] + 1


def trim_offsets(
    segment: Segment, text: str | Sequence[str], marks: frozenset[int] = frozenset()
) -> None:
    """Remove white space and characters without width from both ends of the offsets.

    Args:
        segment: tokens, changed in place.
        text: their text, or its words.
        marks: the ids of pieces that stand for a space only; they get empty offsets.
    """
    words = [text] if isinstance(text, str) else text
    is_invisible = _invisible("".join(words))
    base = np.cumsum([0, *map(len, words)])[:-1]
    shift = np.zeros(len(segment), np.int64) if words is not text else base[segment.word_ids]
    starts, ends = (segment.offsets[:, side] + shift for side in (0, 1))
    # For each position: the next visible character, and the end of the last one before it.
    places = np.arange(len(is_invisible) + 1)
    seen = np.append(~is_invisible, True)
    onwards = np.minimum.accumulate(np.where(seen, places, len(is_invisible))[::-1])[::-1]
    before = np.maximum.accumulate(np.append(0, np.where(~is_invisible, places[1:], 0)))
    starts = np.minimum(onwards[starts], ends)
    ends = np.maximum(before[ends], starts)
    alone = np.isin(segment.input_ids, list(marks))
    segment.offsets[:, 0] = starts - shift
    segment.offsets[:, 1] = np.where(alone, starts, ends) - shift


def with_marks(offsets: Ints, text: str) -> Ints:
    """Extend offsets over the marks that follow their last character, if no token has these.

    Accents and vowel signs may be stripped before pieces are looked up; without this, the text
    selected by the offsets would lack them at its end.

    Args:
        offsets: int32 [tokens, 2], of all tokens of the text.
    """
    if text.isascii():
        return offsets
    extended_offsets = offsets.copy()
    behind = [*offsets[1:, 0].tolist(), len(text)]
    for index, (end, limit) in enumerate(zip(offsets[:, 1].tolist(), behind, strict=False)):
        for place, sign in enumerate(text[end:limit], end + 1):
            if not continues_letter(sign):
                break
            if sign not in _JOINERS:  # a joiner is included only if a mark follows
                extended_offsets[index, 1] = place
    return extended_offsets


_JOINERS = "\u200c\u200d"


def continues_letter(sign: str) -> bool:
    """Whether a character is an accent, a vowel sign or a joiner of the letter before it."""
    return unicodedata.category(sign).startswith("M") or sign in _JOINERS


def _invisible(text: str) -> NDArray[np.bool_]:
    """bool [characters]: which are white space, or have no width."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    different, place = np.unique(codes, return_inverse=True)
    return np.array([_is_invisible(chr(code)) for code in different], np.bool_)[place]


def _is_invisible(char: str) -> bool:
    return char.isspace() or (not char.isascii() and unicodedata.category(char) == "Cf")


def fit_segments(
    first: TokensT,
    second: TokensT | None,
    max_length: int,
    num_special: int,
    truncation: Truncation,
    side: Side,
    *,
    where: str,
) -> tuple[TokensT, TokensT | None]:
    """Truncate segments, or their ids, too long together with `num_special` special tokens.

    Raises:
        LengthError: `truncation` is `"error"`.
        DataError: the sequence is still too long after all that `truncation` allows.
        SettingsError: `truncation` is unknown.
    """
    valid = get_args(Truncation)
    if truncation not in valid:
        raise SettingsError(
            f"unknown truncation {truncation!r}", fix=did_you_mean(truncation, valid)
        )
    room = max_length - num_special
    tokens = len(first) + (0 if second is None else len(second))
    if truncation == "error":
        raise LengthError(
            f"{tokens + num_special} tokens, but at most {max_length} fit",
            where=where,
            fix="Shorten the text, choose a truncation, or use windows.",
        )
    if room < 0:
        raise DataError(f"max_length={max_length} has no room for the special tokens", where=where)
    if second is None:
        if truncation == "second":
            raise DataError("there is no second text to truncate", where=where)
        return truncate(first, room, side), None
    if truncation == "longest_first":
        keep_first, keep_second = longest_first(len(first), len(second), room)
    elif truncation == "first":
        keep_first, keep_second = room - len(second), len(second)
    else:
        keep_first, keep_second = len(first), room - len(first)
    if min(keep_first, keep_second) < 0:
        kept = "second" if truncation == "first" else "first"
        raise DataError(
            f"the {kept} text alone is longer than max_length={max_length}",
            where=where,
            fix="Truncate the other one, or the longest first.",
        )
    return truncate(first, keep_first, side), truncate(second, keep_second, side)


def truncate(tokens: TokensT, length: int, side: Side) -> TokensT:
    """Return the tokens of a segment, or their ids, after truncating it to `length` at a side."""
    return tokens[:length] if side == "right" else tokens[len(tokens) - length :]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths after removing tokens, one by one, from the longer segment until both fit.

    If both are equally long, the second is shortened.
    """
    if first + second <= room:
        return first, second
    if 2 * min(first, second) <= room:
        return (room - second, second) if first > second else (first, room - first)
    return room - room // 2, room // 2
