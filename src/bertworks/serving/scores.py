"""Labels, values and ranks predicted by tasks on texts, as probabilities or as logits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..inference.similarity import max_similarities
from ..tasks.task import Task
from ..tasks.texts import TextTask
from .job import Job, locate_texts
from .models import LoadedModel
from .request_error import invalid_field_error
from .runners import LateInteractionRunner, ScoredPrediction, TaskRunner, Text


async def score_texts(
    job: Job, verb: str, rows: Sequence[Text], *, truncate: bool | None, windows: bool = False
) -> list[ScoredPrediction]:
    """Predict rows of one or two texts with a task on texts.

    Long rows are truncated with `truncate`, split into windows with `windows` (or if the task does
    so), and otherwise an error.
    """
    runner = job.loaded_model.get_task_runner(verb, TaskRunner)
    task = runner.task
    assert isinstance(task, TextTask)
    settings = task.settings
    truncation = "windows" if windows or settings.truncation == "windows" else "error"
    if truncate and not windows:
        truncation = (
            settings.truncation if settings.truncation in ("first", "second") else "longest_first"
        )
    if truncation == "windows" and settings.both_orders:
        raise invalid_field_error(
            "windows", "the model reads pairs in both orders, which windows exclude"
        )
    stride = settings.stride if truncation == "windows" else None

    def truncate_rows(task: Task[Any]) -> Task[Any]:
        assert isinstance(task, TextTask)
        values = task.settings.with_values(truncation=truncation, stride=stride)
        return type(task)(task.tokenizer, values)

    limit = None if truncation == "windows" else settings.max_seq_length
    return await job.predict(runner, rows, adapt=truncate_rows, limit=limit)


async def rank_texts(
    job: Job, query: str, texts: Sequence[str], *, field: str, truncate: bool | None, raw: bool
) -> list[tuple[int, float]]:
    """Return each text's index and score for a query, best first: see `_output_scores`."""
    job.service.check_texts(field, texts)
    job.service.check_text("query", query)
    if job.loaded_model.compares_late:
        return await _rank_late(job, query, locate_texts(field, texts), truncate=truncate)
    rows = [row._replace(text=(query, row.text)) for row in locate_texts(field, texts)]
    predictions = await score_texts(job, "rerank", rows, truncate=truncate)
    order = np.argsort(
        [-prediction.logits[0] for prediction in predictions], kind="stable"
    ).tolist()
    return [(index, _output_scores(predictions[index], raw=raw)[0]) for index in order]


async def _rank_late(
    job: Job, query: str, texts: Sequence[Text], *, truncate: bool | None
) -> list[tuple[int, float]]:
    """The same by late interaction. A long query is cut to its fixed length, as in training."""

    async def embed(items: Sequence[Text], *, is_query: bool) -> list[Any]:
        runner = job.loaded_model.get_embed_runner(
            LateInteractionRunner,
            is_query=is_query,
            truncation="longest_first" if truncate or is_query else "error",
        )
        prepare = partial(runner.prepare, truncation=job.context.truncation)
        return await job.compute(runner, items, limit=runner.embedder.limit, prepare=prepare)

    queries = await embed([Text("query", query)], is_query=True)
    (scores,) = max_similarities(queries, await embed(texts, is_query=False))
    order = np.argsort(-scores, kind="stable").tolist()
    return [(index, float(scores[index])) for index in order]


def rank_labels(
    loaded_model: LoadedModel, prediction: ScoredPrediction, *, raw: bool
) -> list[dict[str, Any]]:
    """Each label and its score, the highest first, as text-embeddings-inference returns them."""
    labels = loaded_model.model.labels or ("LABEL_0",)
    scores = _output_scores(prediction, raw=raw)
    order = np.argsort(-prediction.logits, kind="stable").tolist()
    return [{"score": scores[index], "label": labels[index]} for index in order]


def _output_scores(prediction: ScoredPrediction, *, raw: bool) -> list[float]:
    """Return the score of each output: its logit, or what `Model.predict` gives.

    That is its probability, or the value after the activation that the model's files name.
    """
    answer = prediction.prediction
    if raw:
        return [float(logit) for logit in prediction.logits]
    if "probabilities" in answer:
        return list(answer["probabilities"].values())
    return [answer["value"]]
