"""Any number of rows through a network: answers in order, in bounded memory.

    rows ─► windows of `window_rows` ─► examples, sorted by length ─► batches by a budget of tokens
         ─► network.predict ─► task.decode ─► answers in the order of the rows

Sorting puts sequences of equal length side by side, which the encoder needs to be fast; the answers
do not depend on it, since a sequence's do not depend on what it is batched with.
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

from .. import parallel
from ..errors import BertworksWarning, CheckpointError
from ..model.device import is_finite
from ..packed import Batch
from ..tables.rows import PlacedRow, Row
from ..tasks.task import Example, Network, Prediction, Task
from .form import frozen_form
from .settings import EngineSettings

NOT_FINITE = "Try precision=fp32, or train the model again with a lower learning rate."
_WINDOW_CHARACTERS = 1 << 24
"""Of the texts that are held at a time, however few rows they are."""

T = TypeVar("T")
ExampleT = TypeVar("ExampleT", bound=Example)


class Sized(Protocol):
    """What has a length in tokens."""

    @property
    def num_tokens(self) -> int: ...


SizedT = TypeVar("SizedT", bound=Sized)


class Cuts:
    """What limits cut off examples, counted as they go by.

    Attributes:
        rows: how many there were.
        cut_rows: of how many something was cut off.
        cut_tokens: how much, in all.
    """

    def __init__(self) -> None:
        self.rows = self.cut_rows = self.cut_tokens = 0

    def add(self, examples: Iterable[ExampleT]) -> Iterator[ExampleT]:
        """Count examples, and hand them on."""
        for example in examples:
            self.rows += 1
            self.cut_rows += example.truncated_tokens > 0
            self.cut_tokens += example.truncated_tokens
            yield example

    def take_in(self, other: Cuts) -> None:
        """Add what another has counted."""
        self.rows += other.rows
        self.cut_rows += other.cut_rows
        self.cut_tokens += other.cut_tokens

    def remarks(self) -> list[str]:
        """The counts for people, if anything was cut."""
        if not self.cut_rows:
            return []
        what = f"{self.cut_rows:,} of {self.rows:,} rows were too long for the model: "
        return [what + f"{self.cut_tokens:,} tokens were cut off"]


DEFAULTS = EngineSettings()


def row_number(at: int) -> str:
    """What a row is called that has no other name."""
    return f"row {at + 1}"


@dataclass(frozen=True)
class _Predict:
    """What a worker has: a network and its task, and the threads to run it with."""

    network: Network
    task: Task[Any]
    settings: EngineSettings
    threads: int | None

    def __call__(
        self, part: tuple[int, Sequence[tuple[PlacedRow, Row]]]
    ) -> tuple[list[Prediction], Cuts]:
        """The answers for a window of rows, of which the first has the number that is given."""
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
    rows: Iterable[PlacedRow],
    settings: EngineSettings = DEFAULTS,
    *,
    first: int = 0,
    end: int | None = None,
    workers: int | None = 1,
    on: str | None = None,
) -> Iterator[tuple[Row, Prediction]]:
    """Each row with what is predicted for it, in the order of the rows.

    Rows are drawn, and answers given, a window at a time. A warning at the end reports what was cut
    off.

    Args:
        rows: of any number; their target's columns are not looked at.
        first, end: only the rows from one number on, before another.
        workers, on: how many processes, each with the network, and where; see `parallel.map`.

    Raises:
        DataError: a row is not one of the task.
        CheckpointError: what the network puts out for a row is not finite.
    """
    cuts = Cuts()
    drawn: deque[Sequence[tuple[PlacedRow, Row]]] = deque()

    def windows() -> Iterator[tuple[int, Sequence[tuple[PlacedRow, Row]]]]:
        start = first
        some = islice(task.in_context(rows), first, end)
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
    """The threads of each of several processes of this machine; None: as they are."""
    if workers == 1 or on is not None:
        return None
    return max(1, torch.get_num_threads() // (workers or os.cpu_count() or 1))


def labelled_examples(
    task: Task[ExampleT], rows: Iterable[PlacedRow], chunk_rows: int = 4096
) -> Iterator[ExampleT]:
    """The examples of labelled rows, numbered from 0.

    Raises:
        DataError: a row is not one of the task, or its label is missing or unknown.
    """
    start = 0
    for chunk in chunks(task.in_context(rows), chunk_rows, _characters):
        places = [row.where for row, _ in chunk]
        yield from task.examples([seen for _, seen in chunk], start, where=places)
        start += len(chunk)


def outputs_of(
    network: Network,
    task: Task[ExampleT],
    examples: Sequence[ExampleT],
    settings: EngineSettings = DEFAULTS,
    place: Callable[[int], str] = row_number,
    share: tuple[int, int] = (0, 1),
) -> Iterator[tuple[dict[str, Tensor], Batch]]:
    """What a network puts out for examples, batch by batch, longest first.

    An example's sequences are never parted, so each row's answer can be decoded from one batch.

    Args:
        place: what an error calls the example at a place among the examples.
        share: `(rank, world)`: of the batches, from number `rank` on, each `world`-th alone.

    Raises:
        CheckpointError: what the network puts out for an example is not finite.
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
            # Rows, tokens or masks: what an output's entries are of, each task knows for itself.
            alone = (one for one in part if not all(map(is_finite, run([one])[0].values())))
            first = next(alone, part[0])
            raise not_finite(place(next(at for at, one in enumerate(examples) if one is first)))
        yield outputs, batch


def check_finite(vectors: Tensor, place: Callable[[int], str]) -> None:
    """See that all numbers of `[vectors, …]` are finite.

    Args:
        vectors: what a network has computed.
        place: what an error calls the row that the vector at a place is of.

    Raises:
        CheckpointError: a number is NaN or infinite.
    """
    if not is_finite(vectors):
        is_right = vectors.isfinite().flatten(1).all(-1)
        raise not_finite(place(int(is_right.logical_not().nonzero()[0])))


def not_finite(where: str) -> CheckpointError:
    """The error of a row for which a network computes numbers that are not finite."""
    return CheckpointError(
        "the model's output is not finite",
        where=where,
        fix=NOT_FINITE,
    )


def by_tokens(examples: Sequence[SizedT], batch_tokens: int) -> Iterator[list[SizedT]]:
    """Examples by length, longest first, in batches of at most so many tokens (or one example)."""
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
    """Items in lists of `size`, the last perhaps shorter; and those of long texts, too.

    Args:
        items: in order.
        size: the most of them in a list.
        characters: of an item's texts; a list ends when they are many.
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


def _characters(row: tuple[PlacedRow, Row]) -> int:
    return sum(len(value) for value in row[0].values.values() if isinstance(value, str))
