"""Score tags of words: in CoNLL columns, or in a table of lists as `predict` writes it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...data.record_formats import DOCUMENT_START
from ...data.rows import Rows
from ...data.schema import PREDICTION, columns_by_name
from ...data.streams import read_head
from ...data.tables import Table, read_rows
from ...errors import DataError, shorten_list
from ...tasks.evaluation import Evaluation
from ...tasks.measures import Location
from ...tasks.tagging.columns import (
    TAG_NAMES,
    WORD_NAMES,
    find_numbered_columns,
    read_strings,
    read_tags,
)
from ...tasks.tagging.notation import (
    drop_unlabelled_words,
    find_notation,
    find_span_warning,
    read_tag,
)
from ...tasks.tagging.scores import TaggingScores
from ...tasks.tagging.tags import OUTSIDE_TAG
from ...utils.formatting import format_count
from ...utils.remote import is_remote
from .columns import find_label_columns, unfold_prediction

Sentence = tuple[Location, list[str], list[str], list[str]]
"""The place of a sentence, its words, and their gold and predicted tags."""
_PREDICTED_TAGS = f"{PREDICTION}.tags"
_NOT_CONLL = (".jsonl", ".ndjson", ".json", ".parquet")


def read_tagged_rows(data: Table, column_names: Sequence[str], options: Mapping[str, Any]) -> Rows:
    """Open CoNLL columns, or a table of lists; see `read_rows`."""
    format = options.get("format", "auto")
    if format == "auto" and isinstance(data, str | os.PathLike):
        is_conll = _is_conll(os.fspath(data), column_names, options.get("header"))
        format = "conll" if is_conll else format
    options = {**options, "format": format}
    if format == "conll":
        return read_rows(data, document_starts=True, **options)
    return read_rows(data, columns=column_names, **options)


def _is_conll(path: str, column_names: Sequence[str], header: bool | None) -> bool:
    """Whether a file has one word per line, and is not a table as `predict` writes it."""
    if {*Path(path).suffixes} & {*_NOT_CONLL}:
        return False
    if header or not all(name.isdecimal() for name in column_names):  # CoNLL columns have no names
        return False
    if path == "-":  # what is peeked at is read again
        head = sys.stdin.buffer.peek() if hasattr(sys.stdin.buffer, "peek") else b""
    elif is_remote(path) or Path(path).is_file():
        head = read_head(path)
    else:
        return True
    first = head.decode(errors="replace").partition("\n")[0].rstrip("\r")
    return _PREDICTED_TAGS not in (*first.split("\t"), *first.split(","))


def score_tags(rows: Rows, label: str | None, prediction: str | None) -> Evaluation:
    """Score tagged sentences; `label` and `prediction` are columns, detected if None."""
    tag_column, predicted_column = find_label_columns(rows, TAG_NAMES, label, prediction)
    by_name = columns_by_name(rows.columns)
    first = rows.columns[0]
    word_column = next((by_name[name] for name in WORD_NAMES if name in by_name), None)
    if (
        word_column is None
        and find_numbered_columns(rows)
        and first not in (tag_column, predicted_column)
    ):
        word_column = first
    sentences: list[Sentence] = []
    num_starts = 0
    for where, row in rows:
        gold = read_tags(row, tag_column, where)
        predicted = read_tags(
            unfold_prediction(row, predicted_column, "tags"), predicted_column, where
        )
        # Without words, mistakes are shown with predicted tags in their place.
        words = predicted if word_column is None else read_strings(row, word_column, where)
        if not len(words) == len(gold) == len(predicted):
            raise DataError(
                f"{len(words)} word(s), {len(gold)} tag(s) and {len(predicted)} predicted one(s)",
                where=where,
            )
        if words == [DOCUMENT_START]:
            num_starts += 1
            gold, predicted = ([tag] if tag != "-X-" else ["O"] for [tag] in (gold, predicted))
        place = Location(len(sentences) - num_starts, where)
        sentences.append((place, words, gold, predicted))
    if word_column is None and find_numbered_columns(rows) and label is None and prediction is None:
        _check_two(rows.name, [two for _, _, *tags in sentences for two in zip(*tags, strict=True)])
    return _score_sentences(sentences, num_starts)


def _score_sentences(sentences: Sequence[Sentence], num_starts: int) -> Evaluation:
    """Score gold and predicted tags: as spans if the gold ones mark spans in any notation.

    Args:
        num_starts: how many of the sentences are lines that begin a document.
    """
    gold_counts, predicted_counts = Counter[str](), Counter[str]()
    for _, _, gold, predicted in sentences:
        gold_counts.update(gold)
        predicted_counts.update(predicted)
    # A predicted tag that marks no span does not make the gold ones plain tags; and a predicted O
    # does not make gold parts of speech types of spans.
    counts = gold_counts + predicted_counts
    notation = find_notation(gold_counts)
    if notation is None and (_have_markers(counts) or {*gold_counts} <= {OUTSIDE_TAG}):
        notation = find_notation(counts)
    notes = [find_span_warning(counts)]
    if notation is not None:
        other = find_notation(predicted_counts)
        types = notation.types | (other or notation).types_in(predicted_counts)
        unread = [tag for tag in sorted(predicted_counts) if read_tag(tag, types) is None]
        none = f"these predicted tags mark no span, and count as none: {shorten_list(unread)}"
        notes = [notation.note, none if unread else None]
        sentences = [_as_spans(sentence, types) for sentence in sentences]
    labels = sorted({tag for _, _, *sides in sentences for side in sides for tag in side})
    numbers = {label: number for number, label in enumerate(labels)}
    spans = notation is not None or labels == [OUTSIDE_TAG]
    scores = TaggingScores(labels, spans=spans)
    for place, words, *sides in sentences:
        gold_numbers, predicted_numbers = (
            np.array([numbers[tag] for tag in side], np.int64) for side in sides
        )
        scores.add_sentence(place, words, gold_numbers, predicted_numbers)
    result = Evaluation.from_measure(scores, len(sentences) - num_starts)
    if num_starts:
        lines = format_count(num_starts, "line")
        notes.append(f"{DOCUMENT_START} counts as a word, as in conlleval: {lines}")
    return replace(result, notes=[*result.notes, *filter(None, notes)])


def _as_spans(sentence: Sentence, types: frozenset[str]) -> Sentence:
    """Return a sentence with tags as this package writes them, without unlabelled words."""
    place, words, gold, predicted = sentence
    gold, words, predicted = drop_unlabelled_words(types, gold, words, predicted)
    gold, predicted = ([read_tag(tag, types) or tag for tag in side] for side in (gold, predicted))
    return place, words, gold, predicted


def _have_markers(tags: Iterable[str]) -> bool:
    notation = find_notation(tags)
    return notation is not None and notation.has_markers


def _check_two(name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Check that the only two columns of a file without names are not words and their tags.

    Raises:
        DataError: they seem to be.
    """
    if not pairs:
        return
    words, tags = (set(side) for side in zip(*pairs, strict=True))
    # Part-of-speech tags may be punctuation, as words may.
    alike = any(word == tag and any(map(str.isalnum, word)) for word, tag in pairs)
    if not alike or (_have_markers(tags) and not _have_markers(words)):
        raise DataError(
            "its two columns seem to be words and their tags; there are no predictions",
            where=name,
            fix="The last two columns must be the gold and the predicted tags.",
        )
