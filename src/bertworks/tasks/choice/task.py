"""Multiple choice: which of several endings, or answers, belongs to a prompt.

    [CLS] prompt [SEP] choice [SEP] ─► encoder ─► pooler on [CLS] ─► dropout ─► w ─► one score
                                                       softmax over the choices of a prompt ◄─┘

Source: paper §4.4 (SWAG).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ...checkpoints.heads import CHOICES
from ...errors import DataError
from ...packed import Batch
from ..example import LabelledExample, Tokens, by_length, pack
from ..labelled import LabelledTask, TaskOptions, TaskSettings, check_length
from ..placed import Rows, text_of
from ..schema import RoleColumns
from ..task import Evaluator, Prediction, Row
from .columns import SCHEMA, choice_number, choices_of, first_number
from .evaluator import ChoiceEvaluator
from .network import ChoiceNetwork
from .settings import ChoiceOptions, ChoiceSettings

if TYPE_CHECKING:
    from ...checkpoints.published import Published
    from ...model.config import EncoderConfig


class ChoiceTask(LabelledTask[LabelledExample]):
    """Which of its choices belongs to a prompt.

    Args:
        tokenizer: the model's.
        settings: columns, limits.
    """

    name: ClassVar[str] = "choice"
    head = CHOICES
    schema = SCHEMA
    best_metric = "accuracy"
    options: ClassVar[type[TaskOptions]] = ChoiceOptions
    metrics: ClassVar[tuple[str, ...]] = ("loss", "majority", "accuracy")
    settings_class: ClassVar[type[TaskSettings]] = ChoiceSettings
    settings: ChoiceSettings

    @classmethod
    def learned(cls, rows: Rows, columns: RoleColumns, options: TaskOptions) -> dict[str, Any]:
        assert isinstance(options, ChoiceOptions)
        label, choices = columns["label"], columns["choices"]
        assert isinstance(label, str), "labels were asked for"
        assert isinstance(choices, tuple), "a table may have several columns of them"
        first = options.first_number
        return {"first_number": first_number(rows, label, choices) if first is None else first}

    @classmethod
    def published(cls, of: Published) -> Self | None:
        if not of.has_head(cls.head):
            return None
        settings = ChoiceSettings(max_seq_length=of.config.max_seqlen, dropout=of.dropout(cls.head))
        return cls(of.tokenizer, settings)

    def network(self, config: EncoderConfig) -> ChoiceNetwork:
        """A fresh network.

        Raises:
            SettingsError: the encoder has fewer positions than `max_seq_length`.
        """
        check_length(self.settings.max_seq_length, config)
        return ChoiceNetwork(config, self.settings.dropout)

    def source_columns(self, rows: Rows) -> Sequence[tuple[str, ...]]:  # noqa: ARG002
        return [(self.settings.prompt,)]

    @property
    def columns_text(self) -> str:
        return f"{super().columns_text}, counted from {self.settings.first_number}"

    def text_row(self, text: str, pair: str | None = None) -> Row:  # noqa: ARG002
        raise DataError(
            "multiple choice takes rows of a prompt and its choices, not texts",
            where=repr(text),
            fix="Give a table.",
        )

    def placed_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[LabelledExample]:
        """Tokenise the choices of many rows at once.

        Raises:
            DataError: a column is missing, or holds no text; a row has no choices, or a label that
                is none of them.
        """
        own = self.settings
        choices = [choices_of(row, own.choices, at) for row, at in zip(rows, where, strict=True)]
        owner = [at for at, texts in enumerate(choices) for _ in texts]
        prompts = [text_of(row, own.prompt, at) for row, at in zip(rows, where, strict=True)]
        encodings = self.tokenizer.encode_batch(
            [prompts[at] for at in owner],
            [text for texts in choices for text in texts],
            max_length=own.max_seq_length,
            truncation=own.truncation,
            where=[where[at] for at in owner],
        )
        examples = []
        start = 0
        for at, (row, texts) in enumerate(zip(rows, choices, strict=True)):
            part = encodings[start : start + len(texts)]
            start += len(texts)
            examples.append(
                LabelledExample(
                    index=first_index + at,
                    sequences=[Tokens.of(encoding) for encoding in part],
                    target=self._label(row, len(texts), where[at]) if labelled else None,
                    truncated_tokens=sum(encoding.truncated_tokens for encoding in part),
                    texts=(prompts[at], *texts),
                    where=where[at],
                )
            )
        return examples

    def _label(self, row: Row, count: int, where: str) -> int:
        column = self.settings.label
        if column is None:
            raise DataError("the task knows no column of labels", where=where)
        number = choice_number(row, column, where, self.settings.first_number)
        if not 0 <= number < count:
            raise DataError(
                f"the label {row[column]!r} (column {column!r}) is the number of none of the "
                f"{count} choices, which count from {self.settings.first_number}",
                where=where,
            )
        return number

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack the choices of all rows in order of length.

        `targets["row"]` is `[sequences]` int64, the place among the examples of a sequence's row;
        `["most"]` as long as a row has choices at most; `["labels"]`, if known, `[rows]`;
        `counts["choice"]` the rows.
        """
        places = by_length(examples)
        packed = pack(examples, places)
        targets = {
            "row": np.array([at for at, _ in places], np.int64),
            "most": np.zeros(max(len(example.sequences) for example in examples), np.int8),
        }
        labels = [example.target for example in examples]
        if None in labels:
            return Batch(packed, targets, examples=examples)
        targets["labels"] = np.array(labels, np.int64)
        return Batch(packed, targets, {"choice": len(labels)}, examples)

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """For each row its `choice`, its `text`, and all `probabilities`.

        The choice is told by its number, counted as the tables' numbers are (letters: from 0).
        """
        chances = torch.softmax(outputs["logits"].double(), -1).cpu()
        found: dict[int, Prediction] = {}
        for example, own in zip(batch.examples, chances.tolist(), strict=True):
            told = own[: len(example.sequences)]
            best = max(range(len(told)), key=told.__getitem__)
            found[example.index] = {
                "choice": best + self.settings.first_number,
                "text": example.texts[1 + best],
                "probabilities": told,
            }
        return found

    def count_targets(self, examples: Sequence[LabelledExample]) -> Mapping[str, int]:
        counts = Counter(example.target for example in examples)
        most = max(len(example.sequences) for example in examples)
        first = self.settings.first_number
        return {str(number + first): counts[number] for number in range(most)}

    def evaluator(self) -> Evaluator:
        return ChoiceEvaluator()
