"""Tagging of words: named entities, parts of speech.

    words ─► pieces ─► encoder ─► dropout ─► W on the first piece of each word ─► its tag

A word's tag is predicted from its first piece (paper §5.3); `labelled_piece` chooses others. Tags
that mark spans are read in any notation (`notation.py`), converted to one scheme, and predicted as
a sequence that is legal in it (unless `decoding` is "free"). With `document_context`, the encoder
also reads the surrounding words of the document.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from ...checkpoints.heads import TAGS, Published
from ...data.rows import LocatedRow, Row, Rows
from ...data.schema import RoleColumns
from ...errors import BertworksWarning, DataError, did_you_mean, truncate_repr
from ...nn.config import EncoderConfig
from ...nn.heads import cross_entropy_sum
from ...packed import Batch
from ...text.encoding import Segment
from ...text.tokenizer import Tokenizer
from ..evaluators import ScoredEvaluator
from ..example import pack, sort_sequences
from ..labelled import LabelledTask, TaskOptions, TaskSettings, check_length
from ..labels import build_label_entries
from ..task import DisplayValue, Evaluator, Prediction
from .columns import (
    BEFORE,
    BEHIND,
    SCHEMA,
    WordColumns,
    add_context,
    columns_of_table,
    find_document_column,
    strings_of,
)
from .network import TaggingNetwork
from .notation import find_notation, read_tag, span_doubt, without_unlabelled_words
from .scores import TaggingScores
from .settings import TaggingOptions, TaggingSettings
from .tags import (
    OUTSIDE,
    Span,
    best_path,
    labels_of,
    legal,
    parts_of,
    spans_of,
    tag_of,
    write_spans,
)
from .text_words import Place, Spellings, find_spellings
from .windows import Around, TaggingExample, windows_of

_INSTEAD = {"B": "ISE", "I": "EBS", "E": "IBS", "S": "BIE", OUTSIDE: ""}
"""The letters to take where a published model has no label with a letter."""


@dataclass
class _Input:
    """The words of a row: those of a plain text are added when it is tokenised."""

    words: Sequence[str] = ()
    before: Sequence[str] = ()  # context words, which are not tagged
    behind: Sequence[str] = ()
    text: str | None = None
    places: Sequence[Place] | None = None  # the characters of each word of a plain text
    target: np.ndarray | None = None
    spans: Sequence[Span] = ()

    @property
    def all_words(self) -> list[str]:
        return [*self.before, *self.words, *self.behind]


class TaggingEvaluator(ScoredEvaluator[TaggingScores]):
    """Computes `loss` per labelled piece and the scores of `TaggingScores`."""

    def __init__(self, task: TaggingTask) -> None:
        super().__init__(TaggingScores(task.settings.tags, spans=task.settings.spans))
        self._task = task

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        labels = batch.targets["labels"]
        self._loss += cross_entropy_sum(outputs["logits"], labels).item()
        self._count += len(labels)
        for example, path, chances in self._task.paths(outputs, batch):
            predicted = np.array(path, np.int64)
            sure = chances[np.arange(len(path)), predicted]
            self._scores.add_sentence(
                example,
                example.words,
                example.target,
                predicted,
                sure,
                gold_spans=example.spans,
            )

    def remarks(self) -> list[str]:
        """The remarks on the scores, and how the table writes its tags if that is unusual."""
        notation = self._task.settings.notation
        said = [] if notation is None else [notation]
        return [*super().remarks(), *said]


class TaggingTask(LabelledTask[TaggingExample]):
    """Tagging: predict a tag for each word of a text."""

    name: ClassVar[str] = "tagging"
    head = TAGS
    schema = SCHEMA
    best_metric = "accuracy"  # "f1" if tags mark spans
    options: ClassVar[type[TaskOptions]] = TaggingOptions
    settings_class: ClassVar[type[TaskSettings]] = TaggingSettings
    settings: TaggingSettings

    def __init__(self, tokenizer: Tokenizer, settings: TaggingSettings) -> None:
        super().__init__(tokenizer, settings)
        self._legal = None
        if settings.spans and settings.decoding == "constrained":
            self._legal = legal(settings.tags)
        self._places = {tag: settings.tags.index(tag) for tag in settings.tags}
        self._has_warned = False
        self.best_metric = "f1" if settings.spans else "accuracy"

    @classmethod
    def settings_from_rows(
        cls, rows: Rows, columns: RoleColumns, options: TaskOptions
    ) -> dict[str, Any]:
        assert isinstance(options, TaggingOptions)
        column = columns["tag"]
        assert isinstance(column, str), "tags were asked for"
        word_column = columns["word"]
        assert isinstance(word_column, str), "words were asked for"
        counts: Counter[str] = Counter()
        words: set[str] = set()
        for where, row in rows:
            counts.update(strings_of(row, column, where))
            words.update(strings_of(row, word_column, where))
        if not counts:
            raise DataError("there is not a single tag", where=rows.name)
        document = None
        if options.document_context:
            document = find_document_column(rows, options.document_column, required=True)
        labels, notation = tuple(sorted(counts)), None
        if options.scheme != "plain":
            notation = find_notation(counts)
            _warn_of(span_doubt(counts), rows.name)
            if notation is not None:
                labels = labels_of(notation.types, options.scheme)
        return {
            "labels": labels,
            "spans": notation is not None,
            "notation": None if notation is None else notation.remark,
            "spellings": find_spellings(words),
            "columns": {**columns, "document": document},
        }

    @classmethod
    def from_published_checkpoint(cls, checkpoint: Published) -> Self | None:
        if not checkpoint.has_head(cls.head):
            return None
        labels = checkpoint.labels(cls.head)
        notation = find_notation(labels)
        _warn_of(span_doubt(Counter(labels)), "the model's labels")
        settings = TaggingSettings.parse(
            {
                "labels": labels,
                "spans": notation is not None,
                "notation": None if notation is None else notation.remark,
                "columns": WordColumns(word="words", tag="tags"),
                "max_seq_length": checkpoint.max_length,
                "dropout": checkpoint.dropout(cls.head),
                # Published models use different schemes, and may lack some of a scheme's tags.
                "decoding": "free",
            }
        )
        return cls(checkpoint.tokenizer, settings)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.settings.labels

    def config_entries(self) -> dict[str, Any]:
        return build_label_entries(self.labels)

    def network(self, config: EncoderConfig) -> TaggingNetwork:
        check_length(self.settings.max_seq_length, config)
        return TaggingNetwork(config, len(self.settings.labels), self.settings.dropout)

    @property
    def column_names(self) -> Sequence[str]:
        columns = self.settings.columns
        return [name for name in (columns.word, columns.tag, columns.document) if name is not None]

    def source_columns(self, rows: Rows) -> Sequence[tuple[str, ...]]:
        columns = self.settings.columns
        document = columns.document or find_document_column(rows, None, required=False)
        return [*([(document,)] if document else []), (columns.word,)]

    @property
    def columns_text(self) -> str:
        text = str(self.settings.columns)
        notation = self.settings.notation or "tags mark spans"
        return f"{text}; {notation}" if self.settings.spans else text

    def text_row(self, text: str, pair: str | None = None) -> Row:
        if pair is not None:
            raise DataError("the model takes single texts", where=repr(text))
        return {"text": text}

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        settings = self.settings
        columns = columns_of_table(
            rows, settings.columns, labelled=labelled, document_context=settings.document_context
        )
        if columns != settings.columns:
            settings = settings.with_values(columns=columns)
        if labelled and settings.spans:
            settings = settings.with_values(notation=_notation_of(rows, columns.tag))
        return self if settings == self.settings else type(self)(self.tokenizer, settings)

    def add_context(self, rows: Iterable[LocatedRow]) -> Iterator[tuple[LocatedRow, Row]]:
        settings = self.settings
        if not settings.document_context:
            return super().add_context(rows)
        return add_context(rows, settings.columns, limit=settings.max_seq_length)

    def build_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[TaggingExample]:
        """Tokenise many rows at once.

        A row is a list of words and, if labelled, a list of tags. An unlabelled row may instead be
        a plain `text`, which is split into words. With `document_context` a row may have
        `context_before` and `context_behind`, the context words that `add_context` adds.
        """
        settings = self.settings
        inputs = [
            _Input(text=row["text"])
            if not labelled and self._is_text(row)
            else self._words_of(row, place, labelled=labelled)
            for row, place in zip(rows, where, strict=True)
        ]
        segments = self._read(inputs, where)
        windows_of_rows = windows_of(
            self.tokenizer,
            segments,
            [(len(one.before), len(one.words), len(one.behind)) for one in inputs],
            max_seq_length=settings.max_seq_length,
            stride=settings.stride,
            labelled_piece=settings.labelled_piece,
        )
        return [
            TaggingExample(
                index=first_index + at,
                sequences=windows,
                target=one.target,
                truncated_tokens=cut,
                texts=() if one.text is None else (one.text,),
                where=where[at],
                words=one.words,
                spans=one.spans,
                offsets=one.places,
            )
            for at, (one, (windows, cut)) in enumerate(zip(inputs, windows_of_rows, strict=True))
        ]

    def _is_text(self, row: Row) -> bool:
        return self.settings.columns.word not in row and isinstance(row.get("text"), str)

    @cached_property
    def spellings(self) -> Spellings:
        """The words of a plain text."""
        return Spellings(self.tokenizer, self.settings.spellings)

    def _read(self, inputs: Sequence[_Input], where: Sequence[str]) -> list[Segment]:
        """Tokenise rows, and add its words to each plain text."""
        plain = [at for at, one in enumerate(inputs) if one.text is not None]
        listed = [at for at, one in enumerate(inputs) if one.text is None]
        segments: dict[int, Segment] = {}
        texts = [inputs[at].text or "" for at in plain]
        read = self.spellings.read(texts, where=[where[at] for at in plain])
        for at, text, words in zip(plain, texts, read, strict=True):
            inputs[at].words, inputs[at].places = words.of(text), words.places
            segments[at] = words.segment
        rows = [inputs[at].all_words for at in listed]
        tokens = self.tokenizer.segments(rows, where=[where[at] for at in listed])
        segments |= zip(listed, tokens, strict=True)
        self._warn_of_invisible(rows, tokens, [where[at] for at in listed])
        return [segments[at] for at in range(len(inputs))]

    def _warn_of_invisible(
        self, rows: Sequence[Sequence[str]], tokens: Sequence[Segment], where: Sequence[str]
    ) -> None:
        """Warn once, for this task, of a word that has only characters that are removed."""
        for words, segment, place in zip(rows, tokens, where, strict=True):
            missing = sorted({*range(len(words))} - {*segment.word_ids.tolist()})
            if missing and not self._has_warned:
                self._has_warned = True
                what = (
                    f"{place}: the tokenizer removes all characters of the word "
                    f"{words[missing[0]]!a}; such words are read as the unknown token"
                )
                warnings.warn(what, BertworksWarning, stacklevel=2)

    def _words_of(self, row: Row, where: str, *, labelled: bool) -> _Input:
        """A row's words and, if labelled, the targets of those that have a tag."""
        settings = self.settings
        words = strings_of(row, settings.columns.word, where)
        before, behind = self._around(row, where)
        if not labelled:
            return _Input(words, before, behind)
        if settings.columns.tag is None:
            raise DataError("the task knows no column of tags", where=where)
        tags = strings_of(row, settings.columns.tag, where)
        if len(tags) != len(words):
            raise DataError(f"{len(words)} words, but {len(tags)} tags", where=where)
        if settings.spans:
            tags, words = without_unlabelled_words(settings.types, tags, words)
        target, spans = self._targets(tags, where)
        return _Input(words, before, behind, target=target, spans=spans)

    def _around(self, row: Row, where: str) -> Around:
        """The context words before and after a row; none without `document_context`."""
        before, behind = (
            strings_of(row, column, where)
            if self.settings.document_context and column in row
            else []
            for column in (BEFORE, BEHIND)
        )
        return before, behind

    def _targets(self, tags: Sequence[str], where: str) -> tuple[np.ndarray, list[Span]]:
        """The indices of the labels of tags, and the spans that these mark.

        Raises:
            DataError: a tag was not seen in training.
        """
        settings = self.settings
        if settings.spans:
            read = [read_tag(tag, settings.types) for tag in tags]
            spans = spans_of([tag or OUTSIDE for tag in read])
            written = write_spans(spans, len(tags), settings.scheme)
            numbers = [self._label_of(tag) for tag in written]
            is_known = [tag is not None for tag in read]
        else:
            spans = []
            numbers = [self.label_indices.get(tag) for tag in tags]
            is_known = [True] * len(tags)
        for tag, number, known in zip(tags, numbers, is_known, strict=True):
            if number is None or not known:
                raise DataError(
                    f"the tag {truncate_repr(tag)} was not seen in training",
                    where=where,
                    fix=f"{did_you_mean(tag, self.label_indices)}.",
                )
        return np.array(numbers, np.int64), spans

    def _label_of(self, tag: str) -> int | None:
        """The index of a tag's label: a published model may lack some tags of its scheme."""
        letter, kind = parts_of(tag)
        tags = [tag, *(tag_of(other, kind) for other in _INSTEAD[letter])]
        return next((at for tag in tags if (at := self._places.get(tag)) is not None), None)

    def training_examples(self, example: TaggingExample) -> Sequence[TaggingExample]:
        """One example for each window that labels a word."""
        return [
            replace(example, sequences=[window], texts=(), offsets=None, truncated_tokens=0)
            for window in example.sequences
            if len(window.words)
        ]

    def collate(self, examples: Sequence[TaggingExample]) -> Batch:
        """Pack windows in order of length.

        `targets["positions"]` is `[pieces]` int64, the indices of the labelled tokens in the pack.
        If tags are known, `targets["labels"]` is `[pieces]` int64, the indices of their tags, and
        `counts["tagging"]` is the number of pieces.
        """
        indices = sort_sequences(examples)
        packed = pack(examples, indices)
        windows = [(examples[at], examples[at].sequences[number]) for at, number in indices]
        starts = packed.cu_seqlens.tolist()
        positions = [
            window.positions + start for (_, window), start in zip(windows, starts, strict=False)
        ]
        targets = {"positions": np.concatenate(positions)}
        if any(example.target is None for example in examples):
            return Batch(packed, targets, examples=examples)
        labels = np.concatenate([example.target[window.words] for example, window in windows])
        return Batch(packed, {**targets, "labels": labels}, {"tagging": len(labels)}, examples)

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """For each row its `words`, their `tags` and the tags' `probabilities`. If tags mark spans,
        also `entities`, each with `type`, `text`, `start` and `end` (in characters of a plain text,
        otherwise in words), and `probability`, the mean over its words."""
        labels = self.settings.labels
        found: dict[int, Prediction] = {}
        for example, path, chances in self.paths(outputs, batch):
            tags = [labels[number] for number in path]
            spans = spans_of([self.settings.tags[number] for number in path])
            sure = [float(row[number]) for row, number in zip(chances, path, strict=True)]
            answer: Prediction = {"words": list(example.words), "tags": tags, "probabilities": sure}
            if self.settings.spans:
                answer["entities"] = [
                    _entity(example, span.type, span.start, span.end, sure) for span in spans
                ]
            found[example.index] = answer
        return found

    def display_values(self, prediction: Prediction) -> list[DisplayValue]:
        if self.settings.spans:
            entities = prediction["entities"]
            return [
                (": ".join(filter(None, (one["type"], one["text"]))), one["probability"])
                for one in entities
            ]
        words = zip(prediction["words"], prediction["tags"], strict=True)
        tagged = [f"{word}: {tag}" for word, tag in words]
        return list(zip(tagged, prediction["probabilities"], strict=True))

    def paths(
        self, outputs: Mapping[str, Tensor], batch: Batch
    ) -> Iterator[tuple[TaggingExample, list[int], np.ndarray]]:
        """Each row's example, the indices of its predicted tags, and the `[words, labels]`
        probabilities.

        For a word with several labelled pieces, the mean of their logits is used.
        """
        logits = outputs["logits"].double().cpu().numpy()
        examples = {example.index: example for example in batch.examples}
        sums = {
            index: np.zeros((len(example.words), logits.shape[1]))
            for index, example in examples.items()
        }
        pieces = {index: np.zeros(len(example.words)) for index, example in examples.items()}
        at = 0
        rows, numbers = batch.packed.sequence_row.tolist(), batch.packed.sequence_number.tolist()
        for row, number in zip(rows, numbers, strict=True):
            words = examples[row].sequences[number].words
            np.add.at(sums[row], words, logits[at : at + len(words)])
            np.add.at(pieces[row], words, 1)
            at += len(words)
        for index, example in examples.items():
            scores = sums[index] / pieces[index][:, None]
            scores -= scores.max(1, keepdims=True, initial=-np.inf) if len(scores) else 0
            scores -= np.log(np.exp(scores).sum(1, keepdims=True))
            path = (
                scores.argmax(1).tolist() if self._legal is None else best_path(scores, self._legal)
            )
            yield example, path, np.exp(scores)

    def count_targets(self, examples: Sequence[TaggingExample]) -> Mapping[str, int]:
        names = self.settings.labels
        counts = np.zeros(len(names), np.int64)
        for example in examples:
            counts += np.bincount(example.target, minlength=len(names))
        return dict(zip(names, counts.tolist(), strict=True))

    @property
    def metrics(self) -> tuple[str, ...]:
        more = ("precision", "recall", "f1") if self.settings.spans else ("macro_f1",)
        return ("loss", "majority", "accuracy", *more)

    def evaluator(self) -> Evaluator:
        return TaggingEvaluator(self)


def _notation_of(rows: Rows, column: str | None) -> str | None:
    """How a table writes tags that mark spans, judged by its first rows."""
    if column is None:
        return None
    tags = {tag for row in rows.sample for tag in strings_of(row, column, rows.name)}
    notation = find_notation(tags)
    return None if notation is None else notation.remark


def _warn_of(doubt: str | None, where: str) -> None:
    if doubt is not None:
        warnings.warn(f"{where}: {doubt}", BertworksWarning, stacklevel=3)


def _entity(
    example: TaggingExample, kind: str, first: int, past: int, sure: Sequence[float]
) -> Prediction:
    probability = sum(sure[first:past]) / (past - first)
    if example.offsets is None:
        start, end, text = first, past, " ".join(example.words[first:past])
    else:
        start, end = example.offsets[first][0], example.offsets[past - 1][1]
        text = example.texts[0][start:end]
    return {"type": kind, "text": text, "start": start, "end": end, "probability": probability}
