"""Answer questions from a corpus: `answer`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .application import verb
from .devices import EngineOption
from .display import Display, JsonDisplay
from .models import BM25, ModelSource, use_each
from .options import Others, Overwrite, SettingsOption, TopK
from .retrievers import Passages, no_match, short_places
from .texts import Column, all_texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..analysis.retrieval.answering import CorpusAnswer
    from ..tasks.evaluation import Evaluation


@verb(
    "answer",
    'bertworks answer "Who wrote it?" --corpus passages.txt --reader runs/squad',
    'bertworks answer "Who wrote it?" --corpus wiki.parquet --column passage \\\n'
    "      --retriever mini-sentences --index wiki.index --reader runs/squad",
    "bertworks answer --data squad/dev.json --reader runs/squad",
)
def answer(
    ctx: typer.Context,
    questions: list[str] | None = None,
    *,
    reader: str,
    corpus: str | None = None,
    data: str | None = None,
    retriever: str = BM25,
    others: Others = None,
    index: Path | None = None,
    overwrite: Overwrite = False,
    column: Column = None,
    passages: Annotated[int | None, typer.Option(min=1, max=1_000_000)] = None,
    top_k: TopK = 1,
    settings: SettingsOption,
    engine: EngineOption,
    display: JsonDisplay,
) -> None:
    """Answer questions from the passages of a file.

    The best passages for a question are retrieved, and the reader finds spans in them, which are
    ordered by its scores and the passages' ranks. Its score is less than 0 if it prefers "no
    answer", which readers trained with unanswerable questions know. With --data, questions with
    answers are evaluated, also with the passage that comes with each.

    Args:
        questions ([QUESTION]…): Questions; - reads lines from standard input.
        reader (MODEL): Model fine-tuned for answering.
        corpus (FILE): Passages: .txt with one on each line, or a table; a store; the passages of
            --data if omitted.
        data (FILE): Questions with passages and answers, such as SQuAD's file, to evaluate.
        retriever (MODEL): Model that ranks passages, or bm25.
        others (MODEL): Another one, whose ranking is fused; may be repeated.
        index (DIR): Directory that keeps the retriever's vectors for later questions.
        passages (N): Passages read per question: 5 if omitted; with --data at most 20, and also 5
            and 1 of them.
        top_k: Answers per question.
    """
    if bool(questions) == (data is not None):
        ctx.fail("Give questions, or --data FILE.")
    if data is None and corpus is None:
        ctx.fail("--corpus FILE is missing.")
    texts = all_texts(questions or [])
    sources = [ModelSource(name) for name in (retriever, *(others or ()), reader)]
    passage_source = Passages(index, column, overwrite, "passages", settings)
    passage_source.check(sources)
    if data is not None:
        measure = partial(_evaluate, data, corpus, passage_source, passages or 20)
        _show_evaluations(display, use_each(sources, measure, engine))
        return
    find = partial(_answer, texts, corpus, passage_source, passages or 5, top_k)
    answers_of_texts, unmatched_texts = use_each(sources, find, engine)
    for text, answers in zip(texts, answers_of_texts, strict=True):
        display.json({"question": text, "answers": [one._asdict() for one in answers]})
        if len(texts) > 1:
            display.text(text)
        if answers:
            _show_answers(display, answers, corpus)
        else:
            is_unmatched = text in unmatched_texts
            why = no_match(sources[:-1]) if is_unmatched else "the reader finds none"
            display.text(f"  no answer: {why}")


def _evaluate(
    data: str, corpus: str | None, passage_source: Passages, count: int, models: list[Any]
) -> dict[str, Evaluation]:
    """Return the evaluation of answers from 1, 5 and `count` passages.

    Args:
        corpus: the passages; those of `data` if omitted.
        models: retrievers, and the reader.
    """
    from ..analysis.retrieval.answering import evaluate_answers, passages_of
    from ..data.reading import TableOptions

    *retrievers, reader = models
    text_index = passage_source.open(
        retrievers, passages_of(reader, data) if corpus is None else corpus
    )
    cutoffs = [*(one for one in (1, 5) if one < count), count]
    _, engine_settings = TableOptions.split(passage_source.settings)
    return evaluate_answers(reader, data, text_index, cutoffs=cutoffs, **engine_settings)


def _answer(
    texts: list[str],
    corpus: str | None,
    passage_source: Passages,
    passages: int,
    top_k: int,
    models: list[Any],
) -> tuple[list[list[CorpusAnswer]], set[str]]:
    """Return the answers to each question, and the questions for which no passage was found.

    Args:
        passages: the number of passages that are read per question.
        top_k: answers per question.
        models: retrievers, and the reader.
    """
    from ..analysis.retrieval.answering import answer_questions
    from ..data.reading import TableOptions

    *retrievers, reader = models
    text_index = passage_source.open(retrievers, corpus)
    _, engine_settings = TableOptions.split(passage_source.settings)
    answers = answer_questions(
        text_index, reader, texts, passages=passages, top_k=top_k, **engine_settings
    )
    without_answer = [text for text, own in zip(texts, answers, strict=True) if not own]
    hits_of_texts = text_index.search(without_answer, 1)
    pairs = zip(without_answer, hits_of_texts, strict=True)
    return answers, {text for text, hits in pairs if not hits}


def _show_evaluations(display: Display, evaluations: Mapping[str, Evaluation]) -> None:
    """Print the metrics of answers, for each number of passages that was read."""
    display.json({name: evaluation.metrics for name, evaluation in evaluations.items()})
    names = ("exact_match", "f1", "recall")
    rows = [
        (passages, *(evaluation.metrics.get(name, "") for name in names))
        for passages, evaluation in evaluations.items()
    ]
    display.table(("passages", *names), rows, right=("passages", *names))


def _show_answers(display: Display, answers: list[CorpusAnswer], corpus: str | None) -> None:
    """Print the answers to a question."""
    name, places = short_places([one.where for one in answers], corpus or "")
    rows = [
        (
            one.answer,
            one.score,
            one.similarity,
            place,
            " ".join(one.passage[max(0, one.start - 60) : one.end + 60].split()),
        )
        for one, place in zip(answers, places, strict=True)
    ]
    columns = ("answer", "score", "passage", name, "text")
    display.table(columns, rows, right=("score", "passage", name), truncate="text")
