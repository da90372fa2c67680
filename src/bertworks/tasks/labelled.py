"""Tasks that are trained on a table of labelled rows: the part of a task that `finetune` needs.

A task is created from a table and its settings: what the user leaves out, such as the columns and
the names of the labels, is detected in the rows. The result is saved with the weights, in the same
form. The general protocol of tasks is in `task.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from ..checkpoints.heads import PublishedCheckpoint
from ..checkpoints.sentence_settings import SentenceSettings
from ..data.rows import NoLabel, Row, Rows
from ..data.schema import RoleColumns, Schema, columns_present, names_of
from ..errors import DataError, SettingsError, row_name
from ..packed import Batch
from ..settings.base import Settings
from ..text.tokenizer import Tokenizer
from .example import ExampleT
from .task import Outputs, Task, TaskSettings, user_settings

LABEL = "label"
"""The role of the column with the targets, in tasks with one target per row."""


class LabelledTask(Task[ExampleT]):
    """A task that is trained on labelled rows.

    Args:
        tokenizer: the model's tokenizer.
        settings: an instance of `settings_class`.

    Your own task needs a `name`, a `schema`, a `network`, `build_example`, `collate`, `decode`,
    an `evaluator` and its `metrics`; for rows with one of several classes, `ClassifierTask` has
    most of these. See `examples/own_task.py`.

    Attributes:
        schema: the roles of the columns that are read; the column of each is a setting.
        settings_class: settings of the task, given by the user or found in the rows
            (`detected_setting`); they are saved with the weights. By default the columns, and the
            settings of all tasks.
        teacher_outputs: the outputs of a teacher model that can replace labels; None if there are
            none.
        has_majority_baseline: whether always predicting the most frequent target is a useful
            baseline.
        is_stratified: whether rows that are split off for dev keep the share of each target.
        may_have_no_label: whether no label is a label, as where an annotator marked nothing.
    """

    schema: ClassVar[Schema]
    settings_class: ClassVar[type[TaskSettings]] = TaskSettings
    teacher_outputs: ClassVar[Literal["probabilities", "vectors"] | None] = None
    has_majority_baseline: bool = True
    is_stratified: ClassVar[bool] = False
    may_have_no_label: ClassVar[bool] = False
    settings: TaskSettings

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "schema" in vars(cls) and "settings_class" not in vars(cls):
            cls.settings_class = cls.schema.settings(f"{cls.__name__}Settings", cls.settings_class)
            # The class is no attribute of a module; workers, which are sent tasks, find it here.
            cls.settings_class.__module__ = cls.__module__
            cls.settings_class.__qualname__ = f"{cls.__qualname__}.settings_class"

    def __init__(self, tokenizer: Tokenizer, settings: Any) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        settings.check_together()

    @classmethod
    def for_settings(cls, settings: Any) -> type[LabelledTask[Any]]:  # noqa: ARG003
        """Return the task that learns with settings of a run: another, if they change how it does.

        Raises:
            SettingsError: they are for another task.
        """
        return cls

    @classmethod
    def user_settings(cls) -> type[TaskSettings]:
        """Return the settings that a user gives: not the detected ones, but how tables are read."""
        return user_settings(cls.settings_class)

    @classmethod
    def user_settings_in(cls, settings: Settings) -> TaskSettings:
        """Return the user's settings of the task, from those of a run."""
        fields = cls.user_settings().model_fields
        return cls.user_settings().parse(settings.model_dump(include=set(fields)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], tokenizer: Tokenizer) -> Self:
        settings = cls.settings_class.parse(values)
        needed = [role.option for role in cls.schema.roles if not (role.optional or role.of_label)]
        needed += ["labels"] if "labels" in cls.settings_class.model_fields else []
        if missing := [name for name in needed if not getattr(settings, name)]:
            raise SettingsError(f"the setting {missing[0]!r} must be given")
        return cls(tokenizer, settings)

    def to_dict(self) -> dict[str, Any]:
        return self.settings.model_dump(mode="json")

    @classmethod
    def from_published_checkpoint(cls, checkpoint: PublishedCheckpoint) -> Self | None:
        if cls.head is None or not checkpoint.has_head(cls.head):
            return None
        values = cls.settings_of_checkpoint(checkpoint)
        if values is None:
            return None
        limits = {"max_seq_length": checkpoint.max_length, "dropout": checkpoint.dropout(cls.head)}
        return cls(checkpoint.tokenizer, cls.settings_class.parse({**limits, **values}))

    @classmethod
    def settings_of_checkpoint(cls, checkpoint: PublishedCheckpoint) -> dict[str, Any] | None:  # noqa: ARG003
        """Return settings for another tool's checkpoint; None if its head is of another task."""
        return None

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
            where = [row_name(number) for number in range(first_index, first_index + len(rows))]
        if not rows:
            return []
        examples = self.build_examples(rows, first_index, where, labelled=labelled)
        for location, example in zip(where, examples, strict=True):
            if not all(len(one.input_ids) for one in example.sequences):
                raise DataError("a text has no tokens", where=location, fix="Leave the row out.")
        return examples

    def build_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[ExampleT]:
        """Turn consecutive rows into examples; a task implements this, or `build_example`.

        Args:
            rows: at least one row.
            first_index: the number of the first row.
            where: file and line of each row, for errors.
            labelled: whether targets are read.

        Raises:
            DataError: a row does not fit this task.
        """
        return [
            self.build_example(row, index, location, labelled=labelled)
            for index, (row, location) in enumerate(zip(rows, where, strict=True), first_index)
        ]

    def build_example(self, row: Row, index: int, where: str, *, labelled: bool) -> ExampleT:
        """Turn a row into an example; `build_examples` can tokenise many rows faster.

        Args and errors: see `build_examples`.
        """
        raise NotImplementedError

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
    def complete_rows(cls, rows: Rows, settings: Any) -> Rows:  # noqa: ARG003
        """Return a table with what its cells only name, such as texts in other files.

        Args:
            settings: an instance of `user_settings`.

        Raises:
            DataError: a file is not valid, or lacks what a cell names.
        """
        return rows

    def check_tables(self, count: int) -> None:
        """Check the settings for a number of training tables.

        Raises:
            SettingsError: a setting is for another number.
        """

    def for_training_table(self, rows: Rows, number: int) -> Self:  # noqa: ARG002
        """Return the task that reads one of several training tables; see `Task.for_table`."""
        return self.for_table(rows, labelled=True)

    @classmethod
    def from_table(cls, tokenizer: Tokenizer, rows: Rows, settings: TaskSettings) -> Self:
        """Create the task for a table of training rows.

        Args:
            tokenizer: the model's tokenizer.
            rows: the table; some tasks read all of it here, to collect its labels.
            settings: an instance of `settings_class` or `user_settings`; what it leaves out is
                detected.

        Raises:
            DataError: a column is missing and cannot be detected, or the labels are invalid.
        """
        columns = cls.schema.find(rows, cls._columns_in(settings), labelled=True)
        values = settings.model_dump(include=set(cls.settings_class.model_fields))
        values |= cls._settings_of_columns(columns)
        values |= cls.settings_from_rows(rows, columns, settings)
        return cls(tokenizer, cls.settings_class.parse(values))

    @classmethod
    def settings_from_rows(cls, rows: Rows, columns: RoleColumns, settings: Any) -> dict[str, Any]:  # noqa: ARG003
        """Return the settings that come from the training rows, such as the names of the labels.

        Args:
            settings: an instance of `settings_class`, as the user gave them.
        """
        return {}

    @classmethod
    def find_label_columns(cls, rows: Rows, settings: Any) -> list[str]:
        """Return the columns of targets of a table that has them; see `label_columns`."""
        return cls._label_columns(cls.schema.find(rows, cls._columns_in(settings), labelled=False))

    @classmethod
    def _label_columns(cls, columns: RoleColumns) -> list[str]:
        """Return the columns without whose value a row has no label.

        An empty cell of an optional one has a meaning, such as that an answer's start is unknown,
        unless the task has no other column of targets.
        """
        roles = [role for role in cls.schema.roles if role.of_label]
        roles = [role for role in roles if not role.optional] or roles
        return [name for role in roles for name in names_of(columns.get(role.name))]

    @classmethod
    def _columns_in(cls, settings: TaskSettings) -> RoleColumns:
        return {role.name: getattr(settings, role.option) for role in cls.schema.roles}

    @classmethod
    def _settings_of_columns(cls, columns: RoleColumns) -> dict[str, Any]:
        return {role.option: columns.get(role.name) for role in cls.schema.roles}

    @property
    def columns(self) -> RoleColumns:
        """The column of each role."""
        return self._columns_in(self.settings)

    def column(self, role: str) -> str:
        """Return the column of a role that every table has."""
        column = self.columns[role]
        assert isinstance(column, str), f"the schema requires {role}"
        return column

    @property
    def label_columns(self) -> list[str]:
        """The columns of the targets: a row that lacks a value in one of them has no label."""
        return self._label_columns(self.columns)

    @property
    def column_names(self) -> Sequence[str]:
        return [name for column in self.columns.values() for name in names_of(column)]

    @property
    def text_columns(self) -> Sequence[str]:
        roles = (role for role in self.schema.roles if not (role.of_label or role.many))
        return [name for role in roles for name in names_of(self.columns[role.name])]

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        schema = self.table_schema
        present = columns_present(rows, self.columns)
        searched = (r for r in schema.roles if r.optional or labelled or not r.of_label)
        if all(present.get(role.name) for role in searched):
            return self
        columns = schema.find(rows, present, labelled=labelled)
        settings = self.settings.with_values(**self._settings_of_columns(columns))
        return self if settings == self.settings else type(self)(self.tokenizer, settings)

    @property
    def table_schema(self) -> Schema:
        """The roles of the columns that are read in tables other than that of training."""
        return self.schema

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

    def training_pieces(self, examples: Sequence[ExampleT], seed: int) -> list[Any]:  # noqa: ARG002
        """Return the training examples of all rows.

        Args:
            examples: the rows.
            seed: for a task that draws them at random.
        """
        return [piece for example in examples for piece in self.training_examples(example)]

    def describe_updates(self, steps: int, batch_size: int, num_rows: int) -> str | None:  # noqa: ARG002
        """Return what the updates learn from, if it is not the rows themselves."""
        return None

    def fit_head(self, network: Any, run: Callable[[], Iterable[tuple[Outputs, Batch]]]) -> None:
        """Set weights that are not trained by gradients: before each evaluation, and at the end.

        Args:
            network: the task's own, which is changed in place.
            run: applies it to all training rows.
        """

    def check_batches(self, examples: Sequence[ExampleT], batch_size: int) -> None:
        """Check that batches of this size teach something; a task without such a limit accepts all.

        Args:
            examples: all training examples.

        Raises:
            SettingsError: they do not.
        """

    def with_settings(self, values: Mapping[str, Any]) -> Self:
        """Return the task with other settings, such as those of `Evaluator.tuned_settings`."""
        return type(self)(self.tokenizer, self.settings.with_values(**values))
