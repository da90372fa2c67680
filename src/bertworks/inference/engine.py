"""Predictions for any number of rows: in order, in bounded memory.

    rows ─► windows of `window_rows` ─► examples, sorted by length ─► batches by a budget of tokens
         ─► network.predict ─► task.decode ─► predictions in the order of the rows

Sorting puts sequences of equal length next to each other, which makes the encoder fast. It does not
change the predictions, since a sequence's result does not depend on the rest of its batch (except
for rounding in bfloat16: see `EngineSettings.deterministic`).
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from ..data.rows import LocatedRow, Row, is_missing
from ..data.schema import names_of
from ..errors import BertworksWarning, CheckpointError
from ..jobs import parallel
from ..nn.device import is_finite
from ..packed import Batch
from ..tasks.labelled import LabelledTask
from ..tasks.task import Example, Network, Prediction, Task
from .frozen_network import frozen_form
from .settings import EngineSettings

NOT_FINITE = "Try precision=fp32, or train the model again with a lower learning rate."
_WINDOW_CHARACTERS = 1 << 24
"""A window ends at this many characters of text, even if it has few rows."""

T = TypeVar("T")
ExampleT = TypeVar("ExampleT", bound=Example)


class Sized(Protocol):
    """Anything with a length in tokens."""

    @property
    def num_tokens(self) -> int: ...


SizedT = TypeVar("SizedT", bound=Sized)


class Cuts:
    """Counts of truncated examples.

    Attributes:
        rows: number of examples.
        cut_rows: number of truncated examples.
        cut_tokens: number of tokens cut off, in total.
    """

    def __init__(self) -> None:
        self.rows = self.cut_rows = self.cut_tokens = 0

    def add(self, examples: Iterable[ExampleT]) -> Iterator[ExampleT]:
        """Count examples while yielding them."""
        for example in examples:
            self.rows += 1
            self.cut_rows += example.truncated_tokens > 0
            self.cut_tokens += example.truncated_tokens
            yield example

    def take_in(self, other: Cuts) -> None:
        """Add the counts of another."""
        self.rows += other.rows
        self.cut_rows += other.cut_rows
        self.cut_tokens += other.cut_tokens

    def remarks(self) -> list[str]:
        """The counts as a message to the user; empty if nothing was truncated."""
        if not self.cut_rows:
            return []
        what = f"{self.cut_rows:,} of {self.rows:,} rows were too long for the model: "
        return [what + f"{self.cut_tokens:,} tokens were cut off"]


DEFAULTS = EngineSettings()


def row_number(at: int) -> str:
    """The default name of a row in errors."""
    return f"row {at + 1}"


@dataclass(frozen=True)
class _Predict:
    """Predicts windows in a worker: the network, its task, and the number of threads."""

    network: Network
    task: Task[Any]
    settings: EngineSettings
    threads: int | None

    def __call__(
        self, part: tuple[int, Sequence[tuple[LocatedRow, Row]]]
    ) -> tuple[list[Prediction], Cuts]:
        """Predict a window of rows, which is given with the number of its first row."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        start, window = part
        places = [row.where for row, _ in window]
        cuts, answers = Cuts(), dict[int, Prediction]()
        made = self.task.examples([seen for _, seen in window], start, where=places, labelled=False)
        examples = list(cuts.add(made))
        for outputs, batch in outputs_of(
            self.network, self.task, examples, self.settings, places.__getitem__
        ):
            answers.update(self.task.decode(outputs, batch))
        return [answers[number] for number in range(start, start + len(window))], cuts


def predict(
    network: Network,
    task: Task[Any],
    rows: Iterable[LocatedRow],
    settings: EngineSettings = DEFAULTS,
    *,
    first: int = 0,
    end: int | None = None,
    workers: int | None = 1,
    on: str | None = None,
) -> Iterator[tuple[Row, Prediction]]:
    """Yield each row with its prediction, in the order of the rows.

    Rows are read and predicted one window at a time. At the end, a warning reports truncated rows.

    Args:
        rows: any number; their target columns are not read.
        first, end: predict only the rows from number `first` up to, but not including, `end`.
        workers, on: number of processes, each with the network, and where they run; see
            `parallel.map`.

    Raises:
        DataError: a row does not fit the task.
        CheckpointError: the network's output for a row is not finite.
    """
    cuts = Cuts()
    drawn: deque[Sequence[tuple[LocatedRow, Row]]] = deque()

    def windows() -> Iterator[tuple[int, Sequence[tuple[LocatedRow, Row]]]]:
        start = first
        some = islice(task.add_context(rows), first, end)
        for window in chunks(some, settings.window_rows, _characters):
            drawn.append(window)
            yield start, window
            start += len(window)

    work = _Predict(network, task, settings, threads_of_worker(workers, on))
    gpus = int(next(network.parameters()).is_cuda)
    with closing(parallel.map(work, windows(), workers=workers, on=on, gpus=gpus)) as made:
        for answers, cut in made:
            cuts.take_in(cut)
            for (row, _), answer in zip(drawn.popleft(), answers, strict=True):
                yield row.values, answer
    for remark in cuts.remarks():
        warnings.warn(remark, BertworksWarning, stacklevel=2)


