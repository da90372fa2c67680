"""Measure a model, any system's predictions, or a model's vectors: `evaluate`, `score`, `probe`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..settings import literals
from . import display
from .app import verb
from .devices import DeviceOption, WorkerOptions, load_model
from .options import (
    AsJson,
    DropUnlabelled,
    Header,
    LabelledTable,
    LoadOptions,
    ModelPath,
    Overwrite,
    SettingsFile,
    SettingsOption,
    Table,
    read_settings,
)
from .outputs import check_page, check_present, output
from .training_options import Dev, KeyValues, Model, Train

if TYPE_CHECKING:
    from ..tasks.evaluation import Evaluation

Report = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write an HTML report: confusions, calibration, worst mistakes."
    ),
]


@verb(
    "evaluate",
    "bertworks evaluate runs/tickets --data dev.tsv",
    "bertworks evaluate runs/tickets --data dev.tsv --report errors.html",
    "bertworks evaluate runs/tickets --data may.tsv --data june.tsv --workers 2",
    "bertworks evaluate runs/tiny --data prepared max_seq_length=512",
)
def evaluate(
    ctx: typer.Context,
    *,
    model: ModelPath,
    data: Annotated[
        list[str],
        typer.Option(
            metavar="FILE",
            help="Labelled rows; or the output of `prepare`, for a pre-trained model. May be "
            "repeated: each file is evaluated.",
        ),
    ],
    table: LabelledTable,
    report: Report = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
    worker_options: WorkerOptions,
    device: DeviceOption = "auto",
    load_options: LoadOptions,
    settings: SettingsOption,
) -> None:
    """Evaluate a model on labelled rows, or on held-out documents.

    A pre-trained model is evaluated on a prepared corpus, on the documents held out in training:
    documents=, sequences=, seed= and max_seq_length= are the run's if MODEL is a run; else give the
    values used in training (held_out.documents, held_out.seed or seed). 15 % of the tokens are
    predicted: 80 % of these are masked, 10 % replaced, 10 % unchanged.
    """
    if len(data) > 1 and report is not None:
        ctx.fail("--report needs a single --data FILE.")
    base = load_options.get("base")
    with output(report, data, model=model, base=base, overwrite=overwrite, repeats=True):
        check_page(report)
        measured = load_model(model, device, **load_options)
        evaluations = measured.evaluate_each(data, **worker_options, **(settings | table))
        if len(data) == 1:
            _show_evaluation(evaluations[0], model, data[0], report, json=json)
            return
    if json:
        for file, evaluation in zip(data, evaluations, strict=True):
            display.as_json({"data": file, **_facts(evaluation)})
        return
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
)
def score(
    task: Annotated[
        literals.ScoredTask,
        typer.Argument(
            metavar="TASK",
            help="answering, tagging, classification or regression.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str, typer.Option(metavar="FILE", help="Labelled rows; - reads TSV from standard input.")
    ],
    predictions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For answering: JSON with an answer for each id."),
    ] = None,
    no_answer_probs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="For answering: JSON with the no-answer probability for each id."
        ),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column of gold labels; detected if omitted."),
    ] = None,
    prediction_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column of predicted labels; detected if omitted."),
    ] = None,
    no_label: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help='Label of rows without a gold label; - and the like if omitted, "" if none.',
        ),
    ] = None,
    header: Header = None,
    drop_unlabelled: DropUnlabelled = False,
    report: Report = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Score the predictions of any system.

    The metrics are those of evaluate. answering: SQuAD JSON, version 1.1 or 2.0, and a JSON file
    of answers by id, as for the official scorers. tagging: CoNLL columns, the last two with gold
    and predicted tags. classification and regression: a table with both columns.
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
            header=header,
            drop_unlabelled=drop_unlabelled,
        )
        _show_evaluation(evaluation, str(predictions or data), data, report, json=json)


def _show_evaluation(
    evaluation: Evaluation, model: str, data: str, report: Path | None, *, json: bool
) -> None:
    """Print an evaluation, and write its report if a path is given."""
    if report is not None:
        from ..reports.report import write_evaluation_report

        write_evaluation_report(report, evaluation, model=model, data=data)
    if json:
        display.as_json(_facts(evaluation))
        return
    display.metrics({"rows": evaluation.rows, **evaluation.metrics})
    display.notes(evaluation.notes)
    display.facts(display.evaluation_facts(evaluation.breakdown, report))


def _facts(evaluation: Evaluation) -> dict[str, Any]:
    return {"rows": evaluation.rows, **evaluation.metrics, "notes": evaluation.notes}


@verb(
    "probe",
    "bertworks probe --model sentence-transformers/all-MiniLM-L6-v2 \\\n"
    "      --train train.tsv --dev dev.tsv pooling=cls layers=[-2]",
)
def probe(
    ctx: typer.Context,
    *,
    model: Model,
    train: Train,
    dev: Dev,
    settings: KeyValues = None,
    settings_file: SettingsFile = None,
    table: Table,
    json: AsJson = False,
    device: DeviceOption = "auto",
) -> None:
    """Classify texts by logistic regression on frozen vectors.

    Shows within seconds how well an encoder's vectors separate the classes.
    """
    from ..analysis.probing import probe as run

    probe_settings = read_settings(ctx, settings_file, settings or (), **table)
    check_present([train, dev])
    result = run(model, train=train, dev=dev, device=device, **probe_settings)
    if json:
        display.as_json({"width": result.width, **result.metrics})
    else:
        display.metrics({"width": result.width, **result.metrics})
