"""Tagging of words: named entities, parts of speech.

    words ─► pieces ─► encoder ─► dropout ─► W on the first piece of each word ─► its tag

A word's tag is predicted from its first piece (paper §5.3); `labelled_piece` chooses others. Tags
that mark spans are converted to one scheme, and predicted as a sequence that is legal in it (unless
`decoding` is "free"). With `document_context`, the encoder also reads the surrounding words of the
document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from ...checkpoints.heads import TAGS, Published
from ...errors import DataError, brief, nearest
from ...model.config import EncoderConfig
from ...model.encoder import Encoder
from ...model.heads import TokenHead, cross_entropy_sum
from ...packed import Batch, Padded
from ...tables.rows import PlacedRow, Row, Rows
from ...tables.schema import RoleColumns
from ...text.tokenizer import Tokenizer
from ..classifying import ClassifyingNetwork
from ..example import by_length, pack
from ..labelled import LabelledTask, TaskOptions, TaskSettings, check_length
from ..labels import label_entries
from ..metrics import ScoredEvaluator
from ..task import Evaluator, Prediction, Shown, by_row
from .columns import (
    BEFORE,
    BEHIND,
    SCHEMA,
    WordColumns,
    columns_of_table,
    find_document_column,
    in_context,
    strings_of,
)
from .scores import TaggingScores
from .tags import (
    Scheme,
    best_path,
    converted,
    labels_of,
    legal,
    mark_spans,
    parts_of,
    spans_of,
)
from .words import Around, LabelledPiece, TaggingExample, split_words, windows_of

Decoding = Literal["constrained", "free"]


class TaggingOptions(TaskOptions):
    """Columns, tags and windows of tagging."""

    word_column: str | None = Field(None, description="column name or number; detected if omitted")
    tag_column: str | None = Field(None, description="column name or number; detected if omitted")
    scheme: Scheme = Field("bio", description="scheme that span tags are converted to")
    labelled_piece: LabelledPiece = Field(
        "first", description="pieces of a word that its tag is predicted from"
    )
    decoding: Decoding = Field(
        "constrained",
        description="constrained: the most likely sequence of legal tags; free: each word on "
        "its own",
    )
    stride: int | None = Field(
        None, ge=1, description="tokens between the starts of windows; half a window if omitted"
    )
    document_context: bool = Field(
        False, description="fill max_seq_length with the surrounding words of the document"
    )
    document_column: str | None = Field(
        None,
        description="column name or number; if omitted, CoNLL's document boundaries, or "
        "a column named document",
    )

    @model_validator(mode="after")
    def _documents_are_context(self) -> Self:
        if self.document_column is not None and not self.document_context:
            what = f"document_column={self.document_column!r} needs document_context=true"
            raise ValueError(what)
        return self


class TaggingSettings(TaskSettings):
    """Settings that are saved with a tagging model."""

    labels: tuple[str, ...] = Field(min_length=1, description="the tags, in order")
    spans: bool = Field(description="whether tags mark spans")
    columns: WordColumns = Field(description="the columns that rows are read from")
    stride: int | None = Field(None, ge=1)
    labelled_piece: LabelledPiece = "first"
    decoding: Decoding = "constrained"
    document_context: bool = False

    @property
    def scheme(self) -> Scheme:
        """The scheme of tags that mark spans."""
        return "bioes" if any(parts_of(label)[0] in "ES" for label in self.labels) else "bio"


class TaggingEvaluator(ScoredEvaluator[TaggingScores]):
    """Computes `loss` per labelled piece and the scores of `TaggingScores`."""

    def __init__(self, task: TaggingTask) -> None:
        super().__init__(TaggingScores(task.settings.labels, spans=task.settings.spans))
        self._task = task

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        labels = batch.targets["labels"]
        self._loss += cross_entropy_sum(outputs["logits"], labels).item()
        self._counted += len(labels)
        for example, path, chances in self._task.paths(outputs, batch):
            predicted = np.array(path, np.int64)
            sure = chances[np.arange(len(path)), predicted]
            self._scores.add_sentence(example, example.words, example.target, predicted, sure)


class TaggingNetwork(ClassifyingNetwork):
    """An encoder with a layer that predicts the tags of tokens.

    Args:
        dropout: before the output layer; `config.tagging_dropout` if None.
    """

    loss_name = "tagging"

    def __init__(
        self, config: EncoderConfig, num_labels: int, dropout: float | None = None
    ) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)
        dropout = config.head_dropout("tagging_dropout") if dropout is None else dropout
        self.tag_head = TokenHead(config, num_labels, dropout)

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """Return `logits` `[rows, length, num_labels]`."""
        return {"logits": by_row(self.tag_head(self.encoder(padded)), padded)}

    def logits(self, batch: Batch) -> Float[Tensor, "pieces num_labels"]:
        """The logits of the labelled pieces."""
        hidden = self.encoder(batch.packed)
        logits: Tensor = self.tag_head(hidden[batch.targets["positions"]])
        return logits


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
            self._legal = legal(settings.labels)
        self.best_metric = "f1" if settings.spans else "accuracy"

    @classmethod
    def learned(cls, rows: Rows, columns: RoleColumns, options: TaskOptions) -> dict[str, Any]:
        assert isinstance(options, TaggingOptions)
        column = columns["tag"]
        assert isinstance(column, str), "tags were asked for"
        counts = Counter(tag for where, row in rows for tag in strings_of(row, column, where))
        if not counts:
            raise DataError("there is not a single tag", where=rows.name)
        document = None
        if options.document_context:
            document = find_document_column(rows, options.document_column, required=True)
        spans = mark_spans(counts)
        if spans:
            labels = labels_of((parts_of(tag)[1] for tag in counts if tag != "O"), options.scheme)
        else:
            labels = tuple(sorted(counts))
        return {"labels": labels, "spans": spans, "columns": {**columns, "document": document}}

    @classmethod
    def published(cls, of: Published) -> Self | None:
        if not of.has_head(cls.head):
            return None
        labels = of.labels(cls.head)
        settings = TaggingSettings.parse(
            {
                "labels": labels,
                "spans": mark_spans(labels),
                "columns": WordColumns(word="words", tag="tags"),
                "max_seq_length": of.max_length,
                "dropout": of.dropout(cls.head),
                # Published models use different schemes, and may lack some of a scheme's tags.
                "decoding": "free",
            }
        )
        return cls(of.tokenizer, settings)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.settings.labels

    def config_entries(self) -> dict[str, Any]:
        return label_entries(self.labels)

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
        return str(self.settings.columns)

    def text_row(self, text: str, pair: str | None = None) -> Row:
        if pair is not None:
            raise DataError("the model takes single texts", where=repr(text))
        return {"text": text}

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        settings = self.settings
        columns = columns_of_table(
            rows, settings.columns, labelled=labelled, document_context=settings.document_context
        )
        if columns == settings.columns:
            return self
        return type(self)(self.tokenizer, settings.with_values(columns=columns))

    def in_context(self, rows: Iterable[PlacedRow]) -> Iterator[tuple[PlacedRow, Row]]:
        settings = self.settings
        if not settings.document_context:
            return super().in_context(rows)
        return in_context(rows, settings.columns, limit=settings.max_seq_length)

    def placed_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[TaggingExample]:
        """Tokenise many rows at once.

        A row is a list of words and, if labelled, a list of tags. An unlabelled row may instead be
        a plain `text`, which is split into words. With `document_context` a row may have
        `context_before` and `context_behind`, the context words that `in_context` adds.
        """
        settings = self.settings
        words: list[Sequence[str]] = []
        offsets: list[list[tuple[int, int]] | None] = []
        for row, at in zip(rows, where, strict=True):
            is_text = (
                not labelled
                and settings.columns.word not in row
                and isinstance(row.get("text"), str)
            )
            places = split_words(row["text"]) if is_text else None
            offsets.append(places)
            words.append(
                strings_of(row, settings.columns.word, at)
                if places is None
                else [row["text"][start:end] for start, end in places]
            )
        made = windows_of(
            self.tokenizer,
            words,
            [self._around(row, at) for row, at in zip(rows, where, strict=True)],
            max_seq_length=settings.max_seq_length,
            stride=settings.stride,
            labelled_piece=settings.labelled_piece,
            where=where,
        )
        return [
            TaggingExample(
                index=first_index + at,
                sequences=windows,
                target=self._tags(row, words[at], where[at]) if labelled else None,
                truncated_tokens=cut,
                texts=() if offsets[at] is None else (row["text"],),
                where=where[at],
                words=words[at],
                offsets=offsets[at],
            )
            for at, (row, (windows, cut)) in enumerate(zip(rows, made, strict=True))
        ]

    def _around(self, row: Row, where: str) -> Around:
        """The context words before and after a row; none without `document_context`."""
        before, behind = (
            strings_of(row, column, where)
            if self.settings.document_context and column in row
            else []
            for column in (BEFORE, BEHIND)
        )
        return before, behind

    def _tags(self, row: Row, words: Sequence[str], where: str) -> np.ndarray:
        column = self.settings.columns.tag
        if column is None:
            raise DataError("the task knows no column of tags", where=where)
        tags = strings_of(row, column, where)
        if len(tags) != len(words):
            raise DataError(f"{len(words)} words, but {len(tags)} tags", where=where)
        labels = converted(tags, self.settings.scheme) if self.settings.spans else tags
        for tag, label in zip(tags, labels, strict=True):
            marks_nothing = label == "O" and tag != "O"
            if label not in self.numbers or marks_nothing:
                raise DataError(
                    f"the tag {brief(tag)} was not seen in training",
                    where=where,
                    fix=f"{nearest(tag, self.numbers)}.",
                )
        return np.array([self.numbers[label] for label in labels], np.int64)

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
        places = by_length(examples)
        packed = pack(examples, places)
        windows = [(examples[at], examples[at].sequences[number]) for at, number in places]
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
            sure = [float(row[number]) for row, number in zip(chances, path, strict=True)]
            answer: Prediction = {"words": list(example.words), "tags": tags, "probabilities": sure}
            if self.settings.spans:
                answer["entities"] = [
                    _entity(example, span.type, span.start, span.end, sure)
                    for span in spans_of(tags)
                ]
            found[example.index] = answer
        return found

    def shown(self, prediction: Prediction) -> list[Shown]:
        if self.settings.spans:
            entities = prediction["entities"]
            return [(f"{one['type']}: {one['text']}", one["probability"]) for one in entities]
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
