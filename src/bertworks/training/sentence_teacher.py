"""A sentence encoder that a smaller one learns from: its vectors of the training rows.

It is asked once, before training; a run keeps what it said in `teacher.npy`, so that a run that is
resumed does not ask again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..api import Model, load
from ..errors import BertworksWarning, DataError, SettingsError
from ..inference import engine
from ..tables.rows import Rows
from ..tables.schema import find_columns
from ..tables.texts import Texts
from ..tasks.example import LabelledExample
from ..tasks.labelled import TaskOptions
from ..tasks.retrieval.columns import RetrievalColumns, RetrievalOptions, RetrievalSettings
from ..tasks.retrieval.distillation import StudentTask, principal_axes
from ..text.tokenizer import Tokenizer
from .journal import TEACHER_VECTORS, RunDirectory
from .settings import FinetuneSettings

_AT_ONCE = 4096  # rows that are tokenised at a time


def taught_vectors(
    tokenizer: Tokenizer,
    rows: Rows,
    options: TaskOptions,
    settings: FinetuneSettings,
    device: torch.device,
    run: Path | None,
) -> tuple[StudentTask, list[LabelledExample]]:
    """The student's task, and the rows as its examples, with the teacher's vectors for labels.

    Args:
        rows: texts, one a row.
        settings: whose teacher is meant.
        run: where the vectors are kept.

    Raises:
        CheckpointError: there is no such teacher.
        SettingsError: an option is of pairs, from which a student does not learn.
        DataError: a row is no text; or the run keeps vectors of other texts or another teacher.
        OtherRunError: the directory holds something else than a run.
    """
    assert isinstance(options, RetrievalOptions)
    assert settings.teacher is not None
    for option in ("loss", "negative_columns", "symmetric"):
        if value := getattr(options, option):
            raise SettingsError(f"{option}={value} is not for a student, which learns from texts")
    if settings.temperature != 1:
        raise SettingsError(
            f"temperature={settings.temperature} is of classifiers, and this teacher gives vectors"
        )
    teacher = load(settings.teacher, device=device)
    found = find_columns(rows, text=options.text_column, labelled=False)
    if found.pair is not None:
        fix = "Name the column of the texts: text_column=NAME."
        raise DataError(
            "a student learns from texts, and these are pairs", where=rows.name, fix=fix
        )
    columns = RetrievalColumns(
        query=options.query_column or "query",
        passage=options.passage_column or "passage",
        score=options.score_column,
    )
    values = {k: v for k, v in options.shared(RetrievalSettings).items() if v is not None}
    vectors = _vectors(teacher, Texts(rows, found.text, again=True), settings, run)
    task = StudentTask(
        tokenizer,
        RetrievalSettings.parse(values | {"columns": columns}),
        found.text,
        principal_axes(vectors),
    )
    return task, list(_examples(task, rows, vectors))


def _vectors(
    teacher: Model, texts: Texts, settings: FinetuneSettings, run: Path | None
) -> NDArray[np.float32]:
    """The teacher's vectors of length 1, `[rows, width]`, from the run if they are there."""
    if run is None:
        return teacher.embed(data=texts, normalize=True, precision=settings.precision)
    RunDirectory(run).check_free()
    run.mkdir(parents=True, exist_ok=True)
    file = run / TEACHER_VECTORS
    written = teacher.embed_to(file, texts, normalize=True, precision=settings.precision)
    if written.cut:
        what = f"teacher={settings.teacher}: {written.cut:,} texts were too long for it, and cut"
        warnings.warn(what, BertworksWarning, stacklevel=2)
    return np.asarray(np.load(file, mmap_mode="r"))


def _examples(
    task: StudentTask, rows: Rows, vectors: NDArray[np.float32]
) -> Iterator[LabelledExample]:
    done = 0
    for chunk in engine.chunks(rows, _AT_ONCE):
        made = task.examples(
            [row.values for row in chunk],
            done,
            where=[row.where for row in chunk],
            labelled=False,
        )
        for example in made:
            yield replace(example, target=vectors[example.index])
        done += len(chunk)
