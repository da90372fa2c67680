"""The nine tasks of GLUE: their files, columns and metrics, and the paper's figures.

Source: Wang et al. 2019, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding"; its official files. The figures are from the BERT paper's table 1, on the test set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import SettingsError, did_you_mean


@dataclass(frozen=True)
class Figure:
    """A row of the table."""

    name: str  # of the task, or of a part of it
    metric: str  # of the task's evaluator
    base: float | None = None  # the paper's result in percent; None if it has none
    large: float | None = None
    file: str = "dev.tsv"  # the dev file for the evaluation


@dataclass(frozen=True)
class GlueTask:
    """One of the tasks."""

    name: str  # in the benchmark; also of the folder, apart from case and hyphens
    columns: Mapping[str, Any]  # settings of `finetune` for its columns
    figures: tuple[Figure, ...]  # rows of the table; the first one's metric selects the best run
    kind: str = "classification"  # the name of the task in `finetune`
    # the test files, by the server's names for their predictions
    tests: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of `finetune` for the task."""
        return {"header": True, **self.columns, "best_metric": self.figures[0].metric}

    @property
    def files(self) -> tuple[str, ...]:
        """The files for training and evaluation: `train.tsv`, then the dev files."""
        return ("train.tsv", *dict.fromkeys(figure.file for figure in self.figures))

    @property
    def test_files(self) -> Mapping[str, str]:
        """The test files, by the server's names for their predictions."""
        return self.tests or {self.name: "test.tsv"}


def _columns(*names: str) -> dict[str, str]:
    *texts, label = names
    roles = ("text_column", "pair_column")
    return {**dict(zip(roles, texts, strict=False)), "label_column": label}


TASKS = (
    GlueTask(
        "MNLI",
        _columns("sentence1", "sentence2", "gold_label"),
        (
            Figure("MNLI-m", "accuracy", 84.6, 86.7, "dev_matched.tsv"),
            Figure("MNLI-mm", "accuracy", 83.4, 85.9, "dev_mismatched.tsv"),
        ),
        tests={
            "MNLI-m": "test_matched.tsv",
            "MNLI-mm": "test_mismatched.tsv",
            "AX": "../diagnostic/diagnostic.tsv",  # it has no training data
        },
    ),
    GlueTask(
        "QQP",
        _columns("question1", "question2", "is_duplicate"),
        (Figure("QQP", "f1", 71.2, 72.1), Figure("QQP", "accuracy")),
    ),
    GlueTask(
        "QNLI",
        _columns("question", "sentence", "label"),
        (Figure("QNLI", "accuracy", 90.5, 92.7),),
    ),
    GlueTask("SST-2", _columns("sentence", "label"), (Figure("SST-2", "accuracy", 93.5, 94.9),)),
    GlueTask(
        "CoLA",
        {"header": False, **_columns("4", "2")},
        (Figure("CoLA", "matthews_correlation", 52.1, 60.5),),
    ),
    GlueTask(
        "STS-B",
        _columns("sentence1", "sentence2", "score"),
        (Figure("STS-B", "spearman", 85.8, 86.5), Figure("STS-B", "pearson")),
        kind="regression",
    ),
    GlueTask(
        "MRPC",
        _columns("#1 String", "#2 String", "Quality"),
        (Figure("MRPC", "f1", 88.9, 89.3), Figure("MRPC", "accuracy")),
    ),
    GlueTask(
        "RTE",
        _columns("sentence1", "sentence2", "label"),
        (Figure("RTE", "accuracy", 66.4, 70.1),),
    ),
    GlueTask("WNLI", _columns("sentence1", "sentence2", "label"), (Figure("WNLI", "accuracy"),)),
)


def select_tasks(names: Sequence[str] | None) -> list[GlueTask]:
    """Return the tasks with the given names (`MRPC`, `sst2`); all tasks if `names` is None.

    Raises:
        SettingsError: there is no such task.
    """
    tasks_by_key = {_key(task.name): task for task in TASKS}
    keys = tasks_by_key if names is None else [_key(name) for name in names]
    for name in keys:
        if name not in tasks_by_key:
            raise SettingsError(f"GLUE has no task {name!r}", fix=did_you_mean(name, tasks_by_key))
    return [tasks_by_key[name] for name in dict.fromkeys(keys)]


def folder_of(task: GlueTask, data: Path) -> tuple[Path, str | None]:
    """Return a task's folder, and a text that says which files are missing; None if none is."""
    found = [child for child in data.iterdir() if _key(child.name) == _key(task.name)]
    folder = min(found, default=data / task.name)
    if not found:
        return folder, "no folder"
    missing = [name for name in task.files if not (folder / name).is_file()]
    return folder, f"no {' and no '.join(missing)}" if missing else None


def _key(name: str) -> str:
    return name.strip().lower().replace("-", "")
