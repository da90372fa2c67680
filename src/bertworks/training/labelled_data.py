"""The tables of a fine-tuning run, read as a task and its examples."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..data.rows import Rows, check_table_options
from ..data.tables import Table, read_rows, reiterable
from ..data.unlabelled import LabelledTableOptions, counted_unlabelled, without_unlabelled
from ..errors import DataError, OtherRunError, SettingsError, did_you_mean
from ..runs.run_directory import RunDirectory
from ..runs.run_files import read_data
from ..tasks.dev_share import Dev, DevShare, check_share
from ..tasks.example import LabelledExample
from ..tasks.gold import GoldRows
from ..tasks.labelled import LabelledTask
from ..tasks.summary import DataSummary
from ..tasks.task import TaskSettings
from ..text.tokenizer import Tokenizer
from ..utils.json_files import write_json
from ..utils.progress import Progress
from .settings import FinetuneSettings
from .teachers import read_with_teacher


@dataclass(frozen=True)
class LabelledData:
    """A task with labels and columns from the tables, and the rows as its examples."""

    task: LabelledTask[Any]  # the task to train
    reader: LabelledTask[Any]  # the same task for dev, whose columns may differ
    train: list[LabelledExample]
    dev: list[LabelledExample] | None
    summary: DataSummary  # of both tables
    split: DevShare | None = None  # which training rows were split off for dev, if any were
    notes: Sequence[str] = ()  # about rows that were left out, and labels of other names
    table_sizes: Sequence[int] = ()  # the number of rows of each of several training tables

    @classmethod
    def read(
        cls,
        kind: type[LabelledTask[Any]],
        tokenizer: Tokenizer,
        train: Table | Sequence[str | Path],
        dev: Dev | None,
        settings: FinetuneSettings,
        device: torch.device,
        *,
        run: Path | None = None,
        progress: Progress | None = None,
    ) -> LabelledData:
        """Read the tables for a kind of task.

        Args:
            train: the training rows, or the paths of several tables.
            dev: the evaluation rows, or the share of the training rows to split off.
            settings: an instance of `settings_of(kind)`.
            run: the directory in which to save a teacher's vectors; None: do not save them.
            progress: reports the progress of a teacher.

        Raises:
            DataError: a table or a row is not valid.
            SettingsError: the task has no metric `best_metric`.
            BertworksError: the metrics need a package that is not installed.
        """
        check_share(dev)
        options = kind.user_settings_in(settings)
        assert isinstance(options, LabelledTableOptions), "how tables are read"
        if isinstance(train, str) and train == "-":
            raise DataError("training rows cannot be read from standard input", fix="Give a file.")
        tables = training_tables(train)
        check_table_options(options.table_options(), *tables, dev)
        _check_several(tables, dev, settings)
        as_table = {"columns": options.named_columns(), **options.table_options()}
        all_rows = []
        for table in tables:  # each is read once for the labels, once for the rows
            table_rows = kind.complete_rows(read_rows(reiterable(table), **as_table), options)
            drops = options.drop_unlabelled
            all_rows.append(labelled_rows(kind, table_rows, options) if drops else table_rows)
        rows = all_rows[0]
        dev_rows = None
        if dev is not None:
            dev_rows = rows
            if not isinstance(dev, float):
                dev_rows = kind.complete_rows(read_rows(reiterable(dev), **as_table), options)
            if options.drop_unlabelled and dev_rows is not rows:
                dev_rows = labelled_rows(kind, dev_rows, options)
        with counted_unlabelled(*all_rows, *(() if dev_rows is None else (dev_rows,))):
            if settings.teacher is None:
                task = kind.from_table(tokenizer, rows, options)
                task.check_tables(len(tables))
                if len(tables) > 1:
                    return cls._of_tables(task, all_rows, dev_rows, dev, settings)
                return cls._of_rows(task, None, rows, dev_rows, dev, settings)
            student, examples = read_with_teacher(
                kind, tokenizer, rows, dev_rows, options, settings, device, run, progress
            )
            return cls._of_rows(student, examples, rows, dev_rows, dev, settings)

    @classmethod
    def _of_tables(
        cls,
        task: LabelledTask[Any],
        tables: Sequence[Rows],
        dev_rows: Rows | None,
        dev: Dev | None,
        settings: FinetuneSettings,
    ) -> LabelledData:
        """Read several training tables, each with its own columns."""
        examples: list[LabelledExample] = []
        sizes, notes = [], []
        for number, rows in enumerate(tables):
            reader = task.for_training_table(rows, number)
            gold = GoldRows(reader, rows)
            own_examples = [
                replace(example, index=len(examples) + example.index, table=number)
                for example in reader.labelled_examples(gold.rows)
            ]
            if not own_examples:
                raise DataError("there are no rows", where=rows.name)
            gold.warn()
            notes += [f"{gold.name}: {note}" for note in gold.notes()]
            sizes.append(len(own_examples))
            examples += own_examples
        names = replace(tables[0], name=", ".join(rows.name for rows in tables))
        data = cls._of_rows(task, examples, names, dev_rows, dev, settings)
        return replace(data, notes=[*notes, *data.notes], table_sizes=sizes)

    @classmethod
    def _of_rows(
        cls,
        task: LabelledTask[Any],
        train_examples: list[LabelledExample] | None,
        rows: Rows,
        dev_rows: Rows | None,
        dev: Dev | None,
        settings: FinetuneSettings,
    ) -> LabelledData:
        """Read the rows for a task; `train_examples` are those that were read already."""
        dev_examples: list[LabelledExample] | None = None
        reader = task if dev_rows is None else task.for_table(dev_rows, labelled=True)
        rows, dev_rows, golds = _with_labels(
            task, reader, rows, dev_rows, has_teacher=train_examples is not None
        )
        reader.evaluator()  # fails now, not after training, if its package is missing
        if (metric := settings.best_metric) not in (None, *reader.metrics):
            raise SettingsError(
                f"best_metric={metric!r} is not a metric of this task",
                fix=did_you_mean(str(metric), reader.metrics),
            )
        if train_examples is None:
            train_examples = list(task.labelled_examples(rows))
            if dev_rows is rows and reader is task:
                dev_examples = train_examples
        if dev_rows is not None and dev_examples is None:
            dev_examples = list(reader.labelled_examples(dev_rows))
        for gold in golds:
            gold.warn()
        for table, found in ((rows, train_examples), (dev_rows, dev_examples)):
            if table is not None and not found:
                raise DataError("there are no rows", where=table.name)
        name, dev_name = rows.name, None if dev_rows is None else dev_rows.name
        split = None
        if isinstance(dev, float):
            assert dev_examples is not None, "read above"
            split = DevShare.choose(reader, rows, dev_examples, dev, settings.dev_seed)
            train_examples, dev_examples = split.divide(train_examples, dev_examples)
            name, dev_name = f"{1 - dev:g} of {rows.name}", f"{dev:g} of {rows.name}"
        summary = DataSummary.from_examples(
            task,
            (name, train_examples),
            None if dev_name is None or dev_examples is None else (dev_name, dev_examples),
        )
        notes = [f"{gold.name}: {note}" for gold in golds for note in gold.notes()]
        return cls(task, reader, train_examples, dev_examples, summary, split, notes)

    def lines(self) -> list[str]:
        """Return a description of the tables for the user."""
        split = [] if self.split is None else [f"dev: {self.split.description}"]
        return [*self.summary.lines(), *split]

    @cached_property
    def checksums(self) -> dict[str, str]:
        """A checksum of the rows of each table, as the task reads them."""
        train = _digest(self.train, self.table_sizes)
        return {"train": train, "dev": _digest(self.dev or ())}

    def check(self, run: RunDirectory) -> None:
        """Check that a run that has started used these rows.

        Raises:
            OtherRunError: it was started with other rows or another tokenizer.
        """
        file = run.path / "data.json"
        if not file.is_file():
            return
        before = read_data(file).get("checksums", {})
        for name, summary in (("train", self.summary.train), ("dev", self.summary.dev)):
            if before.get(name) != self.checksums[name]:
                raise OtherRunError(
                    f"the run was started with other rows for {name}, or another tokenizer",
                    where=None if summary is None else summary.name,
                    fix=f"Give the same, another directory than {run.path}, or start again with "
                    "--overwrite (overwrite=True).",
                )

    def write_summary(self, run: RunDirectory) -> None:
        """Write the summary to the run directory."""
        split = None if self.split is None else asdict(self.split)
        content = {**asdict(self.summary), "checksums": self.checksums, "split": split}
        write_json(run.path / "data.json", content, indent=1)


def training_tables(train: Any) -> list[Any]:
    """Return the tables of training rows: one, or those of a list or tuple of paths."""
    is_several = isinstance(train, list | tuple) and bool(train)
    if is_several and all(isinstance(one, str | os.PathLike) for one in train):
        return list(train)
    return [train]


def _check_several(tables: Sequence[Any], dev: Dev | None, settings: FinetuneSettings) -> None:
    """Check that what is for one training table, or for several, is only used there."""
    if len(tables) == 1:
        if settings.table_sampling != "proportional":
            what = f"table_sampling={settings.table_sampling}: there is one training table"
            raise SettingsError(what, fix="Leave it out.")
        return
    if isinstance(dev, float):
        what = f"dev={dev:g}: a share is split off one training table"
        raise SettingsError(what, fix="Give a table of evaluation rows.")
    if settings.teacher is not None:
        raise SettingsError("a teacher labels the rows of one training table")


def _with_labels(
    task: LabelledTask[Any],
    reader: LabelledTask[Any],
    rows: Rows,
    dev_rows: Rows | None,
    *,
    has_teacher: bool,
) -> tuple[Rows, Rows | None, list[GoldRows]]:
    """Return the tables without rows that have no gold label, and what was left out.

    Args:
        has_teacher: whether a teacher labels the training rows, so that all of them are used.
    """
    train_gold = [] if has_teacher else [GoldRows(task, rows)]
    labelled = train_gold[0].rows if train_gold else rows
    if dev_rows is None or dev_rows is rows:
        return labelled, dev_rows and labelled, train_gold
    dev_gold = GoldRows(reader, dev_rows)
    return labelled, dev_gold.rows, [*train_gold, dev_gold]


def labelled_rows(kind: type[LabelledTask[Any]], rows: Rows, options: TaskSettings) -> Rows:
    """Return the rows of a table that have a label; a warning counts the others."""
    columns = kind.find_label_columns(rows, options)
    return without_unlabelled(rows, columns, may_have_no_label=kind.may_have_no_label)


def _digest(examples: Iterable[LabelledExample], table_sizes: Sequence[int] = ()) -> str:
    """Return a checksum of the rows, as the task reads them, and of the borders of their tables."""
    digest = hashlib.sha256(repr(list(table_sizes)).encode() if table_sizes else b"")
    for example in examples:
        digest.update(example.content + example.target_bytes)
    return digest.hexdigest()
