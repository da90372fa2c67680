"""Tagging of words: named entities, parts of speech.

    words ─► pieces ─► encoder ─► dropout ─► W on the first piece of each word ─► its tag

A word's tag is predicted from its first piece (paper §5.3); `labelled_piece` chooses others. Tags
that mark spans are read in any notation (`notation.py`), converted to one scheme, and predicted as
a sequence that is legal in it (unless `decoding` is "free"). With `document_context`, the encoder
also reads the surrounding words of the document.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.heads import TAGS, PublishedCheckpoint
from ...data.rows import LocatedRow, Row, Rows
from ...data.schema import RoleColumns
from ...errors import BertworksWarning, DataError
from ...nn.config import EncoderConfig
from ...nn.head_layouts import HeadLayout, token_layout
from ...packed import Batch, to_array
from ...text.tokenizer import Tokenizer
from ..array_network import ArrayNetwork
from ..evaluators import ScoredEvaluator
from ..example import pack, sort_sequences
from ..labelled import LabelledTask
from ..labels import build_label_entries, warn_about_misspellings
from ..probabilities import cross_entropy_sum, log_softmax
from ..task import DisplayValue, Evaluator, Outputs, Prediction, TaskSettings
from .columns import (
    SCHEMA,
    add_context,
    find_columns,
    find_document_column,
    find_text_column,
    read_tagged_words,
    tags_in,
)
from .notation import count_types, find_notation, find_span_warning
from .row_reader import RowReader
from .scores import TaggingScores
from .settings import TaggingSettings
from .tags import build_labels, find_best_path, find_legal_transitions, find_spans
from .text_words import Spellings, find_spellings
from .windows import TaggingExample, make_windows

if TYPE_CHECKING:
    from .network import TaggingNetwork
else:
    TaggingNetwork = Any


_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)?:(?=.)")


class TaggingTask(LabelledTask[TaggingExample]):
    """Tagging: predict a tag for each word of a text."""

    name: ClassVar[str] = "tagging"
    head = TAGS
    schema = SCHEMA
    best_metric = "accuracy"  # "f1" if tags mark spans
    may_have_no_label = True
    settings_class: ClassVar[type[TaskSettings]] = TaggingSettings
    settings: TaggingSettings

    def __init__(self, tokenizer: Tokenizer, settings: TaggingSettings) -> None:
        super().__init__(tokenizer, settings)
        self._transitions = None
        if settings.spans and settings.decoding == "constrained":
            self._transitions = find_legal_transitions(settings.tags)
        self._reader = RowReader(tokenizer, settings)
        self.best_metric = "f1" if settings.spans else "accuracy"

    @classmethod
    def settings_from_rows(
        cls, rows: Rows, columns: RoleColumns, settings: TaggingSettings
    ) -> dict[str, Any]:
        column = columns["tag"]
        assert isinstance(column, str), "tags were asked for"
        word_column = columns["word"]
        assert isinstance(word_column, str), "words were asked for"
        counts: Counter[str] = Counter()
        words: set[str] = set()
        num_widened = 0
        for where, row in rows:
            sentence = read_tagged_words(row, word_column, column, where)
            counts.update(sentence.tags)
            words.update(sentence.words)
            num_widened += sentence.num_widened
        if num_widened:
            what = f"{num_widened} of the entities begin or end inside a word: all of it is tagged"
            _warn(what, rows.name)
        if not counts:
            raise DataError("the table has no tags", where=rows.name)
        _warn(_find_prefix_warning(words), rows.name)
        document = None
        if settings.document_context:
            document = find_document_column(rows, settings.document_column, required=True)
        labels, notation = tuple(sorted(counts)), None
        if settings.scheme != "plain":
            notation = find_notation(counts)
            _warn(find_span_warning(counts), rows.name)
            if notation is not None:
                labels = build_labels(notation.types, settings.scheme)
                warn_about_misspellings(count_types(counts, notation.types), rows.name)
        return {
            "labels": labels,
            "spans": notation is not None,
            "notation": None if notation is None else notation.note,
            "spellings": find_spellings(words),
            "document_column": document,
        }

    @classmethod
    def settings_of_checkpoint(cls, checkpoint: PublishedCheckpoint) -> dict[str, Any]:
        labels = checkpoint.labels(cls.head)
        notation = find_notation(labels)
        _warn(find_span_warning(Counter(labels)), "the model's labels")
        return {
            "labels": labels,
            "spans": notation is not None,
            "notation": None if notation is None else notation.note,
            "word_column": "words",
            "tag_column": "tags",
            # Published models use different schemes, and may lack some of a scheme's tags.
            **({} if notation is None else {"decoding": "free"}),
        }

    @property
    def labels(self) -> tuple[str, ...]:
        return self.settings.labels

    def config_entries(self) -> dict[str, Any]:
        return build_label_entries(self.labels)

    def head_layouts(self, config: EncoderConfig) -> Mapping[str, HeadLayout]:
        config.check_length(self.settings.max_seq_length)
        return {TAGS.name: token_layout(config, len(self.settings.labels))}

    def compute(self, network: ArrayNetwork, batch: Batch) -> dict[str, NDArray[Any]]:
        labelled = network.hidden(batch.packed)[batch.targets["positions"]]
        return {"logits": network.head(TAGS.name, labelled, None)}

    def network(self, config: EncoderConfig) -> TaggingNetwork:
        config.check_length(self.settings.max_seq_length)
        from .network import TaggingNetwork

        return TaggingNetwork(config, len(self.settings.labels), self.settings.dropout)

    @classmethod
    def _columns_in(cls, settings: TaskSettings) -> RoleColumns:
        assert isinstance(settings, TaggingSettings)
        return {**super()._columns_in(settings), "document": settings.document_column}

    def source_columns(self, rows: Rows) -> Sequence[tuple[str, ...]]:
        document = self.settings.document_column
        document = document or find_document_column(rows, None, required=False)
        return [*([(document,)] if document else []), (self.column("word"),)]

    @property
    def columns_text(self) -> str:
        document = self.settings.document_column
        text = super().columns_text + ("" if document is None else f", document = {document!r}")
        notation = self.settings.notation or "tags mark spans"
        return f"{text}; {notation}" if self.settings.spans else text

    def text_row(self, text: str, pair: str | None = None) -> Row:
        if pair is not None:
            raise DataError("the model takes single texts", where=repr(text))
        return {"text": text}

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        settings = self.settings
        text_column = None if labelled else find_text_column(rows, self.columns["word"])
        if text_column is not None:
            settings = settings.with_values(
                word_column=text_column, document_column=None, has_plain_texts=True
            )
            return self if settings == self.settings else type(self)(self.tokenizer, settings)
        columns = find_columns(
            rows, self.columns, labelled=labelled, document_context=settings.document_context
        )
        values = self._settings_of_columns(columns) | {"document_column": columns["document"]}
        values["has_plain_texts"] = False
        settings = settings.with_values(**values)
        if labelled and settings.spans:
            settings = settings.with_values(notation=_notation_of(rows, settings.tag_column))
        return self if settings == self.settings else type(self)(self.tokenizer, settings)

    def add_context(self, rows: Iterable[LocatedRow]) -> Iterator[tuple[LocatedRow, Row]]:
        settings = self.settings
        if not settings.document_context:
            return super().add_context(rows)
        document, limit = settings.document_column, settings.max_seq_length
        return add_context(rows, self.column("word"), document, limit=limit)

    def build_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[TaggingExample]:
        """Tokenise many rows at once.

        A row is a list of words and, if labelled, a list of tags. An unlabelled row may instead be
        a plain `text`, which is split into words. With `document_context` a row may have
        `context_before` and `context_after`, the context words that `add_context` adds.
        """
        settings = self.settings
        inputs, segments = self._reader.read(rows, where, labelled=labelled)
        windows_of_rows = make_windows(
            self.tokenizer,
            segments,
            [(len(i.context_before), len(i.words), len(i.context_after)) for i in inputs],
            max_seq_length=settings.max_seq_length,
            stride=settings.stride,
            labelled_piece=settings.labelled_piece,
        )
        return [
            TaggingExample(
                index=first_index + index,
                sequences=windows,
                target=row.target,
                truncated_tokens=num_truncated,
                texts=() if row.text is None else (row.text,),
                where=where[index],
                words=row.words,
                spans=row.spans,
                offsets=row.char_spans,
            )
            for index, (row, (windows, num_truncated)) in enumerate(
                zip(inputs, windows_of_rows, strict=True)
            )
        ]

    @property
    def spellings(self) -> Spellings:
        """The words of a plain text."""
        return self._reader.spellings

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
        windows = [
            (examples[index], examples[index].sequences[number]) for index, number in indices
        ]
        starts = packed.cu_seqlens.tolist()
        positions = [
            window.positions + start for (_, window), start in zip(windows, starts, strict=False)
        ]
        targets = {"positions": np.concatenate(positions)}
        if any(example.target is None for example in examples):
            return Batch(packed, targets, examples=examples)
        labels = np.concatenate([example.target[window.words] for example, window in windows])
        return Batch(packed, {**targets, "labels": labels}, {"tagging": len(labels)}, examples)

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """For each row its `words`, their `tags` and the tags' `probabilities`. If tags mark spans,
        also `entities`, each with `type`, `text`, `start` and `end` (in characters of a plain text,
        otherwise in words), and `probability`, the mean over its words."""
        labels = self.settings.labels
        predictions: dict[int, Prediction] = {}
        for example, path, probabilities in self.paths(outputs, batch):
            tags = [labels[number] for number in path]
            spans = find_spans([self.settings.tags[number] for number in path])
            confidences = [
                float(row[number]) for row, number in zip(probabilities, path, strict=True)
            ]
            prediction: Prediction = {
                "words": list(example.words),
                "tags": tags,
                "probabilities": confidences,
            }
            if self.settings.spans:
                prediction["entities"] = [
                    _entity(example, span.type, span.start, span.end, confidences) for span in spans
                ]
            predictions[example.index] = prediction
        return predictions

    def display_values(self, prediction: Prediction) -> list[DisplayValue]:
        if self.settings.spans:
            entities = prediction["entities"]
            return [
                (": ".join(filter(None, (entity["type"], entity["text"]))), entity["probability"])
                for entity in entities
            ]
        words = zip(prediction["words"], prediction["tags"], strict=True)
        lines = [f"{word}: {tag}" for word, tag in words]
        return list(zip(lines, prediction["probabilities"], strict=True))

    def paths(
        self, outputs: Outputs, batch: Batch
    ) -> Iterator[tuple[TaggingExample, list[int], np.ndarray]]:
        """Each row's example, the indices of its predicted tags, and the `[words, labels]`
        probabilities.

        For a word with several labelled pieces, the mean of their logits is used.
        """
        logits = to_array(outputs["logits"]).astype(np.float64)
        examples = {example.index: example for example in batch.examples}
        sums = {
            index: np.zeros((len(example.words), logits.shape[1]))
            for index, example in examples.items()
        }
        pieces = {index: np.zeros(len(example.words)) for index, example in examples.items()}
        start = 0
        rows, numbers = (
            batch.packed.on_host.sequence_row.tolist(),
            batch.packed.on_host.sequence_number.tolist(),
        )
        for row, number in zip(rows, numbers, strict=True):
            words = examples[row].sequences[number].words
            np.add.at(sums[row], words, logits[start : start + len(words)])
            np.add.at(pieces[row], words, 1)
            start += len(words)
        for index, example in examples.items():
            scores = log_softmax(sums[index] / pieces[index][:, None])
            path = (
                scores.argmax(1).tolist()
                if self._transitions is None
                else find_best_path(scores, self._transitions)
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


class TaggingEvaluator(ScoredEvaluator[TaggingScores]):
    """Computes `loss` per labelled piece and the scores of `TaggingScores`."""

    def __init__(self, task: TaggingTask) -> None:
        super().__init__(TaggingScores(task.settings.tags, spans=task.settings.spans))
        self._task = task

    def add(self, outputs: Outputs, batch: Batch) -> None:
        labels = to_array(batch.targets["labels"])
        self._loss += cross_entropy_sum(to_array(outputs["logits"]), labels)
        self._count += len(labels)
        for example, path, probabilities in self._task.paths(outputs, batch):
            predicted = np.array(path, np.int64)
            self._scores.add_sentence(
                example,
                example.words,
                example.target,
                predicted,
                probabilities[np.arange(len(path)), predicted],
                gold_spans=example.spans,
            )

    def notes(self) -> list[str]:
        """The notes on the scores, and how the table writes its tags if that is unusual."""
        notation = self._task.settings.notation
        return super().notes() + ([] if notation is None else [notation])


def _notation_of(rows: Rows, column: str | None) -> str | None:
    """How a table writes tags that mark spans, judged by its first rows."""
    if column is None:
        return None
    notation = find_notation(tags_in(rows.sample, column, rows.name))
    return None if notation is None else notation.note


def _find_prefix_warning(words: Collection[str]) -> str | None:
    """Warn of words that all begin with a language, as in WikiANN: `en:Paris`."""
    matches = map(_LANGUAGE.match, words)
    names = {"" if match is None else match[0] for match in matches}
    if len(names) > 1 or names <= {""}:
        return None
    return f"all words begin with {names.pop()!r}, which other texts do not have; remove it"


def _warn(warning: str | None, where: str) -> None:
    if warning is not None:
        warnings.warn(f"{where}: {warning}", BertworksWarning, stacklevel=3)


def _entity(
    example: TaggingExample, kind: str, first: int, stop: int, confidences: Sequence[float]
) -> Prediction:
    probability = sum(confidences[first:stop]) / (stop - first)
    if example.offsets is None:
        start, end, text = first, stop, " ".join(example.words[first:stop])
    else:
        start, end = example.offsets[first][0], example.offsets[stop - 1][1]
        text = example.texts[0][start:end]
    return {"type": kind, "text": text, "start": start, "end": end, "probability": probability}
