"""Teachers, from which a smaller model learns instead of labels: classifiers, sentence encoders.

A teacher predicts once, before training. A sentence encoder's vectors are saved in `teacher.npy`,
so that a resumed run does not compute them again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.rows import Rows, chunks
from ..data.schema import RoleColumns, find_text_columns
from ..data.text_inputs import Texts
from ..errors import BertworksWarning, DataError, SettingsError
from ..inference import engine
from ..inference.settings import EngineSettings
from ..loading import load
from ..model import Model
from ..runs.run_directory import TEACHER_VECTORS, RunDirectory
from ..tasks.classification import ClassificationSettings, ClassificationTask
from ..tasks.distilled_classification import DistilledTask
from ..tasks.example import LabelledExample
from ..tasks.labelled import LabelledTask
from ..tasks.retrieval.distillation import StudentTask, principal_axes
from ..tasks.retrieval.settings import RetrievalSettings
from ..tasks.task import TaskSettings
from ..tasks.texts import TEXTS
from ..text.tokenizer import Tokenizer
from ..utils.formatting import format_count
from ..utils.progress import Progress
from .settings import FinetuneSettings

_CHUNK_ROWS = 4096  # rows that are tokenised at a time


def read_with_teacher(
    kind: type[LabelledTask[Any]],
    tokenizer: Tokenizer,
    rows: Rows,
    dev: Rows | None,
    options: TaskSettings,
    settings: FinetuneSettings,
    device: torch.device,
    run: Path | None,
    progress: Progress | None,
) -> tuple[LabelledTask[Any], list[LabelledExample]]:
    """Return the student's task, and the rows as its examples, with the teacher's predictions.

    Args:
        kind: the student's task.
        tokenizer: the student's.
        rows: texts; labels are ignored.
        dev: the evaluation rows, if any; their labels are read later.
        settings: `settings.teacher` is the teacher.
        run: the directory for a sentence encoder's vectors; if None, they are not saved.
        progress: shows the progress of the teacher.

    Raises:
        CheckpointError: the teacher does not exist.
        SettingsError: the task does not support a teacher, or not this kind of teacher; or an
            option cannot be used with a teacher.
        DataError: a row does not fit the task; or the directory has vectors of other texts or of
            another teacher.
        OtherRunError: the directory is not empty and is not a run directory.
    """
    match kind.teacher_outputs:
        case "probabilities":
            return _student_of_classifier(tokenizer, rows, dev, options, settings, device, progress)
        case "vectors":
            return _student_of_sentence_encoder(
                tokenizer, rows, options, settings, device, run, progress
            )
        case None:
            raise SettingsError(f"teacher={settings.teacher}: {kind.name} takes no teacher")


def _student_of_classifier(
    tokenizer: Tokenizer,
    rows: Rows,
    dev: Rows | None,
    options: TaskSettings,
    settings: FinetuneSettings,
    device: torch.device,
    progress: Progress | None,
) -> tuple[DistilledTask, list[LabelledExample]]:
    assert isinstance(options, ClassificationSettings) and settings.teacher is not None
    teacher = load(settings.teacher, device=device)
    if not isinstance(teacher.task, ClassificationTask):
        raise SettingsError(
            f"teacher={settings.teacher}: it is not a classifier with one label per row",
            fix="Give one that `finetune classification` made.",
        )
    columns = _columns(rows, dev, options)
    reader = teacher.task.with_columns(columns, rows.name)
    values = options.model_dump(include=set(ClassificationSettings.model_fields))
    values |= {f"{role}_column": column for role, column in columns.items()}
    values["labels"] = teacher.task.labels
    for name in ("positive_label", "no_label"):
        if values[name] is None:
            values[name] = getattr(teacher.task.settings, name)
    student_settings = ClassificationSettings.parse(values)
    task = DistilledTask(tokenizer, student_settings, settings.temperature)
    unlabelled, examples = list(_unlabelled(task, rows)), []
    update = _counter(progress)
    engine_settings = EngineSettings(precision=settings.precision)
    answers = engine.predict(teacher.network, reader, rows, engine_settings)  # type: ignore[arg-type]
    for (_, answer), example in zip(answers, unlabelled, strict=True):
        chances = [answer["probabilities"][label] for label in task.settings.labels]
        examples.append(replace(example, target=np.array(chances, np.float32)))
        if update is not None:
            update(len(examples), len(unlabelled))
    return task, examples


def _columns(rows: Rows, dev: Rows | None, settings: ClassificationSettings) -> RoleColumns:
    """Return the columns of a student's training rows; that of the labels may be in dev alone.

    Raises:
        DataError: a named column does not exist, or a column of texts cannot be detected.
    """
    label = settings.label_column
    names = {"text": settings.text_column, "pair": settings.pair_column, "label": label}
    if label is None or dev is None or rows.has(label):
        return TEXTS.find(rows, names, labelled=False)
    columns = TEXTS.find(rows, {**names, "label": None}, labelled=False)
    return {**columns, "label": dev.column(label)}


def _student_of_sentence_encoder(
    tokenizer: Tokenizer,
    rows: Rows,
    options: TaskSettings,
    settings: FinetuneSettings,
    device: torch.device,
    run: Path | None,
    progress: Progress | None,
) -> tuple[StudentTask, list[LabelledExample]]:
    assert isinstance(options, RetrievalSettings) and settings.teacher is not None
    teacher = load(settings.teacher, device=device)
    text_columns = find_text_columns(rows, text=options.text_column, labelled=False)
    if text_columns["pair"] is not None:
        fix = "Name the column of the texts: text_column=NAME."
        raise DataError(
            "a student learns from texts, and these are pairs", where=rows.name, fix=fix
        )
    text_column = str(text_columns["text"])
    values = options.model_dump(include=set(RetrievalSettings.model_fields))
    values |= {
        "query_column": options.query_column or "query",
        "passage_column": options.passage_column or "passage",
        "text_column": None,  # of training alone: the saved model reads pairs
        "loss": "in-batch",
    }
    vectors = _vectors(
        teacher, Texts(rows, text_column, is_repeatable=True), settings, run, progress
    )
    task = StudentTask(
        tokenizer,
        RetrievalSettings.parse(values),
        text_column,
        principal_axes(vectors),
    )
    examples = [replace(one, target=vectors[one.index]) for one in _unlabelled(task, rows)]
    return task, examples


def _vectors(
    teacher: Model,
    texts: Texts,
    settings: FinetuneSettings,
    run: Path | None,
    progress: Progress | None,
) -> NDArray[np.float32]:
    """The teacher's unit vectors, `[rows, width]`; loaded from the run directory if saved there."""
    if run is None:
        return teacher.embed(data=texts, normalize=True, precision=settings.precision)
    RunDirectory(run).check_free()
    run.mkdir(parents=True, exist_ok=True)
    file = run / TEACHER_VECTORS
    embeddings = teacher.embed_to(
        file, texts, normalize=True, precision=settings.precision, progress=_counter(progress)
    )
    if embeddings.num_truncated:
        count = format_count(embeddings.num_truncated, "text")
        what = f"teacher={settings.teacher} truncates {count} to its length"
        warnings.warn(what, BertworksWarning, stacklevel=2)
    return np.asarray(np.load(file, mmap_mode="r"))


def _counter(progress: Progress | None) -> Callable[[int, int], None] | None:
    return None if progress is None else progress.counter("teacher")


def _unlabelled(task: LabelledTask[LabelledExample], rows: Rows) -> Iterator[LabelledExample]:
    """Yield the rows as the task's examples, without targets."""
    num_rows = 0
    for chunk in chunks(rows, _CHUNK_ROWS):
        values, places = [row.values for row in chunk], [row.where for row in chunk]
        yield from task.examples(values, num_rows, where=places, labelled=False)
        num_rows += len(chunk)
