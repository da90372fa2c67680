"""Classification of texts and of pairs of texts.

    [CLS] text [SEP] (second text [SEP]) ─► encoder ─► pooler on [CLS] ─► dropout ─► W ─► softmax

Source: paper §4.1; the original `run_classifier.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from ..errors import DataError, SettingsError, nearest
from ..model.encoder import Encoder
from ..model.heads import ClassificationHead, cross_entropy_sum, next_piece_loss_sum
from ..packed import Batch, Packed
from ..settings import Settings
from .columns import Columns, find_columns
from .labels import label_name
from .metrics import ClassificationEvaluator
from .placed import Rows, text_of
from .task import Network, Prediction, Row, Task

if TYPE_CHECKING:
    from ..model.config import EncoderConfig
    from ..text.tokenizer import Tokenizer

UNKNOWN = -1
"""The label of a row whose class is not known."""


class ClassificationSettings(Settings):
    """What a classifier is, beside its weights."""

    labels: tuple[str, ...] = Field(min_length=2, description="the classes' names, in order")
    columns: Columns = Field(description="the columns that rows are read from")
    max_seq_length: int = Field(128, ge=4, description="the most tokens of a row, special ones too")
    truncation: Literal["longest_first", "first", "second", "error"] = Field(
        "longest_first", description="what becomes of a longer row"
    )
    dropout: float | None = Field(
        None, ge=0, lt=1, description="before the output layer; the encoder's, if left out"
    )
    positive_label: str | None = Field(
        None, description="of two classes the one whose F1 is reported; the last, if left out"
    )
    lm_weight: float = Field(
        0.0, ge=0, description="of the loss of guessing each next piece (GPT: 0.5)"
    )

    @model_validator(mode="after")
    def _labels_are_names(self) -> Self:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("two classes have the same name")
        if self.positive_label is not None and self.positive_label not in self.labels:
            raise ValueError(
                f"positive_label={self.positive_label!r} is none of the labels "
                + ", ".join(map(repr, self.labels))
            )
        return self


@dataclass(frozen=True, eq=False, slots=True)
class ClassificationExample:
    """A row as token ids.

    Attributes:
        index: the row's number.
        input_ids: `[tokens]` int32.
        token_type_ids: `[tokens]` int8.
        label: the number of its class, or `UNKNOWN`.
        truncated_tokens: how many tokens the limit cut off.
    """

    index: int
    input_ids: np.ndarray
    token_type_ids: np.ndarray
    label: int
    truncated_tokens: int

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)


class ClassificationNetwork(Network):
    """An encoder with a classification head on its pooler.

    Args:
        config: the geometry.
        num_labels: how many classes there are.
        dropout: before the output layer; `hidden_dropout_prob`, if left out.
        lm_weight: of the auxiliary loss of guessing each next piece (Radford et al. 2018, §3.2).
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        dropout: float | None = None,
        lm_weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.lm_weight = lm_weight
        self.encoder = Encoder(config, pooler=config.classifier == "pooler")
        self.head = ClassificationHead(config, num_labels, dropout)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed cross-entropies of the rows: `classification` (and `weighted_lm`)."""
        hidden = self.encoder(batch.packed)
        logits = self.head(self.encoder, hidden, batch.packed)
        losses = {"classification": cross_entropy_sum(logits, batch.targets["labels"])}
        if self.lm_weight:
            lm = next_piece_loss_sum(self.encoder, hidden, batch.packed)
            losses["weighted_lm"] = self.lm_weight * lm
        return losses

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`logits` `[sequences, num_labels]`."""
        return {"logits": self.head(self.encoder, self.encoder(batch.packed), batch.packed)}


