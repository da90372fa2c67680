"""Labels, values and ranks predicted by tasks on texts, as probabilities or as logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..tasks.classification import ClassificationTask
from ..tasks.task import Task
from ..tasks.texts import TextTask
from .failures import invalid
from .job import Job, placed
from .models import Served
from .runners import Scored, TaskRunner, Text


async def score_texts(
    job: Job, verb: str, rows: Sequence[Text], *, truncate: bool | None, windows: bool = False
) -> list[Scored]:
    """Predict rows of one or two texts with a task on texts.

    Long rows are truncated with `truncate`, split into windows with `windows` (or if the task does
    so), and otherwise an error.
    """
    runner = job.served.runner(verb, TaskRunner)
    task = runner.task
    assert isinstance(task, TextTask)
    settings = task.settings
    way = "windows" if windows or settings.truncation == "windows" else "error"
    if truncate and not windows:
        way = settings.truncation if settings.truncation in ("first", "second") else "longest_first"
    if way == "windows" and settings.both_orders:
        raise invalid("windows", "the model reads pairs in both orders, which windows exclude")
    stride = settings.stride if way == "windows" else None

    def truncated(task: Task[Any]) -> Task[Any]:
        assert isinstance(task, TextTask)
        values = task.settings.with_values(truncation=way, stride=stride)
        return type(task)(task.tokenizer, values)

    limit = None if way == "windows" else settings.max_seq_length
    return await job.predictions(runner, rows, changed=truncated, limit=limit)


async def ranks(
    job: Job, query: str, texts: Sequence[str], *, field: str, truncate: bool | None, raw: bool
) -> list[tuple[int, float]]:
    """Return each text's index and score for a query, best first: from 0 to 1, or raw logits."""
    job.service.check_texts(field, texts)
    job.service.check_text("query", query)
    rows = [row._replace(text=(query, row.text)) for row in placed(field, texts)]
    found = await score_texts(job, "rerank", rows, truncate=truncate)
    logits = np.array([scored.logits[0] for scored in found], np.float64)
    scores = logits if raw else _sigmoid(logits)
    return [(at, float(scores[at])) for at in np.argsort(-scores, kind="stable").tolist()]


def label_scores(served: Served, scored: Scored, *, raw: bool) -> list[dict[str, Any]]:
    """Each label and its score, the highest first, as text-embeddings-inference returns them."""
    task = served.task
    logits = scored.logits.astype(np.float64)
    labels = task.labels if task is not None and task.labels else ("LABEL_0",)
    is_multi = isinstance(task, ClassificationTask) and task.settings.multi_label
    if raw:
        scores = logits
    elif len(labels) == 1 or is_multi:
        scores = _sigmoid(logits)
    else:
        shares = np.exp(logits - logits.max())
        scores = shares / shares.sum()
    order = np.argsort(-scores, kind="stable").tolist()
    return [{"score": float(scores[at]), "label": labels[at]} for at in order]


def _sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * (1 + np.tanh(logits / 2))
