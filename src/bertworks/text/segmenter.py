"""Split texts into pieces with the library, a portion at a time, with offsets in the raw text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import cast

import numpy as np
import tokenizers

from ..errors import DataError
from .definition import Definition, WordPieceDefinition
from .encoding import Ints, Segment, concatenate_segments, move_offsets, trim_offsets
from .normalization import Origin
from .portions import Portion, group_portions, portions
from .tree import TreeDefinition
from .word_splitters import SplitWordsDefinition, SplitWordsTree


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
        _check_rows(texts)
        split = len(texts) > 0 and isinstance(texts[0], (list, tuple))
        rows: list[str | list[str]] = []
        origins_of_rows: list[Origin | list[Origin]] = []
        for number, row in enumerate(texts):
            name = row_name(number, where)
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
        _check_rows(texts)
        texts_to_split = [
            self.definition.correct(text, where=row_name(number, where))[0]
            for number, text in enumerate(texts)
        ]
        parts: list[list[Ints]] = [[] for _ in texts_to_split]
        for part, found in self._encode_portions(texts_to_split, self._library().encode_batch_fast):
            parts[part.row].append(self._ids(found))
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


def row_name(number: int, where: Sequence[str] | None) -> str:
    """The name of a row in errors."""
    return f"row {number + 1}" if where is None else where[number]


def _check_rows(texts: object) -> None:
    """Reject a single string: it is also a sequence of strings, but never meant as one."""
    if isinstance(texts, str):
        raise DataError("one text was given where a list of texts should be")
