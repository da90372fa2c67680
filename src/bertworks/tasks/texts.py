"""What tasks on whole texts share: rows of one text or two, and one answer for each.

    row ── columns ──► text (and second text) ── tokenizer ──► one sequence, cut if it is too long

Classification and regression differ in what they make of the label, and in nothing else here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from torch import Tensor

from ..errors import DataError
from ..packed import Batch, Packed
from ..text.encoding import Encoding
from .columns import Columns, find_columns
from .labelled import LabelledTask, TaskOptions, TaskSettings
from .placed import Rows, text_of
from .task import Row

Truncation = Literal["longest_first", "first", "second", "error"]


class TextOptions(TaskOptions):
    """What a user may say of a task on texts."""

    text_column: str | None = Field(None, description="name or number; guessed if left out")
    pair_column: str | None = Field(None, description="of a second text")
    label_column: str | None = Field(None, description="name or number; guessed if left out")
    truncation: Truncation = Field("longest_first", description="what becomes of a longer row")
    both_orders: bool = Field(
        False,
        description="a pair is read in both orders, and their vectors added (GPT)",
    )

    def find_columns(self, rows: Rows, *, labelled: bool = True) -> Columns:
        """The columns of a table; that of the labels may be absent if `labelled` is false.

        Raises:
            DataError: one is not there, or cannot be guessed.
        """
        return find_columns(
            rows.columns,
            rows.sample,
            text=self.text_column,
            pair=self.pair_column,
            label=self.label_column,
            labelled=labelled,
            where=rows.name,
        )


class TextSettings(TaskSettings):
    """What a task on texts is, beside its weights."""

    columns: Columns = Field(description="the columns that rows are read from")
    truncation: Truncation = Field("longest_first", description="what becomes of a longer row")
    both_orders: bool = Field(
        False, description="a pair is read in both orders, whose vectors are added"
    )

    @model_validator(mode="after")
    def _orders_are_of_pairs(self) -> Self:
        if self.both_orders and self.columns.pair is None:
            raise ValueError("both_orders=true is for pairs of texts")
        return self


@dataclass(frozen=True, eq=False, slots=True)
class TextExample:
    """A row as token ids.

    Attributes:
        index: the row's number.
        input_ids: `[tokens]` int32.
        token_type_ids: `[tokens]` int8.
        label: what is to be learned, as the task has it (a class's number, a value); None where
            it is not known.
        truncated_tokens: how many tokens the limit cut off.
        turned: the pair the other way round, as ids and token types; None if one order is read.
        texts: the text, and the second one if there is one.
    """

    index: int
    input_ids: np.ndarray
    token_type_ids: np.ndarray
    label: Any
    truncated_tokens: int
    turned: tuple[np.ndarray, np.ndarray] | None = None
    texts: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The texts for people."""
        return " | ".join(self.texts)

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids) * (1 if self.turned is None else 2)

    @property
    def content(self) -> bytes:
        return self.input_ids.tobytes()

    @property
    def target(self) -> bytes:
        return np.asarray(self.label).tobytes()


