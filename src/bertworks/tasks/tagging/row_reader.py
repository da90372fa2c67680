"""Rows as a tagger's inputs: words, the context around them, and the targets of their tags."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...data.rows import Row, is_missing, text_of
from ...errors import BertworksWarning, DataError, did_you_mean, truncate_repr
from ...text.encoding import Segment
from ...text.tokenizer import Tokenizer
from .columns import CONTEXT_AFTER, CONTEXT_BEFORE, read_strings, read_tagged_words
from .entities import TEXT
from .notation import drop_unlabelled_words, read_tag
from .settings import TaggingSettings
from .tags import OUTSIDE_TAG, Span, find_spans, join_tag, split_tag, write_spans
from .text_words import CharSpan, Spellings
from .windows import ContextWords

_OTHER_LETTERS = {"B": "ISE", "I": "EBS", "E": "IBS", "S": "BIE", OUTSIDE_TAG: ""}
"""The letters to take where a published model has no label with a letter."""


@dataclass
class TaggingInput:
    """The words of a row: those of a plain text are added when it is tokenised."""

    words: Sequence[str] = ()
    context_before: Sequence[str] = ()  # context words, which are not tagged
    context_after: Sequence[str] = ()
    text: str | None = None
    char_spans: Sequence[CharSpan] | None = None  # the characters of each word of a plain text
    target: np.ndarray | None = None
    spans: Sequence[Span] = ()

    @property
    def all_words(self) -> list[str]:
        """The words, with those of the context around them."""
        return [*self.context_before, *self.words, *self.context_after]


class RowReader:
    """Reads rows, as lists of words or plain texts, and tokenises them."""

    def __init__(self, tokenizer: Tokenizer, settings: TaggingSettings) -> None:
        self._tokenizer, self._settings = tokenizer, settings
        self._word_column = settings.word_column or "words"
        self._label_indices = {label: number for number, label in enumerate(settings.labels)}
        self._tag_numbers = {tag: settings.tags.index(tag) for tag in settings.tags}
        self._has_warned = False

    @cached_property
    def spellings(self) -> Spellings:
        """The words of a plain text."""
        return Spellings(self._tokenizer, self._settings.spellings)

    def read(
        self, rows: Sequence[Row], where: Sequence[str], *, labelled: bool
    ) -> tuple[list[TaggingInput], list[Segment]]:
        """Return the input of each row, and the tokens of its words and their context.

        Raises:
            DataError: a row does not fit the task.
        """
        inputs = [
            self._input_of(row, location, labelled=labelled)
            if labelled or (column := self._text_column(row)) is None
            else TaggingInput(text=text_of(row, column, location))
            for row, location in zip(rows, where, strict=True)
        ]
        return inputs, self._tokenize(inputs, where)

    def _text_column(self, row: Row) -> str | None:
        """The column of an unlabelled row that is a plain text; None if it is a list of words."""
        if self._settings.has_plain_texts:
            return self._word_column
        is_of_texts = self._word_column == TEXT or self._word_column not in row
        value = row.get(TEXT, [])
        is_text = is_of_texts and (isinstance(value, str) or is_missing(value))
        return TEXT if is_text else None

    def _tokenize(self, inputs: Sequence[TaggingInput], where: Sequence[str]) -> list[Segment]:
        """Tokenise rows, and add its words to each plain text."""
        text_rows = [index for index, row in enumerate(inputs) if row.text is not None]
        word_rows = [index for index, row in enumerate(inputs) if row.text is None]
        segments: dict[int, Segment] = {}
        texts = [inputs[index].text or "" for index in text_rows]
        words_of_texts = self.spellings.read(texts, where=[where[index] for index in text_rows])
        for index, text, words in zip(text_rows, texts, words_of_texts, strict=True):
            inputs[index].words, inputs[index].char_spans = words.words_in(text), words.char_spans
            segments[index] = words.segment
        rows = [inputs[index].all_words for index in word_rows]
        locations = [where[index] for index in word_rows]
        tokens = self._tokenizer.segments(rows, where=locations)
        segments |= zip(word_rows, tokens, strict=True)
        self._warn_of_invisible_words(rows, tokens, locations)
        return [segments[index] for index in range(len(inputs))]

    def _warn_of_invisible_words(
        self, rows: Sequence[Sequence[str]], tokens: Sequence[Segment], where: Sequence[str]
    ) -> None:
        """Warn once, for this task, of a word that has only characters that are removed."""
        for words, segment, location in zip(rows, tokens, where, strict=True):
            missing = sorted({*range(len(words))} - {*segment.word_ids.tolist()})
            if missing and not self._has_warned:
                self._has_warned = True
                what = (
                    f"{location}: the tokenizer removes all characters of the word "
                    f"{words[missing[0]]!a}; such words are read as the unknown token"
                )
                warnings.warn(what, BertworksWarning, stacklevel=2)

    def _input_of(self, row: Row, where: str, *, labelled: bool) -> TaggingInput:
        """A row's words and, if labelled, the targets of those that have a tag."""
        settings = self._settings
        context = self._context_of(row, where)
        if not labelled:
            return TaggingInput(read_strings(row, self._word_column, where), *context)
        if settings.tag_column is None:
            raise DataError("the task has no column of tags", where=where)
        tagged = read_tagged_words(row, self._word_column, settings.tag_column, where)
        words, tags = tagged.words, tagged.tags
        if settings.spans:
            tags, words = drop_unlabelled_words(settings.types, tags, words)
        target, spans = self._targets(tags, where)
        return TaggingInput(words, *context, target=target, spans=spans)

    def _context_of(self, row: Row, where: str) -> ContextWords:
        """The context words before and after a row; none without `document_context`."""
        words_before, words_after = (
            read_strings(row, column, where)
            if self._settings.document_context and column in row
            else []
            for column in (CONTEXT_BEFORE, CONTEXT_AFTER)
        )
        return words_before, words_after

    def _targets(self, tags: Sequence[str], where: str) -> tuple[np.ndarray, list[Span]]:
        """The indices of the labels of tags, and the spans that these mark.

        Raises:
            DataError: a tag was not seen in training.
        """
        settings = self._settings
        if settings.spans:
            span_tags = [read_tag(tag, settings.types) for tag in tags]
            spans = find_spans([tag or OUTSIDE_TAG for tag in span_tags])
            converted_tags = write_spans(spans, len(tags), settings.tag_scheme)
            numbers = [self._label_index(tag) for tag in converted_tags]
            is_known = [tag is not None for tag in span_tags]
        else:
            spans = []
            numbers = [self._label_indices.get(tag) for tag in tags]
            is_known = [True] * len(tags)
        for tag, number, is_valid in zip(tags, numbers, is_known, strict=True):
            if number is None or not is_valid:
                raise DataError(
                    f"the tag {truncate_repr(tag)} was not seen in training",
                    where=where,
                    fix=f"{did_you_mean(tag, self._label_indices)}.",
                )
        return np.array(numbers, np.int64), spans

    def _label_index(self, tag: str) -> int | None:
        """The index of a tag's label: a published model may lack some tags of its scheme."""
        letter, kind = split_tag(tag)
        tags = [tag, *(join_tag(other, kind) for other in _OTHER_LETTERS[letter])]
        numbers = (self._tag_numbers.get(each) for each in tags)
        return next((number for number in numbers if number is not None), None)