class ClassificationTask(Task[ClassificationExample]):
    """Which of several classes a text, or a pair of texts, belongs to.

    Args:
        tokenizer: the model's.
        settings: class names, columns, limits.
    """

    name: ClassVar[str] = "classification"
    best_metric: ClassVar[str] = "accuracy"

    def __init__(self, tokenizer: Tokenizer, settings: ClassificationSettings) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self._numbers = {name: number for number, name in enumerate(settings.labels)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], tokenizer: Tokenizer) -> Self:
        """The task that `to_dict` described."""
        return cls(tokenizer, ClassificationSettings.parse(values))

    def to_dict(self) -> dict[str, Any]:
        return self.settings.model_dump(mode="json")

    @property
    def model_class(self) -> str:
        return "classification"

    def config_entries(self) -> dict[str, Any]:
        return {
            "id2label": {str(number): name for name, number in self._numbers.items()},
            "label2id": dict(self._numbers),
            "classifier_dropout": self.settings.dropout,
        }

    def network(self, config: EncoderConfig) -> ClassificationNetwork:
        """A fresh network.

        Raises:
            SettingsError: the encoder has fewer positions than `max_seq_length`, or cannot guess
                next pieces where `lm_weight` asks for it.
        """
        limit = self.settings.max_seq_length
        if limit > config.max_seqlen:
            raise SettingsError(
                f"max_seq_length={limit} is more than the {config.max_seqlen} tokens that the "
                f"encoder's max_position_embeddings={config.max_position_embeddings} has room for"
            )
        lm_weight = self.settings.lm_weight
        tells_next = config.attention == "causal" and config.tie_word_embeddings
        if lm_weight and (not tells_next or config.mlm_transform or config.mlm_bias):
            raise SettingsError(
                f"lm_weight={lm_weight}: a {config.family} model has no head that guesses each "
                "next piece by its embeddings alone, as GPT's has"
            )
        return ClassificationNetwork(
            config, len(self.settings.labels), self.settings.dropout, lm_weight
        )

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

    def example(
        self, row: Row, index: int, *, where: str | None = None, labelled: bool = True
    ) -> ClassificationExample:
        places = None if where is None else [where]
        return self.examples([row], index, where=places, labelled=labelled)[0]

    def examples(
        self,
        rows: Sequence[Row],
        first_index: int,
        *,
        where: Sequence[str] | None = None,
        labelled: bool = True,
    ) -> list[ClassificationExample]:
        """Tokenise many rows at once, on as many threads as the tokenizer takes.

        Raises:
            DataError: a column is missing; a label is empty or none of the task's; a text is no
                text, or too long where `truncation` is "error".
        """
        if not rows:
            return []
        columns = self.settings.columns
        if where is None:
            where = [f"row {number + 1}" for number in range(first_index, first_index + len(rows))]
        pairs = None
        if columns.pair is not None:
            pairs = [text_of(row, columns.pair, at) for row, at in zip(rows, where, strict=True)]
        encodings = self.tokenizer.encode_batch(
            [text_of(row, columns.text, at) for row, at in zip(rows, where, strict=True)],
            pairs,
            max_length=self.settings.max_seq_length,
            truncation=self.settings.truncation,
            where=where,
        )
        return [
            ClassificationExample(
                first_index + at,
                encoding.input_ids,
                encoding.token_type_ids,
                self._label(row, where[at]) if labelled else UNKNOWN,
                encoding.truncated_tokens,
            )
            for at, (row, encoding) in enumerate(zip(rows, encodings, strict=True))
        ]

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        own = self.settings.columns
        needed = [own.text, own.pair, own.label if labelled else None]
        if all(name is None or name in rows.columns for name in needed):
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

    def _label(self, row: Row, where: str) -> int:
        column = self.settings.columns.label
        if column is None:
            raise DataError("the task knows no column of labels", where=where)
        name = label_name(row, column, where)
        if name not in self._numbers:
            raise DataError(
                f"the label {name!r} is none of those of the training data",
                where=where,
                fix=f"{nearest(name, self._numbers)}.",
            )
        return self._numbers[name]

    def collate(self, examples: Sequence[ClassificationExample]) -> Batch:
        """Pack rows in order of length; `targets` and `counts` are there if labels are known.

        `targets["labels"]` is `[sequences]` int64; `counts["classification"]` the rows.
        """
        order = sorted(examples, key=lambda example: example.num_tokens)
        packed = Packed.from_arrays(
            [example.input_ids for example in order],
            [example.token_type_ids for example in order],
            rows=[example.index for example in order],
        )
        labels = np.array([example.label for example in order], np.int64)
        if UNKNOWN in labels:
            return Batch(packed)
        counts = {"classification": len(order)}
        if self.settings.lm_weight:
            counts["weighted_lm"] = packed.num_tokens - packed.num_sequences
        return Batch(packed, {"labels": labels}, counts)

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """For each row its `label`, and `probabilities` of every label."""
        probabilities = torch.softmax(outputs["logits"].double(), -1).cpu()
        best = probabilities.argmax(-1).tolist()
        names = self.settings.labels
        return {
            row: {"label": names[at], "probabilities": dict(zip(names, chances, strict=True))}
            for row, at, chances in zip(
                batch.packed.sequence_row.tolist(), best, probabilities.tolist(), strict=True
            )
        }

    @property
    def metrics(self) -> tuple[str, ...]:
        """What the evaluator measures."""
        f1 = ("f1",) if len(self.settings.labels) == 2 else ()
        return ("loss", "majority", "accuracy", *f1, "macro_f1", "matthews_correlation")

    def evaluator(self) -> ClassificationEvaluator:
        names = self.settings.labels
        positive = None
        if len(names) == 2:
            chosen = self.settings.positive_label
            positive = 1 if chosen is None else names.index(chosen)
        return ClassificationEvaluator(names, positive)
