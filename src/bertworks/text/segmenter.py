"""Split texts into pieces with the library, a portion at a time, with offsets in the raw text.

The library keeps some hundred bytes per character until all texts of a call are tokenised. So it
gets a few texts at a time, and a long text is split where that changes no token.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import tokenizers

from ..errors import DataError, row_name
from .definition import Definition, Origin
from .encoding import Ints, Segment, concatenate_segments, move_offsets, trim_offsets
from .tree import TreeDefinition
from .wordpiece import WordPieceDefinition

LONGEST = 1 << 16
"""After this many characters, a text is split at the next possible place."""

_CHUNK_CHARACTERS = 1 << 19  # about how many characters the library gets in one call
_LONG_WORD = re.compile(f"[A-Za-z0-9]{{{LONGEST},}}")


class Portion(NamedTuple):
    """A part of a text."""

    row: int  # the index of the text
    start: int  # the number of characters of the text before the part
    text: str | list[str]  # the part; or the words of a text, which are never split
    gap: int = 0  # the character of the part before which characters are left out
    missing: int = 0  # how many are left out, from the middle of a long word


class Segmenter:
    """Splits texts as a definition says; the library's tokenizers are built when first used.

    Args:
        definition: the tokenizer's pieces and settings.
    """

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self._libraries: dict[tuple[bool, bool], tokenizers.Tokenizer] = {}

    def segments(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        *,
        typed_mask: bool = False,
        where: Sequence[str] | None = None,
    ) -> list[Segment]:
        """See `Tokenizer.segments`."""
        names = _names_of_rows(texts, where)
        split = len(texts) > 0 and isinstance(texts[0], (list, tuple))
        rows: list[str | list[str]] = []
        origins_of_rows: list[Origin | list[Origin]] = []
        for row, name in zip(texts, names, strict=True):
            if split:
                if not isinstance(row, (list, tuple)):
                    raise DataError("not a list of words, like the rows before", where=name)
                words = [self.definition.correct(word, where=name) for word in row]
                rows.append([word for word, _ in words])
                origins_of_rows.append([origin for _, origin in words])
            else:
                text, origin = self.definition.correct(cast(str, row), where=name)
                rows.append(text)
                origins_of_rows.append(origin)
        library = self._library(typed_mask=typed_mask, split=split)
        encode = partial(library.encode_batch, is_pretokenized=split)
        parts: list[list[Segment]] = [[] for _ in rows]
        for part, encoding in self._encode_portions(rows, encode, may_cut=not typed_mask):
            segment = Segment(
                self._ids(encoding),
                np.array(encoding.offsets, np.int32).reshape(-1, 2),
                np.array(encoding.word_ids, np.int32),
            )
            parts[part.row].append(_of_text(segment, part, parts[part.row]))
        segments = [concatenate_segments(part) for part in parts]
        for segment, origins in zip(segments, origins_of_rows, strict=True):
            move_offsets(segment, origins)
        if isinstance(self.definition, TreeDefinition):
            for segment, row in zip(segments, texts, strict=True):
                trim_offsets(segment, row, self.definition.marks)
        unknown = self.definition.unknown_id
        if unknown is not None:
            segments = [segment.select(segment.input_ids != unknown) for segment in segments]
        return segments

    def piece_ids(self, texts: Sequence[str], *, where: Sequence[str] | None = None) -> list[Ints]:
        """See `Tokenizer.piece_ids`."""
        names = _names_of_rows(texts, where)
        texts_to_split = [
            self.definition.correct(text, where=name)[0]
            for text, name in zip(texts, names, strict=True)
        ]
        parts: list[list[Ints]] = [[] for _ in texts_to_split]
        for part, encoding in self._encode_portions(
            texts_to_split, self._library().encode_batch_fast
        ):
            parts[part.row].append(self._ids(encoding))
        ids = [part[0] if len(part) == 1 else np.concatenate(part) for part in parts]
        unknown = self.definition.unknown_id
        return ids if unknown is None else [row[row != unknown] for row in ids]

    def _ids(self, encoding: tokenizers.Encoding) -> Ints:
        ids = np.array(encoding.ids, np.int32)
        own_ids = self.definition.library_ids
        return ids if own_ids is None else own_ids[ids]

    def _encode_portions(
        self,
        rows: Sequence[str | list[str]],
        encode: Callable[..., list[tokenizers.Encoding]],
        *,
        may_cut: bool = True,
    ) -> Iterator[tuple[Portion, tokenizers.Encoding]]:
        """Yield the portions of texts, each with the library's encoding."""
        definition = self.definition
        longest_word = sys.maxsize
        # An added piece may be inside a word, and split it into shorter ones.
        if isinstance(definition, WordPieceDefinition) and not definition.added:
            longest_word = definition.max_word_characters
        breaks = definition.breaks if may_cut else None
        for group in group_portions(portions(rows, breaks, longest_word)):
            texts = [part.text for part in group]
            try:
                encodings = encode(texts, add_special_tokens=False)
            except Exception as error:
                from .word_splitters import SplitWordsDefinition, SplitWordsTree

                if not isinstance(definition, SplitWordsDefinition | SplitWordsTree):
                    raise
                # The library turns an error of a word splitter into a bare Exception.
                raise DataError(
                    f"words cannot be split ({error})", where=str(texts[0])[:40]
                ) from None
            yield from zip(group, encodings, strict=True)

    def _library(self, *, typed_mask: bool = False, split: bool = False) -> tokenizers.Tokenizer:
        key = typed_mask, split
        if key not in self._libraries:
            if typed_mask and self.definition.roles.mask is None:
                raise DataError("the tokenizer has no mask token")
            self._libraries[key] = self.definition.library(typed_mask=typed_mask, split=split)
        return self._libraries[key]


