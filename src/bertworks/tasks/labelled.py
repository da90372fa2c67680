"""Tasks that are trained on a table of labelled rows: the part of a task that `finetune` needs.

A task is created from a table and the user's options (`TaskOptions`), which together settle its
columns and the names of its labels. The general protocol of tasks is in `task.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from ..checkpoints.sentence import SentenceSettings
from ..data.rows import NoLabel, Row, Rows, text_of
from ..data.schema import RoleColumns, Schema, names_of
from ..errors import DataError
from ..text.tokenizer import Tokenizer
from .example import ExampleT
from .task import Task
from .task_options import ColumnSettings, TaskOptions, TaskSettings

LABEL = "label"
"""The role of the column with the targets, in tasks with one target per row."""


class LabelledTask(Task[ExampleT]):
    """A task that is trained on labelled rows.

    Args:
        tokenizer: the model's tokenizer.
        settings: an instance of `settings_class`.

    Your own task needs a `name`, a `schema`, a `network`, `build_examples`, `collate`, `decode`,
    an `evaluator` and its `metrics`; for rows with one of several classes, `ClassifierTask` has
    most of these. See `examples/own_task.py`.

    Attributes:
        schema: the roles of the columns that are read; by default the settings store the columns as
            `columns`.
        options: the user's options; by default the columns, and the options of all tasks.
        settings_class: settings that are saved with the weights; by default the columns.
        teacher_outputs: the outputs of a teacher model that can replace labels; None if there are
            none.
        has_majority_baseline: whether always predicting the most frequent target is a useful
            baseline.
        is_stratified: whether rows that are split off for dev keep the share of each target.
    """

    schema: ClassVar[Schema]
    options: ClassVar[type[TaskOptions]]
    settings_class: ClassVar[type[TaskSettings]] = ColumnSettings
    teacher_outputs: ClassVar[Literal["probabilities", "vectors"] | None] = None
    has_majority_baseline: bool = True
    is_stratified: ClassVar[bool] = False
    settings: TaskSettings

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "schema" in vars(cls) and "options" not in vars(cls):
            cls.options = cls.schema.options(f"{cls.__name__}Options", TaskOptions)

    def __init__(self, tokenizer: Tokenizer, settings: Any) -> None:
        self.tokenizer, self.settings = tokenizer, settings

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], tokenizer: Tokenizer) -> Self:
        return cls(tokenizer, cls.settings_class.parse(values))

    def to_dict(self) -> dict[str, Any]:
        return self.settings.model_dump(mode="json")

    @cached_property
    def label_indices(self) -> dict[str, int]:
        """The indices of the classes or tags, by name."""
        return {name: number for number, name in enumerate(self.labels)}

    @property
    def head_dropout(self) -> float | None:
        return self.settings.dropout

    def example(
        self, row: Row, index: int, *, where: str | None = None, labelled: bool = True
    ) -> ExampleT:
        locations = None if where is None else [where]
        return self.examples([row], index, where=locations, labelled=labelled)[0]

    def examples(
        self,
        rows: Sequence[Row],
        first_index: int,
        *,
        where: Sequence[str] | None = None,
        labelled: bool = True,
    ) -> list[ExampleT]:
        if where is None:
            where = [f"row {number + 1}" for number in range(first_index, first_index + len(rows))]
        if not rows:
            return []
        examples = self.build_examples(rows, first_index, where, labelled=labelled)
        for location, example in zip(where, examples, strict=True):
            if not all(len(one.input_ids) for one in example.sequences):
                raise DataError("a text has no tokens", where=location, fix="Leave the row out.")
        return examples

    @abstractmethod
    def build_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[ExampleT]:
        """Turn consecutive rows into examples; see `Task.example`.

        Args:
            rows: at least one row.
            first_index: the number of the first row.
            where: file and line of each row, for errors.
            labelled: whether targets are read.

        Raises:
            DataError: a row does not fit this task.
        """

    def read_label(self, row: Row, column: str, where: str) -> Any:
        """Return the target of a row; tasks whose schema has a role `label` implement it.

        Raises:
            DataError: the column is missing or empty, or does not hold a label of this task.
        """
        raise NotImplementedError

    def read_target(self, row: Row, where: str, *, labelled: bool) -> Any:
        """Return the target of a row, from the column of the role `label`; None if not `labelled`.

        Raises:
            DataError: the task has no column of labels; or see `read_label`.
        """
        if not labelled:
            return None
        column = self.columns[LABEL]
        if not isinstance(column, str):
            raise DataError("the task knows no column of labels", where=where)
        return self.read_label(row, column, where)

    marks_advice: ClassVar[str] = ""
    """What to do if a label that was taken for a mark of unlabelled rows is a class."""

    def find_unlabelled_mark(self, row: Row) -> str | None:
        """Return the label of a row without a gold label, such as `-`; None if it has one.

        An empty label is no mark: it is an error.
        """
        label = self.columns.get(LABEL)
        value = row.get(label) if isinstance(label, str) else None
        return str(value) if isinstance(value, NoLabel) else None

    def find_other_spelling(self, row: Row) -> Mapping[str, str]:  # noqa: ARG002
        """Return a row's label, and the name of it that the task uses, if that is another."""
        return {}

    @classmethod
    def inherit_options(cls, sentence: SentenceSettings | None) -> dict[str, Any]:  # noqa: ARG003
        """Return options taken from the pretrained model, for those that the user did not set.

        Args:
            sentence: how the model computes vectors of texts; None if it does not define this.
        """
        return {}

    @classmethod
    def from_table(cls, tokenizer: Tokenizer, rows: Rows, options: TaskOptions) -> Self:
        """Create the task for a table of training rows.

        Args:
            tokenizer: the model's tokenizer.
            rows: the table; some tasks read all of it here, to collect its labels.
            options: the user's options.

        Raises:
            DataError: a column is missing and cannot be detected, or the labels are invalid.
        """
        columns = cls.schema.find(rows, options.columns_by_role(cls.schema), labelled=True)
        values = options.values_for(cls.settings_class) | cls.columns_as_settings(columns)
        return cls(
            tokenizer,
            cls.settings_class.parse(values | cls.settings_from_rows(rows, columns, options)),
        )

    @classmethod
    def settings_from_rows(
        cls,
        rows: Rows,  # noqa: ARG003
        columns: RoleColumns,  # noqa: ARG003
        options: TaskOptions,  # noqa: ARG003
    ) -> dict[str, Any]:
        """Return the settings that come from the training rows, such as the names of the labels."""
        return {}

    @classmethod
    def find_label_columns(cls, rows: Rows, options: TaskOptions) -> list[str]:
        """Return the columns of the targets in a table, if they can be found."""
        columns = cls.schema.find(rows, options.columns_by_role(cls.schema), labelled=False)
        return cls._label_columns(columns)

    @classmethod
    def _label_columns(cls, columns: RoleColumns) -> list[str]:
        roles = (role.name for role in cls.schema.roles if role.of_label)
        return [name for role in roles for name in names_of(columns.get(role))]

    @classmethod
    def columns_as_settings(cls, columns: RoleColumns) -> dict[str, Any]:
        """Return the columns as settings: as `columns`, or one setting per role."""
        if "columns" in cls.settings_class.model_fields:
            return {"columns": columns}
        return {role: column for role, column in columns.items() if column is not None}

    @property
    def columns(self) -> RoleColumns:
        """The column of each role."""
        columns = getattr(self.settings, "columns", self.settings)
        if isinstance(columns, Mapping):
            return dict(columns)
        return {role.name: getattr(columns, role.name) for role in self.schema.roles}

    @property
    def label_columns(self) -> list[str]:
        """The columns of the targets."""
        return self._label_columns(self.columns)

    @property
    def column_names(self) -> Sequence[str]:
        return [name for column in self.columns.values() for name in names_of(column)]

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        columns = self.columns
        if self.schema.has_required_columns(
            rows, columns, labelled=labelled
        ) and not self._has_more(rows):
            return self
        present = {
            role: column
            for role, column in columns.items()
            if column and set(names_of(column)) <= set(rows.columns)
        }
        columns = self.schema.find(rows, present, labelled=labelled)
        return type(self)(
            self.tokenizer, self.settings.with_values(**self.columns_as_settings(columns))
        )

    def _has_more(self, rows: Rows) -> bool:
        """Whether a table may have columns of optional roles that the settings do not name."""
        columns = self.columns
        return any(
            role.optional
            and (
                columns[role.name] is None or not {*names_of(columns[role.name])} <= {*rows.columns}
            )
            for role in self.schema.roles
        )

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """The names of the evaluator's metrics."""

    def source_columns(self, rows: Rows) -> Sequence[tuple[str, ...]]:  # noqa: ARG002
        """Return the groups of columns that identify a row's source, the largest source first.

        When rows are split off for dev, rows of one source (a document, a passage) stay together.
        The last group is the columns of the text itself: if it is used, no text is in both parts.
        """
        texts = (role.name for role in self.schema.roles if not role.of_label)
        return [tuple(name for text in texts for name in names_of(self.columns[text]))]

    @property
    def columns_text(self) -> str:
        """The columns and their roles, for messages and reports."""
        return self.schema.text(self.columns)

    def count_targets(self, examples: Sequence[ExampleT]) -> Mapping[str, int]:  # noqa: ARG002
        """Count how often each target occurs, for reports; empty if targets are numbers."""
        return {}

    def baseline_losses(self, counts: Mapping[str, int]) -> Mapping[str, float]:  # noqa: ARG002
        """Return baselines: by name, the mean loss of always predicting the targets' shares.

        Args:
            counts: the result of `count_targets` for the training rows.

        Returns:
            Only the losses for which this value is defined.
        """
        return {}

    def is_head_compatible(self, other: Task[ExampleT]) -> bool:
        """Whether another task's output layer can be reused and trained further."""
        return type(other) is type(self) and other.labels == self.labels

    def training_examples(self, example: ExampleT) -> Sequence[ExampleT]:
        """Return a row as separate training examples: one for each window, if it has several."""
        return [example]

    def check_batches(self, examples: Sequence[ExampleT], batch_size: int) -> None:
        """Check that batches of this size teach something; a task without such a limit accepts all.

        Args:
            examples: all training examples.

        Raises:
            SettingsError: they do not.
        """

    def with_tuned_settings(self, metrics: Mapping[str, float]) -> Self:  # noqa: ARG002
        """Return the task with settings chosen from the metrics of dev, such as a threshold."""
        return self


def read_texts(rows: Sequence[Row], column: str, where: Sequence[str]) -> list[str]:
    """Return the texts of a column.

    Raises:
        DataError: a row does not have the column, or has no text in it.
    """
    return [text_of(row, column, location) for row, location in zip(rows, where, strict=True)]
