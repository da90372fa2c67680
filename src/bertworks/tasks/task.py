"""The protocol between a task and the code that trains, evaluates or runs it.

A task turns a row of data into an *example* (its sequences and its target), collates examples into
a `Batch`, builds the network that is trained on it, decodes the network's outputs into readable
predictions, and evaluates them. Pre-training is a task like the others: all tasks use the same
training loop (`training.fit`) and the same engine (`inference.engine`).

    row ── example() ──► example ── collate() ──► Batch ──► network(batch) ──► loss sums
                                                    └────► network.predict(batch) ──► decode()
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar, cast

from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from ..checkpoints.heads import Head, PublishedCheckpoint
from ..checkpoints.sentence_settings import SentenceSettings
from ..data.rows import LocatedRow, Row, Rows, characters_in, chunks, is_missing
from ..data.unlabelled import LabelledTableOptions
from ..errors import BertworksWarning
from ..nn.config import EncoderConfig
from ..nn.head_layouts import HeadLayout
from ..packed import Array, Batch
from ..settings.base import Settings
from ..text.tokenizer import Tokenizer
from .array_network import ArrayNetwork
from .measures import Measure

if TYPE_CHECKING:
    from .network import Network
else:
    Network = Any  # PyTorch is imported only where networks are built

Prediction = dict[str, Any]
"""The prediction for one row, in plain Python values that JSON can represent."""

Outputs: TypeAlias = Mapping[str, Array]
"""A network's outputs by name: arrays, or tensors on any device; `to_array` reads both."""


DisplayValue = tuple[object, float | None]
"""A prediction, and its probability if it has one."""


class Example(Protocol):
    """One row, ready for a network; the training loop sees only its size."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all its sequences."""
        ...

    @property
    def truncated_tokens(self) -> int:
        """The number of tokens removed by truncation."""
        ...


ExampleT = TypeVar("ExampleT", bound=Example)
ExampleT_co = TypeVar("ExampleT_co", bound=Example, covariant=True)


class Source(Protocol[ExampleT_co]):
    """A source of examples, in blocks.

    A block is a pure function of (seed, epoch, block number), so that the state of a stream of
    examples is three integers: epoch, block, and offset in the block. Any process may build blocks,
    in any order.
    """

    def num_blocks(self, epoch: int) -> int:
        """Return the number of blocks of the epoch; at least one."""
        ...

    def block(self, epoch: int, block: int) -> Sequence[ExampleT_co]:
        """Return the examples of a block, in the order in which they are used."""
        ...


class Evaluator(Measure):
    """Collects a network's outputs batch by batch, and computes metrics at the end.

    If an evaluator names its state in `state_fields`, the processes of a training run divide the
    batches among them; otherwise each process computes all batches.
    """

    is_tuning: bool = False
    """Whether the task's settings are tuned on the rows: outputs that `tuned_settings` needs are
    kept."""

    @abstractmethod
    def add(self, outputs: Outputs, batch: Batch) -> None:
        """Add a batch's outputs (those of `Network.predict`) and targets."""

    def tuned_settings(self, metrics: Mapping[str, float]) -> dict[str, Any]:  # noqa: ARG002
        """Return settings of the task that are best for the rows, such as a threshold.

        Args:
            metrics: the result of `result`.
        """
        return {}


_DETECTED_MARK = {"detected": True}


def detected_setting(default: Any, description: str) -> Any:
    """A setting of a task that comes from the training rows or a checkpoint, not from the user."""
    return Field(default, description=description, json_schema_extra=dict(_DETECTED_MARK))


class TaskSettings(Settings):
    """Sequence length and output layer."""

    is_checked_later = True

    max_seq_length: int = Field(128, ge=4, description="maximum tokens per sequence")
    dropout: float | None = Field(None, ge=0, lt=1, description="dropout before the output layer")

    @field_validator("*", mode="before")
    @classmethod
    def _convert_numbers_to_names(cls, value: Any, info: ValidationInfo) -> Any:
        """Turn numbers into names: YAML reads a column or label named `1` as a number."""
        if not (info.field_name or "").endswith(("_column", "_columns", "_label")):
            return value
        return tuple(map(_name_of, value)) if isinstance(value, list | tuple) else _name_of(value)

    def named_columns(self) -> list[str]:
        """Return the columns that the user named, to distinguish a header from a row."""
        values = (value for name, value in self if name.endswith("_column"))
        return [value for value in values if value is not None]


