"""Measure a model, predictions, labels or vectors: `evaluate`, `score`, `check-labels`, `probe`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import DataError, SettingsError
from ..settings import literals
from ..utils.formatting import format_count
from ..utils.progress import Progress
from .application import verb
from .devices import DeviceOption, ModelWorkers
from .display import Display, JsonDisplay
from .models import BM25, ModelOption, ModelSource, TaskModel
from .option_groups import OptionGroup
from .options import Others, Overwrite, Page, SettingsOption, SettingsWords
from .outputs import check_page, check_present, output
from .training_options import Dev, Train

if TYPE_CHECKING:
    from ..tasks.evaluation import Evaluation


_RETRIEVAL_SETTINGS = ("metrics", "qrels", "depth", "candidates")


@dataclass(frozen=True)
class _Ranking:
    """The options of an evaluation of retrieval."""

    others: tuple[str, ...]
    rerank: str | None
    run: Path | None

    def sources(self, model: ModelSource) -> list[ModelSource]:
        """Return what is ranked by: the first model, the others, the reranker."""
        names = self.others if self.rerank is None else (*self.others, self.rerank)
        return [model, *map(ModelSource, names)]

    def check_not_given(self, ctx: typer.Context, settings: Mapping[str, Any]) -> None:
        """Fail if an option or a setting is given: the data is no folder for retrieval."""
        names = {"--with": self.others, "--rerank": self.rerank, "--run": self.run}
        useless = [name for name, value in names.items() if value]
        useless += [f"{name}=" for name in _RETRIEVAL_SETTINGS if name in settings]
        if useless:
            ctx.fail(f"{useless[0]} is for a folder with corpus.jsonl, queries.jsonl and qrels.")


def _ranking(
    *,
    others: Others = None,
    rerank: str | None = None,
    run: Path | None = None,
) -> _Ranking:
    """The options of an evaluation of retrieval.

    Args:
        others (MODEL): Another model, or bm25, whose ranking is evaluated and fused with the
            others'; may be repeated.
        rerank (MODEL): Cross-encoder, or model of late interaction, that reranks the last stage.
        run (FILE): Write the last stage's ranking in TREC's format.
    """
    return _Ranking(tuple(others or ()), rerank, run)


RankingOptions = Annotated[_Ranking, OptionGroup(_ranking)]


def _paths_of(source: ModelSource) -> list[Path]:
    """Return the file of a run, or the directories of a model."""
    path = Path(source.name)
    return [path] if path.is_file() else source.directories()


def is_judged_folder(path: str) -> bool:
    """Whether a path is a folder for retrieval; NumPy is not imported for others."""
    from ..data.texts_by_id import corpus_file

    return corpus_file(path) is not None


@verb(
    "evaluate",
    "bertworks evaluate runs/tickets --data dev.tsv",
    "bertworks evaluate runs/tickets --data dev.tsv --report errors.html",
    "bertworks evaluate runs/tickets --data may.tsv --data june.tsv --workers 2",
    "bertworks evaluate runs/tiny --data prepared max_seq_length=512",
    "bertworks evaluate mini-sentences --data scifact --with bm25",
)
def evaluate(
    ctx: typer.Context,
    model: TaskModel,
    *,
    data: list[str],
    report: Page = None,
    ranking: RankingOptions,
    overwrite: Overwrite = False,
    workers: ModelWorkers,
    device: DeviceOption = "auto",
    settings: SettingsOption,
    display: JsonDisplay,
) -> None:
    """Evaluate a model on labelled rows, or on held-out documents.

    A pre-trained model is evaluated on a prepared corpus, on the documents held out in training:
    documents=, sequences=, seed= and max_seq_length= are the run's if MODEL is a run; else give the
    values used in training (held_out.documents, held_out.seed or seed). 15 % of the tokens are
    predicted: 80 % of these are masked, 10 % replaced, 10 % unchanged.

    Retrieval is evaluated on a folder in BEIR's layout: corpus.jsonl, queries.jsonl and
    qrels/NAME.tsv; or in MS MARCO's: collection.tsv, queries.NAME.tsv and qrels.NAME.tsv. MODEL may
    be bm25 there, or the file of a run, or of candidates (top1000.dev.tsv).

    Args:
        data (FILE): Labelled rows; or the output of `prepare`, for a pre-trained model; or a folder
            for retrieval. May be repeated: each file is evaluated.
    """
    if any(map(is_judged_folder, data)):
        if len(data) > 1 or report is not None or workers:
            ctx.fail("retrieval is evaluated on one folder, without --report and --workers")
        inputs = [*data, *(path for one in ranking.sources(model) for path in _paths_of(one))]
        with output(ranking.run, inputs, folders=True, overwrite=overwrite, repeats=True):
            _evaluate_ranking(model, data[0], ranking, device, settings, display)
        return
    if model.name == BM25:
        what = "is no folder for retrieval, with corpus.jsonl, queries.jsonl and qrels"
        raise DataError(what, where=data[0], fix="bm25 is evaluated on such a folder.")
    ranking.check_not_given(ctx, settings)
    if len(data) > 1 and report is not None:
        ctx.fail("--report needs a single --data FILE.")
    with output(report, data, model=model, overwrite=overwrite, repeats=True):
        check_page(report)
        evaluations = model.load(device).evaluate_each(data, **workers, **settings)
        if len(data) == 1:
            _show_evaluation(display, evaluations[0], model.name, data[0], report)
            return
    for file, evaluation in zip(data, evaluations, strict=True):
        display.json({"data": file, **_values(evaluation)})
    names = list(dict.fromkeys(name for evaluation in evaluations for name in evaluation.metrics))
    display.table(
        ("file", "rows", *names),
        [
            (file, f"{evaluation.rows:,}", *(evaluation.metrics.get(name, "") for name in names))
            for file, evaluation in zip(data, evaluations, strict=True)
        ],
        right=("rows", *names),
        truncate="file",
    )
    display.notes(dict.fromkeys(note for evaluation in evaluations for note in evaluation.notes))


@verb(
    "score",
    "bertworks score answering --data dev-v2.0.json --predictions answers.json",
    "bertworks score tagging --data predicted.conll --report errors.html",
    "bertworks score classification --data predicted.tsv",
    "bertworks score retrieval --data qrels/test.tsv --predictions system.run",
)
def score(
    task: literals.ScoredTask,
    *,
    data: str,
    predictions: Path | None = None,
    no_answer_probs: Path | None = None,
    label_column: str | None = None,
    prediction_column: str | None = None,
    no_label: str | None = None,
    settings: SettingsOption,
    report: Page = None,
    overwrite: Overwrite = False,
    display: JsonDisplay,
) -> None:
    """Score the predictions of any system.

    The metrics are those of evaluate. answering: SQuAD JSON, version 1.1 or 2.0, and a JSON file
    of answers by id, as for the official scorers. retrieval: judgements in TREC's or BEIR's format
    and a run in TREC's, measured as by trec_eval. tagging: CoNLL columns, the last two with gold
    and predicted tags. classification and regression: a table with both columns.

    Args:
        task (TASK): answering, tagging, classification, regression or retrieval.
        data (FILE): Labelled rows; - reads TSV from standard input.
        predictions (FILE): For answering: JSON with an answer for each id. For retrieval: a run.
        no_answer_probs (FILE): For answering: JSON with the no-answer probability for each id.
        label_column (NAME): Column of gold labels; detected if omitted.
        prediction_column (NAME): Column of predicted labels; detected if omitted.
        no_label (LABEL): Label of rows without a gold label; - and the like if omitted, "" if none.
    """
    from ..analysis.scoring import score as run

    inputs = [data, predictions, no_answer_probs]
    with output(report, inputs, overwrite=overwrite, repeats=True):
        check_page(report)
        evaluation = run(
            task,
            data,
            predictions=predictions,
            no_answer_probabilities=no_answer_probs,
            label_column=label_column,
            prediction_column=prediction_column,
            no_label=no_label,
            **settings,
        )
        _show_evaluation(display, evaluation, str(predictions or data), data, report)


def _open_retriever(source: ModelSource, device: Any) -> Any:
    """The file of a run or of candidates, "bm25", or a model; see `evaluate_retrieval`."""
    if source.name == BM25:
        return BM25
    return Path(source.name) if Path(source.name).is_file() else source.load(device)


def _evaluate_ranking(
    model: ModelSource,
    folder: str,
    ranking: _Ranking,
    device: Any,
    settings: Mapping[str, Any],
    display: Display,
) -> None:
    """Evaluate retrieval on a folder, and print a table of its stages."""
    from ..analysis.retrieval.evaluation import evaluate_retrieval

    names = [model.name, *ranking.others]
    if repetitions := [name for number, name in enumerate(names) if name in names[:number]]:
        raise SettingsError(f"{repetitions[0]} is given twice")
    sources = ranking.sources(model)
    reranker = None if ranking.rerank is None else sources.pop().load(device)
    retrievers = {one.name: _open_retriever(one, device) for one in sources}
    with Progress() as progress:
        stages = evaluate_retrieval(
            retrievers,
            folder,
            rerank=reranker,
            run_file=ranking.run,
            progress=lambda name: progress.counter(f"embedding by {name}", "texts"),
            **settings,
        )
    for stage in stages:
        display.json({"stage": stage.name, **_values(stage.evaluation)})
    metrics = list(stages[0].evaluation.metrics)
    cells = [(stage.name, *stage.evaluation.metrics.values()) for stage in stages]
    display.table(("ranked by", *metrics), cells, right=metrics)
    display.facts({"queries": f"{stages[0].evaluation.rows:,}", "run": ranking.run})
    display.notes(dict.fromkeys(note for stage in stages for note in stage.evaluation.notes))


def _show_evaluation(
    display: Display, evaluation: Evaluation, model: str, data: str, report: Path | None
) -> None:
    """Print an evaluation, and write its report if a path is given."""
    if report is not None:
        from ..reports.report import write_evaluation_report

        write_evaluation_report(report, evaluation, model=model, data=data)
    display.json(_values(evaluation))
    display.metrics({"rows": evaluation.rows, **evaluation.metrics})
    display.notes(evaluation.notes)
    display.facts({**evaluation.breakdown.calibration_facts, "report": report})


def _values(evaluation: Evaluation) -> dict[str, Any]:
    return {"rows": evaluation.rows, **evaluation.metrics, "notes": evaluation.notes}


@verb(
    "probe",
    "bertworks probe --model sentence-transformers/all-MiniLM-L6-v2 \\\n"
    "      --train train.tsv --dev dev.tsv pooling=cls layers=[-2]",
)
def probe(
    *,
    model: ModelOption,
    train: Train,
    dev: Dev,
    settings: SettingsWords,
    device: DeviceOption = "auto",
    display: JsonDisplay,
) -> None:
    """Classify texts by logistic regression on frozen vectors.

    Shows within seconds how well an encoder's vectors separate the classes.
    """
    from ..analysis.probing import probe as run

    check_present([train, dev])
    result = run(model, train=train, dev=dev, device=device, **settings)
    display.json({"width": result.width, **result.metrics})
    display.metrics({"width": result.width, **result.metrics})


@verb(
    "check-labels",
    "bertworks check-labels --model MODEL --data tickets.tsv --report labels.html",
    "bertworks check-labels --model MODEL --data tickets.tsv --out checked.tsv",
)
def check_labels(
    *,
    model: ModelOption,
    data: str,
    out: str | None = None,
    report: Path | None = None,
    overwrite: Overwrite = False,
    settings: SettingsOption,
    device: DeviceOption = "auto",
    display: JsonDisplay,
) -> None:
    """Find labels of a table that are probably wrong.

    Each row is predicted by logistic regression on frozen vectors of the other rows. Also found are
    rows with nearly the same text and different labels, and labels that may be misspelt.

    Args:
        data (FILE): Rows with labels, single texts.
        out (FILE): Output file: .tsv, .csv or .jsonl, with all rows, the least probable label
            first; rows that are the only one of their label last.
        report (FILE): Write an HTML page of suspect labels, conflicts and misspelt labels.
    """
    from ..analysis.label_check import check_labels as run
    from ..inference.prediction_files import write_predictions
    from ..reports.label_check import write_label_report

    check_present([data])
    with (
        output(report, [data], overwrite=overwrite, repeats=True),
        output(out, [data], overwrite=overwrite),
    ):
        check_page(report)
        result = run(model, data, device=device, **settings)
        if out is not None:
            write_predictions(out, result.predictions(), overwrite=overwrite)
        if report is not None:
            write_label_report(report, result, model=model, data=data)
    facts = {
        "rows": len(result.rows),
        "suspects": len(result.suspects),
        "conflicts": len(result.conflicts),
        "accuracy": result.accuracy,
    }
    display.json({**facts, "single labels": list(result.single_labels)})
    lines = [
        (row.number, row.label, row.predicted, row.label_probability, row.text)
        for row in result.suspects[:MAX_SUSPECTS]
    ]
    columns = ("row", "label", "predicted", "label's probability", "text")
    display.table(columns, lines, right=("row", "label's probability"), truncate="text")

    def more(count: int, noun: str) -> list[str]:
        where = "on the page of --report FILE" if report is None else f"in {report}"
        return [f"and {format_count(count, f'more {noun}')} {where}"] if count > 0 else []

    display.notes(more(len(result.suspects) - MAX_SUSPECTS, "suspect"))
    display.metrics(facts)
    display.notes(result.notes)
    display.notes(
        f"the label {name!r} ({count:,}) may be a misspelling of {other!r} ({other_count:,})"
        for name, count, other, other_count in result.misspellings
    )
    display.notes(
        "nearly the same text, different labels: "
        + ", ".join(
            f"row {row.number} {row.label!r}"
            for row in {row.label: row for row in reversed(group)}.values()
        )
        for group in result.conflicts[:MAX_CONFLICTS]
    )
    display.notes(more(len(result.conflicts) - MAX_CONFLICTS, "conflict"))
    display.notes(["Rows are counted from 1, without the line of column names."])
    display.facts({"rows written to": out, "report": report})


MAX_CONFLICTS = 5
"""Conflicts that are printed."""

MAX_SUSPECTS = 20
"""Suspect labels that are printed."""
