"""Predictions for any number of rows: in order, in bounded memory.

    rows ─► windows of `window_rows` ─► examples, sorted by length ─► batches by a budget of tokens
         ─► network.predict ─► task.decode ─► predictions in the order of the rows

Sorting puts sequences of equal length next to each other, which makes the encoder fast. It does not
change the predictions, since a sequence's result does not depend on the rest of its batch (except
for rounding in bfloat16: see `EngineSettings.deterministic`).
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np

from ..data.rows import LocatedRow, Row, characters_in, chunks
from ..errors import BertworksWarning, not_finite_error, row_name
from ..jobs.parallel import HERE, Workers
from ..packed import Array, Batch, by_tokens
from ..settings.literals import InferencePrecision
from ..tasks.task import Example, Outputs, Prediction, Task
from ..utils.formatting import format_count
from .native_heads import NativeTaskNetwork
from .native_network import NativeNetwork
from .settings import EngineSettings

if TYPE_CHECKING:
    from ..nn.encoder import HasEncoder
    from ..tasks.network import Network
else:
    HasEncoder = Network = Any

AnyNetwork: TypeAlias = "Network | NativeNetwork"
"""A task's network: a module of PyTorch's, or in native code alone."""

ExampleT = TypeVar("ExampleT", bound=Example)


class TruncationCounts:
    """Counts of truncated examples.

    Attributes:
        num_rows: number of examples.
        num_truncated_rows: number of truncated examples.
        num_truncated_tokens: number of tokens cut off, in total.
    """

    def __init__(self) -> None:
        self.num_rows = self.num_truncated_rows = self.num_truncated_tokens = 0

    def add(self, examples: Iterable[ExampleT]) -> Iterator[ExampleT]:
        """Count examples while yielding them."""
        for example in examples:
            self.num_rows += 1
            self.num_truncated_rows += example.truncated_tokens > 0
            self.num_truncated_tokens += example.truncated_tokens
            yield example

    def merge(self, other: TruncationCounts) -> None:
        """Add the counts of another."""
        self.num_rows += other.num_rows
        self.num_truncated_rows += other.num_truncated_rows
        self.num_truncated_tokens += other.num_truncated_tokens

    def notes(self) -> list[str]:
        """The counts as a message to the user; empty if nothing was truncated."""
        if not self.num_truncated_rows:
            return []
        what = (
            f"{self.num_truncated_rows:,} of {self.num_rows:,} rows were too long for the model: "
        )
        return [what + f"{format_count(self.num_truncated_tokens, 'token')} cut off"]


DEFAULTS = EngineSettings()


@dataclass(frozen=True)
class WindowPredictor:
    """Predicts windows of rows, in a worker."""

    network: AnyNetwork
    task: Task[Any]
    settings: EngineSettings

    def chunks(self, rows: Iterable[LocatedRow]) -> Iterator[list[tuple[LocatedRow, Row]]]:
        """Yield the rows of each window, each with the row from which its example is built."""
        return chunks(self.task.add_context(rows), self.settings.window_rows, characters_in)

    def __call__(
        self, part: tuple[int, Sequence[tuple[LocatedRow, Row]]]
    ) -> tuple[list[Prediction], TruncationCounts]:
        """Predict a window of rows, which is given with the number of its first row."""
        start, window = part
        places = [row.where for row, _ in window]
        counts, predictions = TruncationCounts(), dict[int, Prediction]()
        values = [values for _, values in window]
        examples = self.task.examples(values, start, where=places, labelled=False)
        counted_examples = list(counts.add(examples))
        for outputs, batch in outputs_of(
            self.network, self.task, counted_examples, self.settings, places.__getitem__
        ):
            predictions.update(self.task.decode(outputs, batch))
        return [predictions[number] for number in range(start, start + len(window))], counts


class RowPredictor(Protocol):
    """Predicts windows of rows; see `WindowPredictor`."""

    def chunks(self, rows: Iterable[LocatedRow]) -> Iterator[list[tuple[LocatedRow, Row]]]: ...

    def __call__(
        self, part: tuple[int, Sequence[tuple[LocatedRow, Row]]]
    ) -> tuple[list[Prediction], TruncationCounts]: ...


def predict(
    network: AnyNetwork,
    task: Task[Any],
    rows: Iterable[LocatedRow],
    settings: EngineSettings = DEFAULTS,
) -> Iterator[tuple[Row, Prediction]]:
    """Yield each row with its prediction, in the order of the rows.

    Rows are read and predicted one window at a time. At the end, a warning reports truncated rows.

    Args:
        rows: any number; their target columns are not read.

    Raises:
        DataError: a row does not fit the task.
        CheckpointError: the network's output for a row is not finite.
    """
    return predict_rows(WindowPredictor(network, task, settings), rows)


def predict_rows(
    predictor: RowPredictor, rows: Iterable[LocatedRow], workers: Workers = HERE
) -> Iterator[tuple[Row, Prediction]]:
    """Yield each row with its prediction; see `predict`."""
    counts = TruncationCounts()
    pending: deque[Sequence[tuple[LocatedRow, Row]]] = deque()

    def windows() -> Iterator[tuple[int, Sequence[tuple[LocatedRow, Row]]]]:
        start = 0
        for window in predictor.chunks(rows):
            pending.append(window)
            yield start, window
            start += len(window)

    with closing(workers.map(predictor, windows())) as results:
        for predictions, window_counts in results:
            counts.merge(window_counts)
            for (row, _), prediction in zip(pending.popleft(), predictions, strict=True):
                yield row.values, prediction
    for note in counts.notes():
        warnings.warn(note, BertworksWarning, stacklevel=2)


def resolve_precision(
    precision: InferencePrecision, network: AnyNetwork | HasEncoder
) -> InferencePrecision:
    """Return a precision; "auto" is what it means on the network's device, also for workers."""
    if isinstance(network, NativeNetwork):
        return network.resolve_precision(precision)
    if precision != "auto":
        return precision
    from ..nn.device import resolve_auto

    return resolve_auto(next(network.parameters()).device)


