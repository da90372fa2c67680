"""Answers to questions from a corpus: passages are retrieved, and a reader finds spans in them.

    question ─► index ─► best passages ─► reader ─► spans of all passages ─► the best answers

Source: Chen et al. (2017), "Reading Wikipedia to Answer Open-Domain Questions", §3. As in its §3.2,
spans of different passages are compared by logits, not by probabilities within a passage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from ...data.rows import chunks
from ...errors import BertworksError, SettingsError
from ...inference import engine
from ...inference.settings import EngineSettings
from ...settings.keywords import EngineKeywords
from ...tasks.answering.task import AnsweringTask
from .text_index import Hit, TextIndex

if TYPE_CHECKING:
    from .text_index import AnyModel


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
        For each question its answers, the highest reader's score first; of equal ones, that of the
        better passage. There may be none: no passage has a word of the question, or no span.

    Raises:
        BertworksError: the reader was not trained for answering.
        SettingsError: a number is less than 1.
        DataError: a question is too long for the index's model.
    """
    task = reader.task
    if not isinstance(task, AnsweringTask):
        name = "nothing" if task is None else task.name
        raise BertworksError(
            f"the reader was trained for {name}", fix="Give a model of finetune answering."
        )
    if passages < 1 or top_k < 1:
        raise SettingsError(f"passages={passages}, top_k={top_k}: both must be at least 1")
    engine_settings = EngineSettings.parse(settings)
    questions = [questions] if isinstance(questions, str) else list(questions)
    hits_of_questions = index.search(questions, passages)
    pairs = [(number, hit) for number, hits in enumerate(hits_of_questions) for hit in hits]
    answers: list[list[CorpusAnswer]] = [[] for _ in questions]
    for window in chunks(pairs, engine_settings.window_rows):
        rows = [task.text_row(questions[number], hit.text) for number, hit in window]
        places = [f"{questions[number]!r} in {hit.where}" for number, hit in window]
        examples = task.build_examples(rows, 0, places, labelled=False)
        network: Any = reader.network
        batches = engine.outputs_of(network, task, examples, engine_settings, places.__getitem__)
        for outputs, batch in batches:
            for example, spans, null in task.spans(outputs, batch):
                number, hit = window[example.index]
                shift = null if task.settings.unanswerable else 0.0
                answers[number] += [
                    _answer_of(hit, span.start, span.end, span.score - shift) for span in spans
                ]
    return [
        _best_answers(own, hits, top_k)
        for own, hits in zip(answers, hits_of_questions, strict=True)
    ]


def _answer_of(hit: Hit, start: int, end: int, score: float) -> CorpusAnswer:
    return CorpusAnswer(
        hit.text[start:end], score, hit.similarity, hit.row, hit.where, start, end, hit.text
    )


def _best_answers(
    answers: Sequence[CorpusAnswer], hits: Sequence[Hit], top_k: int
) -> list[CorpusAnswer]:
    """Return the best answers with different texts."""
    ranks = {hit.row: rank for rank, hit in enumerate(hits)}
    best: dict[str, CorpusAnswer] = {}
    for one in sorted(answers, key=lambda one: (-one.score, ranks[one.row], one.start)):
        best.setdefault(one.answer, one)
    return list(best.values())[:top_k]
