"""What a fine-tuned teacher says of the training rows, as targets for a student."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ..api import load
from ..errors import SettingsError
from ..inference import engine
from ..tasks.classification.settings import ClassificationOptions
from ..tasks.classification.task import ClassificationTask
from ..tasks.columns import Columns
from ..tasks.distilled import DistilledTask
from ..tasks.example import LabelledExample
from ..tasks.labelled import TaskOptions
from ..tasks.placed import Rows
from ..tasks.texts import TEXTS, TextSettings
from ..text.tokenizer import Tokenizer


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
        tokenizer: the student's.
        rows: texts; labels are not looked at.
        options: what the user says of the task.
        temperature: of the student's loss.
        device: where the teacher computes.

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
    told = engine.predict(teacher.network, reader, rows)  # type: ignore[arg-type]
    for chunk in engine.chunks(zip(rows, told, strict=True), 4096):
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
