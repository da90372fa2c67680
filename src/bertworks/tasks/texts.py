"""What tasks on whole texts share: rows of one text or two, and one answer for each.

    row ── columns ──► text (and second text) ── tokenizer ──► one sequence, cut if it is too long
                                                          └──► or as many windows as it takes

Classification and regression differ in what they make of the label, and in nothing else here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from ..checkpoints.heads import CLASSIFIER
from ..checkpoints.published import Published
from ..errors import DataError
from ..model.config import ClassifierPooling, EncoderConfig
from ..packed import Batch
from ..settings import Settings
from ..text.encoding import Encoding
from ..text.windows import segment_windows
from .columns import Columns, find_columns
from .example import LabelledExample, Tokens, pack
from .labelled import LabelledTask, TaskOptions, TaskSettings, check_length
from .placed import Rows, text_of
from .pooled import Pooling, WindowPooling
from .schema import Role, RoleColumns, Schema
from .task import Row

Truncation = Literal["longest_first", "first", "second", "error", "windows"]
_SECOND = "pair"
_TURNED: Mapping[Truncation, Truncation] = {"first": "second", "second": "first"}


class _Shared(Settings):
    """Texts that are too long, and pairs of texts."""

    truncation: Truncation = Field(
        "longest_first",
        description="what becomes of a longer row; `windows`: nothing is cut, and the logits of "
        "its windows are pooled (of a pair, the second text's; the first, half a window of it at "
        "most, before each)",
    )
    stride: int | None = Field(
        None, ge=1, description="tokens between the beginnings of windows; a whole one, if left out"
    )
    window_pooling: WindowPooling = Field("mean", description="of the logits of a row's windows")
    classifier_pooling: ClassifierPooling | None = Field(
        None,
        description="what the output is computed from: the first token's vector, the mean of all "
        "(for sentence encoders), or the last one's; the checkpoint's, if left out",
    )
    both_orders: bool = Field(
        False,
        description="a pair is read in both orders, and their vectors added (GPT)",
    )


class TextOptions(_Shared, TaskOptions):
    """Columns of texts."""

    text_column: str | None = Field(None, description="name or number; guessed if left out")
    pair_column: str | None = Field(None, description="of a second text")
    label_column: str | None = Field(None, description="name or number; guessed if left out")

    @model_validator(mode="after")
    def _windows_are_pooled(self) -> Self:
        if self.truncation != "windows" and self.window_pooling != "mean":
            raise ValueError(f"window_pooling={self.window_pooling!r} is for truncation='windows'")
        return self


class _TextSchema(Schema):
    """Texts and pairs of texts: which of them a table has is found out together."""

    def find(
        self, rows: Rows, named: Mapping[str, Any] | None = None, *, labelled: bool
    ) -> RoleColumns:
        found = find_columns(
            rows.columns, rows.sample, **(named or {}), labelled=labelled, where=rows.name
        )
        return dict(found)


TEXTS = _TextSchema(
    Role("text"), Role("pair", title="second text", optional=True), Role("label", of_label=True)
)


class TextSettings(_Shared, TaskSettings):
    """What a task on texts is, beside its weights."""

    columns: Columns = Field(description="the columns that rows are read from")
    takes_either: bool = Field(
        False, description="rows may be single texts or pairs: a published model does not say"
    )

    @model_validator(mode="after")
    def _orders_are_of_pairs(self) -> Self:
        if self.both_orders and self.columns.pair is None:
            raise ValueError("both_orders=true is for pairs of texts")
        return self

    @model_validator(mode="after")
    def _windows_are_of_one_order(self) -> Self:
        if self.truncation == "windows" and self.both_orders:
            raise ValueError("truncation='windows' and both_orders=true exclude each other")
        if self.truncation != "windows" and self.stride is not None:
            raise ValueError(f"stride={self.stride} is for truncation='windows'")
        return self

    def geometry(self, config: EncoderConfig) -> EncoderConfig:
        """An encoder's, with what the output stands on.

        Raises:
            SettingsError: it has fewer positions than `max_seq_length`.
        """
        check_length(self.max_seq_length, config)
        if self.classifier_pooling is None:
            return config
        return config.with_values(classifier_pooling=self.classifier_pooling)

    @property
    def pooling(self) -> Pooling:
        """How the logits of a row's sequences become the row's."""
        return "sum" if self.both_orders else self.window_pooling


class TextTask(LabelledTask[LabelledExample]):
    """One answer for a text or a pair of texts.

    Args:
        tokenizer: the model's.
        settings: columns and limits.
    """

    schema = TEXTS
    options: ClassVar[type[TaskOptions]] = TextOptions
    settings_class: ClassVar[type[TaskSettings]] = TextSettings
    settings: TextSettings

    @abstractmethod
    def label_of(self, row: Row, column: str, where: str) -> Any:
        """What is to be learned of a row.

        Raises:
            DataError: the column is missing, or holds no label of this task.
        """

    def text_row(self, text: str, pair: str | None = None) -> Row:
        columns = self.settings.columns
        if self.settings.takes_either and pair is not None:
            return {columns.text: text, _SECOND: pair}
        if (pair is None) != (columns.pair is None):
            takes = "single texts" if columns.pair is None else "pairs of texts"
            raise DataError(f"the model takes {takes}", where=repr(text))
        return (
            {columns.text: text}
            if columns.pair is None
            else {columns.text: text, columns.pair: pair}
        )

    def placed_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[LabelledExample]:
        """Tokenise many rows at once, on as many threads as the tokenizer takes.

        Raises:
            DataError: a column is missing; a label is empty or none of the task's; a text is no
                text, or too long where `truncation` is "error".
        """
        columns = self.settings.columns
        pairs = None
        if columns.pair is not None:
            pairs = [text_of(row, columns.pair, at) for row, at in zip(rows, where, strict=True)]
        texts = [text_of(row, columns.text, at) for row, at in zip(rows, where, strict=True)]
        truncation = self.settings.truncation
        encodings = self._encode(texts, pairs, truncation, where)
        if self.settings.both_orders and pairs is not None:
            others = self._encode(pairs, texts, _TURNED.get(truncation, truncation), where)
            encodings = [[*own, *other] for own, other in zip(encodings, others, strict=True)]
        return [
            LabelledExample(
                index=first_index + at,
                sequences=[Tokens.of(encoding) for encoding in own],
                target=self._label(row, where[at]) if labelled else None,
                truncated_tokens=own[0].truncated_tokens,
                texts=(texts[at],) if pairs is None else (texts[at], pairs[at]),
                where=where[at],
            )
            for at, (row, own) in enumerate(zip(rows, encodings, strict=True))
        ]

    def _encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        truncation: Truncation,
        where: Sequence[str],
    ) -> list[list[Encoding]]:
        """The sequences of each row."""
        limit = self.settings.max_seq_length
        if truncation != "windows":
            found = self.tokenizer.encode_batch(
                texts, pairs, max_length=limit, truncation=truncation, where=where
            )
            return [[encoding] for encoding in found]
        firsts = self.tokenizer.segments(texts, where=where)
        seconds = (
            [None] * len(firsts) if pairs is None else self.tokenizer.segments(pairs, where=where)
        )
        room = limit - self.tokenizer.num_special_tokens(pair=pairs is not None)
        rows: list[list[Encoding]] = []
        for first, second, at in zip(firsts, seconds, where, strict=True):
            before, stride = first, self.settings.stride or room
            if second is not None:
                if len(first) + len(second) > room:
                    before = first[: room // 2]
                stride = min(stride, room - len(before))
            windows = segment_windows(
                self.tokenizer,
                before,
                second,
                max_length=limit,
                stride=stride,
                where=at,
            )
            windows[0] = replace(windows[0], truncated_tokens=len(first) - len(before))
            rows.append(windows)
        return rows

    def _label(self, row: Row, where: str) -> Any:
        column = self.settings.columns.label
        if column is None:
            raise DataError("the task knows no column of labels", where=where)
        return self.label_of(row, column, where)

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        own = self.settings.columns
        either = self.settings.takes_either and {own.text, _SECOND} <= set(rows.columns)
        if either and all(isinstance(row.get(_SECOND), str) for row in rows.sample):
            own = own.with_values(pair=_SECOND)
        if self.schema.is_met(rows, dict(own), labelled=labelled):
            return self.reading(own, rows.name)
        has_texts = own.text in rows.columns and own.pair in {None, *rows.columns}
        known = {"text": own.text, "pair": own.pair} if has_texts else {}
        if own.label in rows.columns:
            known["label"] = own.label
        found = self.schema.find(rows, known, labelled=labelled)
        return self.reading(Columns.parse(found), rows.name)

    def reading(self, columns: Columns, where: str) -> Self:
        """The same task on the columns of a table.

        Raises:
            DataError: they are of pairs of texts, and the task is of single ones, or the reverse.
        """
        own = self.settings.columns
        if columns == own:
            return self
        if not self.settings.takes_either and (columns.pair is None) != (own.pair is None):
            takes, has = (
                ("pairs of texts", "single texts") if own.pair else ("single texts", "pairs")
            )
            raise DataError(f"the model takes {takes}, and the table has {has}", where=where)
        return type(self)(self.tokenizer, self.settings.with_values(columns=columns))


def labelled_batch(
    examples: Sequence[LabelledExample], dtype: type[np.generic], loss: str
) -> Batch:
    """Rows in order of length, the sequences of each together.

    Its examples are in the order of the answers. If all labels are known, there are
    `targets["labels"]`, and as many rows to count for the loss.
    """
    order = sorted(examples, key=lambda example: example.num_tokens)
    places = [(at, number) for at, one in enumerate(order) for number in range(len(one.sequences))]
    packed = pack(order, places)
    labels = [example.target for example in order]
    if any(label is None for label in labels):
        return Batch(packed, examples=order)
    return Batch(packed, {"labels": np.array(labels, dtype)}, {loss: len(labels)}, order)


def is_single_value(of: Published) -> bool:
    """Whether another tool's classifier is a regression: it has one output, and is not one of
    several labels."""
    multi_label = of.raw.get("problem_type") == "multi_label_classification"
    return len(of.labels(CLASSIFIER)) == 1 and not multi_label


def shared_settings(of: Published) -> dict[str, Any]:
    """The settings of a task on texts that another tool's checkpoint was trained for."""
    return {
        "columns": Columns(text="text", pair="pair" if of.takes_pairs else None, label="label"),
        "takes_either": not of.takes_pairs,
        "max_seq_length": of.config.max_seqlen,
        "dropout": of.dropout(CLASSIFIER),
    }
