"""The tables of a fine-tuning run: which task they ask for, and their rows as its examples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import DataError, SettingsError, TrainingError, nearest
from ..inference.engine import labelled_examples
from ..tasks.labelled import LabelledExample, LabelledTask
from ..tasks.rows import Table, read_rows, replayable
from ..tasks.summary import DataSummary
from ..text.tokenizer import Tokenizer
from .finetune_settings import FinetuneSettings
from .journal import RunDirectory, write_atomically
from .teacher import taught


@dataclass(frozen=True)
class LabelledData:
    """The task that the tables ask for, and their rows as its examples.

    Attributes:
        task: what is learned.
        reader: the same as it reads and measures dev, whose columns may be others.
        train, dev: the rows.
        summary: what they look like.
    """

    task: LabelledTask[Any]
    reader: LabelledTask[Any]
    train: list[LabelledExample]
    dev: list[LabelledExample] | None
    summary: DataSummary

    @classmethod
    def read(
        cls,
        kind: type[LabelledTask[Any]],
        tokenizer: Tokenizer,
        train: Table,
        dev: Table | None,
        settings: FinetuneSettings,
        device: torch.device,
    ) -> LabelledData:
        """Read the tables as a task of a kind.

        Args:
            kind: the task's class.
            tokenizer: the model's.
            train: the rows to learn from.
            dev: the rows to measure on.
            settings: those of `settings_of(kind)`.
            device: where a teacher computes.

        Raises:
            DataError: a table or a row is not what it should be.
            SettingsError: the task has no such metric.
            BertworksError: the metrics need a package that is not installed.
        """
        options = kind.options.parse(settings.model_dump(include=set(kind.options.model_fields)))
        wanted = options.named_columns()
        if train == "-":
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
            dev_rows = read_rows(dev, columns=wanted, **options.table_options())
            reader = task.for_table(dev_rows, labelled=True)
        reader.evaluator()  # what the metrics need is asked for before hours are spent
        if settings.best_metric is not None:
            _check_metric(reader, settings.best_metric)
        train_examples = (
            list(labelled_examples(task, rows)) if taught_examples is None else taught_examples
        )
        dev_examples = None
        if dev_rows is not None:
            dev_examples = list(labelled_examples(reader, dev_rows))
        for table, found in ((rows, train_examples), (dev_rows, dev_examples)):
            if table is not None and not found:
                raise DataError("there are no rows", where=table.name)
        summary = DataSummary.of(
            task,
            (rows.name, train_examples),
            None if dev_rows is None or dev_examples is None else (dev_rows.name, dev_examples),
        )
        return cls(task, reader, train_examples, dev_examples, summary)

    def note_in(self, run: RunDirectory) -> None:
        """Write the summary down, or see that the run was begun with these rows.

        Raises:
            TrainingError: it was begun with others.
        """
        file = run.path / "data.json"
        tables = {"train": (self.summary.train, self.train), "dev": (self.summary.dev, self.dev)}
        checksums = {name: _digest(rows or ()) for name, (_, rows) in tables.items()}
        if run.is_begun and file.is_file():
            before = json.loads(file.read_bytes())["checksums"]
            for name, (summary, _) in tables.items():
                if before[name] != checksums[name]:
                    raise TrainingError(
                        f"the run was begun with other rows for {name}, or another tokenizer",
                        where=None if summary is None else summary.name,
                        fix="Give the same, or another run directory.",
                    )
        content = {**self.summary.to_dict(), "checksums": checksums}
        write_atomically(file, json.dumps(content, indent=1, ensure_ascii=False).encode())


def _digest(examples: Iterable[LabelledExample]) -> str:
    """What tells rows from others, as the task reads them."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(example.content + example.target)
    return digest.hexdigest()


def _check_metric(task: LabelledTask[Any], name: str) -> None:
    if name not in task.metrics:
        raise SettingsError(
            f"best_metric={name!r} is no metric of this task", fix=nearest(name, task.metrics)
        )