def count_gpus(network: AnyNetwork | HasEncoder) -> int:
    """The number of GPUs that a network is on: one at most."""
    return 0 if isinstance(network, NativeNetwork) else int(next(network.parameters()).is_cuda)


class BatchRunner(Protocol):
    """Computes the outputs of batches."""

    def __call__(self, examples: Sequence[Any]) -> tuple[Outputs, Batch]: ...


@dataclass(frozen=True)
class NativeRunner:
    """Computes the outputs of batches without PyTorch."""

    network: NativeTaskNetwork
    task: Task[Any]

    def __call__(self, examples: Sequence[Any]) -> tuple[Outputs, Batch]:
        batch = self.task.collate(examples)
        return self.task.compute(self.network, batch), batch


def make_runner(network: AnyNetwork, task: Task[Any], settings: EngineSettings) -> BatchRunner:
    """Return the object that computes the outputs of a task's network."""
    if isinstance(network, NativeNetwork):
        return NativeRunner(network.with_heads(settings.precision), task)
    from .network_runner import NetworkRunner

    return NetworkRunner(network, task, settings)


def _is_finite(output: Array) -> bool:
    if isinstance(output, np.ndarray):
        return bool(np.isfinite(output).all())
    from ..nn.device import is_finite

    return is_finite(output)


def outputs_of(
    network: AnyNetwork,
    task: Task[ExampleT],
    examples: Sequence[ExampleT],
    settings: EngineSettings = DEFAULTS,
    place: Callable[[int], str] = row_name,
    share: tuple[int, int] = (0, 1),
) -> Iterator[tuple[Outputs, Batch]]:
    """Yield a network's outputs for examples, batch by batch, longest first.

    All sequences of an example are in the same batch, so each row can be decoded from one batch.

    Args:
        place: returns the name in errors of the example at an index of `examples`.
        share: `(rank, world)`: compute only every `world`-th batch, beginning with number `rank`.

    Raises:
        CheckpointError: the network's output for an example is not finite.
    """
    run = make_runner(network, task, settings)
    rank, world = share
    # The same on all devices: in-batch negatives depend on the batches.
    batches = by_tokens(examples, settings.max_batch_tokens())
    for part in islice(batches, rank, None, world):
        outputs, batch = run(part)
        if not all(map(_is_finite, outputs.values())):
            # Only the task knows how outputs relate to examples, so each example is run alone.
            failing = (one for one in part if not all(map(_is_finite, run([one])[0].values())))
            first = next(failing, part[0])
            raise not_finite_error(
                place(next(at for at, one in enumerate(examples) if one is first))
            )
        yield outputs, batch