def threads_of_worker(workers: int | None, on: str | None) -> int | None:
    """Threads for each of several processes on this machine; None: leave the number unchanged."""
    if workers == 1 or on is not None:
        return None
    return max(1, torch.get_num_threads() // (workers or os.cpu_count() or 1))


def labelled_examples(
    task: Task[ExampleT], rows: Iterable[LocatedRow], chunk_rows: int = 4096
) -> Iterator[ExampleT]:
    """Yield the examples of labelled rows, numbered from 0.

    Raises:
        DataError: a row does not fit the task, or its label is missing or unknown.
    """
    start, empty = 0, list[str]()
    columns = _text_columns(task)
    for chunk in chunks(task.add_context(rows), chunk_rows, _characters):
        places = [row.where for row, _ in chunk]
        empty += [
            row.where for row, _ in chunk if any(is_missing(row.values.get(c)) for c in columns)
        ]
        yield from task.examples([seen for _, seen in chunk], start, where=places)
        start += len(chunk)
    if empty:
        what = f"{len(empty):,} of {start:,} rows have an empty text"
        warnings.warn(f"{what}; the first is {empty[0]}", BertworksWarning, stacklevel=2)


def _text_columns(task: Task[Any]) -> list[str]:
    """Return the columns from which each row of a labelled task needs a text."""
    if not isinstance(task, LabelledTask):
        return []
    roles = (role for role in task.schema.roles if not (role.of_label or role.many))
    return [name for role in roles for name in names_of(task.columns.get(role.name))]


def outputs_of(
    network: Network,
    task: Task[ExampleT],
    examples: Sequence[ExampleT],
    settings: EngineSettings = DEFAULTS,
    place: Callable[[int], str] = row_number,
    share: tuple[int, int] = (0, 1),
) -> Iterator[tuple[dict[str, Tensor], Batch]]:
    """Yield a network's outputs for examples, batch by batch, longest first.

    All sequences of an example are in the same batch, so each row can be decoded from one batch.

    Args:
        place: returns the name in errors of the example at an index of `examples`.
        share: `(rank, world)`: compute only every `world`-th batch, beginning with number `rank`.

    Raises:
        CheckpointError: the network's output for an example is not finite.
    """
    device = next(network.parameters()).device

    form = frozen_form(network, settings.precision, settings.deterministic)

    def run(part: Sequence[ExampleT]) -> tuple[dict[str, Tensor], Batch]:
        batch = task.collate(part).to(device)
        with torch.inference_mode():
            return form.predict(batch), batch

    rank, world = share
    for part in islice(by_tokens(examples, settings.batch_tokens), rank, None, world):
        outputs, batch = run(part)
        if not all(map(is_finite, outputs.values())):
            # Only the task knows how outputs relate to examples, so each example is run alone.
            alone = (one for one in part if not all(map(is_finite, run([one])[0].values())))
            first = next(alone, part[0])
            raise not_finite(place(next(at for at, one in enumerate(examples) if one is first)))
        yield outputs, batch


def check_finite(vectors: Tensor, place: Callable[[int], str]) -> None:
    """Check that all numbers of `[vectors, …]` are finite.

    Args:
        vectors: computed by a network.
        place: returns the name in errors of the row to which the vector at an index belongs.

    Raises:
        CheckpointError: a number is NaN or infinite.
    """
    if not is_finite(vectors):
        is_right = vectors.isfinite().flatten(1).all(-1)
        raise not_finite(place(int(is_right.logical_not().nonzero()[0])))


def not_finite(where: str) -> CheckpointError:
    """The error for a row whose outputs are not finite."""
    return CheckpointError(
        "the model's output is not finite",
        where=where,
        fix=NOT_FINITE,
    )


def by_tokens(examples: Sequence[SizedT], batch_tokens: int) -> Iterator[list[SizedT]]:
    """Yield batches, longest examples first, of at most `batch_tokens` tokens or one example."""
    part: list[SizedT] = []
    tokens = 0
    for example in sorted(examples, key=lambda example: -example.num_tokens):
        if part and tokens + example.num_tokens > batch_tokens:
            yield part
            part, tokens = [], 0
        part.append(example)
        tokens += example.num_tokens
    if part:
        yield part


def chunks(
    items: Iterable[T], size: int, characters: Callable[[T], int] | None = None
) -> Iterator[list[T]]:
    """Yield lists of `size` items; the last list may be shorter, and lists of long texts are.

    Args:
        items: in order.
        size: maximum items per list.
        characters: returns the characters of an item's texts; a list ends at `_WINDOW_CHARACTERS`.
    """
    chunk: list[T] = []
    held = 0
    for item in items:
        chunk.append(item)
        held += 0 if characters is None else characters(item)
        if len(chunk) == size or held >= _WINDOW_CHARACTERS:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def _characters(row: tuple[LocatedRow, Row]) -> int:
    return sum(len(value) for value in row[0].values.values() if isinstance(value, str))