def _name_of(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


@cache
def user_settings(settings: type[TaskSettings]) -> type[TaskSettings]:
    """Return the settings that a user gives: not the detected ones, but how tables are read."""
    detected_fields = {
        name: field.default
        for name, field in settings.model_fields.items()
        if field.json_schema_extra == _DETECTED_MARK
    }
    members = {
        "__module__": settings.__module__,
        "__doc__": settings.__doc__,
        "__annotations__": dict.fromkeys(detected_fields, ClassVar[Any]),  # so they are no fields
        **detected_fields,
    }
    bases = (settings, LabelledTableOptions)
    return cast(type[TaskSettings], type(settings.__name__, bases, members))


def has_no_teacher(settings: Any) -> bool:
    """Whether a task learns from labels, also before it is known that it does."""
    return getattr(settings, "teacher", None) is None


class Task(ABC, Generic[ExampleT]):
    """A task: how rows become batches, and outputs become predictions.

    Attributes:
        name: its name on the command line.
        additive: whether the losses of two halves of a batch add up to the loss of the whole. If
            not (in-batch negatives), the training loop refuses to split a batch.
        best_metric: the metric that selects the best checkpoint by default.
        lower_is_better: the metrics for which lower is better.
        head: maps vectors to outputs; None if there is no head.
    """

    name: ClassVar[str]
    additive: bool = True
    best_metric: str
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"loss"})
    head: ClassVar[Head | None] = None

    @abstractmethod
    def network(self, config: EncoderConfig) -> Network:
        """Return a freshly initialised network; a checkpoint's weights are loaded into it later.

        Raises:
            SettingsError: the encoder has too few positions for the task's sequences.
        """

    def head_layouts(self, config: EncoderConfig) -> Mapping[str, HeadLayout] | None:  # noqa: ARG002
        """The layouts of the network's heads, by their names; None if only PyTorch computes it.

        A task that has them also has `compute`. If the encoder's pooler is needed, it is a head.

        Raises:
            SettingsError: as `network` does.
        """
        return None

    def compute(self, network: ArrayNetwork, batch: Batch) -> dict[str, NDArray[Any]]:
        """Return what `predict` of the task's network returns, as arrays.

        Args:
            network: with the heads of `head_layouts`.
            batch: of arrays.
        """
        raise NotImplementedError

    def is_computed_by_arrays(self, batch: Batch) -> bool:  # noqa: ARG002
        """Whether `compute` is meant for a batch."""
        return True

    def text_row(self, text: str, pair: str | None = None) -> Row:
        """Return the row of a text or a pair of texts that does not come from a table."""
        return {"text": text, "pair": pair}

    @abstractmethod
    def example(
        self, row: Row, index: int, *, where: str | None = None, labelled: bool = True
    ) -> ExampleT:
        """Map a row of data to its sequences and targets.

        Args:
            row: the columns of the row.
            index: the row's number, stored as `sequence_row` of its sequences.
            where: file and line, for errors.
            labelled: whether the target is read; if not, its columns may be missing or hold
                anything.

        Raises:
            DataError: the row does not fit this task.
        """

    def examples(
        self,
        rows: Sequence[Row],
        first_index: int,
        *,
        where: Sequence[str] | None = None,
        labelled: bool = True,
    ) -> list[ExampleT]:
        """Map consecutive rows; a task may process many rows faster than one by one."""
        return [
            self.example(
                row,
                first_index + at,
                where=where[at] if where is not None else None,
                labelled=labelled,
            )
            for at, row in enumerate(rows)
        ]

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes or tags, in the order of their numbers; empty if none."""
        return ()

    @property
    def column_names(self) -> Sequence[str]:
        """The columns that rows are read from, to distinguish a table's header from a row."""
        return ()

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:  # noqa: ARG002
        """The same task for another table, whose columns may have other names.

        Args:
            rows: the table.
            labelled: whether the target's columns are required.

        Raises:
            DataError: the table lacks a column, and no other can be detected in its place.
        """
        return self

    def add_context(self, rows: Iterable[LocatedRow]) -> Iterator[tuple[LocatedRow, Row]]:
        """Yield each row, and the row from which its example is built.

        The second also holds the context that the task needs from neighbouring rows, so that the
        result of `examples` does not depend on how many rows are passed at once.
        """
        return ((row, row.values) for row in rows)

    @property
    def text_columns(self) -> Sequence[str]:
        """The columns from which each labelled row needs a text; an empty text is reported."""
        return ()

    def labelled_examples(
        self, rows: Iterable[LocatedRow], chunk_rows: int = 4096
    ) -> Iterator[ExampleT]:
        """Yield the examples of labelled rows, numbered from 0.

        Raises:
            DataError: a row does not fit the task, or its label is missing or unknown.
        """
        start, empty_places = 0, list[str]()
        for chunk in chunks(self.add_context(rows), chunk_rows, characters_in):
            places = [row.where for row, _ in chunk]
            empty_places += [
                row.where
                for row, _ in chunk
                if any(is_missing(row.values.get(column)) for column in self.text_columns)
            ]
            yield from self.examples([values for _, values in chunk], start, where=places)
            start += len(chunk)
        if empty_places:
            what = f"{len(empty_places):,} of {start:,} rows have an empty text"
            warning = f"{what}; the first is {empty_places[0]}"
            warnings.warn(warning, BertworksWarning, stacklevel=2)

    @abstractmethod
    def collate(self, examples: Sequence[ExampleT]) -> Batch:
        """Pack examples, in order of length, with their targets and counts."""

    @abstractmethod
    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """Return readable predictions by row number, from all sequences of each row."""

    def display_values(self, prediction: Prediction) -> list[DisplayValue] | None:
        """Return a prediction as lines for a terminal; None to show it as JSON."""
        if "label" not in prediction:
            return None
        return [(prediction["label"], prediction.get("probabilities", {}).get(prediction["label"]))]

    @abstractmethod
    def evaluator(self) -> Evaluator:
        """Return a new evaluator of this task's metrics."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the task's settings (label names, columns, limits) as JSON values."""

    @classmethod
    @abstractmethod
    def from_dict(cls, values: Mapping[str, Any], tokenizer: Tokenizer) -> Self:
        """Rebuild a task from the result of `to_dict`."""

    @classmethod
    def from_published_checkpoint(cls, checkpoint: PublishedCheckpoint) -> Self | None:  # noqa: ARG003
        """Return the task of another tool's checkpoint; None if it was trained for another task."""
        return None

    @property
    def model_class(self) -> str:
        """The class with which other tools load a saved model: a key of `Family.classes`."""
        return "encoder" if self.head is None else self.head.model_class

    @property
    def sentence(self) -> SentenceSettings | None:
        """How `embed` computes vectors with a model of this task; None if not defined."""
        return None

    @property
    def head_dropout(self) -> float | None:
        """The dropout before the output layer; None for the encoder's default."""
        return None

    def config_entries(self) -> dict[str, Any]:
        """Return entries that the task adds to a saved model's `config.json`, for other tools.

        For a classifier, `id2label` and `label2id` name its classes.
        """
        return {}
