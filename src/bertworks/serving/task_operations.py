"""What requests to a model's task compute: predictions of rows, scores, ranks and answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..analysis.retrieval.answering import CorpusAnswer, answers_in, best_answers
from ..data.rows import LocatedRow
from ..data.schema import names_of
from ..inference.similarity import max_similarities
from ..tasks.answering.task import AnsweringTask
from ..tasks.choice import ChoiceTask, read_choices
from ..tasks.classification import task_with_coverage
from ..tasks.inputs import open_inputs
from ..tasks.task import Prediction, Task
from ..tasks.texts import TextTask
from .job import Job, estimate_max_tokens, join_texts, locate_texts
from .request_error import invalid_field_error
from .runners import AnswerRunner, ScoredPrediction, TaskRunner, Text
from .vector_operations import embed


async def predict(
    job: Job,
    inputs: Sequence[Text],
    *,
    kind: type[TaskRunner] = TaskRunner,
    adapt: Callable[[Task[Any]], Task[Any]] | None = None,
    limit: int | None = None,
) -> list[Any]:
    """Compute the task's predictions, from the rows that `Model.predict` reads too.

    Each choice of a row counts as a text of the request.

    Args:
        inputs: at least one; the text of each is a text, a list of one or two, or a row.
        adapt: returns the task with other settings for this request.
        limit: as in `compute`.
    """
    runner = job.loaded_model.get_task_runner(kind)
    name = inputs[0].where.partition("[")[0]
    task, rows = open_inputs(
        runner.task,
        [item.text for item in inputs],
        name=name,
        place=lambda index: inputs[index].where,
    )
    if isinstance(task, TextTask):
        columns = (task.settings.text_column, task.settings.pair_column)
        job.context.columns = [name for name in columns if name]
    if adapt is not None:
        task = adapt(task)
    texts, items = [], []
    for row, values in task.add_context(rows):
        texts.append(join_texts(row.values))
        items.append(row._replace(values=dict(values)))
    sizes: list[int] | None = None
    if isinstance(task, ChoiceTask):
        sizes = _estimate_choices(job, name, task, items)
    elif isinstance(task, TextTask) and task.settings.both_orders:
        sizes = [2 * min(estimate_max_tokens(text), task.settings.max_seq_length) for text in texts]
        limit = None
    prepare = partial(runner.prepare, task=task, counts=job.context.request_tokens)
    return await job.compute(runner, items, texts, limit=limit, sizes=sizes, prepare=prepare)


def _estimate_choices(
    job: Job, field: str, task: ChoiceTask, rows: Sequence[LocatedRow]
) -> list[int]:
    """Estimate the most tokens of each row, whose choices are sequences with the whole prompt.

    Raises:
        RequestError: the rows have too many choices.
        DataError: a row has no choices.
    """
    choices = [read_choices(row.values, task.choice_columns, row.where) for row in rows]
    count, most = sum(map(len, choices)), job.limits.max_texts
    if count > most:
        raise invalid_field_error(field, f"{count:,} choices, but at most {most:,}", 413)
    limit, columns = task.settings.max_seq_length, ("prompt", "question")
    names = [name for column in columns for name in names_of(task.columns[column])]
    sizes = []
    for row, own in zip(rows, choices, strict=True):
        shared = estimate_max_tokens([row.values.get(name) or "" for name in names])
        sizes.append(sum(min(limit, shared + estimate_max_tokens(text)) for text in own))
    return sizes


async def score(
    job: Job,
    rows: Sequence[Text],
    *,
    truncate: bool | None,
    windows: bool = False,
    coverage: float | None = None,
) -> list[ScoredPrediction]:
    """Predict rows of one or two texts with a task on texts.

    Long rows are truncated with `truncate`, split into windows with `windows` (or if the task
    does so), and otherwise an error. With `coverage`, predictions have sets of labels.
    """
    task = job.loaded_model.task
    assert isinstance(task, TextTask)
    settings = task.settings
    truncation = "windows" if windows or settings.truncation == "windows" else "error"
    if truncate and not windows:
        is_of_one = settings.truncation in ("first", "second")
        truncation = settings.truncation if is_of_one else "longest_first"
    if truncation == "windows" and settings.both_orders:
        raise invalid_field_error(
            "windows", "the model reads pairs in both orders, which windows exclude"
        )
    stride = settings.stride if truncation == "windows" else None

    def truncate_rows(task: Task[Any]) -> Task[Any]:
        assert isinstance(task, TextTask)
        pooling = settings.window_pooling if truncation == "windows" else "mean"
        values = task.settings.with_values(
            truncation=truncation, stride=stride, window_pooling=pooling
        )
        return type(task)(task.tokenizer, values)

    limit = None if truncation == "windows" else settings.max_seq_length
    if coverage is None:
        return await predict(job, rows, adapt=truncate_rows, limit=limit)
    classifier = task_with_coverage(task, coverage)
    return [
        each._replace(prediction=classifier.add_label_set(each.prediction, coverage))
        for each in await predict(job, rows, adapt=truncate_rows, limit=limit)
    ]


async def rerank(
    job: Job, query: str, texts: Sequence[str], *, field: str, truncate: bool | None, raw: bool
) -> list[tuple[int, float]]:
    """Return each text's index and score for a query, best first: see `output_scores`.

    In late interaction, a long query is cut to its fixed length, as in training.
    """
    job.check_texts(field, texts)
    job.check_text("query", query)
    documents = locate_texts(field, texts)
    if job.loaded_model.form == "matrices":
        late: dict[str, Any] = {"form": "matrices"}
        queries = await embed(job, [Text("query", query)], is_query=True, truncate=True, **late)
        matrices = await embed(job, documents, truncate=truncate, **late)
        scores = max_similarities(queries, matrices)[0]
        order = np.argsort(-scores, kind="stable").tolist()
        return [(index, float(scores[index])) for index in order]
    job.loaded_model.check_capability("rerank")
    rows = [row._replace(text=(query, row.text)) for row in documents]
    predictions = await score(job, rows, truncate=truncate)
    order = np.argsort([-each.logits[0] for each in predictions], kind="stable").tolist()
    return [(index, output_scores(predictions[index], raw=raw)[0]) for index in order]


async def answer(
    job: Job, pairs: Sequence[Text], *, null_threshold: float | None
) -> list[Prediction]:
    """Answer questions from passages; `null_threshold` as in `AnswerRequest`."""
    spans_of_rows = await predict(job, pairs, kind=AnswerRunner)
    task = job.loaded_model.task
    assert isinstance(task, AnsweringTask)
    if null_threshold is not None:
        settings = task.settings.with_values(null_threshold=null_threshold, unanswerable=True)
        task = AnsweringTask(task.tokenizer, settings)
    return [task.answer(*spans) for spans in spans_of_rows]


async def answer_from_corpus(
    job: Job, questions: Sequence[Text], *, passages: int, top_k: int
) -> list[list[CorpusAnswer]]:
    """Answer questions from the server's corpus, as `answer_questions` does.

    Places begin with the name of the corpus' file: clients do not see its directory.
    """
    corpus = job.service.corpus
    if corpus is None:
        raise invalid_field_error(
            "inputs.context", "the server has no corpus (serve --corpus FILE): give a passage", 422
        )
    job.check_count("inputs", len(questions) * passages)
    search = partial(job.service.search_corpus, [item.text for item in questions], passages)
    directory = os.path.join(os.path.dirname(corpus.source), "")
    hits_of_questions = [
        [hit._replace(where=hit.where.removeprefix(directory)) for hit in hits]
        for hits in await job.service.corpus_executor.run(search, job.context.deadline)
    ]
    pairs = [
        item._replace(text=[item.text, hit.text])
        for item, hits in zip(questions, hits_of_questions, strict=True)
        for hit in hits
    ]
    task: Any = job.loaded_model.task
    spans_of_rows = iter(await predict(job, pairs, kind=AnswerRunner) if pairs else ())
    answers = []
    for hits in hits_of_questions:
        spans_of_hits = ((hit, *next(spans_of_rows)[1:]) for hit in hits)
        answers_of_hits = [answers_in(hit, spans, null, task) for hit, spans, null in spans_of_hits]
        answers.append(best_answers(answers_of_hits, top_k, task))
    return answers


def output_scores(prediction: ScoredPrediction, *, raw: bool) -> list[float]:
    """Return the score of each output: its logit, or what `Model.predict` gives.

    That is its probability, or the value after the activation that the model's files name.
    """
    answer = prediction.prediction
    if raw:
        return [float(logit) for logit in prediction.logits]
    if "probabilities" in answer:
        return list(answer["probabilities"].values())
    return [answer["value"]]
