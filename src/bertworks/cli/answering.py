"""Answer questions from a corpus: `answer`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..utils.progress import Progress
from .application import verb
from .devices import EngineOption
from .display import Display, JsonDisplay
from .models import BM25, ModelSource, use_each
from .options import Overwrite, SettingsOption, TopK
from .retrievers import no_match, short_places
from .texts import Column, lines_of, require_text

if TYPE_CHECKING:
    from ..analysis.retrieval.answering import CorpusAnswer


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
    others: Annotated[list[str] | None, typer.Option("--with")] = None,
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
    ordered by its scores. Its score is less than 0 if it prefers "no answer", which readers trained
    with unanswerable questions know. With --data, questions with answers are evaluated, also with
    the passage that comes with each.

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
    from ..analysis.retrieval.answering import answer_questions, evaluate_answers, passages_of
    from ..analysis.retrieval.opening import open_index
    from ..data.reading import TableOptions
    from ..utils.outputs import check_inputs

    if bool(questions) == (data is not None):
        ctx.fail("Give questions, or --data FILE.")
    if data is None and corpus is None:
        ctx.fail("--corpus FILE is missing.")
    texts = list(lines_of(questions or []))
    for text in texts:
        require_text(text)
    sources = [ModelSource(name) for name in (retriever, *(others or ()), reader)]
    if index is not None:
        check_inputs(index, [directory for one in sources for directory in one.directories()])
    _, engine_settings = TableOptions.split(settings)

    def run(models: list[Any]) -> Any:
        *retrievers, loaded_reader = models
        passage_table: Any = corpus
        if corpus is None and data is not None:
            passage_table = passages_of(loaded_reader, data)
        with Progress() as progress:
            text_index = open_index(
                retrievers,
                passage_table,
                index,
                column=column,
                overwrite=overwrite,
                progress=progress.counter("embedding", "passages"),
                **settings,
            )
        if data is not None:
            count = passages or 20
            cutoffs = [*(one for one in (1, 5) if one < count), count]
            return evaluate_answers(
                loaded_reader, data, text_index, cutoffs=cutoffs, **engine_settings
            )
        answers = answer_questions(
            text_index,
            loaded_reader,
            texts,
            passages=passages or 5,
            top_k=top_k,
            **engine_settings,
        )
        without_answer = [text for text, own in zip(texts, answers, strict=True) if not own]
        hits_of_texts = text_index.search(without_answer, 1)
        pairs = zip(without_answer, hits_of_texts, strict=True)
        return answers, {text for text, hits in pairs if not hits}

    result = use_each(sources, run, engine)
    if data is not None:
        _show_evaluations(display, result)
        return
    for text, answers in zip(texts, result[0], strict=True):
        display.json({"question": text, "answers": [one._asdict() for one in answers]})
        if len(texts) > 1:
            display.text(text)
        if answers:
            _show_answers(display, answers, corpus)
        else:
            is_unmatched = text in result[1]
            why = no_match(sources[:-1]) if is_unmatched else "the reader finds none"
            display.text(f"  no answer: {why}")


def _show_evaluations(display: Display, evaluations: dict[str, Any]) -> None:
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
