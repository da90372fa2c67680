"""The tables of a fine-tuning run: which task they ask for, and their rows as its examples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import DataError, SettingsError, TrainingError, nearest
from ..inference.engine import labelled_examples
from ..tasks.classification import (
    ClassificationExample,
    ClassificationSettings,
    ClassificationTask,
)
from ..tasks.columns import find_columns
from ..tasks.labels import count_labels, sort_labels
from ..tasks.placed import Rows
from ..tasks.rows import Table, read_rows
from ..tasks.summary import DataSummary
from ..text.tokenizer import Tokenizer
from .finetune_settings import FinetuneSettings
from .journal import RunDirectory, write_atomically


@dataclass(frozen=True)
class LabelledData:
    """The task that the tables ask for, and their rows as its examples."""

    task: ClassificationTask
    train: list[ClassificationExample]
    dev: list[ClassificationExample] | None
    summary: DataSummary

    @classmethod
    def read(
        cls,
        tokenizer: Tokenizer,
        train: Table,
        dev: Table | None,
        settings: FinetuneSettings,
    ) -> LabelledData:
        named = (settings.text_column, settings.pair_column, settings.label_column)
        wanted = [name for name in named if name is not None]
        rows = _reusable(train, wanted, settings.header)
        columns = find_columns(
            rows.columns,
            rows.sample,
            text=settings.text_column,
            pair=settings.pair_column,
            label=settings.label_column,
            where=rows.name,
        )
        assert columns.label is not None, "labels were asked for"
        task = ClassificationTask(
            tokenizer,
            ClassificationSettings.parse(
                {
                    "labels": sort_labels(count_labels(rows, columns.label)),
                    "columns": columns,
                    "max_seq_length": settings.max_seq_length,
                    "truncation": settings.truncation,
                    "dropout": settings.dropout,
                    "positive_label": settings.positive_label,
                    "lm_weight": settings.lm_weight,
                }
            ),
        )
        task.evaluator()  # what the metrics need is asked for before hours are spent
        if settings.best_metric is not None:
            _check_metric(task, settings.best_metric)
        train_examples = list(labelled_examples(task, rows))
        dev_rows = dev_examples = None
        if dev is not None:
            dev_rows = read_rows(dev, columns=list(filter(None, named)), header=settings.header)
            reader = task.for_table(dev_rows, labelled=True)
            dev_examples = list(labelled_examples(reader, dev_rows))
        summary = DataSummary.of(
            str(columns),
            settings.max_seq_length,
            task.settings.labels,
            (rows.name, train_examples),
            None if dev_rows is None or dev_examples is None else (dev_rows.name, dev_examples),
        )
        return cls(task, train_examples, dev_examples, summary)

    def note_in(self, run: RunDirectory) -> None:
        """Write the summary down, or see that the run was begun with these rows.

        Raises:
            TrainingError: it was begun with others.
        """
        file = run.path / "data.json"
        digest = hashlib.sha256()
        for example in self.train:
            digest.update(example.input_ids.tobytes() + example.label.to_bytes(4, "big"))
        checksum = digest.hexdigest()
        if file.is_file() and json.loads(file.read_bytes())["checksum"] != checksum:
            raise TrainingError(
                "the run was begun with other training data, or another tokenizer",
                where=self.summary.train.name,
                fix="Give the same, or another run directory.",
            )
        content = {**self.summary.to_dict(), "checksum": checksum}
        write_atomically(file, json.dumps(content, indent=1, ensure_ascii=False).encode())


def _reusable(table: Table, wanted: list[str], header: bool | None) -> Rows:
    """A table that can be read twice: once for its labels, once for its rows."""
    if isinstance(table, Iterator):
        table = list(table)
    if table == "-":
        raise DataError("training rows cannot be read from standard input", fix="Give a file.")
    return read_rows(table, columns=wanted, header=header)


def _check_metric(task: ClassificationTask, name: str) -> None:
    if name not in task.metrics:
        raise SettingsError(
            f"best_metric={name!r} is no metric of this task", fix=nearest(name, task.metrics)
        )
