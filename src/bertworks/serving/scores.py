"""Labels, values and ranks predicted by tasks on texts, as probabilities or as logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..tasks.task import Task
from ..tasks.texts import TextTask, sigmoid
from .job import Job, placed
from .loaded_model import Served
from .request_error import invalid
from .runners.base import Text
from .runners.tasks import Scored, TaskRunner


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
    order = np.argsort([-scored.logits[0] for scored in found], kind="stable").tolist()
    return [(at, _scores(found[at], raw=raw)[0]) for at in order]


def label_scores(served: Served, scored: Scored, *, raw: bool) -> list[dict[str, Any]]:
    """Each label and its score, the highest first, as text-embeddings-inference returns them."""
    labels = served.model.labels or ("LABEL_0",)
    scores = _scores(scored, raw=raw)
    order = np.argsort(-scored.logits, kind="stable").tolist()
    return [{"score": scores[at], "label": labels[at]} for at in order]


def _scores(scored: Scored, *, raw: bool) -> list[float]:
    """Return the score of each output: its logit, or its probability.

    As in text-embeddings-inference, the probability of a single value is its sigmoid, whatever
    activation the model has.
    """
    if raw:
        return [float(logit) for logit in scored.logits]
    if "probabilities" in scored.prediction:
        return list(scored.prediction["probabilities"].values())
    return [sigmoid(float(logit)) for logit in scored.logits]