class TextTask(LabelledTask[TextExample]):
    """One answer for a text or a pair of texts.

    Args:
        tokenizer: the model's.
        settings: columns and limits.
    """

    settings_class: ClassVar[type[TaskSettings]] = TextSettings
    settings: TextSettings

    @property
    def columns_text(self) -> str:
        return str(self.settings.columns)

    @abstractmethod
    def label_of(self, row: Row, column: str, where: str) -> Any:
        """What is to be learned of a row.

        Raises:
            DataError: the column is missing, or holds no label of this task.
        """

    def text_row(self, text: str, pair: str | None = None) -> Row:
        columns = self.settings.columns
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
    ) -> list[TextExample]:
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
        encodings = self._encode(texts, pairs, where)
        turned: list[tuple[np.ndarray, np.ndarray] | None] = [None] * len(rows)
        if self.settings.both_orders and pairs is not None:
            others = self._encode(pairs, texts, where)
            turned = [(other.input_ids, other.token_type_ids) for other in others]
        return [
            TextExample(
                first_index + at,
                encoding.input_ids,
                encoding.token_type_ids,
                self._label(row, where[at]) if labelled else None,
                encoding.truncated_tokens,
                turned[at],
                (texts[at],) if pairs is None else (texts[at], pairs[at]),
            )
            for at, (row, encoding) in enumerate(zip(rows, encodings, strict=True))
        ]

    def _encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None, where: Sequence[str]
    ) -> list[Encoding]:
        return self.tokenizer.encode_batch(
            texts,
            pairs,
            max_length=self.settings.max_seq_length,
            truncation=self.settings.truncation,
            where=where,
        )

    def _label(self, row: Row, where: str) -> Any:
        column = self.settings.columns.label
        if column is None:
            raise DataError("the task knows no column of labels", where=where)
        return self.label_of(row, column, where)

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        own = self.settings.columns
        needed = [own.text, own.pair, own.label if labelled else None]
        if not (labelled and own.label is None) and all(
            name is None or name in rows.columns for name in needed
        ):
            return self
        texts = own.text in rows.columns and own.pair in {None, *rows.columns}
        found = find_columns(
            rows.columns,
            rows.sample,
            text=own.text if texts else None,
            pair=own.pair if texts else None,
            label=own.label if own.label in rows.columns else None,
            labelled=labelled,
            where=rows.name,
        )
        if (found.pair is None) != (own.pair is None):
            takes, has = (
                ("pairs of texts", "single texts") if own.pair else ("single texts", "pairs")
            )
            raise DataError(f"the model takes {takes}, and the table has {has}", where=rows.name)
        return type(self)(self.tokenizer, self.settings.with_values(columns=found))

    def pack(
        self, examples: Sequence[TextExample]
    ) -> tuple[Packed, list[Any] | None, list[TextExample]]:
        """Rows in order of length, their labels (None if one is not known), and themselves.

        With `both_orders` a row is two sequences that follow one another.
        """
        order = sorted(examples, key=lambda example: example.num_tokens)
        sequences = [
            (example.index, number, *sequence)
            for example in order
            for number, sequence in enumerate(
                [(example.input_ids, example.token_type_ids)]
                + ([] if example.turned is None else [example.turned])
            )
        ]
        packed = Packed.from_arrays(
            [ids for _, _, ids, _ in sequences],
            [types for _, _, _, types in sequences],
            rows=[row for row, _, _, _ in sequences],
            numbers=[number for _, number, _, _ in sequences],
        )
        labels = [example.label for example in order]
        return packed, None if any(label is None for label in labels) else labels, order


def rows_of(batch: Batch) -> list[int]:
    """The row of each answer: of the first of its sequences."""
    packed = batch.packed
    numbers = packed.sequence_number.tolist()
    return [row for row, at in zip(packed.sequence_row.tolist(), numbers, strict=True) if at == 0]


def in_one(logits: Tensor, packed: Packed) -> Tensor:
    """Logits of rows from those of their sequences: of both orders, their sum.

    It is what the output layer makes of the sum of the two vectors (Radford et al. 2018, §3.3), but
    for its bias, which counts twice.
    """
    orders = int(packed.sequence_number.max()) + 1
    return logits if orders == 1 else logits.reshape(-1, orders, *logits.shape[1:]).sum(1)


def labelled_batch(
    packed: Packed,
    labels: Sequence[Any] | None,
    examples: Sequence[TextExample],
    dtype: type[np.generic],
    name: str,
) -> Batch:
    """A batch with `targets["labels"]`, and as many rows as there are to count for a loss.

    Its examples are in the order of the answers.
    """
    if labels is None:
        return Batch(packed, examples=examples)
    return Batch(packed, {"labels": np.array(labels, dtype)}, {name: len(labels)}, examples)
