"""The tables of a fine-tuning run: which task they ask for, and their rows as its examples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .. import files
from ..errors import DataError, SettingsError, TrainingError, nearest
from ..inference.engine import labelled_examples
from ..tasks.example import LabelledExample
from ..tasks.labelled import LabelledTask
from ..tasks.rows import Table, read_rows, replayable
from ..tasks.summary import DataSummary
from ..text.tokenizer import Tokenizer
from .dev_share import Dev, DevShare, check_share
from .finetune_settings import FinetuneSettings
from .journal import RunDirectory
from .run_files import read_data
from .teacher import taught


@dataclass(frozen=True)
class LabelledData:
    """The task that the tables ask for, and their rows as its examples.

    Attributes:
        task: what is learned.
        reader: the same as it reads and measures dev, whose columns may be others.
        train, dev: the rows.
        summary: what they look like.
        split: which training rows were split off for dev, if any were.
    """

    task: LabelledTask[Any]
    reader: LabelledTask[Any]
    train: list[LabelledExample]
    dev: list[LabelledExample] | None
    summary: DataSummary
    split: DevShare | None = None

    @classmethod
    def read(
        cls,
        kind: type[LabelledTask[Any]],
        tokenizer: Tokenizer,
        train: Table,
        dev: Dev | None,
        settings: FinetuneSettings,
        device: torch.device,
    ) -> LabelledData:
        """Read the tables as a task of a kind.

        Args:
            kind: the task's class.
            tokenizer: the model's.
            train: the rows to learn from.
            dev: the rows to measure on, or the share of the training rows to split off.
            settings: those of `settings_of(kind)`.
            device: where a teacher computes.

        Raises:
            DataError: a table or a row is not what it should be.
            SettingsError: the task has no such metric.
            BertworksError: the metrics need a package that is not installed.
        """
        check_share(dev)
        options = kind.options.parse(settings.model_dump(include=set(kind.options.model_fields)))
        wanted = options.named_columns()
        if isinstance(train, str) and train == "-":
            raise DataError("training rows cannot be read from standard input", fix="Give a file.")
        # Once for the labels, once for the rows.
        rows = read_rows(replayable(train), columns=wanted, **options.table_options())
        taught_examples: list[Any] | None = None
        task: LabelledTask[Any]
        if settings.teacher is not None:
            if not kind.takes_teacher:
                raise SettingsError(f"teacher={settings.teacher}: {kind.name} takes no teacher")
            task, taught_examples = taught(
                settings.teacher, tokenizer, rows, options, settings.temperature, device
            )
        else:
            task = kind.from_table(tokenizer, rows, options)
        reader, dev_rows = task, None
        if dev is not None:
            dev_rows = (
                rows
                if isinstance(dev, float)
                else read_rows(dev, columns=wanted, **options.table_options())
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
            TrainingError: it was begun with others.
        """
        file = run.path / "data.json"
        tables = {"train": (self.summary.train, self.train), "dev": (self.summary.dev, self.dev)}
        checksums = {name: _digest(rows or ()) for name, (_, rows) in tables.items()}
        if run.is_begun and file.is_file():
            before = read_data(file).get("checksums", {})
            for name, (summary, _) in tables.items():
                if before.get(name) != checksums[name]:
                    raise TrainingError(
                        f"the run was begun with other rows for {name}, or another tokenizer",
                        where=None if summary is None else summary.name,
                        fix="Give the same, or another run directory.",
                    )
        split = None if self.split is None else self.split.to_dict()
        content = {**self.summary.to_dict(), "checksums": checksums, "split": split}
        files.write_json(file, content, indent=1)


def _digest(examples: Iterable[LabelledExample]) -> str:
    """What tells rows from others, as the task reads them."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(example.content + example.target_bytes)
    return digest.hexdigest()


def _check_metric(task: LabelledTask[Any], name: str) -> None:
    if name not in task.metrics:
        raise SettingsError(
            f"best_metric={name!r} is no metric of this task", fix=nearest(name, task.metrics)
        )
