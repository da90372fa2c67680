"""The tables of a fine-tuning run: which task they ask for, and their rows as its examples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch

from .. import files
from ..api import load
from ..errors import DataError, OtherRunError, SettingsError, nearest
from ..inference import engine
from ..inference.engine import labelled_examples
from ..tables.reading import Table, read_rows, replayable
from ..tables.rows import Rows
from ..tables.schema import Columns
from ..tasks.classification import ClassificationOptions, ClassificationTask, DistilledTask
from ..tasks.example import LabelledExample
from ..tasks.labelled import LabelledTask, TaskOptions
from ..tasks.summary import DataSummary
from ..tasks.task import ExampleT
from ..tasks.texts import TEXTS, TextSettings
from ..text.tokenizer import Tokenizer
from .dev_share import Dev, DevShare, check_share
from .journal import RunDirectory
from .run_files import read_data
from .sentence_teacher import taught_vectors
from .settings import FinetuneSettings


@dataclass(frozen=True)
class LabelledData:
    """The task that the tables ask for, and their rows as its examples."""

    task: LabelledTask[Any]  # what is learned
    reader: LabelledTask[Any]  # the same as it reads and measures dev, whose columns may be others
    train: list[LabelledExample]  # the rows
    dev: list[LabelledExample] | None
    summary: DataSummary  # what they look like
    split: DevShare | None = None  # which training rows were split off for dev, if any were

    @classmethod
    def read(
        cls,
        kind: type[LabelledTask[Any]],
        tokenizer: Tokenizer,
        train: Table,
        dev: Dev | None,
        settings: FinetuneSettings,
        device: torch.device,
        *,
        run: Path | None = None,
    ) -> LabelledData:
        """Read the tables as a task of a kind.

        Args:
            dev: the rows to measure on, or the share of the training rows to split off.
            settings: those of `settings_of(kind)`.
            run: the directory where a teacher's vectors are kept; nowhere, if left out.

        Raises:
            DataError: a table or a row is not what it should be.
            SettingsError: the task has no such metric.
            BertworksError: the metrics need a package that is not installed.
        """
        check_share(dev)
        options = kind.options.parse(settings.model_dump(include=set(kind.options.model_fields)))
        named = options.named_columns()
        if isinstance(train, str) and train == "-":
            raise DataError("training rows cannot be read from standard input", fix="Give a file.")
        # Once for the labels, once for the rows.
        rows = read_rows(replayable(train), columns=named, **options.table_options())
        taught_examples: list[Any] | None = None
        task: LabelledTask[Any]
        if settings.teacher is not None:
            match kind.teacher_gives:
                case "vectors":
                    task, taught_examples = taught_vectors(
                        tokenizer, rows, options, settings, device, run
                    )
                case "probabilities":
                    task, taught_examples = taught(
                        settings.teacher, tokenizer, rows, options, settings.temperature, device
                    )
                case None:
                    raise SettingsError(f"teacher={settings.teacher}: {kind.name} takes no teacher")
        else:
            task = kind.from_table(tokenizer, rows, options)
        reader, dev_rows = task, None
        if dev is not None:
            dev_rows = (
                rows
                if isinstance(dev, float)
                else read_rows(dev, columns=named, **options.table_options())
            )
            reader = task.for_table(dev_rows, labelled=True)
        reader.evaluator()  # what the metrics need is asked for before hours are spent
        if settings.best_metric is not None:
            _check_metric(reader, settings.best_metric)
        train_examples = (
            list(labelled_examples(task, rows)) if taught_examples is None else taught_examples
        )
        dev_examples = None
        if dev_rows is not None:
            is_read = dev_rows is rows and reader is task and taught_examples is None
            dev_examples = train_examples if is_read else list(labelled_examples(reader, dev_rows))
        for table, found in ((rows, train_examples), (dev_rows, dev_examples)):
            if table is not None and not found:
                raise DataError("there are no rows", where=table.name)
        name, dev_name = rows.name, None if dev_rows is None else dev_rows.name
        split = None
        if isinstance(dev, float):
            assert dev_examples is not None, "read above"
            split = DevShare.of(reader, rows, dev_examples, dev, settings.dev_seed)
            train_examples, dev_examples = split.part(train_examples, dev_examples)
            name, dev_name = f"{1 - dev:g} of {rows.name}", f"{dev:g} of {rows.name}"
        summary = DataSummary.of(
            task,
            (name, train_examples),
            None if dev_name is None or dev_examples is None else (dev_name, dev_examples),
        )
        return cls(task, reader, train_examples, dev_examples, summary, split)

    def lines(self) -> list[str]:
        """What the tables look like, for people."""
        split = [] if self.split is None else [f"dev: {self.split.text}"]
        return [*self.summary.lines(), *split]

    def note_in(self, run: RunDirectory) -> None:
        """Write the summary down, or see that the run was begun with these rows.

        Raises:
            OtherRunError: it was begun with others.
        """
        file = run.path / "data.json"
        tables = {"train": (self.summary.train, self.train), "dev": (self.summary.dev, self.dev)}
        checksums = {name: _digest(rows or ()) for name, (_, rows) in tables.items()}
        if run.is_begun and file.is_file():
            before = read_data(file).get("checksums", {})
            for name, (summary, _) in tables.items():
                if before.get(name) != checksums[name]:
                    raise OtherRunError(
                        f"the run was begun with other rows for {name}, or another tokenizer",
                        where=None if summary is None else summary.name,
                        fix=f"Give the same, or another directory than {run.path}.",
                    )
        split = None if self.split is None else asdict(self.split)
        content = {**asdict(self.summary), "checksums": checksums, "split": split}
        files.write_json(file, content, indent=1)


def _digest(examples: Iterable[LabelledExample]) -> str:
    """What distinguishes rows from others, as the task reads them."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(example.content + example.target_bytes)
    return digest.hexdigest()


