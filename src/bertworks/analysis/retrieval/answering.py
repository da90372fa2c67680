"""Answers to questions from a corpus: passages are retrieved, and a reader finds spans in them.

    question ─► index ─► best passages ─► reader ─► spans of all passages ─► the best answers

Spans of different passages are compared by their logits, as by Chen et al., and by their passages'
ranks if the reader does not know "no answer": it finds one in each. The rank stands for the
retriever's score in Yang et al.: scores of BM25, cosines and fusions have different scales.

Source: Chen et al. (2017), "Reading Wikipedia to Answer Open-Domain Questions", §3; Yang et al.
(2019), "End-to-End Open-Domain Question Answering with BERTserini", §3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Unpack, cast

from ...data.rows import chunks, text_of
from ...data.tables import Table
from ...errors import BertworksError, SettingsError
from ...inference import engine
from ...inference.settings import EngineSettings
from ...settings.keywords import EngineKeywords
from ...tasks.answering.answers import read_answers
from ...tasks.answering.scores import AnsweringScores
from ...tasks.answering.spans import ScoredSpan
from ...tasks.answering.task import AnsweringTask
from ...tasks.evaluation import Evaluation
from ...tasks.inputs import open_table
from ...tasks.measures import Location
from .text_index import Hit, TextIndex

if TYPE_CHECKING:
    from ...inference.engine import AnyNetwork
    from .text_index import AnyModel

RANK_WEIGHT = 2.0
"""Answers are ordered by the reader's score less this many logarithms of the passage's rank, as if
the probability that a passage has the answer fell with the square of its rank.

