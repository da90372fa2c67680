"""Detect failed fine-tuning runs, and suggest other settings.

Fine-tuning on little data fails with some seeds: however long it trains, the model predicts the
same for every row. Sources: Mosbach et al. (2021), "On the stability of fine-tuning BERT"; Zhang
et al. (2021), "Revisiting few-sample BERT fine-tuning".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..tasks.classification import ClassificationTask
from ..tasks.labelled import LabelledTask
from .settings import FinetuneSettings, suitable_rate

_HIGH = 5e-5  # the highest of the paper's learning rates
_LESS = 0.98  # a successful run ends below this share of the guessing loss
_CORRELATION = 0.1  # a higher correlation (or F1) is better than guessing, whatever the accuracy

_ENOUGH_ROWS = 64  # of a label, on average: with fewer, `few_shot` may be better
_FEW_STEPS, _ENOUGH_STEPS = 100, 200  # on 1,000 rows 96 were too few (Zhang et al. 2021, §6)


def note_few_steps(steps: int, epochs: float) -> str | None:
    """Return a message if a run is to take so few steps that it learns little, else None."""
    if steps >= _FEW_STEPS:
        return None
    enough = math.ceil(_ENOUGH_STEPS * epochs / steps)
    return (
        f"only {steps} steps in all, which may be too few to learn: epochs={enough} takes about "
        f"{_ENOUGH_STEPS} (Zhang et al. 2021)"
    )


def note_few_rows(task: LabelledTask[Any], rows: Sequence[object]) -> str | None:
    """Return advice for a classifier of single texts that has few rows of each label, else None."""
    is_for = type(task) is ClassificationTask and task.settings.pair_column is None
    if not is_for or len(rows) >= _ENOUGH_ROWS * len(task.labels):
        return None
    return (
        f"fewer than {_ENOUGH_ROWS} rows a label: try few_shot=true, from a sentence encoder; with "
        "8 and 16 it was better on TREC, not on SST-2 (docs/labels.md)"
    )


def failures(
    metrics: Mapping[str, float],
    journal: Iterable[Mapping[str, Any]],
    prior: Mapping[str, float],
    settings: FinetuneSettings,
    hidden_size: int,
) -> list[str]:
    """Return the signs that a run has failed, and settings to try; empty if it has not failed.

    Args:
        metrics: dev metrics of the selected weights; empty without dev.
        journal: the lines of the run's journal.
        prior: `LabelledTask.baseline_losses` of the training rows.
    """
    signs = [_loss_no_better(journal, prior), no_better_than_guessing(metrics)]
    found = [sign for sign in signs if sign is not None]
    return [*found, _advice(settings, hidden_size)] if found else []


def no_better_than_guessing(metrics: Mapping[str, float]) -> str | None:
    """Return a message if the dev metrics are no better than guessing, else None."""
    pearson = metrics.get("pearson")
    if pearson is not None and pearson <= 0:
        return f"pearson {pearson:.3f} is no better than 0, that of guessing"
    accuracy, majority = metrics.get("accuracy"), metrics.get("majority")
    if accuracy is None or majority is None or accuracy > majority or majority == 1:
        return None
    # If nearly all rows have one label, a network that recognises the others may still have a
    # lower accuracy than the majority.
    if metrics.get("matthews_correlation", metrics.get("f1", 0.0)) > _CORRELATION:
        return None
    return (
        f"accuracy {accuracy:.3f} is no better than {majority:.3f}, that of always predicting "
        "the most frequent class"
    )


def _loss_no_better(journal: Iterable[Mapping[str, Any]], prior: Mapping[str, float]) -> str | None:
    """Return a message if the final training loss is no better than guessing, else None."""
    losses_by_line = [line["losses"] for line in journal if line["kind"] == "train"]
    if losses_by_line and not any(loss for losses in losses_by_line for loss in losses.values()):
        return "the run learned nothing: its loss was 0 from the first step on"
    for name, guessing in prior.items():
        last = [losses[name] for losses in losses_by_line[-max(1, len(losses_by_line) // 5) :]]
        if last and (mean := sum(last) / len(last)) > _LESS * guessing:
            is_that = "is that" if mean < guessing * (2 - _LESS) else "is above that"
            return (
                f"the run learned nothing: its loss ({mean:.3f}) {is_that} of guessing by label "
                f"frequency ({guessing:.3f})"
            )
    return None


def _advice(settings: FinetuneSettings, hidden_size: int) -> str:
    """Return the suggested settings as a message."""
    tries = []
    if not settings.bias_correction:
        tries.append("bias_correction=true")
    if settings.warmup == 0:
        tries.append("warmup=0.1")
    suitable = suitable_rate(hidden_size)
    if suitable is not None and settings.learning_rate < 3e-4:
        tries.append(f"learning_rate={suitable:g}, since the encoder is small")
    elif settings.epochs < 20:
        rate = ""
        is_large = suitable is None  # a small encoder needs its high rate
        if is_large and settings.lora_rank is None and settings.learning_rate > _HIGH:
            rate = " learning_rate=2e-5"
        tries.append(f"longer training, epochs=20{rate}")
    tries.append(f"another seed={settings.seed + 1}")
    if not (settings.reinitialize or settings.reinitialize_layers or settings.lora_rank):
        tries.append("reinitialize_layers=1")
    return f"to try: {'; '.join(tries)} (Mosbach et al. 2021, Zhang et al. 2021)"