def _check_metric(task: LabelledTask[Any], name: str) -> None:
    if name not in task.metrics:
        raise SettingsError(
            f"best_metric={name!r} is no metric of this task", fix=nearest(name, task.metrics)
        )


def taught(
    name: str,
    tokenizer: Tokenizer,
    rows: Rows,
    options: TaskOptions,
    temperature: float,
    device: torch.device,
) -> tuple[DistilledTask, list[LabelledExample]]:
    """The student's task, and the rows as its examples, with the teacher's answers for labels.

    Args:
        name: the teacher's directory or name on the hub.
        rows: texts; labels are not looked at.

    Raises:
        SettingsError: the teacher is no classifier of one label a row; or an option is for labels.
        DataError: a row is not one of the task.
    """
    assert isinstance(options, ClassificationOptions)
    teacher = load(name, device=device)
    if not isinstance(teacher.task, ClassificationTask) or teacher.task.settings.multi_label:
        raise SettingsError(
            f"teacher={name}: it is no classifier of one label a row",
            fix="Give one that `finetune classification` made.",
        )
    for option in ("multi_label", "balance_classes", "label_smoothing", "lm_weight"):
        if value := getattr(options, option):
            raise SettingsError(f"{option}={value} is not for a student; it learns probabilities")
    assert isinstance(teacher.network, torch.nn.Module)
    found = Columns.parse(TEXTS.find(rows, options.named(TEXTS), labelled=False))
    reader = teacher.task.reading(found, rows.name)
    task = DistilledTask(
        tokenizer,
        teacher.task.settings.with_values(
            columns=found,
            takes_either=False,
            **options.shared(TextSettings),
            positive_label=options.positive_label or teacher.task.settings.positive_label,
            class_weights=None,
            label_smoothing=0.0,
            lm_weight=0.0,
        ),
        temperature,
    )
    labels = task.settings.labels
    examples: list[LabelledExample] = []
    answers = engine.predict(teacher.network, reader, rows)  # type: ignore[arg-type]
    for chunk in engine.chunks(zip(rows, answers, strict=True), 4096):
        made = task.examples(
            [row.values for row, _ in chunk],
            len(examples),
            where=[row.where for row, _ in chunk],
            labelled=False,
        )
        for example, (_, (_, answer)) in zip(made, chunk, strict=True):
            chances = [answer["probabilities"][label] for label in labels]
            examples.append(replace(example, target=np.array(chances, np.float32)))
    return task, examples


class RowSource(Generic[ExampleT]):
    """Rows in memory as a source of training: each once an epoch, each epoch in another order.

    Batches run on over the border of two epochs; buckets are laid so that they still fall together
    with batches there.

    Args:
        seed: the order is a pure function of (seed, epoch).
        batch_size: of the training that draws from it; blocks and buckets are multiples of it.
        bucket_batches: if not 0, the rows of so many batches are sorted by length before they are
            cut into batches, which then come in random order. Batches of like lengths are faster
            on the CPU, and less random.
    """

    def __init__(
        self,
        examples: Sequence[ExampleT],
        *,
        seed: int,
        batch_size: int,
        bucket_batches: int = 0,
    ) -> None:
        assert examples, "a source holds at least one example"
        self._examples = examples
        self._seed, self._batch_size, self._bucket_batches = seed, batch_size, bucket_batches
        self._block_size = batch_size * max(1, 4096 // batch_size)
        self._lengths = np.array([example.num_tokens for example in examples])
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    def num_blocks(self, epoch: int) -> int:  # noqa: ARG002  (every epoch has as many)
        """How many blocks an epoch has."""
        return -(-len(self._examples) // self._block_size)

    def block(self, epoch: int, block: int) -> list[ExampleT]:
        """The examples of a block, in the order in which they are to be used."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._order_of(epoch)
        start = block * self._block_size
        return [self._examples[at] for at in self._order[start : start + self._block_size].tolist()]

    def _order_of(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng([self._seed, epoch])
        order = random.permutation(len(self._examples))
        if not self._bucket_batches:
            return order
        size = self._batch_size
        begun = (-epoch * len(order)) % size  # these fill the last epoch's last batch
        parts = [order[:begun]]
        for start in range(begun, len(order), size * self._bucket_batches):
            bucket = order[start : start + size * self._bucket_batches]
            bucket = bucket[np.argsort(self._lengths[bucket], kind="stable")]
            whole = len(bucket) // size
            batches = bucket[: whole * size].reshape(whole, size)
            parts += [batches[random.permutation(whole)].ravel(), bucket[whole * size :]]
        return np.concatenate(parts)
