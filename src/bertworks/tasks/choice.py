"""Multiple choice: which of several endings or answers fits a prompt.

    [CLS] prompt [SEP] choice [SEP] ─► encoder ─► pooler on [CLS] ─► dropout ─► w ─► one score
                                                       softmax over the choices of a prompt ◄─┘

Where a question is asked about the prompt (RACE, Cosmos QA), it precedes each choice; a choice
fills the blank of a question that has one.

Source: paper §4.4 (SWAG).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..checkpoints.heads import CHOICES, POOLER, PublishedCheckpoint
from ..data.rows import Row, Rows, listing, parse_json_cell, text_of, texts_of
from ..data.schema import Column, Role, RoleColumns, Schema
from ..errors import DataError
from ..nn.config import EncoderConfig
from ..nn.head_layouts import (
    ApplyPooler,
    HeadLayout,
    choice_kind,
    classification_layout,
    pooler_layout,
)
from ..packed import Batch, to_array
from ..text.encoding import Truncation
from .array_network import ArrayNetwork, head_outputs
from .evaluators import SingleLabelEvaluator
from .example import LabelledExample, Tokens, pack, sort_sequences
from .labelled import LabelledTask
from .labels import MARKS, find_mark, read_label_name
from .probabilities import softmax
from .scores import SingleLabelScores
from .task import Evaluator, Outputs, Prediction, TaskSettings, detected_setting

if TYPE_CHECKING:
    from .choice_network import ChoiceNetwork
else:
    ChoiceNetwork = Any

USUAL_COLUMNS = {
    "prompt_column": "prompt",
    "choice_columns": ("choices",),
    "label_column": "label",
}
"""The columns of rows for a published model, which does not name them."""

CHOICE_PREFIXES = ("ending", "choice", "option", "answer", "sol")
_BLANK = re.compile(r"(?<!\w)_+(?!\w)")


def _find_numbered_columns(rows: Rows, columns: RoleColumns) -> Column:  # noqa: ARG001
    """The columns named choice1, choice2 or answerA, answerB and the like, in order."""
    for prefix in CHOICE_PREFIXES:
        marks = {
            name: name.removeprefix(prefix) for name in rows.columns if name.startswith(prefix)
        }
        for pattern in (r"_?\d+", "_?[A-Z]", "_[a-z]"):
            matching = [name for name, mark in marks.items() if re.fullmatch(pattern, mark)]
            if matching:
                return tuple(sorted(matching, key=lambda name: (len(marks[name]), marks[name])))
    return None


SCHEMA = Schema(
    Role("choices", ("choices", "endings", "options"), many=True, guess=_find_numbered_columns),
    Role(
        "prompt",
        (
            *("prompt", "startphrase", "passage", "article", "context", "ctx", "premise", "goal"),
            *("question", "sent1"),
        ),
    ),
    Role("question", optional=True),
    Role("label", ("label", "answer", "gold", "correct", "answer_key"), of_label=True),
)
_SCHEMA_WITHOUT_QUESTIONS = Schema(*(role for role in SCHEMA.roles if role.name != "question"))


def read_choices(row: Row, columns: Sequence[str], where: str) -> list[str]:
    """Return a row's choices: of several columns, a list, or a mapping with the list `text`.

    Of several columns, those after the last choice may be blank: other rows have more choices.

    Raises:
        DataError: there are none, or one is not a text, or is blank in a column before another.
    """
    if len(columns) > 1:
        return _read_cells(row, columns, where)
    value = parse_json_cell(row.get(columns[0]), list)
    if isinstance(value, Mapping):
        value = value.get("text")
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise DataError(f"the column {columns[0]!r} holds no list of texts", where=where)
    if not value:
        raise DataError("there are no choices", where=where)
    return value


def _read_cells(row: Row, columns: Sequence[str], where: str) -> list[str]:
    """Return the choices of several columns; see `read_choices`."""
    texts = [text_of(row, name, where) for name in columns]
    while texts and not texts[-1].strip():
        texts.pop()
    if not texts:
        raise DataError("there are no choices", where=where)
    for name, text in zip(columns, texts, strict=False):
        if not text.strip():
            what = f"the choice in the column {name!r} is blank, and others follow it"
            raise DataError(what, where=where, fix="Leave only the last columns blank.")
    return texts


def read_choice_labels(row: Row, columns: Sequence[str]) -> list[str] | None:
    """Return the labels that a row gives to its choices, as in ARC; None if it gives none."""
    value = row.get(columns[0])
    labels = value.get("label") if isinstance(value, Mapping) else None
    return None if labels is None else list(map(str, labels))


def ask(question: str | None, choice: str) -> str:
    """Return a question with one of its choices: in its blank, otherwise after it."""
    if question is None:
        return choice
    blank = _BLANK.search(question)
    if blank is None:
        return f"{question} {choice}"
    return f"{question[: blank.start()]}{choice}{question[blank.end() :]}"


def find_first_number(
    rows: Iterable[tuple[str, Row]], name: str, label: str, choices: Sequence[str]
) -> int | None:
    """Return whether rows number their choices from 0 or from 1; None if all labels are letters.

    The first decisive label determines it: a label 0 means from 0; a label that is too high for
    counting from 0 means from 1.

    Args:
        name: of the table, for messages.

    Raises:
        DataError: no label is decisive; or a row has no label or no choices.
    """
    has_numbers = False
    for where, row in rows:
        has_labels = read_choice_labels(row, choices) is not None
        if has_labels or find_mark(row.get(label), MARKS) is not None:
            continue
        value = read_label_name(row, label, where)
        if not value.isdecimal():  # a letter: always counted from A
            continue
        has_numbers = True
        if int(value) == 0:
            return 0
        if int(value) >= len(read_choices(row, choices, where)):
            return 1
    if has_numbers:
        raise DataError(
            f"cannot tell whether the choices (column {label!r}) are numbered from 0 or from 1",
            where=name,
            fix="Give first_number=0 or first_number=1 to finetune, or letters (A, B, …) in the "
            "table.",
        )
    return None


class ChoiceSettings(TaskSettings):
    """Columns of multiple choice."""

    prompt_column: str | None = Field(
        None, description="column name or number; detected if omitted"
    )
    choice_columns: str | tuple[str, ...] | None = Field(
        None, description="names or numbers, comma-separated, or one column of lists"
    )
    question_column: str | None = Field(
        None,
        description="column name or number of a question about the prompt, which precedes "
        "each choice; detected if omitted",
    )
    label_column: str | None = Field(None, description="column name or number; detected if omitted")
    first_number: Literal[0, 1] | None = Field(
        None,
        description="number of the first choice in tables; detected if omitted, in each table if "
        "the training table has letters",
    )
    truncation: Truncation = Field(
        "longest_first", description="which text to truncate if both are too long, or error"
    )

    is_question_optional: bool = detected_setting(
        False, "whether rows with and without a question are read (published models)"
    )

    @property
    def first(self) -> int:
        """The number of the first choice in predictions and reports."""
        return self.first_number or 0


class ChoiceEvaluator(SingleLabelEvaluator):
    """`loss`, `accuracy`, and `majority`: that of always choosing the most frequent number."""

    def display_texts(
        self, example: LabelledExample, gold: int, predicted: int
    ) -> tuple[str, str, str]:
        prompt, *choices = example.texts
        return prompt, choices[gold], choices[predicted]


class ChoiceTask(LabelledTask[LabelledExample]):
    """Choose one of several endings or answers for a prompt."""

    name: ClassVar[str] = "choice"
    head = CHOICES
    schema = SCHEMA
    best_metric = "accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "majority", "accuracy")
    settings_class: ClassVar[type[TaskSettings]] = ChoiceSettings
    settings: ChoiceSettings

    @classmethod
    def settings_from_rows(
        cls, rows: Rows, columns: RoleColumns, settings: ChoiceSettings
    ) -> dict[str, Any]:
        if settings.first_number is not None:
            return {}
        label, choices = columns["label"], columns["choices"]
        assert isinstance(label, str), "the schema requires labels"
        assert isinstance(choices, tuple), "a table may have several columns of them"
        return {"first_number": find_first_number(rows, rows.name, label, choices)}

    @classmethod
    def settings_of_checkpoint(cls, checkpoint: PublishedCheckpoint) -> dict[str, Any]:  # noqa: ARG003
        return {**USUAL_COLUMNS, "is_question_optional": True}

    def network(self, config: EncoderConfig) -> ChoiceNetwork:
        from .choice_network import ChoiceNetwork

        config.check_length(self.settings.max_seq_length)
        config = config.with_global_tokens("choice", self.tokenizer.id_of("sep"))
        return ChoiceNetwork(config, self.settings.dropout)

    def head_layouts(self, config: EncoderConfig) -> Mapping[str, HeadLayout]:
        config.check_length(self.settings.max_seq_length)
        layout = classification_layout(config, 1, kind=choice_kind(config), bias=True)
        layouts = {CHOICES.name: layout}
        has_pooler = ApplyPooler() in layout
        return {**layouts, POOLER.name: pooler_layout(config)} if has_pooler else layouts

    def compute(self, network: ArrayNetwork, batch: Batch) -> dict[str, NDArray[Any]]:
        packed = batch.packed
        scores = head_outputs(network, CHOICES.name, packed)[:, 0]
        shape = (len(batch.examples), len(batch.targets["max_choices"]))
        logits = np.full(shape, np.finfo(np.float32).min, np.float32)
        logits[batch.targets["row"], packed.sequence_number] = scores
        return {"logits": logits}

    def source_columns(self, rows: Rows) -> Sequence[tuple[str, ...]]:  # noqa: ARG002
        return [(self.column("prompt"),)]

    @property
    def table_schema(self) -> Schema:
        """Without questions, if the model learned without them."""
        settings = self.settings
        reads_questions = settings.question_column is not None or settings.is_question_optional
        return SCHEMA if reads_questions else _SCHEMA_WITHOUT_QUESTIONS

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        task = super().for_table(rows, labelled=labelled)
        question, settings = self.settings.question_column, task.settings
        if question is not None and settings.question_column is None:
            what = f"there is no column of questions, such as {question!r}"
            fix = "The model learned from a table that has one: name it as there."
            raise DataError(f"{what}; {listing(rows.columns)}", where=rows.name, fix=fix)
        if not labelled or settings.first_number is not None:
            return task
        # The labels of the training table were letters.
        sample = enumerate(rows.sample, 1)  # standard input can be read only once
        located_rows = ((f"{rows.name}, row {number}", row) for number, row in sample)
        label, choices = task.column("label"), task.choice_columns
        first = find_first_number(located_rows, rows.name, label, choices)
        if first is None:
            return task
        return type(self)(self.tokenizer, settings.with_values(first_number=first))

    @property
    def choice_columns(self) -> tuple[str, ...]:
        """A column for each choice, or one that holds lists."""
        columns = self.columns["choices"]
        assert isinstance(columns, tuple), "a table may have several columns of them"
        return columns

    @property
    def columns_text(self) -> str:
        first = self.settings.first_number
        return f"{super().columns_text}, {'letters' if first is None else f'counted from {first}'}"

    def text_row(self, text: str, pair: str | None = None) -> Row:  # noqa: ARG002
        raise DataError(
            "multiple choice takes rows of a prompt and its choices, not texts",
            where=repr(text),
            fix="Give a table.",
        )

    def build_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[LabelledExample]:
        settings = self.settings
        choices = [
            read_choices(row, self.choice_columns, index)
            for row, index in zip(rows, where, strict=True)
        ]
        owner = [index for index, texts in enumerate(choices) for _ in texts]
        prompts = texts_of(rows, self.column("prompt"), where)
        questions: Sequence[str | None] = [None] * len(rows)
        if settings.question_column is not None:
            questions = texts_of(rows, settings.question_column, where)
        encodings = self.tokenizer.encode_batch(
            [prompts[index] for index in owner],
            [
                ask(question, text)
                for question, texts in zip(questions, choices, strict=True)
                for text in texts
            ],
            max_length=settings.max_seq_length,
            truncation=settings.truncation,
            where=[where[index] for index in owner],
        )
        examples = []
        start = 0
        for index, (row, texts) in enumerate(zip(rows, choices, strict=True)):
            part = encodings[start : start + len(texts)]
            start += len(texts)
            examples.append(
                LabelledExample(
                    index=first_index + index,
                    sequences=[Tokens.from_encoding(encoding) for encoding in part],
                    target=self.read_target(row, where[index], labelled=labelled),
                    truncated_tokens=sum(encoding.truncated_tokens for encoding in part),
                    texts=(" ".join(filter(None, (prompts[index], questions[index]))), *texts),
                    where=where[index],
                )
            )
        return examples

    def find_unlabelled_mark(self, row: Row) -> str | None:
        label = self.settings.label_column
        return None if label is None else find_mark(row.get(label), MARKS)

    def read_label(self, row: Row, column: str, where: str) -> int:
        """Return the index of the correct choice, from 0.

        In the table, numbers count from `first_number`, and letters from A.

        Raises:
            DataError: see `LabelledTask.read_label`; or the label is a number, and it is unknown
                whether numbers count from 0 or from 1.
        """
        first = self.settings.first_number
        name = read_label_name(row, column, where)
        labels = read_choice_labels(row, self.choice_columns)
        if labels is not None:
            if labels.count(name) != 1:
                what = f"the label {name!r} (column {column!r}) is not one of {labels}"
                raise DataError(what, where=where)
            return labels.index(name)
        if len(name) == 1 and name.isascii() and name.isalpha():
            number = ord(name.upper()) - ord("A")
        elif not name.isdecimal():
            raise DataError(f"the label {name!r} (column {column!r}) is not a number", where=where)
        elif first is None:
            raise DataError(
                f"cannot tell whether the label {name!r} (column {column!r}) counts from 0 or from "
                "1: the labels before it are letters",
                where=where,
            )
        else:
            number = int(name) - first
        count = len(read_choices(row, self.choice_columns, where))
        if not 0 <= number < count:
            raise DataError(
                f"the label {row[column]!r} (column {column!r}) is not the number of one of "
                f"the {count} choices, which count from {'A' if first is None else first}",
                where=where,
            )
        return number

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack the choices of all rows in order of length.

        `targets["row"]` is `[sequences]` int64: the index of each sequence's example. The length of
        `targets["max_choices"]` is the largest number of choices of a row. If labels are known,
        `targets["labels"]` is `[rows]`, and `counts["choice"]` the number of rows.
        """
        indices = sort_sequences(examples)
        packed = pack(examples, indices)
        targets = {
            "row": np.array([at for at, _ in indices], np.int64),
            "max_choices": np.zeros(max(len(example.sequences) for example in examples), np.int8),
        }
        labels = [example.target for example in examples]
        if None in labels:
            return Batch(packed, targets, examples=examples)
        targets["labels"] = np.array(labels, np.int64)
        return Batch(packed, targets, {"choice": len(labels)}, examples)

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """Return for each row the `choice`, its `text`, and all `probabilities`.

        `choice` is a number that counts from `first_number`, as in the training table; from 0 if
        its labels are letters.
        """
        shares = softmax(to_array(outputs["logits"]))
        predictions: dict[int, Prediction] = {}
        for example, row in zip(batch.examples, shares.tolist(), strict=True):
            probabilities = row[: len(example.sequences)]
            best = max(range(len(probabilities)), key=probabilities.__getitem__)
            predictions[example.index] = {
                "choice": best + self.settings.first,
                "text": example.texts[1 + best],
                "probabilities": probabilities,
            }
        return predictions

    def count_targets(self, examples: Sequence[LabelledExample]) -> Mapping[str, int]:
        counts = Counter(example.target for example in examples)
        most = max(len(example.sequences) for example in examples)
        first = self.settings.first
        return {str(number + first): counts[number] for number in range(most)}

    def evaluator(self) -> Evaluator:
        return ChoiceEvaluator(SingleLabelScores())