def portions(
    rows: Sequence[str | list[str]], breaks: re.Pattern[str] | None, longest_word: int
) -> Iterator[Portion]:
    """Yield the portions of texts, in order.

    Args:
        rows: texts, or lists of words.
        breaks: matches a character before which a text may be split; None: texts stay whole.
        longest_word: a word with more characters is unknown, whatever they are. So of a word longer
            than a portion, only the first `longest_word + 1` characters are kept.
    """
    for number, row in enumerate(rows):
        if breaks is None or isinstance(row, list):
            yield Portion(number, 0, row)
            continue
        start, is_over = 0, False
        while not is_over:
            match = breaks.search(row, start + LONGEST)
            end = match.start() if match else len(row)
            part = row[start:end]
            word = _LONG_WORD.search(part) if len(part) > LONGEST else None
            if word is None or len(word[0]) <= longest_word:
                yield Portion(number, start, part)
            else:
                gap = word.start() + longest_word + 1
                rest = part[:gap] + part[word.end() :]
                yield Portion(number, start, rest, gap, word.end() - gap)
            start, is_over = end, end == len(row)


def group_portions(parts: Iterable[Portion]) -> Iterator[list[Portion]]:
    """Group portions, in order, into lists for one call of the library each."""
    group: list[Portion] = []
    size = 0
    for part in parts:
        group.append(part)
        size += len(part.text) if isinstance(part.text, str) else sum(map(len, part.text))
        if size >= _CHUNK_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _of_text(segment: Segment, part: Portion, previous: Sequence[Segment]) -> Segment:
    """The tokens of a portion with positions in the whole text; `previous`: those before it."""
    offsets = segment.offsets + np.where(segment.offsets >= part.gap, part.missing, 0)
    last = next((one for one in reversed(previous) if len(one)), None)
    words = 0 if last is None else int(last.word_ids[-1]) + 1
    return Segment(
        segment.input_ids,
        (offsets + part.start).astype(np.int32),
        (segment.word_ids + words).astype(np.int32),
    )


def _names_of_rows(texts: Sequence[Any], where: Sequence[str] | None) -> Sequence[str]:
    """Return the names of rows in errors.

    Raises:
        DataError: the texts are a single string: a sequence of strings too, but never meant so.
    """
    if isinstance(texts, str):
        raise DataError("one text was given where a list of texts should be")
    return [*map(row_name, range(len(texts)))] if where is None else where