Chosen on half of the articles of SQuAD's dev part; see docs/retrieval.md.
"""


class CorpusAnswer(NamedTuple):
    """An answer from a corpus.

    Attributes:
        answer: its text.
        score: the reader's: the sum of the logits of start and end; of a reader that may find no
            answer, less that of "no answer", so that a positive one is preferred to none.
        similarity: of question and passage, by the index.
        row: the passage's index among the corpus's texts, from 0.
        where: its place: file and line, or row.
        start, end: the answer's characters in the passage.
        passage: the passage.
    """

    answer: str
    score: float
    similarity: float
    row: int
    where: str
    start: int
    end: int
    passage: str


def answer_questions(
    index: TextIndex,
    reader: AnyModel,
    questions: str | Iterable[str],
    *,
    passages: int = 5,
    top_k: int = 1,
    **settings: Unpack[EngineKeywords],
) -> list[list[CorpusAnswer]]:
    """Answer questions from the texts of an index.

    Args:
        index: finds passages; see `open_index`.
        reader: a model fine-tuned for answering.
        questions: one question, or any number.
        passages: number of passages read per question.
        top_k: answers per question, with different texts.
        settings: settings of `EngineSettings`, for the reader.

    Returns:
        For each question its answers, the best first: by the reader's score and the passage's rank
        (see `RANK_WEIGHT`). There may be none: no passage has a word of the question, or no span.

    Raises:
        BertworksError: the reader was not trained for answering.
        SettingsError: a number is less than 1.
        DataError: a question is too long for the index's model.
    """
    task = check_reader(reader)
    if passages < 1 or top_k < 1:
        raise SettingsError(f"passages={passages}, top_k={top_k}: both must be at least 1")
    questions = [questions] if isinstance(questions, str) else list(questions)
    hits_of_questions = index.search(questions, passages)
    answers = _read(reader, questions, hits_of_questions, EngineSettings.parse(settings))
    return [best_answers(own, top_k, task) for own in answers]


def evaluate_answers(
    reader: AnyModel,
    data: Table,
    index: TextIndex,
    *,
    cutoffs: Sequence[int] = (1, 5, 20),
    **settings: Unpack[EngineKeywords],
) -> dict[str, Evaluation]:
    """Evaluate answers from a corpus next to those from the passage that comes with a question.

    Args:
        reader: a model fine-tuned for answering.
        data: questions, each with its passage and its answers, such as SQuAD's file.
        index: of the corpus; that of the data's own passages: `passages_of`.
        cutoffs: numbers of passages that are retrieved and read.
        settings: settings of `EngineSettings`, for the reader.

    Returns:
        For "given" and each cutoff the metrics of `AnsweringScores`; and `recall`, the share of the
        questions whose own passage is among those that were read.

    Raises:
        BertworksError, SettingsError, DataError: see `answer_questions`; or the data are not valid.
    """
    task = check_reader(reader)
    if not cutoffs or min(cutoffs) < 1:
        raise SettingsError(f"cutoffs={list(cutoffs)}: give numbers of passages, at least 1")
    table = open_table(task, data, labelled=True)
    rows, own_task = list(table.rows), table.task
    assert isinstance(own_task, AnsweringTask)
    questions, contexts = (
        [text_of(row, own_task.column(role), where) for where, row in rows]
        for role in ("question", "context")
    )
    gold = [read_answers(row, own_task.columns, where)[0] for where, row in rows]
    hits_of_questions = index.search(questions, max(cutoffs))
    answers = _read(reader, questions, hits_of_questions, EngineSettings.parse(settings))
    evaluations = {"given": reader.evaluate(data, **settings)}
    for cutoff in cutoffs:
        scores = AnsweringScores(
            unanswerable=task.settings.unanswerable, threshold=task.settings.null_threshold
        )
        num_retrieved = 0
        for number, (where, _) in enumerate(rows):
            best = next(iter(best_answers(answers[number][:cutoff], 1, task)), None)
            hits = hits_of_questions[number][:cutoff]
            num_retrieved += any(hit.text == contexts[number] for hit in hits)
            scores.add(
                Location(number, where),
                questions[number],
                "" if best is None else best.passage,
                gold[number],
                "" if best is None else best.answer,
                margin=None if best is None else -best.score,
                mark=(0, 0) if best is None else (best.start, best.end),
            )
        evaluation = Evaluation.from_measure(scores, len(rows))
        metrics = {**evaluation.metrics, "recall": num_retrieved / len(rows)}
        evaluations[str(cutoff)] = replace(evaluation, metrics=metrics)
    return evaluations


def passages_of(reader: AnyModel, data: Table) -> list[str]:
    """Return the different passages of a table of questions."""
    task, rows = open_table(check_reader(reader), data, labelled=True)
    assert isinstance(task, AnsweringTask)
    context = task.column("context")
    return list(dict.fromkeys(text_of(row, context, where) for where, row in rows))


def check_reader(reader: AnyModel) -> AnsweringTask:
    """Return the task of a reader.

    Raises:
        BertworksError: it was not trained for answering.
    """
    task = reader.task
    if not isinstance(task, AnsweringTask):
        name = "nothing" if task is None else task.name
        raise BertworksError(
            f"the reader was trained for {name}", fix="Give a model of finetune answering."
        )
    return task


def _read(
    reader: AnyModel,
    questions: Sequence[str],
    hits_of_questions: Sequence[Sequence[Hit]],
    settings: EngineSettings,
) -> list[list[list[CorpusAnswer]]]:
    """Return the answers in each passage of each question."""
    task, network = check_reader(reader), cast("AnyNetwork", reader.network)
    pairs = [(number, hit) for number, hits in enumerate(hits_of_questions) for hit in hits]
    answers: list[list[list[CorpusAnswer]]] = [[] for _ in questions]
    for window in chunks(pairs, settings.window_rows):
        rows = [task.text_row(questions[number], hit.text) for number, hit in window]
        places = [f"{questions[number]!r} in {hit.where}" for number, hit in window]
        examples = task.build_examples(rows, 0, places, labelled=False)
        batches = engine.outputs_of(network, task, examples, settings, places.__getitem__)
        spans_of_rows = {
            example.index: (spans, null)
            for outputs, batch in batches
            for example, spans, null in task.spans(outputs, batch)
        }
        for row, (number, hit) in enumerate(window):
            answers[number].append(answers_in(hit, *spans_of_rows[row], task))
    return answers


def answers_in(
    hit: Hit, spans: Sequence[ScoredSpan], null: float, task: AnsweringTask
) -> list[CorpusAnswer]:
    """Return the answers in a passage, by its spans and the score of "no answer"."""
    shift = null if task.settings.unanswerable else 0.0
    return [
        CorpusAnswer(
            hit.text[span.start : span.end],
            span.score - shift,
            hit.similarity,
            hit.row,
            hit.where,
            span.start,
            span.end,
            hit.text,
        )
        for span in spans
    ]


def best_answers(
    answers_of_passages: Sequence[Sequence[CorpusAnswer]], top_k: int, task: AnsweringTask
) -> list[CorpusAnswer]:
    """Return the best answers with different texts, of all passages, which are in their order."""
    # Scores that are relative to "no answer" tell whether a passage has one.
    weight = 0.0 if task.settings.unanswerable else RANK_WEIGHT
    answers = [
        (weight * math.log(rank) - one.score, rank, one.start, one)
        for rank, answers in enumerate(answers_of_passages, 1)
        for one in answers
    ]
    best: dict[str, CorpusAnswer] = {}
    for *_, one in sorted(answers, key=lambda item: item[:3]):
        best.setdefault(one.answer, one)
    return list(best.values())[:top_k]
