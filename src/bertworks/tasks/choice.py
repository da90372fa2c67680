"""Multiple choice: which of several endings, or answers, belongs to a prompt.

    [CLS] prompt [SEP] choice [SEP] ─► encoder ─► pooler on [CLS] ─► dropout ─► w ─► one score
                                                       softmax over the choices of a prompt ◄─┘

Source: paper §4.4 (SWAG).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from ..errors import DataError
from ..model.encoder import Encoder
from ..model.heads import ClassificationHead, cross_entropy_sum
from ..packed import Batch, Packed, Padded
from .breakdown import Breakdown
from .columns import listing, resolve
from .counters import CalibrationCounter, Worst
from .labelled import LabelledTask, TaskOptions, TaskSettings, check_length
from .labels import label_name
from .placed import Rows, text_of
from .task import Evaluator, Network, Prediction, Row, Task

if TYPE_CHECKING:
    from ..model.config import EncoderConfig
    from ..text.tokenizer import Tokenizer

PROMPT_NAMES = ("prompt", "startphrase", "context", "question", "sent1")
CHOICE_NAMES = ("choices", "endings", "options")
CHOICE_PREFIXES = ("ending", "choice", "option", "answer")
LABEL_NAMES = ("label", "answer", "gold", "correct")


class ChoiceOptions(TaskOptions):
    """What a user may say of multiple choice when it is learned."""

    prompt_column: str | None = Field(None, description="name or number; guessed if left out")
    choice_columns: str | None = Field(
        None, description="names or numbers with commas between, or of one that holds lists"
    )
    label_column: str | None = Field(None, description="name or number; guessed if left out")
    truncation: Literal["longest_first", "first", "second", "error"] = "longest_first"


class ChoiceSettings(TaskSettings):
    """What multiple choice is, beside its weights."""

    prompt: str = Field("prompt", description="the column of prompts")
    choices: tuple[str, ...] = Field(
        ("choices",), min_length=1, description="a column each, or one that holds lists"
    )
    label: str | None = Field("label", description="the column of the right choices' numbers")
    first_number: int = Field(0, description="the number of the first choice in tables")
    truncation: Literal["longest_first", "first", "second", "error"] = "longest_first"


@dataclass(frozen=True, eq=False, slots=True)
class ChoiceExample:
    """A prompt with each of its choices as a sequence.

    Attributes:
        index: the row's number.
        prompt: its text.
        choices: their texts.
        input_ids: of each choice, `[tokens]` int32.
        token_type_ids: of each choice, `[tokens]` int8.
        label: the number of the right choice, from 0; None where it is not known.
        truncated_tokens: how many tokens the limit cut off, of all choices together.
    """

    index: int
    prompt: str
    choices: Sequence[str]
    input_ids: Sequence[np.ndarray]
    token_type_ids: Sequence[np.ndarray]
    label: int | None
    truncated_tokens: int

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.input_ids))

    @property
    def content(self) -> bytes:
        return b"".join(ids.tobytes() for ids in self.input_ids)

    @property
    def target(self) -> bytes:
        return np.array(self.label).tobytes()


class ChoiceNetwork(Network):
    """An encoder with a head that gives a sequence one score.

    Args:
        config: the geometry.
        dropout: before the output layer; `hidden_dropout_prob`, if left out.
    """

    def __init__(self, config: EncoderConfig, dropout: float | None = None) -> None:
        super().__init__()
        # RoBERTa's published head stands on a pooler here, unlike its classifier's.
        kind = "pooler" if config.classifier == "tanh" else config.classifier
        self.encoder = Encoder(config, pooler=kind == "pooler")
        self.choice_head = ClassificationHead(config, 1, dropout, kind=kind, bias=True)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed cross-entropies of the rows: `choice`."""
        return {"choice": cross_entropy_sum(self._logits(batch), batch.targets["labels"])}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`logits` `[rows, most choices of a row]`, in the order of the batch's examples; minus
        infinity where a row has fewer choices."""
        return {"logits": self._logits(batch)}

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """`logits` `[rows, 1]`: the score of each prompt with one of its choices."""
        return {"logits": self.choice_head(self.encoder, self.encoder(padded), padded)}

    def _logits(self, batch: Batch) -> Float[Tensor, "rows choices"]:
        packed = batch.packed
        hidden = self.encoder(packed)
        scores = self.choice_head(self.encoder, hidden, packed).squeeze(-1)
        rows = batch.targets["row"]
        shape = (len(batch.examples), batch.targets["most"].shape[0])
        logits: Tensor = scores.new_full(shape, -torch.inf)
        return logits.index_put((rows, packed.sequence_number), scores)


class ChoiceTask(LabelledTask[ChoiceExample]):
    """Which of its choices belongs to a prompt.

    Args:
        tokenizer: the model's.
        settings: columns, limits.
    """

    name: ClassVar[str] = "choice"
    best_metric = "accuracy"
    options: ClassVar[type[TaskOptions]] = ChoiceOptions
    metrics: ClassVar[tuple[str, ...]] = ("loss", "majority", "accuracy")
    settings_class: ClassVar[type[TaskSettings]] = ChoiceSettings
    settings: ChoiceSettings

    @classmethod
    def from_table(cls, tokenizer: Tokenizer, rows: Rows, options: TaskOptions) -> Self:
        assert isinstance(options, ChoiceOptions)
        settings = find_choice_columns(rows, options, labelled=True)
        numbers = {_number(row, settings["label"], where) for where, row in rows}
        own = options.model_dump(include={"max_seq_length", "truncation", "dropout"})
        # Numbers that never are 0 count from 1.
        first = int(0 not in numbers)
        return cls(tokenizer, ChoiceSettings.parse({**settings, **own, "first_number": first}))

    def config_entries(self) -> dict[str, Any]:
        return {"classifier_dropout": self.settings.dropout}

    def network(self, config: EncoderConfig) -> ChoiceNetwork:
        """A fresh network.

        Raises:
            SettingsError: the encoder has fewer positions than `max_seq_length`.
        """
        check_length(self.settings.max_seq_length, config)
        return ChoiceNetwork(config, self.settings.dropout)

    def same_head(self, other: Task[Any]) -> bool:
        return isinstance(other, ChoiceTask)

    @property
    def columns_text(self) -> str:
        own = self.settings
        choices = ", ".join(map(repr, own.choices))
        return f"prompt = {own.prompt!r}, choices = {choices}, label = {own.label!r}"

    def text_row(self, text: str, pair: str | None = None) -> Row:  # noqa: ARG002
        raise DataError(
            "multiple choice takes rows of a prompt and its choices, not texts",
            where=repr(text),
            fix="Give a table.",
        )

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        own = self.settings
        needed = [own.prompt, *own.choices, *([own.label] if labelled else [])]
        if all(name in rows.columns for name in needed):
            return self
        found = find_choice_columns(rows, ChoiceOptions(), labelled=labelled)
        return type(self)(self.tokenizer, own.with_values(**found))

    def placed_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[ChoiceExample]:
        """Tokenise the choices of many rows at once.

        Raises:
            DataError: a column is missing, or holds no text; a row has no choices, or a label that
                is none of them.
        """
        own = self.settings
        choices = [self._choices(row, at) for row, at in zip(rows, where, strict=True)]
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
                ChoiceExample(
                    first_index + at,
                    prompts[at],
                    texts,
                    [encoding.input_ids for encoding in part],
                    [encoding.token_type_ids for encoding in part],
                    self._label(row, len(texts), where[at]) if labelled else None,
                    sum(encoding.truncated_tokens for encoding in part),
                )
            )
        return examples

    def _choices(self, row: Row, where: str) -> list[str]:
        names = self.settings.choices
        if len(names) > 1:
            return [text_of(row, name, where) for name in names]
        value = row.get(names[0])
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise DataError(f"the column {names[0]!r} holds no list of texts", where=where)
        if not value:
            raise DataError("there are no choices", where=where)
        return value

    def _label(self, row: Row, count: int, where: str) -> int:
        column = self.settings.label
        if column is None:
            raise DataError("the task knows no column of labels", where=where)
        number = _number(row, column, where) - self.settings.first_number
        if not 0 <= number < count:
            raise DataError(
                f"the label {row[column]!r} (column {column!r}) is the number of none of the "
                f"{count} choices, which count from {self.settings.first_number}",
                where=where,
            )
        return number

    def collate(self, examples: Sequence[ChoiceExample]) -> Batch:
        """Pack the choices of all rows in order of length.

        `targets["row"]` is `[sequences]` int64, the place among the examples of a sequence's row;
        `["most"]` as long as a row has choices at most; `["labels"]`, if known, `[rows]`;
        `counts["choice"]` the rows.
        """
        order = sorted(
            (len(ids), at, number)
            for at, example in enumerate(examples)
            for number, ids in enumerate(example.input_ids)
        )
        packed = Packed.from_arrays(
            [examples[at].input_ids[number] for _, at, number in order],
            [examples[at].token_type_ids[number] for _, at, number in order],
            rows=[examples[at].index for _, at, _ in order],
            numbers=[number for _, _, number in order],
        )
        targets = {
            "row": np.array([at for _, at, _ in order], np.int64),
            "most": np.zeros(max(len(example.choices) for example in examples), np.int8),
        }
        labels = [example.label for example in examples if example.label is not None]
        if len(labels) < len(examples):
            return Batch(packed, targets, examples=examples)
        targets["labels"] = np.array(labels, np.int64)
        return Batch(packed, targets, {"choice": len(labels)}, examples)

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """For each row its `choice` (a number from 0), its `text`, and all `probabilities`."""
        chances = torch.softmax(outputs["logits"].double(), -1).cpu()
        found: dict[int, Prediction] = {}
        for example, own in zip(batch.examples, chances.tolist(), strict=True):
            told = own[: len(example.choices)]
            best = max(range(len(told)), key=told.__getitem__)
            found[example.index] = {
                "choice": best,
                "text": example.choices[best],
                "probabilities": told,
            }
        return found

    def count_targets(self, examples: Sequence[ChoiceExample]) -> Mapping[str, int]:
        counts = Counter(example.label for example in examples)
        most = max(len(example.choices) for example in examples)
        first = self.settings.first_number
        return {str(number + first): counts[number] for number in range(most)}

    def evaluator(self) -> Evaluator:
        return ChoiceEvaluator()


class ChoiceEvaluator(Evaluator):
    """`loss`, `accuracy`, and `majority`: that of always choosing the commonest number."""

    def __init__(self) -> None:
        self._labels: list[int] = []
        self._told: list[int] = []
        self._loss = 0.0
        self._calibration, self._worst = CalibrationCounter(), Worst()

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        logits, labels = outputs["logits"], batch.targets["labels"]
        self._loss += cross_entropy_sum(logits, labels).item()
        true, told = np.asarray(labels.cpu()), np.asarray(logits.argmax(-1).cpu())
        self._labels += true.tolist()
        self._told += told.tolist()
        sure = np.asarray(logits.double().softmax(-1).amax(-1).cpu())
        self._calibration.add(sure, true == told)
        for at in np.flatnonzero(true != told).tolist():
            example: ChoiceExample = batch.examples[at]
            names = example.choices[true[at]], example.choices[told[at]]
            self._worst.add(float(sure[at]), example.index, example.prompt, *names)

    def result(self) -> dict[str, float]:
        assert self._labels, "nothing was evaluated"
        pairs = zip(self._labels, self._told, strict=True)
        return {
            "loss": self._loss / len(self._labels),
            "majority": Counter(self._labels).most_common(1)[0][1] / len(self._labels),
            "accuracy": float(np.mean([own == other for own, other in pairs])),
        }

    def breakdown(self) -> Breakdown:
        return Breakdown(
            calibration=self._calibration.result("rows"), mistakes=self._worst.result()
        )


def find_choice_columns(rows: Rows, options: ChoiceOptions, *, labelled: bool) -> dict[str, Any]:
    """The columns of prompts, choices and labels, named by the user or guessed.

    Raises:
        DataError: one is not there.
    """
    columns = rows.columns

    def lacking(role: str, fix: str) -> DataError:
        what = f"cannot tell which column holds the {role}; {listing(columns)}"
        return DataError(what, where=rows.name, fix=f"Name it with {fix}.")

    if options.choice_columns is not None:
        names = [name.strip() for name in options.choice_columns.split(",")]
        choices = [resolve(columns, name, rows.name) for name in names if name]
    else:
        choices = [name for name in CHOICE_NAMES if name in columns][:1] or [
            name
            for prefix in CHOICE_PREFIXES
            for name in columns
            if name.startswith(prefix) and name.removeprefix(prefix).lstrip("_").isdecimal()
        ]
    if not choices:
        raise lacking("choices", "choice_columns=NAME,NAME,…")
    if options.prompt_column is not None:
        prompt = resolve(columns, options.prompt_column, rows.name)
    else:
        prompt = next((name for name in PROMPT_NAMES if name in columns), "")
        if not prompt:
            raise lacking("prompt", "prompt_column=NAME")
    if options.label_column is not None:
        label: str | None = resolve(columns, options.label_column, rows.name)
    else:
        label = next((name for name in LABEL_NAMES if name in columns), None)
    if labelled and label is None:
        raise lacking("label", "label_column=NAME")
    return {"prompt": prompt, "choices": tuple(choices), "label": label}


def _number(row: Row, column: str | None, where: str) -> int:
    """The number of the right choice, as a table has it; a letter counts from A, which is 0."""
    assert column is not None, "labels were asked for"
    name = label_name(row, column, where)
    if len(name) == 1 and name.isascii() and name.isalpha():
        return ord(name.upper()) - ord("A")
    if not name.isdecimal():
        raise DataError(f"the label {name!r} (column {column!r}) is no number", where=where)
    return int(name)
